"""Rows of one segment: as many sentences as there is room for."""

import numpy as np
import tensorflow as tf

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.data import chunks as chunks_lib
from bert_jax.data import random_bits, segments
from bert_jax.data.segments import NEXT_WORD, Rows, short_goal

# Word of a row's stream of random words.
_FRONT = NEXT_WORD


class DocSentences:
    """[CLS] sentences [SEP]: as many of one document as there is room for.

    RoBERTa's DOC-SENTENCES (Liu et al. 2019, 4.2). The paper makes batches larger where
    rows at the ends of documents are short; here they are padded, or packed.

    In packed rows a chunk takes sentences until it reaches what it aims at, L - 2
    tokens or a shorter length drawn for all epochs; tokens beyond L - 2 are dropped, a
    random number of them at the front and the rest at the back. Whole sentences would
    leave room that is too small for other rows.
    """

    min_documents = 1
    _separator: int | None = None

    def __init__(
        self,
        table: chunks_lib.TokenTable,
        *,
        length: int,
        short_sequence_rate: float,
        tokenizer: tokenizer_lib.Tokenizer,
        aim_key: tf.Tensor | None = None,
    ):
        """Cut the documents into chunks; arguments as for `Consecutive`."""
        target = length - 2
        pieces = chunks_lib.cut_into_pieces(table, target)
        self.sizes = None
        if aim_key is None:
            chunks = chunks_lib.fill(pieces, target, self._separator)
        else:
            count = len(pieces.starts) - 1
            aims = segments.aims(aim_key, short_sequence_rate, target, count)
            chunks = chunks_lib.reach(pieces, aims, least=1)
            tokens = chunks_lib.sizes(pieces, chunks)
            self.sizes = np.minimum(tokens, target) + 2
        self.chunk_documents = chunks.document
        self._length = length
        self._short_sequence_rate = short_sequence_rate
        self._tokenizer = tokenizer
        tokens, starts = table.tokens, pieces.starts
        stops = starts[1:]
        if self._separator:
            # All documents with a [SEP] behind each, so that a row is one stretch.
            document_ends = starts[pieces.of_document[1:]]
            tokens = np.insert(tokens, document_ends, tokenizer.sep_id)
            document = np.repeat(
                np.arange(len(document_ends)), np.diff(pieces.of_document)
            )
            starts, stops = starts[:-1] + document, stops + document
        self._tokens = tf.constant(tokens)
        chunk_starts = starts[chunks.first_piece]
        self._start = tf.constant(chunk_starts)
        self._chunk_length = tf.constant(stops[chunks.end_piece - 1] - chunk_starts)

    def __call__(self, chunk: tf.Tensor, key: tf.Tensor) -> Rows:
        """Rows made from chunks; see `Segments`."""
        start = tf.gather(self._start, chunk)
        tokens = tf.gather(self._chunk_length, chunk)
        target = self._length - 2
        if self.sizes is None:
            goal = short_goal(key, self._short_sequence_rate, target)
        else:
            goal = tf.constant(target, tf.int64)
            excess = tf.maximum(tokens - goal, 0)
            start += random_bits.below(random_bits.word(key, _FRONT), excess + 1)
        last = tf.minimum(tokens, goal)[:, None]
        column = tf.range(self._length, dtype=tf.int64)[None, :]
        source = start[:, None] + column - 1
        source = tf.clip_by_value(source, 0, self._tokens.shape[0] - 1)
        ids = tf.cast(tf.gather(self._tokens, source), tf.int32)
        ids = tf.where(column == 0, self._tokenizer.cls_id, ids)
        ids = tf.where(column == last + 1, self._tokenizer.sep_id, ids)
        is_real = column <= last + 1
        return Rows(tf.where(is_real, ids, self._tokenizer.pad_id), is_real)


class FullSentences(DocSentences):
    """[CLS] sentences [SEP]: as many as there is room for, across documents.

    RoBERTa's FULL-SENTENCES (Liu et al. 2019, 4.2): where a document ends, the next one
    follows, with a [SEP] between them. Documents follow one another as in the shards.
    """

    _separator = 1
