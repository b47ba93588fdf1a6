"""Dropout whose mask is recomputed in the backward pass, never stored.

The mask is a pure function of the row's key, the place in the model and the position
(`randomness.py`), computed in the loop that applies it.

One 32-bit word serves two positions of the last dimension: as a signed number for one,
and its lower 16 bits, shifted up, for the other. The second position's rate is `rate`
rounded up to a multiple of 2**-16.

Words are hashed counters. The hash (`_mix`) has shifts, sums and exclusive ors only,
because integer products are slow on some TPUs: on v4 each takes about fifteen bundles,
and the hash of `randomness.bits` dominated attention there (docs/log.md).
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax.model import randomness

# The two positions of a word are a multiple of this apart, the height of TPU registers.
_STEP = 8


def dropout(
    x: Float[Array, "B ..."], rate: float, keys: UInt32[Array, "B ..."] | None
) -> Float[Array, "B ..."]:
    """Zero a fraction `rate` of the values and scale the others by 1 / (1 - rate).

    Args:
      x: Fewer than 2**32 values for each key.
      rate: Fraction in [0, 1).
      keys: Keys of the rows, or of vectors in them, at this place; None for no dropout.
    """
    if keys is None or rate == 0:
        return x
    return _dropout(x, keys, rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dropout(x, keys, rate):
    drop = mask(keys, x.shape[keys.ndim :], rate)
    # Scaled in float32: bfloat16 would round 1 / 0.9 to 1.109375.
    scaled = x.astype(jnp.float32) * (1 / (1 - rate))
    return jnp.where(drop, 0.0, scaled).astype(x.dtype)


def _dropout_forward(x, keys, rate):
    return _dropout(x, keys, rate), keys


def _dropout_backward(rate, keys, g):
    return _dropout(g, keys, rate), None


_dropout.defvjp(_dropout_forward, _dropout_backward)


def mask(
    keys: UInt32[Array, "..."], shape: tuple[int, ...], rate: float
) -> Bool[Array, "..."]:
    """Return the dropout mask: True where dropped, [*keys.shape, *shape].

    Each key masks an array of shape `shape`. Each position computes its word itself,
    which is cheaper than sharing one between two distant positions. The kernels compute
    each word once.
    """
    full = (*keys.shape, *shape)
    size = num_words(shape[-1])
    index = randomness.flat_index(full, range(keys.ndim, len(full) - 1))
    column = lax.broadcasted_iota(jnp.uint32, full, len(full) - 1)
    is_second = column >= size
    index = index * jnp.uint32(size) + column
    index = index - jnp.where(is_second, jnp.uint32(size), jnp.uint32(0))
    keys = keys.reshape(*keys.shape, *[1] * len(shape))
    word = _mix(randomness.advance(keys, index))
    word = word << jnp.where(is_second, jnp.uint32(16), jnp.uint32(0))
    return _is_below(word, rate)


def num_words(positions: int) -> int:
    """Return the number of words for `positions` positions of the last dimension.

    With n words, position c < n takes the upper bits of word c, and position n + c its
    lower bits.
    """
    return -(-positions // (2 * _STEP)) * _STEP


def keys_at(
    keys: UInt32[Array, " B"] | None, index: Int[Array, "B ..."] | None, size: int
) -> UInt32[Array, "B ..."] | None:
    """Derive keys for some vectors of each row that draw the mask of the full row.

    Args:
      keys: Keys of the rows at one place; None for no dropout, which stays None.
      index: Index of each vector among the vectors of its row. None: all vectors, for
        which the keys of the rows serve.
      size: Positions in a vector, the last dimension.
    """
    if keys is None or index is None:
        return keys
    keys = keys.reshape(-1, *[1] * (index.ndim - 1))
    return randomness.advance(
        keys, index.astype(jnp.uint32) * jnp.uint32(num_words(size))
    )


def mask_pairs(
    counters: UInt32[Array, "..."], rate: float
) -> tuple[Bool[Array, "..."], Bool[Array, "..."]]:
    """Return the dropout masks of the first and of the second position of each word."""
    word = _mix(counters)
    return _is_below(word, rate), _is_below(word << 16, rate)


def _is_below(word, rate):
    """Return True for words that, as signed numbers, are in the lowest part `rate`."""
    # Signed, because some chips need several instructions to compare unsigned numbers.
    return word.astype(jnp.int32) < jnp.int32(math.floor(rate * 2**32) - 2**31)


def _mix(x):
    """Hash 32-bit words, by a bijection that is random enough for `_is_below`.

    For counters that increase by `randomness.advance`, no correlation beyond chance was
    found between drops at any distance up to 2 million positions, nor between products
    of two neighbours (docs/log.md).
    """
    for down, up in ((6, 5), (3, 7), (13, 17)):
        x = x ^ (x >> down)
        x = x + (x << up)
    return x
