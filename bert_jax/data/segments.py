"""From chunks of the corpus to rows of tokens, before anything is masked.

Each kind is a class, which makes rows from a group of shards: it cuts the documents
into chunks, and makes a row of a chunk and a key. What a row holds depends on these two
alone. `segment_pairs.py` and `single_segments.py` have the kinds.

Rows that are to be packed with others (`packing.py`) have sizes that are known before
anything is drawn. So, where each row would draw how many tokens it aims at, chunks of
these kinds are cut to aims that were drawn for all epochs.
"""

import dataclasses
from typing import Protocol

import numpy as np
import tensorflow as tf

from bert_jax.data import random_bits

# Words of a row's stream of random words; each kind continues from here.
_SHORT, _SHORT_LENGTH = 0, 1
NEXT_WORD = 2


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of tokens.

    Attributes:
      input_ids: int32 [B, L]; special tokens included, padded.
      attention_mask: bool [B, L]; true where there is no padding.
      segment_ids: int32 [B, L]; 1 in the second segment and its [SEP], else 0. None:
        there is one segment.
      labels: int32 [B]; what is asked about the two segments. None: nothing is.
      is_pair: bool [B]; whether there are two segments to ask about.
    """

    input_ids: tf.Tensor
    attention_mask: tf.Tensor
    segment_ids: tf.Tensor | None = None
    labels: tf.Tensor | None = None
    is_pair: tf.Tensor | None = None


class Segments(Protocol):
    """What batches ask of each kind.

    Attributes:
      min_documents: Number of documents without which no row can be made.
      chunk_documents: int64 [chunks], the document that each chunk begins in.
      sizes: int64 [chunks], tokens of the row that each chunk makes, at most, special
        tokens included; of kinds made with an `aim_key`, else None.
    """

    min_documents: int
    chunk_documents: np.ndarray
    sizes: np.ndarray | None

    def __call__(self, chunk: tf.Tensor, key: tf.Tensor) -> Rows:
        """Rows made from chunks.

        Args:
          chunk: int64 [B].
          key: uint64 [B]; key of the draws of each row.
        """


def aims(key: tf.Tensor, rate: float, target: int, count: int) -> np.ndarray:
    """Tokens that a chunk aims at which begins at each of `count` pieces: int64.

    Args:
      key: uint64; key of the draws.
      rate: Share of the chunks that aim at a random shorter length.
      target: Tokens that the others aim at.
      count: Number of pieces.
    """
    of_pieces = random_bits.word(key, tf.range(count, dtype=tf.int64))
    return short_goal(of_pieces, rate, target).numpy()


def short_goal(key: tf.Tensor, rate: float, target: int) -> tf.Tensor:
    """Tokens that each row aims at: `target`, or, at a rate, 2 to `target`."""
    return tf.where(
        random_bits.chance(random_bits.word(key, _SHORT), rate),
        2 + random_bits.below(random_bits.word(key, _SHORT_LENGTH), target - 1),
        target,
    )
