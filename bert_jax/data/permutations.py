"""Which tokens of a row are predicted, and in which order (Yang et al. 2019, XLNet).

Works on rows of any kind: which positions are special tokens, the ids themselves say.
Tokens stay as they are.
"""

import numpy as np
import tensorflow as tf

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.data import random_bits

# Purposes of the streams of random words of a row.
SPAN, ORDER = range(2)


class Permutations:
    """Targets and orders for rows of one length. They are drawn afresh each epoch.

    **Targets.** Of the n tokens of a row that are no special tokens g are predicted:
    n // 6, but at least 1, and none if n is 1. They come in spans. A span has 1 to 5
    tokens, with probabilities as 1 : 1/2 : 1/3 : 1/4 : 1/5, and lies somewhere, all
    places alike, in a context of six times as many tokens; the last span is cut to
    what is left of g. Contexts follow one another. The tokens that are in none, fewer
    than six, are at the row's two ends, all cuts alike. (6 is `context`, and 5
    `max_span`; paper, 3.1.)

    **Order.** Targets and special tokens get places in a random order, all orders
    alike, from 0 on. All other tokens have the place -1: they are seen by all, and see
    one another. So a special token is seen only by what comes later.

    Source: as named; zihangdai/xlnet, data_utils.py, _sample_mask and _local_perm.
    Differs from it: there, a span of n tokens stands between 6 n others, begins where a
    word begins, and so too few tokens are chosen; single tokens make up for it. A row's
    halves have orders of their own, of which the first does not see the second, because
    it becomes the memory of the next row; here there is no memory, and one order. Half
    of the rows are reversed there.
    """

    def __init__(
        self,
        config: config_lib.PermutationLmConfig,
        length: int,
        tokenizer: tokenizer_lib.Tokenizer,
    ):
        """Prepare what does not depend on the rows.

        Args:
          config: Spans and contexts.
          length: Tokens in a row.
          tokenizer: For special tokens.
        """
        self._config = config
        self._length = length
        self._max_predictions = config.predictions(length)
        self._special = tokenizer.cls_id, tokenizer.sep_id
        self._pad_id = tokenizer.pad_id
        self._shares = np.cumsum([1 / n for n in range(1, config.max_span + 1)])

    def __call__(
        self, ids: tf.Tensor, keys: dict[int, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Choose targets and orders.

        Args:
          ids: int32 [B, L].
          keys: uint64 [B] for each purpose; keys of the rows' draws.

        Returns:
          target_positions int32 [B, P] (ascending; 0 where there is no target),
          target_labels int32 [B, P] (what stands there; 0 where there is no target),
          target_weights float32 [B, P] (1 for a target, else 0), ranks int32 [B, L].
        """
        cls_id, sep_id = self._special
        is_special = (ids == cls_id) | (ids == sep_id)
        is_text = ~is_special & (ids != self._pad_id)
        index, is_used = self._choose(is_text, keys[SPAN])
        before = tf.cumsum(tf.cast(is_text, tf.int64), axis=1)
        positions = tf.searchsorted(before, index + 1)
        # Slots without a target point at [CLS], which has a place anyway.
        positions = tf.where(is_used, positions, 0)
        rows, length = tf.shape(ids)[0], self._length
        flat = tf.range(rows)[:, None] * length + positions
        has_place = tf.tensor_scatter_nd_update(
            tf.reshape(is_special, [-1]),
            tf.reshape(flat, [-1, 1]),
            tf.ones([tf.size(flat)], tf.bool),
        )
        labels = tf.gather(tf.reshape(ids, [-1]), flat)
        return {
            "target_positions": positions,
            "target_labels": tf.where(is_used, labels, 0),
            "target_weights": tf.cast(is_used, tf.float32),
            "ranks": self._ranks(tf.reshape(has_place, [rows, length]), keys[ORDER]),
        }

    def _choose(
        self, is_text: tf.Tensor, key: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Which tokens of the text are targets: int64 [B, P], and the slots in use.

        Words of the stream: 0 for the tokens before the first context; then for each
        context, its size and the place of its span.
        """
        slots, context = self._max_predictions, self._config.context
        count = tf.math.count_nonzero(is_text, axis=1)
        goal = tf.minimum(tf.maximum(count // context, 1), count - 1)
        goal = tf.clip_by_value(goal, 0, slots)[:, None]
        number = tf.range(slots, dtype=tf.int64)[None, :]
        draws = random_bits.word(key[:, None], 1 + 2 * number)
        drawn = self._span_sizes(random_bits.fraction(draws))
        end = tf.minimum(tf.cumsum(drawn, axis=1), goal)
        begin = tf.concat([tf.zeros_like(end[:, :1]), end[:, :-1]], axis=1)
        size = end - begin
        spare = tf.maximum(count[:, None] - context * goal, 0)
        before = random_bits.below(random_bits.word(key[:, None], 0), spare + 1)
        room = tf.minimum(context * size, count[:, None]) - size
        draws = random_bits.word(key[:, None], 2 + 2 * number)
        first = before + context * begin + random_bits.below(draws, room + 1)
        # Slot s is of the span that the tokens up to s fill.
        slot = tf.tile(number, [tf.shape(is_text)[0], 1])
        span = tf.searchsorted(end, slot, side="right", out_type=tf.int64)
        span = tf.minimum(span, slots - 1)
        index = tf.gather(first - begin, span, batch_dims=1) + slot
        return index, slot < goal

    def _span_sizes(self, draws: tf.Tensor) -> tf.Tensor:
        """int64 with p(n) proportional to 1 / n, from float64 in [0, 1)."""
        reached = draws * self._shares[-1]
        size = tf.ones_like(draws, tf.int64)
        for share in self._shares[:-1]:
            size += tf.cast(reached >= share, tf.int64)
        return size

    def _ranks(self, has_place: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Places in a random order, from 0 on, int32 [B, L]; -1 for what has none."""
        # Random numbers end in the column, which makes them distinct.
        bits = (self._length - 1).bit_length()
        column = tf.range(self._length, dtype=tf.int64)[None, :]
        random = tf.cast(
            tf.bitwise.right_shift(
                random_bits.word(key[:, None], column), tf.constant(bits + 1, tf.uint64)
            ),
            tf.int64,
        )
        random = tf.where(has_place, random * 2**bits + column, tf.int64.max)
        places = tf.searchsorted(tf.sort(random, axis=1), random)
        return tf.where(has_place, places, -1)
