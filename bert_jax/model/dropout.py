"""Dropout. No mask is ever stored: the backward pass makes it again.

The mask is a pure function of the row's key, the place and the position; see
`randomness.py`. It is made in the same loop that uses it.

One 32-bit word is enough for two positions of the last dimension, some way apart: as a
signed number for the one, and its lower 16 bits, shifted up, for the other. The rate of
the latter is `rate` rounded up to a multiple of 2**-16.

Words are counters that were stirred by shifts, sums and exclusive ors alone (`_stir`).
Not every TPU multiplies integers: v4 needs about fifteen bundles of instructions for
each product, and there the mixer of `randomness.bits` was most of what attention took
(docs/log.md). The kernels number their words once in a program; the plain path still
has a product or two for each position.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax.model import randomness

# Positions of a word are apart by a multiple of this, the height of a TPU's registers.
_STEP = 8


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
    drop = mask(keys, x.shape[keys.ndim :], rate)
    return jnp.where(drop, jnp.zeros_like(x), x * jnp.asarray(1 / (1 - rate), x.dtype))


def _dropout_forward(x, keys, rate):
    return _dropout(x, keys, rate), keys


def _dropout_backward(rate, keys, g):
    return _dropout(g, keys, rate), None


_dropout.defvjp(_dropout_forward, _dropout_backward)


def mask(
    keys: UInt32[Array, "..."], shape: tuple[int, ...], rate: float
) -> Bool[Array, "..."]:
    """What is dropped: true in an array of `shape` for each key, [*keys.shape, *shape].

    Each value makes its own word: on the way, that costs less than to bring two
    values together. The kernels, which have them at hand, make each word once.

    Args:
      keys: Keys of the rows, or of parts of them, at one place.
      shape: Shape of the array of one key.
      rate: Fraction in [0, 1).
    """
    full = (*keys.shape, *shape)
    size = words(shape[-1])
    index = jnp.zeros((), jnp.uint32)
    for dim in range(keys.ndim, len(full) - 1):
        index = index * jnp.uint32(full[dim])
        index = index + lax.broadcasted_iota(jnp.uint32, full, dim)
    column = lax.broadcasted_iota(jnp.uint32, full, len(full) - 1)
    is_second = column >= size
    index = index * jnp.uint32(size) + column
    index = index - jnp.where(is_second, jnp.uint32(size), jnp.uint32(0))
    keys = keys.reshape(*keys.shape, *[1] * len(shape))
    word = _stir(randomness.advance(keys, index))
    word = word << jnp.where(is_second, jnp.uint32(16), jnp.uint32(0))
    return _is_below(word, rate)


def words(positions: int) -> int:
    """Number of words for `positions` positions of the last dimension.

    Position c < words has the upper bits of word c, position words + c its lower ones.
    """
    return -(-positions // (2 * _STEP)) * _STEP


def of_parts(
    keys: UInt32[Array, " B"] | None, parts: Int[Array, "B ..."], size: int
) -> UInt32[Array, "B ..."] | None:
    """Keys of parts of the arrays of rows: each drops what it would as a part of all.

    Args:
      keys: Keys of the rows at one place; None for no randomness, which stays so.
      parts: Which rows of the last dimension; the first is 0.
      size: Positions in the last dimension.
    """
    if keys is None:
        return None
    keys = keys.reshape(-1, *[1] * (parts.ndim - 1))
    return randomness.advance(keys, parts.astype(jnp.uint32) * jnp.uint32(words(size)))


def pairs(
    counters: UInt32[Array, "..."], rate: float
) -> tuple[Bool[Array, "..."], Bool[Array, "..."]]:
    """What is dropped of the two positions of each word, for kernels."""
    word = _stir(counters)
    return _is_below(word, rate), _is_below(word << 16, rate)


def _is_below(word, rate):
    """Whether signed words are among the lowest, a share of `rate` of all numbers."""
    # Signed numbers, for not every chip compares unsigned ones in one instruction.
    return word.astype(jnp.int32) < jnp.int32(math.floor(rate * 2**32) - 2**31)


def _stir(x):
    """A bijection of 32-bit words, good enough for what `_is_below` asks of them.

    For counters that go up by `randomness.advance`, no correlation was found between
    drops at any distance of up to 2 million positions, nor between products of two
    neighbours and others, beyond what chance explains (docs/log.md has the search).
    """
    for down, up in ((6, 5), (3, 7), (13, 17)):
        x = x ^ (x >> down)
        x = x + (x << up)
    return x
