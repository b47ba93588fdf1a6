"""Which corpus each row of a run is made from, where there are several.

The positions of a run are cut into blocks. In each block a corpus has the same number
of rows, by its weight (`corpus/mixture.py`), and they stand in random order. So the
shares are exact in the long run, and a position says at once which row of which corpus
it is: nothing is counted on the way.
"""

import numpy as np
import tensorflow as tf

from bert_jax.corpus.mixture import BLOCK
from bert_jax.data import counter


class Mixing:
    """The rows of several corpora in one order."""

    def __init__(self, counts: np.ndarray, key: tf.Tensor):
        """Prepare what does not depend on the rows.

        Args:
          counts: int64 [corpora]; rows of each in a block, in sum `BLOCK`.
          key: uint64; key of the orders of the blocks.
        """
        self._counts = tf.constant(counts)
        self._ends = tf.constant(np.cumsum(counts))
        self._key = key

    def at(self, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """What stands at positions of the run.

        A corpus with n rows in a block has its rows n b to n b + n - 1 in block b.

        Args:
          position: int64 [B].

        Returns:
          int64 [B] twice: the corpus, and the position among the rows of this corpus.
        """
        block, place = position // BLOCK, position % BLOCK
        place = counter.permute(place, BLOCK, counter.word(self._key, block))
        corpus = tf.searchsorted(self._ends, place, side="right", out_type=tf.int64)
        count = tf.gather(self._counts, corpus)
        begin = tf.gather(self._ends, corpus) - count
        return corpus, block * count + place - begin
