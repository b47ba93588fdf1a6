"""The batches of pretraining: rows of one or several corpora, in order.

Batch *s* is a pure function of (corpora, seed, *s*). A row has a position among the
rows of all phases of its length. The position determines the row's corpus (`mixing.py`)
and its chunk (`order.py`), and the chunk its content (`corpus_rows.py`). Draws are
addressed by (seed, split, first phase of this length, group, purpose, epoch, chunk).
Processes, threads and earlier batches have no influence. All of it runs as graph
operations over whole batches.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_jax import config as config_lib
from bert_jax.corpus import mixture, shards
from bert_jax.data import corpus_rows, mixing, pipeline, random_bits


class PretrainingBatches(pipeline.Pipeline):
    """The batches of one phase of pretraining, or of held-out evaluation.

    A batch is a dict of arrays with `B` rows of length `L`, `P` predictions and, in
    packed rows, up to `S` examples. All rows:
      input_ids       int32 [B, L]   with special tokens, masked, padded
      attention_mask  bool [B, L]    True where there is no padding
    Rows with two segments:
      segment_ids     int32 [B, L]   0 up to the first [SEP], then 1; padding 0
    Rows with a pair task, next sentence ("nsp") or sentence order ("sop"):
      nsp_labels      int32 [B]      0: B follows A, 1: it does not
      nsp_weights     float32 [B]    1; 0 without a pair
    Rows with masks:
      mlm_positions   int32 [B, P]   ascending; 0 where there is no prediction
      mlm_labels      int32 [B, P]   original tokens; 0 where there is no prediction
      mlm_weights     float32 [B, P] 1 for a prediction, else 0
    Rows with a factorisation order:
      ranks           int32 [B, L]   rank in the order, from 0 on; -1: seen by all
      target_*                       positions, labels and weights, as for masks
    Other rows:
      weights         float32 [B]    1
    Rows that fill up the last held-out batch repeat a row, with weights of 0.
    Packed rows have in addition:
      positions       int32 [B, L]   of each token in its example; padding 0
      documents       int32 [B, L]   index of the example in the row; padding 0
      pooled_positions int32 [B, S]  [CLS] of each example, with a pair task only; 0
                                     where there is none
    The pair task's labels and weights are [B, S], with 0 where there is no example.

    The modules of segments define the rows, `masking.py` and `permutations.py` the
    predictions.

    Attributes of the held-out split:
      num_batches: Number of batches.
      num_rows: Number of rows, without those that fill up the last batch.
      token_counts: int64 [V]; occurrences of each token in its text.
    """

    def __init__(
        self,
        corpora: Sequence[shards.Corpus],
        config: config_lib.PretrainConfig,
        phase: int,
        *,
        held_out: bool = False,
        rows: np.ndarray | None = None,
    ):
        """Load what the rows of this process need.

        Args:
          corpora: Sources of the tokens; for the held-out split, one corpus.
          config: Objective, shape of the batches, weights, shard groups, and seed.
          phase: Index of the phase. It continues the order of earlier phases of its
            length. Phases of different lengths draw independently.
          held_out: Whether to make the held-out split: one epoch in a fixed random
            order, with fixed draws. The last batch is filled up with rows of weight 0.
            The split is always one shard group.
          rows: Ascending int [rows]; the rows of each batch to make; all by default.

        Raises:
          UserError: There are too few documents, or a shard is damaged.
        """
        num_groups = 1 if held_out else config.data.shard_groups
        self._num_groups = num_groups
        batch_size = config.phases[phase].batch_size
        rows = np.arange(batch_size) if rows is None else np.asarray(rows)
        group_rows = batch_size // num_groups
        self._phase, self._masking = phase, config.for_phase(phase).objective.masking
        self._names = mixture.names(corpora) if len(corpora) > 1 else [""]
        self._groups = [
            _Group(
                corpora,
                config,
                phase,
                split=shards.HELD_OUT if held_out else shards.TRAIN,
                group=group,
                num_groups=num_groups,
                names=self._names,
                rows=rows[rows // group_rows == group] % group_rows,
            )
            for group in sorted(set((rows // group_rows).tolist()))
        ]
        if held_out:
            (made,) = self._groups[0].corpora
            self.num_rows = made.order.count
            self.num_batches = made.order.num_batches(batch_size)
            self.token_counts = made.token_counts
        super().__init__(self._make)

    def row_names(self, step: int) -> Sequence[str]:
        """Name the source of each row of the batch of a step, for messages."""
        return [name for group in self._groups for name in group.row_names(step)]

    def describe(self, steps: int) -> list[str]:
        """Return messages for the start of a run.

        If there are several corpora, each has a line with its share of the rows and
        its number of epochs, estimated from the shard groups of this process. In the
        first phase, another line warns if many whole words or n-grams have more tokens
        than a row may predict.
        """
        lines = self._describe_masks() if self._phase == 0 else []
        if len(self._names) == 1:
            return lines
        rows = steps * self._num_groups * self._groups[0].batch_rows
        shares = self._groups[0].mixing.counts / mixture.BLOCK
        for i, (name, share) in enumerate(zip(self._names, shares, strict=True)):
            counts = [group.corpora[i].order.count for group in self._groups]
            epoch = self._num_groups * np.mean(counts)
            lines.append(
                f"corpus {name}: {share:.2%} of the rows, about {rows * share:,.0f}; "
                f"{rows * share / epoch:.2f} epochs of {epoch:,.0f}"
            )
        return lines

    def _describe_masks(self) -> list[str]:
        masking = self._masking
        if not masking or masking.unit == "token":
            return []
        batch = self.batch(0)
        tokens = np.sum(batch["attention_mask"], axis=1)  # [B]
        asked = np.minimum(masking.rate * tokens, batch["mlm_weights"].shape[1]).sum()
        predicted = batch["mlm_weights"].sum()
        if predicted >= asked / 2:
            return []
        return [
            f"the first batch predicts {predicted / tokens.sum():.1%} of its tokens, "
            f"less than half of objective.masking.rate={masking.rate}: many units of "
            f"objective.masking.unit={masking.unit!r} have more tokens than a row may "
            "predict; set objective.masking.unit=token, or train on longer rows"
        ]

    def _make(self, step: tf.Tensor) -> dict[str, tf.Tensor]:
        parts = [group.make(step) for group in self._groups]
        if len(parts) == 1:
            return parts[0]
        return {name: tf.concat([p[name] for p in parts], 0) for name in parts[0]}


class _Group:
    """The rows of a batch that come from one group of shards of each corpus."""

    def __init__(
        self,
        corpora: Sequence[shards.Corpus],
        config: config_lib.PretrainConfig,
        phase: int,
        *,
        split: str,
        group: int,
        num_groups: int,
        names: Sequence[str],
        rows: np.ndarray,
    ):
        def key_of(phase: int, corpus: int = 0) -> tf.Tensor:
            # Groups are numbered through all corpora.
            number = corpus * num_groups + group
            return random_bits.key(
                config.seed, shards.SPLITS.index(split), phase, number
            )

        length = config.phases[phase].length
        # Phases of this length, up to this one. They continue one order.
        phases = [i for i in range(phase + 1) if config.phases[i].length == length]
        self.corpora = [
            corpus_rows.CorpusRows(
                corpus,
                config.for_phase(phase),
                length=length,
                split=split,
                group=group,
                num_groups=num_groups,
                key=key_of(phases[0], i),
                name=name,
            )
            for i, (corpus, name) in enumerate(zip(corpora, names, strict=True))
        ]
        self.mixing, self._begin = None, 0
        self._rows = rows
        self.batch_rows = config.phases[phase].batch_size // num_groups
        if split == shards.HELD_OUT:
            return
        # Find the position where the phase begins, and its mixing.
        for i in phases:
            if len(corpora) > 1:
                counts = mixture.rows_of_block(config.for_phase(i).data, corpora)
                if self.mixing is None or (counts != self.mixing.counts).any():
                    left = self.mixing.leftover(self._begin) if self.mixing else None
                    key = random_bits.fold_in(key_of(i), random_bits.Purpose.MIXING)
                    self.mixing, self._begin = mixing.MixtureOrder(counts, key, left), 0
            if i < phase:
                shape = config.phases[i]
                self._begin += shape.steps * shape.batch_size // num_groups

    def make(self, step: tf.Tensor) -> dict[str, tf.Tensor]:
        """Make the rows of the batch of a step of the phase, int64 []."""
        indices, positions = self._rows_by_corpus(step)
        parts = [
            corpus.make(position)
            for corpus, position in zip(self.corpora, positions, strict=True)
        ]
        if not self.mixing:
            return parts[0]
        return {
            name: tf.dynamic_stitch(indices, [part[name] for part in parts])
            for name in parts[0]
        }

    def row_names(self, step: int) -> list[str]:
        """Name the sources of the rows of the batch of a step."""
        indices, positions = self._rows_by_corpus(tf.constant(step, tf.int64))
        named = {}
        for corpus, index, position in zip(
            self.corpora, indices, positions, strict=True
        ):
            names = corpus.row_names(position)
            named |= zip(index.numpy().tolist(), names, strict=True)
        return [named[i] for i in range(len(named))]

    def _rows_by_corpus(
        self, step: tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Divide the rows of a batch among the corpora.

        Returns two lists with an item for each corpus: the indices of its rows among
        the rows of this process, int32 [rows], and the positions of these rows in the
        order of the corpus, int64 [rows].
        """
        rows = tf.constant(self._rows, tf.int64)
        position = step * self.batch_rows + rows + self._begin
        if not self.mixing:
            return [tf.range(len(self._rows))], [position]
        corpus, row = self.mixing.at(position)
        indices = [tf.where(corpus == i)[:, 0] for i in range(len(self.corpora))]
        return (
            [tf.cast(index, tf.int32) for index in indices],
            [tf.gather(row, index) for index in indices],
        )
