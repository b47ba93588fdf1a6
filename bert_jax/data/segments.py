"""Rows of tokens made from chunks of the corpus, before masking.

Each kind of segments is a class. It cuts the documents of a group of shards into
chunks, and makes a row from a chunk and a key. The row depends on these two alone.
The kinds with two segments are in `segment_pairs.py`.

Packing (`packing.py`) needs the size of each row before anything is drawn. In packed
rows, the target lengths of chunks are therefore drawn once, for all epochs.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards
from bert_jax.data import chunks as chunks_lib
from bert_jax.data import random_bits

# Indices that are folded into the key of a row, one for each random draw. Each kind of
# segments numbers its own from `NEXT_DRAW`.
_IS_SHORT_DRAW, _SHORT_LENGTH_DRAW = 0, 1
NEXT_DRAW = _FRONT_DRAW = 2


@dataclasses.dataclass(frozen=True)
class Segment:
    """Tokens `start` to `start + length - 1` of the table, for each row: int64 [B]."""

    start: tf.Tensor
    length: tf.Tensor


class Segments:
    """Base class of all kinds of segments.

    A kind cuts pieces into chunks, for rows that are not packed (`_cut_into_chunks`),
    and stores the arrays that it reads (`_prepare`). Called with chunks, int64 [B],
    and the keys of the rows' draws, uint64 [B], it makes rows: input_ids,
    attention_mask and, for two segments, segment_ids, as in `PretrainingBatches`; with
    a pair task also labels int32 [B], and is_pair bool [B], False where there is no
    second segment.

    Attributes:
      min_documents: Number of documents needed to make rows.
      chunk_documents: int64 [chunks], the document that each chunk begins in.
      sizes: int64 [chunks], largest number of tokens in the row of each chunk, special
        tokens included; None unless the rows are to be packed.
    """

    min_documents = 1
    # Special tokens that a row has room for, and smallest number of pieces in a chunk.
    _special_tokens: int
    _min_pieces: int
    _tokens: tf.Tensor  # of all documents, from `_prepare`

    def __init__(
        self,
        table: shards.TokenTable,
        *,
        length: int,
        short_sequence_rate: float,
        tokenizer: tokenizer_lib.Tokenizer,
        target_key: tf.Tensor | None = None,
    ):
        """Cut the documents of a group of shards into chunks.

        Rows have `length` tokens; a share of them, `short_sequence_rate`, has a random
        shorter target. `target_key`, for rows that are to be packed, is the uint64 key
        of the targets of all epochs; None: each row draws its own.
        """
        self._length = length
        self._max_tokens = length - self._special_tokens
        self._short_sequence_rate = short_sequence_rate
        self._tokenizer = tokenizer
        pieces = chunks_lib.cut_into_pieces(table, self._max_tokens, self._min_pieces)
        self.sizes = None
        if target_key is None:
            chunks = self._cut_into_chunks(pieces)
        else:
            index = tf.range(len(pieces.sentence_starts) - 1, dtype=tf.int64)
            targets = self._draw_targets(random_bits.fold_in(target_key, index)).numpy()
            chunks = chunks_lib.join_to_reach(pieces, targets, self._min_pieces)
            # Each segment has at least one token; B may come from another document.
            tokens = np.diff(pieces.sentence_starts[chunks])
            tokens = np.clip(tokens, self._min_pieces, self._max_tokens)
            self.sizes = tokens + self._special_tokens
        self.chunk_documents = pieces.documents(chunks[:-1])
        self._prepare(pieces, chunks)

    def _draw_targets(self, key: tf.Tensor) -> tf.Tensor:
        """Draw the target of each row in tokens: the maximum or, at a rate, fewer."""
        draw = random_bits.fold_in(key, _IS_SHORT_DRAW)
        is_short = random_bits.bernoulli(draw, self._short_sequence_rate)
        draw = random_bits.fold_in(key, _SHORT_LENGTH_DRAW)
        short = 2 + random_bits.randint(draw, self._max_tokens - 1)
        return tf.where(is_short, short, self._max_tokens)

    def _draw_takes_end(self, target: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Draw whether a row takes the end of its chunk instead of the beginning.

        Half of the rows with a short target do. As all targets are equally likely, a
        token's chance to be in a row does not depend on its place in the chunk, except
        that pairs take whole sentences, which favours long ones.
        """
        draw = random_bits.lower_half(random_bits.fold_in(key, _SHORT_LENGTH_DRAW))
        return (target < self._max_tokens) & random_bits.bernoulli(draw, 0.5)

    def _assemble(self, a: Segment, b: Segment | None = None) -> dict[str, tf.Tensor]:
        """Make rows [CLS] A [SEP], or [CLS] A [SEP] B [SEP]; B may be empty."""
        column = tf.range(self._length, dtype=tf.int64)[None, :]
        first_sep = last_sep = a.length[:, None] + 1  # [B, 1]
        source = a.start[:, None] + column - 1  # [B, L]
        if b is not None:
            b_length = b.length[:, None]
            last_sep = first_sep + b_length + tf.cast(b_length > 0, tf.int64)
            source_b = b.start[:, None] + column - first_sep - 1
            source = tf.where(column < first_sep, source, source_b)
        source = tf.clip_by_value(source, 0, self._tokens.shape[0] - 1)
        ids = tf.cast(tf.gather(self._tokens, source), tf.int32)
        ids = tf.where(column == 0, self._tokenizer.cls_id, ids)
        is_sep = (column == first_sep) | (column == last_sep)
        ids = tf.where(is_sep, self._tokenizer.sep_id, ids)
        is_real = column <= last_sep
        ids = tf.where(is_real, ids, self._tokenizer.pad_id)
        rows = {"input_ids": ids, "attention_mask": is_real}
        if b is not None:
            rows["segment_ids"] = tf.cast((column > first_sep) & is_real, tf.int32)
        return rows


# ---- one segment


class DocSentences(Segments):
    """[CLS] sentences [SEP]: as many sentences of one document as fit.

    RoBERTa's DOC-SENTENCES (Liu et al. 2019, 4.2). The paper makes batches larger where
    rows at the ends of documents are short; here they are padded, or packed. A row with
    a short target takes the beginning or the end of its chunk. The rest is in no row of
    the epoch.

    In packed rows a chunk takes sentences until it reaches its target, L - 2 tokens or
    a shorter length drawn for all epochs. Tokens beyond L - 2 are dropped, a random
    number of them at the front and the rest at the back. Whole sentences would leave
    gaps that are too small for other rows.
    """

    _special_tokens = 2
    _min_pieces = 1
    _crosses_documents = False

    def _cut_into_chunks(self, pieces: shards.TokenTable) -> np.ndarray:
        return chunks_lib.join_to_fit(
            pieces, self._max_tokens, across_documents=self._crosses_documents
        )

    def _prepare(self, pieces, chunks):
        tokens = pieces.tokens
        starts, stops = pieces.sentence_starts[:-1], pieces.sentence_starts[1:]
        if self._crosses_documents:
            # Insert a [SEP] after each document, so that a row is one slice.
            document_ends = stops[pieces.document_sentences[1:] - 1]
            tokens = np.insert(tokens, document_ends, self._tokenizer.sep_id)
            separators = pieces.documents(np.arange(len(starts)))
            starts, stops = starts + separators, stops + separators
        self._tokens = tf.constant(tokens)
        chunk_starts = starts[chunks[:-1]]
        self._start = tf.constant(chunk_starts)
        self._chunk_length = tf.constant(stops[chunks[1:] - 1] - chunk_starts)

    def __call__(self, chunk: tf.Tensor, key: tf.Tensor) -> dict[str, tf.Tensor]:
        start = tf.gather(self._start, chunk)
        tokens = tf.gather(self._chunk_length, chunk)
        if self.sizes is None:
            target = self._draw_targets(key)
            excess = tf.maximum(tokens - target, 0)
            start += tf.where(self._draw_takes_end(target, key), excess, 0)
        else:
            target = tf.constant(self._max_tokens, tf.int64)
            excess = tf.maximum(tokens - target, 0)
            start += random_bits.randint(
                random_bits.fold_in(key, _FRONT_DRAW), excess + 1
            )
        return self._assemble(Segment(start, tf.minimum(tokens, target)))


class FullSentences(DocSentences):
    """[CLS] sentences [SEP]: as many sentences as fit, across documents.

    RoBERTa's FULL-SENTENCES (Liu et al. 2019, 4.2): where a document ends, the next one
    follows, with a [SEP] between them. Documents keep the order of the shards. In
    fairseq (fairseq_cli/preprocess.py; token_block_utils_fast.pyx, "complete"), a </s>
    ends each line of the text, and an empty line between documents has another.
    """

    _crosses_documents = True

    def _assemble(self, a: Segment, b: Segment | None = None) -> dict[str, tf.Tensor]:
        """Make rows. Drop a [SEP] between documents if it is at an end of a row."""

        def separators(index: tf.Tensor) -> tf.Tensor:
            ids = tf.cast(tf.gather(self._tokens, index), tf.int32)
            return tf.cast(ids == self._tokenizer.sep_id, tf.int64)

        first, last = separators(a.start), separators(a.start + a.length - 1)
        return super()._assemble(Segment(a.start + first, a.length - first - last), b)
