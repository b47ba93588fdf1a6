"""The order in which batches visit their items.

Row *r* of batch *s* of a phase has the position `s * batch_size + r`, after the
positions of all earlier phases of its length. So a phase that is split into several,
with growing batches, sees the same rows in the same order. A position determines an
epoch and an index. Each epoch visits all indices once, in the order of a keyed
permutation. So a run can begin at any step, and a process can make its rows alone.
With several corpora, each has an order of its own, and `mixing.py` maps positions of
the run to positions in these orders.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from bert_jax.data import random_bits


class Selection(NamedTuple):
    """Items at some positions of an order, such as the chunks of a batch of rows."""

    epoch: tf.Tensor  # int64 [B]; number of earlier epochs
    index: tf.Tensor  # int64 [B]; index of the item
    is_real: tf.Tensor  # bool [B]; False for rows that fill up the last held-out batch


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of `count` items."""

    count: int
    key: tf.Tensor | None  # uint64, of the permutations; None: items stay in place
    once: bool  # whether there is one epoch only, for evaluation

    def num_batches(self, batch_size: int) -> int:
        """Return the number of batches in an epoch, the last one filled up."""
        return -(-self.count // batch_size)

    def at(self, position: tf.Tensor) -> Selection:
        """Return the items at positions in the order, int64 [...]."""
        is_real = tf.ones_like(position, tf.bool)
        if self.once:
            is_real = position < self.count
            position = tf.minimum(position, self.count - 1)
        epoch, index = position // self.count, position % self.count
        if self.key is not None:
            epoch_key = random_bits.fold_in(self.key, epoch)
            index = random_bits.permute(index, self.count, epoch_key)
        return Selection(epoch, index, is_real)
