"""What stands before a row in its document, for encoders with memory."""

import numpy as np
import tensorflow as tf

from bert_jax.data import chunks as chunks_lib


class Preceding:
    """The tokens before chunks, none of other documents, and no special ones.

    A row may begin later than its chunk: what was trimmed there is in neither. Holds a
    second copy of the tokens: those of the segments may have separators among them.
    """

    def __init__(
        self,
        table: chunks_lib.TokenTable,
        chunk_starts: np.ndarray,
        chunk_documents: np.ndarray,
        *,
        size: int,
        pad_id: int,
    ):
        """Hold the tokens.

        Args:
          table: Documents of a group of shards.
          chunk_starts: int64 [chunks], the first token of each chunk.
          chunk_documents: int64 [chunks], the document that each begins in.
          size: Tokens before a row, at most.
          pad_id: What stands before the document.
        """
        document_starts = table.sentence_starts[table.document_sentences]
        self._tokens = tf.constant(table.tokens)
        self._start = tf.constant(chunk_starts)
        self._before = tf.constant(chunk_starts - document_starts[chunk_documents])
        self._size = size
        self._pad_id = pad_id

    def __call__(self, chunk: tf.Tensor) -> dict[str, tf.Tensor]:
        """The tokens before chunks.

        Args:
          chunk: int64 [B].

        Returns:
          memory_ids int32 [B, M] (the nearest last, padding first), memory_mask bool
          [B, M] (true where there is no padding).
        """
        back = tf.range(self._size, 0, -1, dtype=tf.int64)[None, :]
        mask = back <= tf.gather(self._before, chunk)[:, None]
        source = tf.maximum(tf.gather(self._start, chunk)[:, None] - back, 0)
        ids = tf.cast(tf.gather(self._tokens, source), tf.int32)
        return {"memory_ids": tf.where(mask, ids, self._pad_id), "memory_mask": mask}
