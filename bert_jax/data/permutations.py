"""Targets and factorisation orders of rows (Yang et al. 2019, XLNet).

Rows may be of any kind. Special tokens are recognised by their ids. Tokens are not
replaced.
"""

from collections.abc import Callable

import tensorflow as tf

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.data import masking, random_bits
from bert_jax.data.random_bits import Purpose


class Permutations:
    """Targets and orders for rows of one length. They are drawn afresh each epoch.

    **Targets.** Of the n tokens of a row that are not special, g are predicted: n // 6,
    but at least 1, and none if n is 1. They come in spans. A span has 1 to 5 tokens,
    with probabilities as 1 : 1/2 : 1/3 : 1/4 : 1/5, and lies at a uniform place in a
    context of six times as many tokens; the last span is cut to what is left of g.
    Contexts follow one another. The remaining tokens, fewer than six, are in no
    context: a uniformly random number of them comes before the first context, the rest
    after the last. (6 is `context`, 5 is `max_span`; paper, 3.1.)

    **Order.** Targets and special tokens get ranks in a random order, from 0 on. All
    other tokens have the rank -1: all tokens see them, and they see one another only.
    So a special token is seen only by tokens with later ranks.

    Source: zihangdai/xlnet, data_utils.py, _sample_mask and _local_perm.
    There, a span of n tokens has a context of 6 n further tokens and begins where a
    word begins. This chooses too few tokens, so single tokens are added. Each half of
    a row has its own order there, and the first half does not see the second, because
    it becomes the memory of the next row; here there is no memory, and one order. Half
    of the rows are reversed there.
    """

    weights = "target_weights"  # name of the array of weights

    def __init__(
        self,
        config: config_lib.PermutationLmConfig,
        length: int,
        tokenizer: tokenizer_lib.Tokenizer,
    ):
        self._config = config
        self._length = length
        self._max_predictions = config.num_predictions(length)
        self._special = tokenizer.cls_id, tokenizer.sep_id
        self._pad_id = tokenizer.pad_id

    def __call__(
        self, ids: tf.Tensor, keys_for: Callable[[Purpose], tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Choose targets and orders, with arguments as in `Masking`.

        Returns:
          target_positions, target_labels and target_weights [B, P], and ranks [B, L],
          as in `PretrainingBatches`.
        """
        cls_id, sep_id = self._special
        is_special = (ids == cls_id) | (ids == sep_id)
        is_text = ~is_special & (ids != self._pad_id)
        index, is_used = self._choose(is_text, keys_for(Purpose.TARGET_SPANS))
        before = tf.cumsum(tf.cast(is_text, tf.int64), axis=1)
        positions = tf.searchsorted(before, index + 1)
        # Slots without a target point at [CLS], which has a rank anyway.
        positions = tf.where(is_used, positions, 0)
        labels = tf.gather(ids, positions, batch_dims=1)
        has_rank = masking.set_columns(
            is_special, positions, tf.ones_like(positions, tf.bool)
        )
        # Ranks are places in the sorted order of random numbers.
        random = random_bits.column_ranks(keys_for(Purpose.RANKS), self._length)
        random = tf.where(has_rank, random, tf.int64.max)
        ranks = tf.searchsorted(tf.sort(random, axis=1), random)
        return {
            "target_positions": positions,
            "target_labels": tf.where(is_used, labels, 0),
            "target_weights": tf.cast(is_used, tf.float32),
            "ranks": tf.where(has_rank, ranks, -1),
        }

    def _choose(
        self, is_text: tf.Tensor, key: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Choose targets among the tokens that are not special.

        Index 0 of the key draws the tokens before the first context. Then two indices
        for each context draw its size and the place of its span.

        Args:
          is_text: bool [B, L]; True at tokens that are not special.
          key: uint64 [B].

        Returns:
          Indices among these tokens, int64 [B, P], and the slots in use, bool [B, P].
        """
        slots, context = self._max_predictions, self._config.context
        count = tf.math.count_nonzero(is_text, axis=1)
        goal = tf.minimum(tf.maximum(count // context, 1), count - 1)
        goal = tf.maximum(goal, 0)[:, None]  # 0 in a row without text
        number = tf.range(slots, dtype=tf.int64)[None, :]
        draws = random_bits.fold_in(key[:, None], 1 + 2 * number)
        max_span = self._config.max_span
        drawn = random_bits.harmonic(draws, tf.constant(max_span, tf.int64), max_span)
        end = tf.minimum(tf.cumsum(drawn, axis=1), goal)
        begin = tf.concat([tf.zeros_like(end[:, :1]), end[:, :-1]], axis=1)
        size = end - begin
        spare = tf.maximum(count[:, None] - context * goal, 0)
        before = random_bits.randint(random_bits.fold_in(key[:, None], 0), spare + 1)
        room = tf.minimum(context * size, count[:, None]) - size
        draws = random_bits.fold_in(key[:, None], 2 + 2 * number)
        first = before + context * begin + random_bits.randint(draws, room + 1)
        return masking.lay_out_spans(first + size, end, slots)
