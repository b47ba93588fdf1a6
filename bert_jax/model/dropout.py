"""Dropout. No mask is ever stored: the backward pass makes it again.

The mask is a pure function of the row's key, the place and the position; see
`randomness.py`. It is made in the same loop that uses it.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from bert_jax.model import randomness


def dropout(
    x: Float[Array, "B ..."], rate: float, keys: UInt32[Array, "B ..."] | None
) -> Float[Array, "B ..."]:
    """Zero a fraction `rate` of the values and scale the others by 1 / (1 - rate).

    Args:
      x: Fewer than 2**32 values for each key.
      rate: Fraction in [0, 1).
      keys: Keys of the rows, or of parts of them, at this place; None for no dropout
        (the layers' `deterministic`).
    """
    if keys is None or rate == 0:
        return x
    return _dropout(x, keys, rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dropout(x, keys, rate):
    drop = randomness.chance(randomness.counters(keys, x.shape[keys.ndim :]), rate)
    return jnp.where(drop, jnp.zeros_like(x), x * jnp.asarray(1 / (1 - rate), x.dtype))


def _dropout_forward(x, keys, rate):
    return _dropout(x, keys, rate), keys


def _dropout_backward(rate, keys, g):
    return _dropout(g, keys, rate), None


_dropout.defvjp(_dropout_forward, _dropout_backward)
