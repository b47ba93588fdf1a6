"""Random numbers and orders as pure functions of a key and an index.

A generator with state would tie batches to the order in which threads ask for them;
here every draw has an address. All of it is integer arithmetic modulo 2**64, so that
any implementation agrees to the bit. The mixing function is that of SplitMix64
(Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators).
"""

import math

import tensorflow as tf

_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 6


def word(key: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """The `index`-th random word of the stream `key`; also the key of a substream.

    Args:
      key: uint64 [...].
      index: any integer type, broadcast against `key`.

    Returns:
      uint64, uniform over all 64-bit words.
    """
    z = key + (tf.cast(index, tf.uint64) + 1) * _uint64(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _uint64(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _uint64(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def stream(*path: int) -> tf.Tensor:
    """The key at a path of indices from the root, such as (seed, split, phase)."""
    key = _uint64(0)
    for index in path:
        key = word(key, index)
    return key


def below(random: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
    """A word brought to an integer in [0, bound).

    Args:
      random: uint64, from `word`; its upper half is used.
      bound: positive, less than 2**32, any integer type.

    Returns:
      int64. The probabilities differ by less than bound / 2**32 of each other.
    """
    product = _shift(random, 32) * tf.cast(bound, tf.uint64)
    return tf.cast(_shift(product, 32), tf.int64)


def chance(random: tf.Tensor, probability: float) -> tf.Tensor:
    """A word brought to a bool that is true with the given probability."""
    return _shift(random, 32) < _uint64(math.floor(probability * 2**32))


def fraction(random: tf.Tensor) -> tf.Tensor:
    """A word brought to a float64 in [0, 1)."""
    return tf.cast(_shift(random, 32), tf.float64) / 2.0**32


def lower_half(random: tf.Tensor) -> tf.Tensor:
    """The half that `below` and `chance` do not use, moved to where they look."""
    return tf.bitwise.left_shift(random, _uint64(32))


def permute(index: tf.Tensor, size: int, key: tf.Tensor) -> tf.Tensor:
    """Where `index` goes in a permutation of [0, size) that the key chooses.

    A Feistel network over pairs (left, right) of a rectangle that is barely larger than
    `size`; results outside go through again until they are inside (Black and Rogaway
    2002, Ciphers with arbitrary finite domains). So the order of an epoch needs no
    memory and any element of it costs the same.

    Args:
      index: int64 [...], in [0, size).
      size: less than 2**62.
      key: uint64, broadcast against `index`.
    """
    height = math.isqrt(size - 1) + 1
    width = -(-size // height)

    def once(x):
        left, right = x // width, x % width
        for i in range(_ROUNDS):
            round_key = word(key, i)
            if i % 2 == 0:
                left = (left + below(word(round_key, right), height)) % height
            else:
                right = (right + below(word(round_key, left), width)) % width
        return left * width + right

    return tf.while_loop(
        lambda x: tf.reduce_any(x >= size),
        lambda x: (tf.where(x >= size, once(x), x),),
        (once(index),),
    )[0]


def _uint64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)


def _shift(value: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(value, _uint64(bits))
