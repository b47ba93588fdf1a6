"""In which order the rows of batches take what they are made from.

Row *r* of batch *s* of a phase has the position `s * batch_size + r`, behind those of
all earlier phases of its length. A position is an index in an epoch: all indices come
once an epoch, each epoch in another order. So a phase that is cut in two, or into
several with growing batches, sees the same rows in the same order. The order is a keyed
permutation, so a run can begin at any step, and a process can make any rows, at no
cost. Where there are several corpora, each has an order of its own, and `mixing.py`
says which position of which order a position of the run is.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_jax.data import random_bits


class Items(NamedTuple):
    """The items that the rows of a batch are made from.

    Attributes:
      epoch: int64 [B]; how many times each item came before.
      index: int64 [B]; which item it is.
      is_real: bool [B]; false where a row only fills up the last held-out batch.
    """

    epoch: tf.Tensor
    index: tf.Tensor
    is_real: tf.Tensor


def positions(step: tf.Tensor, batch_size: int, rows: np.ndarray) -> tf.Tensor:
    """Return the positions in a phase of some rows of a batch: int64 [rows].

    Args:
      step: int64 []; number of the batch.
      batch_size: Rows of a batch over all processes.
      rows: int64 [rows]; the rows of each batch that this process makes.
    """
    return step * batch_size + tf.constant(rows, tf.int64)


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of `count` items.

    Attributes:
      count: Number of items.
      key: Key of the permutations, uint64; None for the items as they stand.
      once: Whether all items come once, for evaluation; the last batch is filled up.
    """

    count: int
    key: tf.Tensor | None
    once: bool

    def num_batches(self, batch_size: int) -> int:
        """Batches in an epoch, the last one filled up."""
        return -(-self.count // batch_size)

    def at(self, position: tf.Tensor) -> Items:
        """The items at positions in the order, int64 [...]."""
        is_real = tf.ones_like(position, tf.bool)
        if self.once:
            is_real = position < self.count
            position = tf.minimum(position, self.count - 1)
        epoch, index = position // self.count, position % self.count
        if self.key is not None:
            of_epoch = random_bits.word(self.key, epoch)
            index = random_bits.permute(index, self.count, of_epoch)
        return Items(epoch, index, is_real)
