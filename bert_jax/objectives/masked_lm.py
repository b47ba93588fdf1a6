"""Masked language modelling, with or without a sentence-pair task.

BERT predicts whether the second segment follows the first (BERT paper, 3.1), ALBERT
whether the two are in order (Lan et al. 2019, 3.1). RoBERTa has no pair task (Liu et
al. 2019, 4.2).
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax import config as config_lib
from bert_jax.model import cross_entropy, flops, heads
from bert_jax.objectives import Batch, BatchShapes, metric_sums, pretraining


@dataclasses.dataclass(frozen=True)
class MaskedLm(pretraining.PretrainingObjective):
    """Mean loss of masked tokens, plus the mean loss of the pair task if there is one.

    Source: google-research/bert, run_pretraining.py. The original adds 1e-5 to the
    number of masked tokens against division by zero; here a count of 0 gives 0.
    """

    config: config_lib.MaskedLmConfig = config_lib.MaskedLmConfig()

    @property
    def model_arguments(self) -> tuple[str, ...]:
        """Arrays of a batch that the model takes; packed pairs have several [CLS]."""
        if self._pair_task and self.config.examples_per_row > 1:
            return "mlm_positions", "pooled_positions"
        return ("mlm_positions",)

    @property
    def _pair_task(self) -> str:
        """Short name of the pair task, such as "nsp"; "" if there is none."""
        return config_lib.PAIR_TASKS.get(self.config.segments, "")

    @property
    def loss_weights(self) -> dict[str, float]:
        weights = {"mlm_loss": 1.0}
        if self._pair_task:
            weights[f"{self._pair_task}_loss"] = 1.0
        return weights

    @property
    def model(self) -> heads.PretrainingModel:
        head = f"{self._pair_task}_head" if self._pair_task else ""
        return heads.PretrainingModel(self.encoder, head)

    def batch_shapes(self, batch_size: int, length: int) -> BatchShapes:
        shapes = super().batch_shapes(batch_size, length)
        if self._pair_task:
            pairs = (batch_size,)
            if self.config.examples_per_row > 1:
                pairs = batch_size, self.config.examples_per_row
                shapes["pooled_positions"] = jax.ShapeDtypeStruct(pairs, jnp.int32)
            for part, dtype in (("labels", jnp.int32), ("weights", jnp.float32)):
                name = f"{self._pair_task}_{part}"
                shapes[name] = jax.ShapeDtypeStruct(pairs, dtype)
        return shapes

    def num_predictions(self, length: int) -> int:
        return self.config.masking.num_predictions(length, self.config.examples_per_row)

    def sequence_flops(self, length: int) -> float:
        predictions = self.num_predictions(length)
        pairs = self.config.examples_per_row if self._pair_task else 0
        read = self._states_computed(length, predictions + pairs)
        forward = flops.encoder(self.encoder, length, read)
        forward += flops.prediction_head(self.encoder, predictions)
        forward += pairs * flops.pooler(self.encoder)
        forward += pairs * flops.classifier(self.encoder, 2)
        return flops.training(forward)

    def _states_computed(self, length: int, wanted: int) -> int:
        """Return the number of hidden states that the last layer computes."""
        return wanted

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        counts = {"mlm_loss": jnp.sum(batch["mlm_weights"])}
        if name := self._pair_task:
            counts[f"{name}_loss"] = jnp.sum(batch[f"{name}_weights"])
        return counts

    def measure(self, params, batch, dropout_keys, sampling_keys):
        logits = self.logits(params, batch, dropout_keys=dropout_keys)
        return self.losses_and_accuracies(logits.mlm, logits.sentence, batch)

    def losses_and_accuracies(
        self,
        tokens: cross_entropy.VocabularyLogits | Float[Array, "B P V"],
        sentence: Float[Array, "*pairs 2"] | None,
        batch: Batch,
    ) -> metric_sums.MetricSums:
        """Return losses and accuracies of logits."""
        measured = {}
        for name, scores in (("mlm", tokens), (self._pair_task, sentence)):
            if scores is not None:
                labels, weights = batch[f"{name}_labels"], batch[f"{name}_weights"]
                measured |= metric_sums.loss_and_accuracy(name, scores, labels, weights)
        return measured
