"""Dropout whose mask is a pure function of (key of the example, place, position).

Each example of a batch has its own 32-bit key, made from the run's seed, the step and
the example's row in the whole batch. So the mask of an example does not depend on how
the batch is spread over devices or cut into micro-batches, and gradient accumulation
equals the big batch with dropout on. No mask is ever stored: the backward pass makes it
again, in the same loop that uses it.

The bits come from an integer hash of the position (`_mix`: the two-multiplication
mixer with constants found by Wellons, "Prospecting for hash functions", 2018). JAX's
own generators would cost a tenth of a training step on a processor (docs/log.md), and
the fast one makes other bits when the mesh changes, as its documentation says.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt32

_GOLDEN = 0x9E3779B9


def example_keys(
    seed: int, step: Int[Array, ""], rows: Int[Array, " B"]
) -> UInt32[Array, " B"]:
    """Keys of examples.

    Args:
      seed: of the run.
      step: of the run.
      rows: index of each example in the batch over all devices and micro-batches.
    """
    key = _mix(jnp.uint32(seed % 2**32) + jnp.uint32(_GOLDEN))
    key = _mix(key + step.astype(jnp.uint32) * jnp.uint32(_GOLDEN))
    return _mix(key + rows.astype(jnp.uint32) * jnp.uint32(_GOLDEN))


def fold_in(
    keys: UInt32[Array, " B"] | None, place: int | Int[Array, ""]
) -> UInt32[Array, " B"] | None:
    """Keys for one place in the model: a layer, or a spot inside a layer."""
    if keys is None:
        return None
    return _mix(keys + (jnp.uint32(place) + jnp.uint32(1)) * jnp.uint32(_GOLDEN))


def dropout(
    x: Float[Array, "B ..."], rate: float, keys: UInt32[Array, " B"] | None
) -> Float[Array, "B ..."]:
    """Zero a fraction `rate` of the values and scale the others by 1 / (1 - rate).

    Args:
      x: fewer than 2**32 values for each example.
      rate: in [0, 1).
      keys: None for no dropout (the layers' `deterministic`).
    """
    if keys is None or rate == 0:
        return x
    return _dropout(x, keys, rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dropout(x, keys, rate):
    index = jnp.zeros((), jnp.uint32)
    for dim in range(1, x.ndim):
        index = index * jnp.uint32(x.shape[dim])
        index = index + lax.broadcasted_iota(jnp.uint32, x.shape, dim)
    keys = keys.reshape(-1, *[1] * (x.ndim - 1))
    bits = _mix(index * jnp.uint32(_GOLDEN) + keys)
    keep = bits >= jnp.uint32(math.floor(rate * 2**32))
    return jnp.where(keep, x * jnp.asarray(1 / (1 - rate), x.dtype), jnp.zeros_like(x))


def _dropout_forward(x, keys, rate):
    return _dropout(x, keys, rate), keys


def _dropout_backward(rate, keys, g):
    return _dropout(g, keys, rate), None


_dropout.defvjp(_dropout_forward, _dropout_backward)


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijection of 32-bit words in which each bit depends on every other."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
