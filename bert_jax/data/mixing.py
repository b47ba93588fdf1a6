"""The mixture of several corpora: a corpus for each row of a run.

The positions of a run are cut into blocks, and blocks into rounds. A corpus has the
same number of rows in each block, by its weight (`corpus/mixture.py`). The rows of a
block, sorted by corpus, are dealt to its rounds in turn, so that a round has the
share of each corpus, rounded up or down. Rounds are in random order, and so are the
rows of a round.

So each corpus is read in its order, except that its rows in a round are shuffled. A
position determines the row of a corpus without counting the rows before its block.

A phase with other weights begins new blocks, mostly in the middle of a block of the
phase before. The new phase first takes the remaining rows of that block. So no chunk is
left out, and none comes twice.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_jax.corpus.mixture import BLOCK
from bert_jax.data import random_bits

# Rows in a round.
ROUND = 2**8


class Leftover(NamedTuple):
    """Rows of each corpus that earlier phases have not taken."""

    rows: list[np.ndarray]  # int64 [rows] each; to take first, in this order
    next_row: list[int]  # first row to take after these


class MixtureOrder:
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
        self._begins = self._ends - counts
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

        Positions, ascending int64 [B], count from the first phase with these weights.

        Returns:
          int64 [B] twice: the corpus, and the position in the order of this corpus.
        """
        block = position // BLOCK
        blocks = tf.range(block[0], block[-1] + 1)
        offsets, before = self._rounds(blocks)
        at = tf.stack([block - block[0], position % BLOCK // ROUND], axis=1)
        offset = tf.gather_nd(offsets, at)  # [B]
        key = random_bits.fold_in(self._key, block, at[:, 1])
        slot = random_bits.permute(position % ROUND, ROUND, key)
        num_rounds = BLOCK // ROUND
        place = slot * num_rounds + offset  # among the sorted rows of the block
        corpus = tf.searchsorted(self._ends, place, side="right", out_type=tf.int64)
        first_slot = -((offset - tf.gather(self._begins, corpus)) // num_rounds)
        row = block * tf.gather(self.counts, corpus) + slot - first_slot
        row += tf.gather_nd(before, tf.concat([at, corpus[:, None]], axis=1))
        size = tf.gather(self._sizes, corpus)
        left = tf.gather(self._before, corpus) + tf.minimum(row, size)
        new = tf.gather(self._next_row, corpus) + row - size
        return corpus, tf.where(row < size, tf.gather(self._left, left), new)

    def _rounds(self, blocks: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the offset of each round of some blocks, and the rows before it.

        With R rounds, the round with offset h has the places h, h + R, h + 2R, ... of
        the sorted rows.

        Args:
          blocks: int64 [N].

        Returns:
          int64 [N, R], the offsets; and int64 [N, R, corpora], the number of rows of
          each corpus in earlier rounds of the block.
        """
        num_rounds = BLOCK // ROUND
        index = tf.zeros_like(blocks)[:, None] + tf.range(num_rounds, dtype=tf.int64)
        key = random_bits.fold_in(self._key, blocks, num_rounds)[:, None]
        offsets = random_bits.permute(index, num_rounds, key)  # [N, R]
        begins, ends = (
            -((offsets[..., None] - limits) // num_rounds)  # first slot at or after
            for limits in (self._begins, self._ends)
        )
        return offsets, tf.cumsum(ends - begins, axis=1, exclusive=True)

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
