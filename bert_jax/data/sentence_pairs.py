"""Batches for masked language modelling and next sentence prediction (paper, 3.1, A.1).

Batch *s* is a pure function of (corpus, seed, *s*): example *i* of the run is chunk
`permute(i % chunks)` of epoch `i // chunks`, and each of its draws is addressed by
(seed, split, phase, group, purpose, epoch, chunk). Nothing else enters: neither
processes nor threads nor what was read before. All of it runs as graph operations over
whole batches.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from bert_jax import config as config_lib
from bert_jax.corpus import shards
from bert_jax.data import chunks as chunks_lib
from bert_jax.data import counter, pipeline
from bert_jax.errors import UserError

# Purposes of the streams of random words.
_ORDER, _PAIR, _MASK_POSITION, _MASK_ACTION = range(4)
# Words of an example's pair stream.
_SHORT, _SHORT_LENGTH, _CUT, _RANDOM_NEXT, _OTHER_DOCUMENT, _OTHER_START, _TRIM = range(
    7
)


class SentencePairs:
    """The batches of one phase of pretraining, or of held-out evaluation.

    A batch is a dict, `B` rows of length `L` with `P` predictions:
      input_ids       int32 [B, L]   [CLS] A [SEP] B [SEP], corrupted, padded
      segment_ids     int32 [B, L]   0 up to and with the first [SEP], then 1; padding 0
      attention_mask  bool [B, L]    true where there is no padding
      mlm_positions   int32 [B, P]   ascending; 0 where there is no prediction
      mlm_labels      int32 [B, P]   what stood there; 0 where there is no prediction
      mlm_weights     float32 [B, P] 1 for a prediction, else 0
      nsp_labels      int32 [B]      0: B followed A, 1: B is from another document
      nsp_weights     float32 [B]    1; 0 for the filling of the last held-out batch

    How an example is made, and where that differs from the original
    (google-research/bert, create_pretraining_data.py):
    * Chunks are fixed stretches of a document that reach L - 3 tokens, each visited
      once an epoch. The original also gives back to the next chunk what a random second
      segment left over; then chunks depend on draws, and none has an address.
    * One example in ten (`short_sequence_rate`) aims at a length from 2 to L - 3. The
      original draws this once for each document, here it is once for each example.
    * Segment A is the first 1 to n - 1 of the n sentences. Half of the second segments
      are the rest, half start at a random sentence of another document (uniform over
      documents, then over sentences). The original makes every chunk of a single
      sentence a random pair, so that more than half are; here such a sentence is cut in
      two at a random token, and the halves stay halves. Only a single token alone is
      always a random pair. The original tries ten times for another document and may
      end with the same; here it is always another.
    * Tokens beyond L - 3 are dropped from the longer segment, one by one, at the front
      or the back with equal chance, as in the original.
    * min(P, max(1, round(rate * n))) positions are predicted, n counting all tokens
      with special ones, as in the original; [CLS] and [SEP] are never among them. 80 %
      become [MASK], 10 % a random id (of the whole vocabulary, special tokens included,
      as in the original), 10 % stay. Masks are drawn afresh each epoch (RoBERTa, 4.1),
      where the original has ten fixed copies.
    """

    def __init__(
        self,
        corpus: shards.Corpus,
        data: config_lib.DataConfig,
        *,
        length: int,
        max_predictions: int,
        batch_size: int,
        seed: int,
        phase: int = 0,
        held_out: bool = False,
        rows: np.ndarray | None = None,
    ):
        """Load what the rows of this process need.

        Args:
          corpus: where the tokens are.
          data: rates and groups. The held-out split is always one group.
          length: tokens in a row.
          max_predictions: predictions in a row, at most.
          batch_size: rows of a batch over all processes.
          seed: of all draws.
          phase: index of the phase; phases draw independently.
          held_out: the held-out split: one epoch in a fixed random order, with fixed
            draws, the last batch filled up with rows of weight 0.
          rows: ascending int [rows]: which rows of each batch to make; all by default.

        Raises:
          UserError: too few documents, or a damaged shard.
        """
        split = shards.HELD_OUT if held_out else shards.TRAIN
        num_groups = 1 if held_out else data.shard_groups
        rows = np.arange(batch_size) if rows is None else np.asarray(rows)
        group_rows = batch_size // num_groups
        self._groups = [
            _Group(
                corpus,
                data,
                split,
                num_groups,
                group,
                length=length,
                max_predictions=max_predictions,
                group_rows=group_rows,
                rows=rows[rows // group_rows == group] % group_rows,
                key=counter.stream(seed, shards.SPLITS.index(split), phase, group),
            )
            for group in sorted(set((rows // group_rows).tolist()))
        ]
        if held_out:
            self.num_batches = -(-self._groups[0].num_chunks // batch_size)
        self._pipeline = pipeline.Pipeline(self._make)

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """The batch of a step, counted from 0 at the beginning of the phase."""
        return self._pipeline.batch(step)

    def batches(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of steps `start` to `stop - 1`, made ahead on several cores."""
        return self._pipeline.batches(start, stop)

    def row_names(self, step: int) -> list[str]:
        """What each row of the batch of a step is made from, for people."""
        return [name for group in self._groups for name in group.row_names(step)]

    def _make(self, step: tf.Tensor) -> dict[str, tf.Tensor]:
        parts = [group.make(step) for group in self._groups]
        if len(parts) == 1:
            return parts[0]
        return {name: tf.concat([p[name] for p in parts], 0) for name in parts[0]}


@dataclasses.dataclass(frozen=True)
class _Segment:
    """Tokens `start` to `start + length - 1` of the table, for each row: int64 [B]."""

    start: tf.Tensor
    length: tf.Tensor


class _Group:
    """The rows of a batch that come from one group of shards."""

    def __init__(
        self,
        corpus: shards.Corpus,
        data: config_lib.DataConfig,
        split: str,
        num_groups: int,
        group: int,
        *,
        length: int,
        max_predictions: int,
        group_rows: int,
        rows: np.ndarray,
        key: tf.Tensor,
    ):
        table = chunks_lib.load_tokens(corpus, split, group, num_groups)
        self._num_documents = len(table.document_sentences) - 1
        if self._num_documents < 2:
            raise UserError(
                f"{corpus.folder} has {self._num_documents} {split} documents in shard "
                f"group {group}; pairs of segments need at least two"
            )
        chunks = chunks_lib.cut_into_chunks(table, length - 3)
        self.num_chunks = len(chunks.document)
        self._index = group
        self._tokens = tf.constant(table.tokens)
        self._piece_starts = tf.constant(chunks.piece_starts)
        self._document_pieces = tf.constant(chunks.document_pieces)
        self._first_piece = tf.constant(chunks.first_piece)
        self._end_piece = tf.constant(chunks.end_piece)
        self._document = tf.constant(chunks.document)
        self._data = data
        self._held_out = split == shards.HELD_OUT
        self._length = length
        self._max_predictions = max_predictions
        self._group_rows = group_rows
        self._rows = tf.constant(rows, tf.int64)
        self._key = key
        self._tokenizer = corpus.tokenizer
        self._num_predictions = tf.constant(
            _num_predictions(length, data.mask_rate, max_predictions)
        )

    def make(self, step: tf.Tensor) -> dict[str, tf.Tensor]:
        """The rows of the batch at `step`, int64 []."""
        position = step * self._group_rows + self._rows
        if self._held_out:
            is_real = position < self.num_chunks
            position = tf.minimum(position, self.num_chunks - 1)
        else:
            is_real = tf.ones_like(position, tf.bool)
        epoch, chunk = self._chunks_at(position)
        keys = [
            counter.word(counter.word(counter.word(self._key, purpose), epoch), chunk)
            for purpose in (_PAIR, _MASK_POSITION, _MASK_ACTION)
        ]
        a, b, is_random = self._pair(chunk, keys[0])
        features = self._assemble(a, b)
        features |= self._mask(features["input_ids"], a, b, keys[1], keys[2])
        features["nsp_labels"] = tf.cast(is_random, tf.int32)
        features["nsp_weights"] = tf.cast(is_real, tf.float32)
        features["mlm_weights"] *= features["nsp_weights"][:, None]
        return features

    def row_names(self, step: int) -> list[str]:
        """What the rows of the batch at `step` are made from, for people."""
        position = tf.constant(step, tf.int64) * self._group_rows + self._rows
        epoch, chunk = self._chunks_at(position)
        document = tf.gather(self._document, chunk)
        columns = zip(epoch.numpy(), chunk.numpy(), document.numpy(), strict=True)
        return [
            f"group {self._index} document {d} chunk {c} epoch {e}"
            for e, c, d in columns
        ]

    def _chunks_at(self, position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Epoch and chunk of each position in the order of the run."""
        epoch, index = position // self.num_chunks, position % self.num_chunks
        order = counter.word(counter.word(self._key, _ORDER), epoch)
        return epoch, counter.permute(index, self.num_chunks, order)

    # ---- pairing

    def _pair(
        self, chunk: tf.Tensor, key: tf.Tensor
    ) -> tuple[_Segment, _Segment, tf.Tensor]:
        """Segments A and B of each example, trimmed, and whether B is random."""

        def draw(index):
            return counter.word(key, index)

        target = self._length - 3
        goal = tf.where(
            counter.chance(draw(_SHORT), self._data.short_sequence_rate),
            2 + counter.below(draw(_SHORT_LENGTH), target - 1),
            target,
        )
        first = tf.gather(self._first_piece, chunk)
        limit = tf.gather(self._end_piece, chunk)
        start = tf.gather(self._piece_starts, first)
        end = self._reach(start + goal, tf.minimum(first + 2, limit), limit)
        count = end - first
        stop = tf.gather(self._piece_starts, end)

        # A: some of several pieces, or a part of the only one.
        cut = first + 1 + counter.below(draw(_CUT), tf.maximum(count - 1, 1))
        inside = start + 1 + counter.below(draw(_CUT), tf.maximum(stop - start - 1, 1))
        middle = tf.where(count > 1, tf.gather(self._piece_starts, cut), inside)
        middle = tf.minimum(middle, stop)
        is_random = counter.chance(draw(_RANDOM_NEXT), 0.5) | (middle == stop)
        a = _Segment(start, middle - start)

        other = self._other_segment(
            tf.gather(self._document, chunk),
            goal - a.length,
            draw(_OTHER_DOCUMENT),
            draw(_OTHER_START),
        )
        b = _Segment(
            tf.where(is_random, other.start, middle),
            tf.where(is_random, other.length, stop - middle),
        )
        return *self._trim(a, b, key), is_random

    def _reach(self, position: tf.Tensor, least: tf.Tensor, most: tf.Tensor):
        """The first piece that begins at or after a position, within bounds."""
        piece = tf.searchsorted(self._piece_starts, position, out_type=tf.int64)
        return tf.clip_by_value(piece, least, most)

    def _other_segment(
        self, document: tf.Tensor, goal: tf.Tensor, which: tf.Tensor, where: tf.Tensor
    ) -> _Segment:
        """Pieces of another document up to `goal` tokens, at least one."""
        other = counter.below(which, self._num_documents - 1)
        other += tf.cast(other >= document, tf.int64)
        first = tf.gather(self._document_pieces, other)
        limit = tf.gather(self._document_pieces, other + 1)
        piece = first + counter.below(where, limit - first)
        start = tf.gather(self._piece_starts, piece)
        end = self._reach(start + goal, piece + 1, limit)
        return _Segment(start, tf.gather(self._piece_starts, end) - start)

    def _trim(
        self, a: _Segment, b: _Segment, key: tf.Tensor
    ) -> tuple[_Segment, _Segment]:
        """Drop what is too much from the longer segment, token by token.

        In closed form: first the longer one comes down to the shorter one, then both go
        down in turn, B first. Each token goes from the front or the back by one random
        bit, so what goes from the front is a count of bits.
        """
        excess = tf.maximum(a.length + b.length - (self._length - 3), 0)
        from_longer = tf.minimum(excess, tf.abs(a.length - b.length))
        in_turn = excess - from_longer
        a_is_longer = a.length > b.length
        from_a = in_turn // 2 + tf.where(a_is_longer, from_longer, 0)
        from_b = excess - from_a
        words = -(-(self._length - 3) // 64)
        trimmed = []
        for i, (segment, dropped) in enumerate(((a, from_a), (b, from_b))):
            indices = _TRIM + i * words + np.arange(words)
            from_front = _count_bits(counter.word(key[:, None], indices), dropped)
            trimmed.append(
                _Segment(segment.start + from_front, segment.length - dropped)
            )
        return trimmed[0], trimmed[1]

    def _assemble(self, a: _Segment, b: _Segment) -> dict[str, tf.Tensor]:
        """Rows of tokens, before masking."""
        column = tf.range(self._length, dtype=tf.int64)[None, :]
        a_length, b_length = a.length[:, None], b.length[:, None]
        first_sep = a_length + 1
        last_sep = first_sep + b_length + 1
        in_a = column <= a_length
        source = tf.where(
            in_a,
            a.start[:, None] + column - 1,
            b.start[:, None] + column - first_sep - 1,
        )
        source = tf.clip_by_value(source, 0, self._tokens.shape[0] - 1)
        ids = tf.cast(tf.gather(self._tokens, source), tf.int32)
        ids = tf.where(column == 0, self._tokenizer.cls_id, ids)
        is_sep = (column == first_sep) | (column == last_sep)
        ids = tf.where(is_sep, self._tokenizer.sep_id, ids)
        is_real = column <= last_sep
        ids = tf.where(is_real, ids, self._tokenizer.pad_id)
        in_b = (column > first_sep) & is_real
        return {
            "input_ids": ids,
            "segment_ids": tf.cast(in_b, tf.int32),
            "attention_mask": is_real,
        }

    # ---- masking

    def _mask(
        self,
        ids: tf.Tensor,
        a: _Segment,
        b: _Segment,
        position_key: tf.Tensor,
        action_key: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Choose positions, corrupt them, and keep what stood there."""
        rows, length = tf.shape(ids)[0], self._length
        column = tf.range(length, dtype=tf.int64)[None, :]
        first_sep = a.length[:, None] + 1
        last_sep = first_sep + b.length[:, None] + 1
        is_token = (column > 0) & (column != first_sep) & (column < last_sep)

        # The highest of random ranks are chosen. A rank ends in its position, which
        # makes ranks distinct and lets them say where they are.
        bits = (length - 1).bit_length()
        rank = tf.cast(
            tf.bitwise.right_shift(
                counter.word(position_key[:, None], column),
                tf.constant(bits + 1, tf.uint64),
            ),
            tf.int64,
        )
        rank = tf.where(is_token, rank * 2**bits + column, -1)
        highest = tf.math.top_k(rank, self._max_predictions).values
        count = tf.gather(self._num_predictions, last_sep[:, 0] + 1)
        slot = tf.range(self._max_predictions, dtype=tf.int64)[None, :]
        is_chosen = slot < count[:, None]
        positions = tf.where(is_chosen, highest % 2**bits, length)
        positions = tf.sort(positions, axis=1)
        is_chosen = positions < length
        positions = tf.where(is_chosen, positions, 0)

        flat_ids = tf.reshape(ids, [-1])
        row = tf.range(rows, dtype=tf.int64)[:, None]
        flat_positions = row * length + positions
        labels = tf.gather(flat_ids, flat_positions)
        random = counter.word(action_key[:, None], positions)
        random_id = tf.cast(
            counter.below(counter.lower_half(random), self._tokenizer.vocab_size),
            tf.int32,
        )
        data = self._data
        becomes_mask = counter.chance(random, data.mask_token_rate)
        stays = ~counter.chance(random, data.mask_token_rate + data.random_token_rate)
        replacement = tf.where(
            becomes_mask, self._tokenizer.mask_id, tf.where(stays, labels, random_id)
        )
        # Slots without a prediction point at [CLS] and write back what stands there.
        replacement = tf.where(is_chosen, replacement, labels)
        corrupted = tf.tensor_scatter_nd_update(
            flat_ids,
            tf.reshape(flat_positions, [-1, 1]),
            tf.reshape(replacement, [-1]),
        )
        return {
            "input_ids": tf.reshape(corrupted, [rows, length]),
            "mlm_positions": tf.cast(positions, tf.int32),
            "mlm_labels": tf.where(is_chosen, labels, 0),
            "mlm_weights": tf.cast(is_chosen, tf.float32),
        }


def _num_predictions(length: int, rate: float, limit: int) -> np.ndarray:
    """int64 [length + 1]: how many of n tokens, with special ones, are predicted."""
    # Python's rounding, to even at halves, because the original is in Python.
    wanted = [min(limit, max(1, round(rate * n))) for n in range(length + 1)]
    return np.minimum(wanted, np.maximum(np.arange(length + 1) - 3, 0))


def _count_bits(words: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Ones among the lowest `count` bits of each row: uint64 [B, W] to int64 [B]."""
    before = tf.range(words.shape[1], dtype=tf.int64)[None, :] * 64
    used = tf.clip_by_value(count[:, None] - before, 0, 64)
    all_ones = tf.constant(2**64 - 1, tf.uint64)
    # A shift by 64 is undefined, so none is asked for.
    mask = tf.bitwise.left_shift(all_ones, tf.cast(tf.minimum(used, 63), tf.uint64))
    mask = tf.where(used == 64, all_ones, tf.bitwise.invert(mask))
    ones = tf.raw_ops.PopulationCount(x=words & mask)
    return tf.reduce_sum(tf.cast(ones, tf.int64), axis=1)
