"""Rows of one segment, filled with as many sentences as fit."""

import numpy as np
import tensorflow as tf

from bert_jax.data import chunks as chunks_lib
from bert_jax.data import random_bits, segments

# Word of a row's stream of random words.
_FRONT = segments.NEXT_WORD


class DocSentences(segments.Segments):
    """[CLS] sentences [SEP]: as many sentences of one document as fit.

    RoBERTa's DOC-SENTENCES (Liu et al. 2019, 4.2). The paper makes batches larger where
    rows at the ends of documents are short; here they are padded, or packed.

    In packed rows a chunk takes sentences until it reaches its aim, L - 2 tokens or a
    shorter length drawn for all epochs. Tokens beyond L - 2 are dropped, a random
    number of them at the front and the rest at the back. Whole sentences would leave
    gaps that are too small for other rows.
    """

    _special_tokens = 2
    _min_pieces = 1
    _separator: int | None = None  # tokens between two documents in a row

    def _cut_into_chunks(self, pieces: chunks_lib.Pieces) -> np.ndarray:
        return chunks_lib.fill(pieces, self._target, self._separator)

    def _prepare(self, table, pieces, chunks):
        tokens, starts, stops = table.tokens, pieces.starts[:-1], pieces.starts[1:]
        if self._separator:
            # Insert a [SEP] behind each document, so that a row is one slice.
            document_ends = pieces.starts[pieces.of_document[1:]]
            tokens = np.insert(tokens, document_ends, self._tokenizer.sep_id)
            separators = pieces.documents(np.arange(len(starts)))
            starts, stops = starts + separators, stops + separators
        self._tokens = tf.constant(tokens)
        chunk_starts = starts[chunks[:-1]]
        self._start = tf.constant(chunk_starts)
        self._chunk_length = tf.constant(stops[chunks[1:] - 1] - chunk_starts)

    def __call__(self, chunk: tf.Tensor, key: tf.Tensor) -> dict[str, tf.Tensor]:
        """Make rows from chunks; see `Segments`."""
        start = tf.gather(self._start, chunk)
        tokens = tf.gather(self._chunk_length, chunk)
        if self.sizes is None:
            goal = self._draw_aims(key)
        else:
            goal = tf.constant(self._target, tf.int64)
            excess = tf.maximum(tokens - goal, 0)
            start += random_bits.below(random_bits.word(key, _FRONT), excess + 1)
        last = tf.minimum(tokens, goal)[:, None]
        column = tf.range(self._length, dtype=tf.int64)[None, :]
        source = start[:, None] + column - 1  # [B, L]
        source = tf.clip_by_value(source, 0, self._tokens.shape[0] - 1)
        ids = tf.cast(tf.gather(self._tokens, source), tf.int32)
        ids = tf.where(column == 0, self._tokenizer.cls_id, ids)
        ids = tf.where(column == last + 1, self._tokenizer.sep_id, ids)
        is_real = column <= last + 1
        ids = tf.where(is_real, ids, self._tokenizer.pad_id)
        return {"input_ids": ids, "attention_mask": is_real}


class FullSentences(DocSentences):
    """[CLS] sentences [SEP]: as many sentences as fit, across documents.

    RoBERTa's FULL-SENTENCES (Liu et al. 2019, 4.2): where a document ends, the next one
    follows, with a [SEP] between them. Documents keep the order of the shards.
    """

    _separator = 1
