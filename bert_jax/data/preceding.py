"""What stands before a row in its document, for encoders with memory."""

import tensorflow as tf

from bert_jax.data.segments import Segments


class Preceding:
    """The tokens before chunks, none of other documents, and no special ones.

    A row may begin later than its chunk: what was trimmed there is in neither.
    """

    def __init__(self, segments: Segments, *, size: int, pad_id: int):
        """Prepare what does not depend on the rows.

        Args:
          segments: What the rows are made by.
          size: Tokens before a row, at most.
          pad_id: What stands before the document.
        """
        self._tokens = segments.tokens
        self._start = tf.constant(segments.chunk_starts)
        self._before = tf.constant(segments.chunk_before)
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
