"""Rows of two segments, for next sentence, sentence order, or no pair task."""

import numpy as np
import tensorflow as tf

from bert_jax.corpus import shards
from bert_jax.data import chunks as chunks_lib
from bert_jax.data import random_bits, segments
from bert_jax.data.segments import Segment

# Indices that are folded into the key of a row, as in `segments.py`.
_CUT_DRAW = segments.NEXT_DRAW
_IS_CHANGED_DRAW = segments.NEXT_DRAW + 1
_OTHER_DOCUMENT_DRAW = segments.NEXT_DRAW + 2
_OTHER_START_DRAW = segments.NEXT_DRAW + 3
_TRIM_DRAWS = segments.NEXT_DRAW + 4  # and on


class Consecutive(segments.Segments):
    """[CLS] A [SEP] B [SEP]; B follows A, and there is no pair task.

    Rows as in the original (google-research/bert, create_pretraining_data.py), for the
    paper's "No NSP" (5.1) and, with changes, for `NextSentence` and `SentenceOrder`.
    Differences from the original:

    * Chunks are fixed stretches of a document that reach L - 3 tokens, each visited
      once an epoch. In the original, the next chunk also has the tokens that a random
      second segment displaced. Its chunks depend on draws, so they have no address.
    * Some rows (`short_sequence_rate`) have a target from 2 to L - 3 tokens, drawn for
      each row, and take the beginning or the end of their chunk. The rest is in no row
      of the epoch. The original draws targets for documents; the next chunk begins
      where a short one ends.
    * Segment A is the first 1 to n - 1 of the n sentences, B the rest. A chunk takes a
      second sentence even if the first reaches the target; without one it is cut in two
      at a random token. The original makes all pairs of single sentences random. Only a
      chunk of a single token is no pair: it has no B.
    * Tokens beyond L - 3 are dropped from the longer segment, one by one, at the front
      or the back with equal chance, as in the original. So the first and last tokens of
      a sentence that is a little shorter than a row are rarely in one.
    * In packed rows a chunk reaches its target, L - 3 tokens or a shorter length drawn
      for all epochs, and the row has as many tokens as the chunk, or L - 3.
    """

    _special_tokens = 3
    _min_pieces = 2

    def _cut_into_chunks(self, pieces: shards.TokenTable) -> np.ndarray:
        return chunks_lib.join_to_reach(pieces, self._max_tokens, self._min_pieces)

    def _prepare(self, pieces, chunks):
        self._packed_tokens = None
        if self.sizes is not None:
            self._packed_tokens = tf.constant(self.sizes - self._special_tokens)
        self._tokens = tf.constant(pieces.tokens)
        self._piece_starts = tf.constant(pieces.sentence_starts)
        self._chunks = tf.constant(chunks)

    def __call__(self, chunk: tf.Tensor, key: tf.Tensor) -> dict[str, tf.Tensor]:
        if self._packed_tokens is None:
            target = self._draw_targets(key)
            room = tf.constant(self._max_tokens, tf.int64)
        else:
            target = room = tf.gather(self._packed_tokens, chunk)
        a, b = self._cut(chunk, target, key)
        a, b, label = self._change(a, b, chunk, target, key)
        a, b = self._trim(a, b, room, key)
        rows = self._assemble(a, b)
        if label is not None:
            rows["labels"], rows["is_pair"] = tf.cast(label, tf.int32), b.length > 0
        return rows

    def _change(
        self,
        a: Segment,
        b: Segment,
        chunk: tf.Tensor,
        target: tf.Tensor,
        key: tf.Tensor,
    ) -> tuple[Segment, Segment, tf.Tensor | None]:
        """Return both segments, changed for the pair task, and its label, bool [B]."""
        return a, b, None

    def _cut(
        self, chunk: tf.Tensor, target: tf.Tensor, key: tf.Tensor
    ) -> tuple[Segment, Segment]:
        """Cut each chunk into two segments with about `target` tokens together."""
        first = tf.gather(self._chunks, chunk)
        limit = tf.gather(self._chunks, chunk + 1)
        start = tf.gather(self._piece_starts, first)
        end = self._piece_at_or_after(
            start + target, tf.minimum(first + 2, limit), limit
        )
        if self._packed_tokens is None:
            takes_end = self._draw_takes_end(target, key)
            first = tf.where(takes_end, self._last_pieces(first, limit, target), first)
            end = tf.where(takes_end, limit, end)
            start = tf.gather(self._piece_starts, first)
        count = end - first
        stop = tf.gather(self._piece_starts, end)
        # A takes some of several pieces, or a part of the only piece.
        draw = random_bits.fold_in(key, _CUT_DRAW)
        cut = first + 1 + random_bits.randint(draw, tf.maximum(count - 1, 1))
        inside = start + 1 + random_bits.randint(draw, tf.maximum(stop - start - 1, 1))
        middle = tf.where(count > 1, tf.gather(self._piece_starts, cut), inside)
        middle = tf.minimum(middle, stop)
        return Segment(start, middle - start), Segment(middle, stop - middle)

    def _last_pieces(
        self, first: tf.Tensor, limit: tf.Tensor, target: tf.Tensor
    ) -> tf.Tensor:
        """Return the first of a chunk's last pieces that together reach `target`."""
        position = tf.gather(self._piece_starts, limit) - target
        piece = tf.searchsorted(
            self._piece_starts, position, side="right", out_type=tf.int64
        )
        return tf.clip_by_value(piece - 1, first, tf.maximum(limit - 2, first))

    def _piece_at_or_after(
        self, position: tf.Tensor, least: tf.Tensor, most: tf.Tensor
    ) -> tf.Tensor:
        """Return the first piece from `position` on, clipped to the bounds."""
        piece = tf.searchsorted(self._piece_starts, position, out_type=tf.int64)
        return tf.clip_by_value(piece, least, most)

    def _trim(
        self, a: Segment, b: Segment, room: tf.Tensor, key: tf.Tensor
    ) -> tuple[Segment, Segment]:
        """Drop surplus tokens from the longer segment, token by token.

        In closed form: first the longer segment shrinks to the length of the shorter
        one, then both shrink in turn, B first. One random bit for each token says
        whether it is dropped at the front or the back, so the number dropped at the
        front is a count of bits.
        """
        excess = tf.maximum(a.length + b.length - room, 0)
        from_longer = tf.minimum(excess, tf.abs(a.length - b.length))
        in_turn = excess - from_longer
        a_is_longer = a.length > b.length
        from_a = in_turn // 2 + tf.where(a_is_longer, from_longer, 0)
        from_b = excess - from_a
        words = -(-self._max_tokens // 64)
        trimmed = []
        for i, (segment, dropped) in enumerate(((a, from_a), (b, from_b))):
            indices = _TRIM_DRAWS + i * words + np.arange(words)
            from_front = _count_bits(
                random_bits.fold_in(key[:, None], indices), dropped
            )
            trimmed.append(
                Segment(segment.start + from_front, segment.length - dropped)
            )
        return trimmed[0], trimmed[1]


class NextSentence(Consecutive):
    """[CLS] A [SEP] B [SEP]; B follows A, or is from another document.

    Label: 0 if B follows A, 1 if it is from another document (BERT paper, 3.1, A.1).
    Half of the second segments follow, half start at a random sentence of another
    document (uniform over documents, then over sentences). The original tries ten times
    for another document and may end with the same; here it is always another. A chunk
    of a single token always gets a random B.

    In packed rows a random B is as long as the B that follows A, and may end inside of
    a sentence. Its document is drawn from the documents with enough tokens; if no other
    document has enough, it is the longest other one. B begins at a sentence that has
    enough tokens up to the end of the document, or at the first sentence.
    """

    min_documents = 2

    def _prepare(self, pieces, chunks):
        super()._prepare(pieces, chunks)
        self._document = tf.constant(self.chunk_documents)
        self._document_pieces = tf.constant(pieces.document_sentences)
        self._num_documents = len(pieces.document_sentences) - 1
        if self._packed_tokens is None:
            return
        sizes = np.diff(pieces.sentence_starts[pieces.document_sentences])
        falling = np.argsort(-sizes, kind="stable")
        self._document_sizes = tf.constant(sizes)
        self._rising_sizes = tf.constant(sizes[falling[::-1]])
        self._by_size = tf.constant(falling)
        self._size_ranks = tf.constant(np.argsort(falling))

    def _change(self, a, b, chunk, target, key):
        is_random = random_bits.bernoulli(
            random_bits.fold_in(key, _IS_CHANGED_DRAW), 0.5
        )
        is_random |= b.length == 0
        wanted = target - a.length
        if self._packed_tokens is not None:
            wanted = tf.where(b.length > 0, b.length, wanted)
        other = self._other_segment(chunk, wanted, key)
        return a, _select(is_random, other, b), is_random

    def _other_segment(
        self, chunk: tf.Tensor, target: tf.Tensor, key: tf.Tensor
    ) -> Segment:
        """Return pieces of another document that reach `target` tokens if it can.

        In packed rows, the last piece is cut where they reach it.
        """
        other = self._other_document(tf.gather(self._document, chunk), target, key)
        first = tf.gather(self._document_pieces, other)
        limit = tf.gather(self._document_pieces, other + 1)
        choices = limit - first
        if self._packed_tokens is not None:
            end = tf.gather(self._piece_starts, limit)
            have_enough = tf.searchsorted(
                self._piece_starts, end - target, side="right", out_type=tf.int64
            )
            choices = tf.clip_by_value(have_enough - first, 1, choices)
        draw = random_bits.fold_in(key, _OTHER_START_DRAW)
        piece = first + random_bits.randint(draw, choices)
        start = tf.gather(self._piece_starts, piece)
        end = self._piece_at_or_after(start + target, piece + 1, limit)
        length = tf.gather(self._piece_starts, end) - start
        if self._packed_tokens is not None:
            length = tf.minimum(length, tf.maximum(target, 1))
        return Segment(start, length)

    def _other_document(
        self, document: tf.Tensor, target: tf.Tensor, key: tf.Tensor
    ) -> tf.Tensor:
        """Draw another document; for packed rows, one with enough tokens."""
        draw = random_bits.fold_in(key, _OTHER_DOCUMENT_DRAW)
        if self._packed_tokens is None:
            other = random_bits.randint(draw, self._num_documents - 1)
            return other + tf.cast(other >= document, tf.int64)
        # Draw among the longest documents, and skip this one if it is among them.
        size = tf.gather(self._document_sizes, document)
        rank = tf.gather(self._size_ranks, document)
        shorter = tf.searchsorted(self._rising_sizes, target, out_type=tf.int64)
        choices = self._num_documents - shorter - tf.cast(size >= target, tf.int64)
        other = random_bits.randint(draw, tf.maximum(choices, 1))
        other += tf.cast(other >= rank, tf.int64)
        return tf.gather(self._by_size, other)


class SentenceOrder(Consecutive):
    """[CLS] A [SEP] B [SEP]; two consecutive segments, in order or swapped.

    Label: 0 if B follows A, 1 if A follows B, each for half of the rows (ALBERT, Lan et
    al. 2019, 3.1; google-research/albert, create_pretraining_data.py). There, a chunk
    of a single sentence gets a random second segment and the label 1; here it is cut in
    two.
    """

    def _change(self, a, b, chunk, target, key):
        is_swapped = random_bits.bernoulli(
            random_bits.fold_in(key, _IS_CHANGED_DRAW), 0.5
        )
        is_swapped &= b.length > 0
        return _select(is_swapped, b, a), _select(is_swapped, a, b), is_swapped


def _select(condition: tf.Tensor, a: Segment, b: Segment) -> Segment:
    """Return segment `a` of the rows where the condition holds, and `b` elsewhere."""
    return Segment(
        tf.where(condition, a.start, b.start), tf.where(condition, a.length, b.length)
    )


def _count_bits(words: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Count ones among the lowest `count` bits: uint64 [B, W] to int64 [B]."""
    before = tf.range(words.shape[1], dtype=tf.int64)[None, :] * 64
    used = tf.clip_by_value(count[:, None] - before, 0, 64)
    all_ones = tf.constant(2**64 - 1, tf.uint64)
    # A shift by 64 bits is undefined, so it is avoided.
    mask = tf.bitwise.left_shift(all_ones, tf.cast(tf.minimum(used, 63), tf.uint64))
    mask = tf.where(used == 64, all_ones, tf.bitwise.invert(mask))
    ones = tf.raw_ops.PopulationCount(x=words & mask)
    return tf.reduce_sum(tf.cast(ones, tf.int64), axis=1)
