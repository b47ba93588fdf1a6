"""The mixture of several corpora: a corpus for each row of a run.

The positions of a run are cut into blocks. A corpus has the same number of rows in each
block, by its weight (`corpus/mixture.py`), in random order. So shares are exact in the
long run, and a position determines the row of a corpus without counting earlier rows.

A phase with other weights begins new blocks, mostly in the middle of a block of the
phase before. The new phase first takes the remaining rows of that block. So no chunk is
left out, and none comes twice.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_jax.corpus.mixture import BLOCK
from bert_jax.data import random_bits


class Leftover(NamedTuple):
    """Rows of each corpus that earlier phases have not taken."""

    rows: list[np.ndarray]  # int64 [rows] each; to take first, in this order
    next_row: list[int]  # first row to take after these


class Mixing:
    """Order of the rows of several corpora."""

    def __init__(self, counts: np.ndarray, key: tf.Tensor, leftover: Leftover | None):
        """Prepare what does not depend on the rows.

        Args:
          counts: int64 [corpora]; rows of each in a block, in sum `BLOCK`.
          key: uint64; key of the orders of the blocks.
          leftover: Rows that earlier phases have left; None: all rows.
        """
        self.counts = counts
        self._ends = tf.constant(np.cumsum(counts))
        self._key = key
        empty = np.zeros(0, np.int64)
        leftover = leftover or Leftover([empty] * len(counts), [0] * len(counts))
        self._leftover = leftover
        # One more element, because an empty array cannot be gathered from.
        self._left = tf.constant(np.concatenate([*leftover.rows, [0]]))
        sizes = np.array([len(rows) for rows in leftover.rows])
        self._sizes = tf.constant(sizes)
        self._before = tf.constant(np.cumsum(sizes) - sizes)
        self._next_row = tf.constant(leftover.next_row, tf.int64)

    def at(self, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the corpus at each position, and the row of this corpus.

        Block b has rows n b to n b + n - 1 of a corpus with n rows in a block. Row 0 is
        the first row that earlier phases have left.

        The position, int64 [B], is counted from the first phase with these weights.

        Returns:
          int64 [B] twice: the corpus, and the position in the order of this corpus.
        """
        block, place = position // BLOCK, position % BLOCK
        place = random_bits.permute(place, BLOCK, random_bits.fold_in(self._key, block))
        corpus = tf.searchsorted(self._ends, place, side="right", out_type=tf.int64)
        count = tf.gather(self.counts, corpus)
        row = block * count + place - (tf.gather(self._ends, corpus) - count)
        size = tf.gather(self._sizes, corpus)
        left = tf.gather(self._before, corpus) + tf.minimum(row, size)
        new = tf.gather(self._next_row, corpus) + row - size
        return corpus, tf.where(row < size, tf.gather(self._left, left), new)

    def leftover(self, position: int) -> Leftover:
        """Return the rows that are left when all positions before this are taken."""
        end = (position // BLOCK + 1) * BLOCK
        corpus, row = (
            x.numpy() for x in self.at(tf.range(position, end, dtype=tf.int64))
        )
        rows, next_row = [], []
        for i, (old, first) in enumerate(zip(*self._leftover, strict=True)):
            taken = end // BLOCK * int(self.counts[i])
            rows.append(np.concatenate([row[corpus == i], old[taken:]]))
            next_row.append(first + max(taken - len(old), 0))
        return Leftover(rows, next_row)
