"""Random numbers and orders as pure functions of a key and an index.

A generator with state would tie batches to the order in which threads call it. Here
each draw has an address instead. All of it is integer arithmetic modulo 2**64, so any
implementation agrees to the bit. The mixing function is SplitMix64's (Steele, Lea and
Flood 2014, Fast splittable pseudorandom number generators).
"""

import enum
import math

import numpy as np
import tensorflow as tf

_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 6


class Purpose(enum.IntEnum):
    """Index that is folded into the key, by purpose of the draw, in pretraining."""

    ORDER = 0
    SEGMENTS = 1
    MASK_POSITIONS = 2
    REPLACEMENTS = 3
    NGRAMS = 4
    MASK_COUNT = 5
    CHUNK_TARGETS = 6
    PACKING = 7
    TARGET_SPANS = 8
    RANKS = 9
    MIXING = 10


def key(*path: int) -> tf.Tensor:
    """Return the key at a path of indices, such as (seed, split, phase)."""
    return fold_in(_uint64(0), *path)


def fold_in(key: tf.Tensor, *indices: tf.Tensor) -> tf.Tensor:
    """Fold indices into a key, one by one. The result is random bits, or another key.

    The key is uint64 [...]. The indices, of any integer type, are broadcast against it.
    The bits are uniform over all uint64.
    """
    for index in indices:
        index = tf.cast(index, tf.uint64)
        shape = tf.broadcast_static_shape(key.shape, index.shape)
        key = _mix(key, index)
        key.set_shape(shape)
    return key


# A function of its own, as `_permute` is, so that each use is one operation of a graph:
# graphs of batches are built in half the time.
@tf.function(input_signature=[tf.TensorSpec(None, tf.uint64)] * 2, autograph=False)
def _mix(key: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Fold an index into a key, both uint64."""
    z = key + (index + 1) * _uint64(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _uint64(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _uint64(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def randint(bits: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
    """Map random bits to integers in [0, bound).

    Only the upper 32 bits are used. The bound is positive, below 2**32, and of any
    integer type.

    Returns:
      int64. Probabilities differ by a factor of less than 1 + bound / 2**32.
    """
    product = _shift(bits, 32) * tf.cast(bound, tf.uint64)
    return tf.cast(_shift(product, 32), tf.int64)


def bernoulli(bits: tf.Tensor, probability: float) -> tf.Tensor:
    """Map random bits to bools that are True with a probability."""
    return _shift(bits, 32) < _uint64(math.floor(probability * 2**32))


def uniform(bits: tf.Tensor) -> tf.Tensor:
    """Map random bits to float64 in [0, 1)."""
    return tf.cast(_shift(bits, 32), tf.float64) / 2.0**32


def lower_half(bits: tf.Tensor) -> tf.Tensor:
    """Move the lower 32 bits, which `randint` and others ignore, to the upper half."""
    return tf.bitwise.left_shift(bits, _uint64(32))


def harmonic(bits: tf.Tensor, limit: tf.Tensor, maximum: int) -> tf.Tensor:
    """Map random bits to integers n in [1, limit], with weights 1 / n.

    The limit is int32 or int64 in [1, maximum], broadcast against the bits. The result
    has its type.
    """
    totals = np.cumsum([1 / n for n in range(1, maximum + 1)])
    reached = uniform(bits) * tf.gather(tf.constant(totals), limit - 1)
    size = tf.ones_like(reached, limit.dtype)
    for total in totals[:-1]:
        size += tf.cast(reached >= total, limit.dtype)
    return size


def column_ranks(key: tf.Tensor, length: int) -> tf.Tensor:
    """Return distinct random ranks of the columns of rows: int64 [B, L], at least 0."""
    column_bits = (length - 1).bit_length()
    column = tf.range(length, dtype=tf.int64)[None, :]
    bits = _shift(fold_in(key[:, None], column), column_bits + 1)
    # The lowest bits are the column, so that no two ranks are equal.
    return tf.cast(bits, tf.int64) * 2**column_bits + column


def permute(index: tf.Tensor, size: int, key: tf.Tensor) -> tf.Tensor:
    """Return the position of `index` under the keyed permutation of [0, size).

    A Feistel network over pairs (left, right) of a rectangle barely larger than `size`.
    Results outside of [0, size) are permuted again until they are inside (Black and
    Rogaway 2002, Ciphers with arbitrary finite domains). So the order of an epoch needs
    no memory, and each element costs the same.

    Args:
      index: int64 [...], in [0, size).
      size: less than 2**62.
      key: uint64, broadcast against `index`.
    """
    height = math.isqrt(size - 1) + 1
    permuted = _permute(index, height, -(-size // height), size, key)
    permuted.set_shape(index.shape)
    return permuted


@tf.function(
    input_signature=[tf.TensorSpec(None, tf.int64)] * 4
    + [tf.TensorSpec(None, tf.uint64)],
    autograph=False,
)
def _permute(index, height, width, size, key) -> tf.Tensor:
    """Permute [0, size), within a rectangle of `height` times `width` elements."""
    round_keys = [fold_in(key, i) for i in range(_ROUNDS)]

    def permute_outside(x, is_outside):
        left, right = x // width, x % width
        for i, key in enumerate(round_keys):
            if i % 2 == 0:
                left = (left + randint(fold_in(key, right), height)) % height
            else:
                right = (right + randint(fold_in(key, left), width)) % width
        x = tf.where(is_outside, left * width + right, x)
        return x, x >= size

    # Each index is permuted once at least.
    return tf.while_loop(
        lambda _, is_outside: tf.reduce_any(is_outside),
        permute_outside,
        (index, tf.ones_like(index, tf.bool)),
    )[0]


def _uint64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)


def _shift(value: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(value, _uint64(bits))
