"""Masking: the choice of predicted tokens, and of their replacements (BERT paper, 3.1).

Rows may be of any kind. Special tokens are recognised by their ids, which no text is
tokenised to.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.data import random_bits
from bert_jax.data.random_bits import Purpose
from bert_jax.errors import UserError


class Masking:
    """Masks for rows of one length. They are drawn afresh each epoch (RoBERTa, 4.1).

    **Count.** With `convention="original"` (google-research/bert,
    create_pretraining_data.py), min(P, max(1, round(rate * n))) tokens are predicted,
    where n includes special tokens; special tokens are never predicted. With "fairseq"
    (data/mask_tokens_dataset.py), min(P, floor(rate * n + u)) tokens are predicted,
    with u uniform in [0, 1), and special tokens may be among them. The authors of
    ModernBERT, NomicBERT, NeoBERT and EuroBERT predict each token with a probability of
    `rate`, so that the count varies; here it follows from n.

    **Choice.** Units are taken in random order until there are enough tokens. A unit
    that exceeds the count is skipped, and smaller units after it are still taken, as in
    the original. At most 2 P units are considered. A unit is
    * a token (the original's first release);
    * a whole word: a token and its continuations (the original's later release); in
      scripts without spaces between words, a token (`Tokenizer.begins_word`);
    * 1 to `max_ngram` successive words (ALBERT, Lan et al. 2019, 4.1): the row is cut
      into spans from its beginning, and anew from each special token; a span of n words
      has the probability (1 / n) / sum(1 / k) over the k up to the number of words
      left. In contrast, google-research/albert draws spans that may overlap and drops
      the overlapping ones, which makes long spans rarer than the formula; it shortens a
      span that exceeds the count, which here is skipped; its spans may go on after a
      [SEP]; and with SentencePiece its words begin at punctuation, too.

    **Replacement**, token by token: [MASK] (80 % by default), a random id (10 %), or
    the token itself. Random ids are drawn from the whole vocabulary, special tokens
    included, as in the original; with "fairseq" special tokens are excluded (fairseq
    itself may draw [MASK], and its own option for whole words counts words, and
    replaces each as a whole).

    Source: BERT paper, 3.1; RoBERTa, 2.3; and the sources named above.
    """

    weights = "mlm_weights"  # name of the array of weights

    def __init__(
        self,
        config: config_lib.MaskingConfig,
        length: int,
        tokenizer: tokenizer_lib.Tokenizer,
        *,
        held_out: bool,
    ):
        if tokenizer.word_suffix and config.unit != "token":
            raise UserError(
                f"objective.masking.unit={config.unit!r} needs tokens that show where "
                f"a word begins; {tokenizer.word_suffix!r} of this tokenizer shows "
                "where it ends; set objective.masking.unit=token"
            )
        self._config = config
        self._rate = config.eval_rate if held_out else config.rate
        self._length = length
        self._max_predictions = config.num_predictions(length)
        self._tokenizer = tokenizer
        self._begins_word = tf.constant(tokenizer.begins_word)
        ids = np.arange(tokenizer.vocab_size, dtype=np.int32)
        if config.convention == "fairseq":
            t = tokenizer
            ids = np.setdiff1d(ids, [t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id])
        self._replacements = tf.constant(ids)

    def __call__(
        self, ids: tf.Tensor, keys_for: Callable[[Purpose], tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Choose positions, replace their tokens, and keep the original tokens.

        Args:
          ids: int32 [B, L].
          keys_for: Function from a purpose to the keys of the rows' draws, uint64 [B].

        Returns:
          input_ids [B, L] and mlm_positions, mlm_labels and mlm_weights [B, P], as in
          `PretrainingBatches`.
        """
        positions, is_chosen = self._choose(ids, keys_for)
        labels = tf.gather(ids, positions, batch_dims=1)
        replacement = self._replace(labels, positions, keys_for(Purpose.REPLACEMENTS))
        # Slots without a prediction point at [CLS], position 0, and must not change it.
        # They write its token, or its replacement if the first slot predicts it.
        replaces_first = is_chosen[:, :1] & (positions[:, :1] == 0)
        first = tf.where(replaces_first, replacement[:, :1], labels)
        replacement = tf.where(is_chosen, replacement, first)
        return {
            "input_ids": set_columns(ids, positions, replacement),
            "mlm_positions": tf.cast(positions, tf.int32),
            "mlm_labels": tf.where(is_chosen, labels, 0),
            "mlm_weights": tf.cast(is_chosen, tf.float32),
        }

    def _count(
        self, num_tokens: tf.Tensor, keys_for: Callable[[Purpose], tf.Tensor]
    ) -> tf.Tensor:
        """Return the number of predictions in rows of `num_tokens`: int64 [B]."""
        wanted = self._rate * tf.cast(num_tokens, tf.float64)
        if self._config.convention == "fairseq":
            draw = random_bits.fold_in(keys_for(Purpose.MASK_COUNT), 0)
            wanted = tf.floor(wanted + random_bits.uniform(draw))
        else:
            # Halves are rounded to even, like Python's `round`, as in the original.
            wanted = tf.maximum(tf.round(wanted), 1.0)
        return tf.minimum(tf.cast(wanted, tf.int64), self._max_predictions)

    def _choose(
        self, ids: tf.Tensor, keys_for: Callable[[Purpose], tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return positions, int64 [B, P], and the slots in use, bool [B, P]."""
        length, t = self._length, self._tokenizer
        is_padding = ids == t.pad_id
        is_candidate = ~is_padding
        if self._config.convention == "original":
            is_candidate &= (ids != t.cls_id) & (ids != t.sep_id)
        num_tokens = length - tf.math.count_nonzero(is_padding, axis=1)
        count = self._count(num_tokens, keys_for)
        if self._config.unit == "token":
            column = self._in_random_order(
                is_candidate, keys_for(Purpose.MASK_POSITIONS), self._max_predictions
            )
            slot = tf.range(self._max_predictions, dtype=tf.int64)[None, :]
            is_chosen = (slot < count[:, None]) & (column >= 0)
        else:
            column, is_chosen = self._choose_units(ids, is_candidate, keys_for, count)
        positions = tf.sort(tf.where(is_chosen, column, length), axis=1)
        is_chosen = positions < length
        return tf.where(is_chosen, positions, 0), is_chosen

    def _in_random_order(
        self, is_candidate: tf.Tensor, key: tf.Tensor, limit: int
    ) -> tf.Tensor:
        """Return columns of candidates, int64 [B, limit]; -1 where none are left."""
        rank = random_bits.column_ranks(key, self._length)
        rank = tf.where(is_candidate, rank, -1)
        top = tf.math.top_k(rank, limit, index_type=tf.int64)
        return tf.where(top.values < 0, top.values, top.indices)

    def _choose_units(
        self,
        ids: tf.Tensor,
        is_candidate: tf.Tensor,
        keys_for: Callable[[Purpose], tf.Tensor],
        count: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return unsorted columns of chosen tokens, int64 [B, P], and slots in use."""
        t = self._tokenizer
        is_text = is_candidate & (ids != t.cls_id) & (ids != t.sep_id)
        # Beginnings of words, or of the rests of cut words. With "fairseq" special
        # tokens are candidates, but no word continues them.
        follows = tf.pad(is_text[:, :-1], [[0, 0], [1, 0]])
        begins = is_candidate & (tf.gather(self._begins_word, ids) | ~follows)
        if self._config.unit == "ngram":
            begins = self._span_begins(begins, is_text, keys_for(Purpose.NGRAMS))
        limit = min(2 * self._max_predictions, self._length)
        keys = keys_for(Purpose.MASK_POSITIONS)
        first = self._in_random_order(begins, keys, limit)
        size = _distance_to_next(begins | ~is_candidate, first)  # [B, units]
        # Where no units are left, a size that never fits.
        size = tf.where(first < 0, tf.constant(self._length, tf.int64), size)
        # Take units one by one while they fit.
        room, ends = count, []
        for one in tf.unstack(size, axis=1):
            room -= tf.where(one <= room, one, 0)
            ends.append(count - room)
        end = tf.stack(ends, axis=1)
        return lay_out_spans(first + size, end, self._max_predictions)

    def _span_begins(
        self, begins: tf.Tensor, is_text: tf.Tensor, key: tf.Tensor
    ) -> tf.Tensor:
        """Return where spans of words begin: bool [B, L]."""
        maximum = self._config.max_ngram
        # Words from each column to the next special token or padding.
        column = tf.range(self._length, dtype=tf.int64)[None, :]
        column = tf.tile(column, [tf.shape(key)[0], 1])  # [B, L]
        end = column + _distance_to_next(~is_text, column)
        before = tf.cumsum(tf.cast(tf.pad(begins, [[0, 0], [1, 0]]), tf.int32), axis=1)
        words_left = tf.gather(before, end, batch_dims=1) - before[:, :-1]
        draws = random_bits.fold_in(key[:, None], column)
        limit = tf.clip_by_value(words_left, 1, maximum)
        size = random_bits.harmonic(draws, limit, maximum)  # [B, L]
        size = tf.where(is_text, size, 1)  # a special token is a span of its own
        # The beginning of a span depends on the spans before it, so this loops over
        # columns.
        pending = tf.zeros_like(size[:, 0])  # words that the span still takes
        span_begins = []
        for word_begins, later_words in zip(
            tf.unstack(tf.cast(begins, tf.int32), axis=1),
            tf.unstack(size - 1, axis=1),
            strict=True,
        ):
            pending -= word_begins
            is_new = pending < 0
            span_begins.append(is_new)
            pending = tf.where(is_new, later_words, pending)
        return tf.stack(span_begins, axis=1)

    def _replace(
        self, labels: tf.Tensor, positions: tf.Tensor, key: tf.Tensor
    ) -> tf.Tensor:
        """Draw the replacement of each label: int32 [B, P]."""
        config = self._config
        random = random_bits.fold_in(key[:, None], positions)
        index = random_bits.randint(
            random_bits.lower_half(random), self._replacements.shape[0]
        )
        becomes_mask = random_bits.bernoulli(random, config.mask_token_rate)
        changes = random_bits.bernoulli(
            random, config.mask_token_rate + config.random_token_rate
        )
        return tf.where(
            becomes_mask,
            self._tokenizer.mask_id,
            tf.where(changes, tf.gather(self._replacements, index), labels),
        )


def lay_out_spans(
    stops: tf.Tensor, ends: tf.Tensor, num_slots: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Give each token of some spans a slot, one span after the other.

    Args:
      stops: int64 [B, spans]; one more than the last column of each span.
      ends: int64 [B, spans]; one more than the last slot of each span. A span is left
        out if it ends where the span before ends.
      num_slots: Number of slots, P.

    Returns:
      The column of each slot, int64 [B, P], and the slots in use, bool [B, P].
    """
    slot = tf.range(num_slots, dtype=tf.int64)[None, :]
    slot = tf.tile(slot, [tf.shape(ends)[0], 1])
    span = tf.searchsorted(ends, slot, side="right", out_type=tf.int64)
    span = tf.minimum(span, ends.shape[1] - 1)
    column = tf.gather(stops - ends, span, batch_dims=1) + slot
    return column, slot < ends[:, -1:]


def set_columns(rows: tf.Tensor, columns: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Replace the values of rows [B, L] at columns [B, P]."""
    row = tf.range(tf.shape(columns)[0], dtype=columns.dtype)[:, None]
    index = tf.stack([tf.broadcast_to(row, tf.shape(columns)), columns], axis=-1)
    return tf.tensor_scatter_nd_update(rows, index, values)  # index: [B, P, 2]


def _distance_to_next(marks: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
    """Return the distance from each column to the next mark or the row's end.

    Marks are bool [B, L], columns int64 [B, K], and distances int64 [B, K], at least 1.
    """
    before = tf.cumsum(tf.cast(marks, tf.int32), axis=1)
    here = tf.gather(before, tf.maximum(column, 0), batch_dims=1)
    after = tf.searchsorted(before, here + 1, out_type=tf.int64)
    return after - column
