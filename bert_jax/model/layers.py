"""Layers that the parts of the model are made of: linear, layer norm, activation."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.model import products


class Linear(nn.Module):
    """A product with a kernel, and a bias if wanted.

    Attributes:
      inputs: Names of the trailing dimensions of the input that are contracted.
      outputs: Names and sizes of the dimensions that take their place.
      dtype: Type of the factors.
      stddev: Standard deviation of the kernel's initial values, truncated at two of
        them.
      result_dtype: Type of the result; "": that of the factors.
      has_bias: Whether there is a bias.
      adds_bias: Whether to add it; otherwise whoever takes the result has to.
    """

    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, int], ...]
    dtype: str
    stddev: float
    result_dtype: str = ""
    has_bias: bool = True
    adds_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."] | products.Biased:
        """Contract the last `len(inputs)` dimensions of `x`.

        What the bias is still to be added to is float32.
        """
        split = x.ndim - len(self.inputs)
        rows, contracted = x.shape[:split], x.shape[split:]
        names = tuple(name for name, _ in self.outputs)
        sizes = tuple(size for _, size in self.outputs)
        kernel_init = nn.with_logical_partitioning(
            initializer(self.stddev), (*self.inputs, *names)
        )
        bias_init = nn.with_logical_partitioning(nn.initializers.zeros, names)
        kernel = self.param("kernel", kernel_init, (*contracted, *sizes))
        bias = jnp.zeros(sizes)
        if self.has_bias:
            bias = self.param("bias", bias_init, sizes)
        y = products.linear(
            x.reshape(math.prod(rows), math.prod(contracted)),
            kernel.reshape(math.prod(contracted), math.prod(sizes)),
            jnp.dtype(self.dtype),
        )
        y = products.Biased(y.reshape(*rows, *sizes), bias)
        if not self.adds_bias:
            return y
        return y.total().astype(self.result_dtype or self.dtype)


class LayerNorm(nn.Module):
    """Layer normalisation over the last dimension, in float32 inside.

    The variance is the mean of squared differences, not the difference of means, which
    loses all digits when the mean is large.
    """

    epsilon: float
    dtype: str

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Normalise `x`, of any float type, to `dtype`."""
        scale, bias = scale_and_bias(self, x.shape[-1])
        return normalise(x, scale, bias, self.epsilon).astype(self.dtype)


def scale_and_bias(
    module: nn.Module, size: int
) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
    """The parameters of a module that normalises `size` columns."""
    ones = nn.with_logical_partitioning(nn.initializers.ones, ("hidden",))
    zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("hidden",))
    return module.param("scale", ones, (size,)), module.param("bias", zeros, (size,))


def normalise(
    x: Float[Array, "*rows D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"],
    epsilon: float,
) -> Float[Array, "*rows D"]:
    """Layer normalisation in float32; see `LayerNorm`."""
    x = x.astype(jnp.float32)
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt(variance + epsilon) * scale + bias


def activate(x: Float[Array, "*rows F"], name: str) -> Float[Array, "*rows F"]:
    """GELU, by its tanh approximation ("gelu_tanh") or exact ("gelu_erf").

    google-research/bert computes the approximation; Hugging Face's "gelu" is exact.
    Computed in float32, and again in the backward pass instead of being stored.
    """
    return _gelu(x, name == "gelu_tanh")


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gelu(x, approximate):
    x32 = x.astype(jnp.float32)
    y = x32 * _gate(x32) if approximate else jax.nn.gelu(x32, approximate=False)
    return y.astype(x.dtype)


def _gelu_forward(x, approximate):
    return _gelu(x, approximate), x


def _gelu_backward(approximate, x, g):
    x32, g32 = x.astype(jnp.float32), g.astype(jnp.float32)
    if approximate:
        dx = g32 * _approximate_slope(x32)
    else:
        _, pullback = jax.vjp(lambda x: jax.nn.gelu(x, approximate=False), x32)
        (dx,) = pullback(g32)
    return (dx.astype(x.dtype),)


_gelu.defvjp(_gelu_forward, _gelu_backward)

# The approximation is x (1 + tanh u) / 2 with u = x (_LINEAR + _CUBIC x^2).
_LINEAR = math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def _gate(x):
    """(1 + tanh u) / 2."""
    return 0.5 + 0.5 * jnp.tanh(x * (_LINEAR + _CUBIC * (x * x)))


def _approximate_slope(x):
    """The derivative, in fourteen operations.

    Differentiating by rules makes two dozen. They run beside a product, and where a
    chip does few of them in a cycle (TPU v4), they take longer. Of the gate h, the
    derivative is 2 u' h (1 - h).
    """
    gate = _gate(x)
    twice_du = 2 * _LINEAR + 6 * _CUBIC * (x * x)
    return gate * (1 + x * twice_du * (1 - gate))


def initializer(stddev: float) -> nn.initializers.Initializer:
    """A normal distribution cut off at two standard deviations, as TensorFlow's."""
    return nn.initializers.truncated_normal(stddev)
