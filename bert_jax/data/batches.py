"""The batches of pretraining: order, segments and masking composed.

Batch *s* is a pure function of (corpus, seed, *s*): row *r* is made from the chunk that
the order says, and each of its draws is addressed by (seed, split, phase, group,
purpose, epoch, chunk). Nothing else enters: neither processes nor threads nor what was
read before. All of it runs as graph operations over whole batches. A packed row is made
of several chunks in the same way (`packing.py`).
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from bert_jax import config as config_lib
from bert_jax.corpus import shards
from bert_jax.data import chunks as chunks_lib
from bert_jax.data import (
    counter,
    masking,
    order,
    packing,
    permutations,
    pipeline,
    segment_pairs,
    segments,
    single_segments,
)
from bert_jax.errors import UserError

# Purposes of the streams of random words.
_ORDER, _SEGMENTS = 0, 1
_MASKING = {
    masking.POSITION: 2,
    masking.ACTION: 3,
    masking.SPAN: 4,
    masking.COUNT: 5,
}
_AIMS, _PACKING = 6, 7
_PERMUTATIONS = {permutations.SPAN: 8, permutations.ORDER: 9}

# By the names that configs give them.
_KINDS: dict[str, type[segments.Segments]] = {
    "next_sentence": segment_pairs.NextSentence,
    "sentence_order": segment_pairs.SentenceOrder,
    "consecutive": segment_pairs.Consecutive,
    "full_sentences": single_segments.FullSentences,
    "doc_sentences": single_segments.DocSentences,
}


class PretrainingBatches:
    """The batches of one phase of pretraining, or of held-out evaluation.

    A batch is a dict of arrays, `B` rows of length `L` with `P` predictions and, where
    rows are packed, up to `S` examples:
      input_ids       int32 [B, L]   special tokens included, corrupted, padded
      attention_mask  bool [B, L]    true where there is no padding
    of rows with two segments
      segment_ids     int32 [B, L]   0 up to and with the first [SEP], then 1; padding 0
    and a question about them, "nsp" or "sop" for next sentence and sentence order
      nsp_labels      int32 [B]      0: B follows A, 1: it does not
      nsp_weights     float32 [B]    1; 0 where there is no pair, and for the filling of
                                     the last held-out batch
    of rows with masks
      mlm_positions   int32 [B, P]   ascending; 0 where there is no prediction
      mlm_labels      int32 [B, P]   what stood there; 0 where there is no prediction
      mlm_weights     float32 [B, P] 1 for a prediction, else 0
    of rows with an order of factorisation
      ranks           int32 [B, L]   places in the order, from 0 on; -1 for what all see
      target_*                       positions, labels and weights, as of masks
    and of rows with neither
      weights         float32 [B]    1; 0 for the filling of the last held-out batch
    of packed rows, in addition
      positions       int32 [B, L]   of each token in its example; padding 0
      documents       int32 [B, L]   number of its example in the row; padding 0
    where labels and weights of a question are [B, S], with 0 for what is not there, and
      pooled_positions int32 [B, S]  [CLS] of each example; 0 where there is none

    The modules of segments define the rows, `masking.py` and `permutations.py` the
    predictions.

    Attributes of the held-out split:
      num_batches: Number of batches.
      token_counts: int64 [V]; how often each token occurs in its text.
    """

    def __init__(
        self,
        corpus: shards.Corpus,
        config: config_lib.PretrainConfig,
        phase: int,
        *,
        held_out: bool = False,
        rows: np.ndarray | None = None,
    ):
        """Load what the rows of this process need.

        Args:
          corpus: Where the tokens are.
          config: Objective, shape of the batches, shard groups, and seed.
          phase: Index of the phase; phases draw independently.
          held_out: Whether to make the held-out split: one epoch in a fixed random
            order, with fixed draws, the last batch filled up with rows of weight 0. It
            is always one shard group.
          rows: Ascending int [rows]; the rows of each batch to make; all by default.

        Raises:
          UserError: There are too few documents, or a shard is damaged.
        """
        split = shards.HELD_OUT if held_out else shards.TRAIN
        num_groups = 1 if held_out else config.data.shard_groups
        batch_size = config.phases[phase].batch_size
        rows = np.arange(batch_size) if rows is None else np.asarray(rows)
        group_rows = batch_size // num_groups
        self._begin = sum(earlier.steps for earlier in config.phases[:phase])
        self._groups = [
            _Group(
                corpus,
                config,
                length=config.phases[phase].length,
                split=split,
                group=group,
                num_groups=num_groups,
                group_rows=group_rows,
                rows=rows[rows // group_rows == group] % group_rows,
                key=counter.stream(
                    config.seed, shards.SPLITS.index(split), phase, group
                ),
            )
            for group in sorted(set((rows // group_rows).tolist()))
        ]
        if held_out:
            self.num_batches = self._groups[0].order.num_batches
            self.token_counts = self._groups[0].token_counts
        self._pipeline = pipeline.Pipeline(self._make)

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """The batch of a step, counted from 0 at the beginning of the phase."""
        return self._pipeline.batch(step)

    def batches(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of steps `start` to `stop - 1`, made ahead on several cores."""
        return self._pipeline.batches(start, stop)

    def row_names(self, step: int) -> Sequence[str]:
        """What each row of the batch of a step is made from, for people."""
        return [name for group in self._groups for name in group.row_names(step)]

    def _make(self, step: tf.Tensor) -> dict[str, tf.Tensor]:
        parts = [group.make(step, self._begin + step) for group in self._groups]
        if len(parts) == 1:
            return parts[0]
        return {name: tf.concat([p[name] for p in parts], 0) for name in parts[0]}


class _Group:
    """The rows of a batch that come from one group of shards."""

    def __init__(
        self,
        corpus: shards.Corpus,
        config: config_lib.PretrainConfig,
        *,
        length: int,
        split: str,
        group: int,
        num_groups: int,
        group_rows: int,
        rows: np.ndarray,
        key: tf.Tensor,
    ):
        objective = config.objective
        table = chunks_lib.load_tokens(corpus, split, group, num_groups)
        if split == shards.HELD_OUT:
            self.token_counts = chunks_lib.count_tokens(
                table, corpus.tokenizer.vocab_size
            )
        kind = _KINDS[objective.segments]
        num_documents = len(table.document_sentences) - 1
        if num_documents < kind.min_documents:
            raise UserError(
                f"{corpus.folder} has {num_documents} {split} documents in shard group "
                f"{group}; objective.segments={objective.segments!r} needs at least "
                f"{kind.min_documents}"
            )
        max_examples = objective.examples_per_row
        is_packed = max_examples > 1
        self._segments = kind(
            table,
            length=length,
            short_sequence_rate=objective.short_sequence_rate,
            tokenizer=corpus.tokenizer,
            aim_key=counter.word(key, _AIMS) if is_packed else None,
        )
        self._question = config_lib.PAIR_QUESTIONS.get(objective.segments)
        self._masking = self._permutations = None
        if isinstance(objective, config_lib.PermutationLmConfig):
            self._permutations = permutations.Permutations(
                objective, length, corpus.tokenizer
            )
        if objective.masking is not None:
            mask = objective.masking
            self._masking = masking.Masking(mask, length, corpus.tokenizer)
            held_out = split == shards.HELD_OUT
            self._mask_rates = (mask.eval_rate,) if held_out else mask.rate
        count = len(self._segments.chunk_documents)
        self._packing = None
        if is_packed:
            mask = objective.masking
            self._packing = packing.Packing(
                self._segments.sizes,
                length=length,
                max_examples=max_examples,
                max_predictions=mask.predictions(length, max_examples) if mask else 0,
                pad_id=corpus.tokenizer.pad_id,
                key=counter.word(key, _PACKING),
            )
            count = self._packing.num_rows
        self._total_steps = config.total_steps
        self._group = group
        self._key = key
        self.order = order.Order(
            count=count,
            batch_size=group_rows,
            rows=rows,
            key=counter.word(key, _ORDER),
            once=split == shards.HELD_OUT,
        )

    def make(self, step: tf.Tensor, run_step: tf.Tensor) -> dict[str, tf.Tensor]:
        """The rows of a batch.

        Args:
          step: int64 [], counted from 0 at the beginning of the phase.
          run_step: int64 [], counted from 0 at the beginning of the run.
        """
        items = self.order.items(step)
        if not self._packing:
            return self._examples(items, run_step)
        chunks, count = self._packing.examples(items)
        examples = self._examples(chunks, run_step)
        return self._packing.lay_out(examples, count)

    def _examples(self, items: order.Items, run_step: tf.Tensor):
        """Rows of a chunk each."""
        rows = self._segments(items.index, self._row_keys(_SEGMENTS, items))
        weights = tf.cast(items.is_real, tf.float32)
        features = {
            "input_ids": rows.input_ids,
            "attention_mask": rows.attention_mask,
        }
        if rows.segment_ids is not None:
            features["segment_ids"] = rows.segment_ids
        if self._question:
            is_pair = tf.cast(rows.is_pair, tf.float32)
            features[f"{self._question}_labels"] = rows.labels
            features[f"{self._question}_weights"] = weights * is_pair
        if self._masking:
            keys = self._keys_by_purpose(_MASKING, items)
            rate = masking.rate_at(self._mask_rates, run_step, self._total_steps)
            features |= self._masking(rows.input_ids, keys, rate)
            features["mlm_weights"] *= weights[:, None]
        elif self._permutations:
            keys = self._keys_by_purpose(_PERMUTATIONS, items)
            features |= self._permutations(rows.input_ids, keys)
            features["target_weights"] *= weights[:, None]
        else:
            features["weights"] = weights
        return features

    def _keys_by_purpose(
        self, streams: dict[int, int], items: order.Items
    ) -> dict[int, tf.Tensor]:
        return {key: self._row_keys(stream, items) for key, stream in streams.items()}

    def _row_keys(self, purpose: int, items: order.Items) -> tf.Tensor:
        """Keys of the draws for one purpose: uint64 [B]."""
        of_epoch = counter.word(counter.word(self._key, purpose), items.epoch)
        return counter.word(of_epoch, items.index)

    def row_names(self, step: int) -> list[str]:
        """What the rows of the batch at `step` are made from, for people."""
        items = self.order.items(tf.constant(step, tf.int64))
        count = np.ones(len(items.index), np.int64)
        if self._packing:
            items, count = self._packing.examples(items)
        epochs, chunks = items.epoch.numpy(), items.index.numpy()
        documents = self._segments.chunk_documents[chunks]
        examples = (
            f"group {self._group} document {d} chunk {c} epoch {e}"
            for e, c, d in zip(epochs, chunks, documents, strict=True)
        )
        return [" + ".join(itertools.islice(examples, int(n))) for n in count]
