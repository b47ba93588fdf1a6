"""Which tokens of a row are predicted, and what stands in their place (paper, 3.1).

Works on rows of any kind: which positions are special tokens, the ids themselves say,
because no text gives the id of a special token.
"""

import numpy as np
import tensorflow as tf

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.data import random_bits

# Purposes of the streams of random words of a row.
POSITION, ACTION, SPAN, COUNT = range(4)


class Masking:
    """Masks for rows of one length. They are drawn afresh each epoch (RoBERTa, 4.1).

    **How many.** With `convention="original"` (google-research/bert,
    create_pretraining_data.py) min(P, max(1, round(rate * n))) tokens, n counting all
    tokens with special ones; special tokens are never among them. With "fairseq"
    (data/mask_tokens_dataset.py) min(P, floor(rate * n + u)), u uniform in [0, 1); all
    tokens, special ones too, may be among them.

    **Which.** Units are taken in random order until there are enough tokens; one that
    would be too much is skipped, and smaller ones after it are not, as in the original.
    At most 2 P units are looked at. A unit is
    * a token (the original's first release);
    * a whole word: a token and those that continue it (the original's later release);
    * 1 to `max_ngram` words that follow one another (ALBERT, Lan et al. 2019, 3.1): the
      row is cut into spans from its beginning, and from each special token on; a span
      of n words has the probability (1 / n) / sum(1 / k) over the k that there are
      words left for. Differs from google-research/albert: it draws spans that may
      overlap and drops those that do, which makes long ones rarer than the formula; and
      it shortens a span that is too much, which here is skipped.

    **What takes their place**, token by token: [MASK] (80 % by default), a random id
    (10 %), or what was there. Random ids are of the whole vocabulary, special tokens
    included, as in the original; with "fairseq" special tokens are left out.

    Source: BERT paper, 3.1; RoBERTa, 2.3; and as named.
    """

    def __init__(
        self,
        config: config_lib.MaskingConfig,
        length: int,
        tokenizer: tokenizer_lib.Tokenizer,
        *,
        held_out: bool,
    ):
        """Prepare what does not depend on the rows.

        Args:
          config: Rates, units, and the convention.
          length: Tokens in a row.
          tokenizer: For special tokens, words, and the size of the vocabulary.
          held_out: Whether the rows are held out; they have `config.eval_rate`.
        """
        self._config = config
        self._rate = config.eval_rate if held_out else config.rate
        self._length = length
        self._max_predictions = config.predictions(length)
        self._tokenizer = tokenizer
        self._continues_word = tf.constant(tokenizer.continues_word)
        ids = np.arange(tokenizer.vocab_size, dtype=np.int32)
        if config.convention == "fairseq":
            t = tokenizer
            ids = np.setdiff1d(ids, [t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id])
        self._replacements = tf.constant(ids)

    def __call__(
        self, ids: tf.Tensor, keys: dict[int, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Choose positions, corrupt them, and keep what stood there.

        Args:
          ids: int32 [B, L].
          keys: uint64 [B] for each purpose; keys of the rows' draws.

        Returns:
          input_ids int32 [B, L], mlm_positions int32 [B, P] (ascending; 0 where there
          is no prediction), mlm_labels int32 [B, P] (what stood there; 0 where there is
          no prediction), mlm_weights float32 [B, P] (1 for a prediction, else 0).
        """
        positions, is_chosen = self._choose(ids, keys)
        rows, length = tf.shape(ids)[0], self._length
        flat_ids = tf.reshape(ids, [-1])
        row = tf.range(rows, dtype=tf.int64)[:, None]
        flat_positions = row * length + positions
        labels = tf.gather(flat_ids, flat_positions)
        replacement = self._replace(labels, positions, keys[ACTION])
        # Slots without a prediction point at [CLS] and write what is there anyway: what
        # stood there, or what replaces it where the first slot predicts it.
        replaces_first = is_chosen[:, :1] & (positions[:, :1] == 0)
        first = tf.where(replaces_first, replacement[:, :1], labels)
        replacement = tf.where(is_chosen, replacement, first)
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

    # ---- how many

    def _count(self, num_tokens: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Return how many tokens to predict in rows of `num_tokens`: int64 [B]."""
        wanted = self._rate * tf.cast(num_tokens, tf.float64)
        if self._config.convention == "fairseq":
            wanted = tf.floor(wanted + random_bits.fraction(random_bits.word(key, 0)))
        else:
            # Rounded to even at halves, like Python's `round`, as the original does.
            wanted = tf.maximum(tf.round(wanted), 1.0)
        return tf.minimum(tf.cast(wanted, tf.int64), self._max_predictions)

    # ---- which

    def _choose(
        self, ids: tf.Tensor, keys: dict[int, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Positions, int64 [B, P], and which of these slots are in use, bool [B, P]."""
        length, t = self._length, self._tokenizer
        is_padding = ids == t.pad_id
        is_candidate = ~is_padding
        if self._config.convention == "original":
            is_candidate &= (ids != t.cls_id) & (ids != t.sep_id)
        num_tokens = length - tf.math.count_nonzero(is_padding, axis=1)
        count = self._count(num_tokens, keys[COUNT])
        if self._config.unit == "token":
            num_candidates = tf.math.count_nonzero(is_candidate, axis=1)
            count = tf.minimum(count, num_candidates)
            slot = tf.range(self._max_predictions, dtype=tf.int64)[None, :]
            column = self._in_random_order(
                is_candidate, keys[POSITION], self._max_predictions
            )
            is_chosen = slot < count[:, None]
        else:
            column, is_chosen = self._choose_units(ids, is_candidate, keys, count)
        positions = tf.sort(tf.where(is_chosen, column, length), axis=1)
        is_chosen = positions < length
        return tf.where(is_chosen, positions, 0), is_chosen

    def _in_random_order(
        self, is_candidate: tf.Tensor, key: tf.Tensor, limit: int
    ) -> tf.Tensor:
        """Columns of candidates, int64 [B, limit]; -1 where there are no more."""
        # The highest of random ranks come first. A rank ends in its column, which makes
        # ranks distinct and lets them say where they are.
        bits = (self._length - 1).bit_length()
        column = tf.range(self._length, dtype=tf.int64)[None, :]
        rank = tf.cast(
            tf.bitwise.right_shift(
                random_bits.word(key[:, None], column), tf.constant(bits + 1, tf.uint64)
            ),
            tf.int64,
        )
        rank = tf.where(is_candidate, rank * 2**bits + column, -1)
        highest = tf.math.top_k(rank, limit).values
        return tf.where(highest < 0, highest, highest % 2**bits)

    def _choose_units(
        self,
        ids: tf.Tensor,
        is_candidate: tf.Tensor,
        keys: dict[int, tf.Tensor],
        count: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Columns of chosen tokens, int64 [B, P] in no order, and the slots in use."""
        begins = self._word_begins(ids, is_candidate)
        if self._config.unit == "ngram":
            begins = self._span_begins(begins, is_candidate, keys[SPAN])
        limit = min(2 * self._max_predictions, self._length)
        first = self._in_random_order(begins, keys[POSITION], limit)
        size = _distance_to_next(begins | ~is_candidate, first)
        # Where there are no more units, one that never fits.
        size = tf.where(first < 0, tf.constant(self._length, tf.int64), size)
        # One after the other, as long as there is room.
        room, ends = count, []
        for one in tf.unstack(size, axis=1):
            room -= tf.where(one <= room, one, 0)
            ends.append(count - room)
        # The tokens of the units taken, one slot each, the last slot of a unit for its
        # last token.
        end = tf.stack(ends, axis=1)
        slot = tf.range(self._max_predictions, dtype=tf.int64)[None, :]
        slot = tf.tile(slot, [tf.shape(ids)[0], 1])
        unit = tf.searchsorted(end, slot, side="right", out_type=tf.int64)
        unit = tf.minimum(unit, limit - 1)
        column = tf.gather(first + size - end, unit, batch_dims=1) + slot
        return column, slot < end[:, -1:]

    def _word_begins(self, ids: tf.Tensor, is_candidate: tf.Tensor) -> tf.Tensor:
        """Bool [B, L]: where a word begins, or what is left of one that was cut."""
        # With "fairseq" special tokens are candidates, but no beginnings of words.
        t = self._tokenizer
        is_text = is_candidate & (ids != t.cls_id) & (ids != t.sep_id)
        follows = tf.pad(is_text[:, :-1], [[0, 0], [1, 0]])
        continues = tf.gather(self._continues_word, ids) & follows
        return is_candidate & ~continues

    def _span_begins(
        self, begins: tf.Tensor, is_candidate: tf.Tensor, key: tf.Tensor
    ) -> tf.Tensor:
        """Bool [B, L]: where spans of words begin."""
        most = self._config.max_ngram
        # Where a span begins depends on the spans before it, so this goes column by
        # column, and columns come first: [L, B].
        begins_at = tf.cast(tf.transpose(begins), tf.int32)
        candidate_at = tf.cast(tf.transpose(is_candidate), tf.int32)
        words_left = _words_left(begins_at, candidate_at)
        column = tf.range(self._length, dtype=tf.int64)[:, None]
        draws = random_bits.fraction(random_bits.word(key[None, :], column))
        size = _ngram_sizes(draws, tf.clip_by_value(words_left, 1, most), most)
        # A span takes the words that come until it has its number of them.
        pending = tf.zeros_like(size[0])
        span_begins = []
        for begins_here, more in zip(
            tf.unstack(begins_at), tf.unstack(size - 1), strict=True
        ):
            pending -= begins_here
            is_new = pending < 0
            span_begins.append(is_new)
            pending = tf.where(is_new, more, pending)
        return tf.transpose(tf.stack(span_begins))

    # ---- what takes their place

    def _replace(
        self, labels: tf.Tensor, positions: tf.Tensor, key: tf.Tensor
    ) -> tf.Tensor:
        """What takes the place of each label: int32 [B, P]."""
        config = self._config
        random = random_bits.word(key[:, None], positions)
        index = random_bits.below(
            random_bits.lower_half(random), self._replacements.shape[0]
        )
        becomes_mask = random_bits.chance(random, config.mask_token_rate)
        changes = random_bits.chance(
            random, config.mask_token_rate + config.random_token_rate
        )
        return tf.where(
            becomes_mask,
            self._tokenizer.mask_id,
            tf.where(changes, tf.gather(self._replacements, index), labels),
        )


def _distance_to_next(marks: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
    """How far behind each column the next mark is; the row's end counts as one.

    Args:
      marks: bool [B, L].
      column: int64 [B, K].

    Returns:
      int64 [B, K], at least 1.
    """
    before = tf.cumsum(tf.cast(marks, tf.int32), axis=1)
    here = tf.gather(before, tf.maximum(column, 0), batch_dims=1)
    after = tf.searchsorted(before, here + 1, out_type=tf.int64)
    return after - column


def _words_left(begins: tf.Tensor, is_candidate: tf.Tensor) -> tf.Tensor:
    """Words that begin here or later, before the next token that is no candidate.

    Args:
      begins: int32 [L, B], 1 where a word begins.
      is_candidate: int32 [L, B], 0 or 1.

    Returns:
      int32 [L, B].
    """
    left = tf.zeros_like(begins[0])
    columns = []
    for begins_here, is_candidate_here in zip(
        reversed(tf.unstack(begins)), reversed(tf.unstack(is_candidate)), strict=True
    ):
        left = (left + begins_here) * is_candidate_here
        columns.append(left)
    return tf.stack(columns[::-1])


def _ngram_sizes(draws: tf.Tensor, available: tf.Tensor, most: int) -> tf.Tensor:
    """Words in a span: int32, p(n) proportional to 1 / n for n up to `available`.

    Args:
      draws: float64, uniform in [0, 1).
      available: int32, from 1 to `most`, of the same shape.
      most: Words in a span, at most.
    """
    totals = np.cumsum([1 / n for n in range(1, most + 1)])
    reached = draws * tf.gather(tf.constant(totals), available - 1)
    size = tf.ones_like(available)
    for total in totals[:-1]:
        size += tf.cast(reached >= total, tf.int32)
    return size
