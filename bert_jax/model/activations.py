"""Activation functions, recomputed in the backward pass instead of stored."""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def activate(x: Float[Array, "*rows F"], name: str) -> Float[Array, "*rows F"]:
    """Apply an activation function in float32, and return the type of `x`.

    "gelu_tanh" is google-research/bert's approximation of GELU, "gelu_erf" the exact
    function, which Hugging Face calls "gelu", and "silu" is x sigmoid(x). Only poolers
    have "tanh" and "relu".
    """
    return FUNCTIONS[name](x.astype(jnp.float32)).astype(x.dtype)


def _forward(x, name):
    return activate(x, name), x


def _backward(name, x, g):
    # Without a barrier, XLA for GPUs stores float32 gates of the forward pass instead.
    x = lax.platform_dependent(x, cuda=lax.optimization_barrier, default=lambda x: x)
    x32, g32 = x.astype(jnp.float32), g.astype(jnp.float32)
    if name == "gelu_tanh":
        dx = g32 * _tanh_slope(x32)
    else:
        _, pullback = jax.vjp(FUNCTIONS[name], x32)
        (dx,) = pullback(g32)
    return (dx.astype(x.dtype),)


activate.defvjp(_forward, _backward)

# Functions of float32 arrays.
FUNCTIONS = {
    "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": lambda x: x * _tanh_gate(x),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
}

# The approximation is x (1 + tanh u) / 2 with u = x (_LINEAR + _CUBIC x^2).
_LINEAR = math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def _tanh_gate(x):
    """Return (1 + tanh u) / 2."""
    return 0.5 + 0.5 * jnp.tanh(x * (_LINEAR + _CUBIC * (x * x)))


def _tanh_slope(x):
    """Return the derivative of the tanh approximation, in fourteen operations.

    Automatic differentiation needs two dozen, which take longer than the product that
    they overlap with on chips with few vector operations per cycle (TPU v4). With the
    gate h, the derivative is h + x 2 u' h (1 - h).
    """
    gate = _tanh_gate(x)
    twice_du = 2 * _LINEAR + 6 * _CUBIC * (x * x)
    return gate * (1 + x * twice_du * (1 - gate))
