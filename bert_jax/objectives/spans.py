"""Start and end of a span in a sequence: answers in a context (BERT paper, 4.2)."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bert_jax.model import cross_entropy, heads
from bert_jax.objectives import Batch, labelled, metric_sums


@dataclasses.dataclass(frozen=True)
class Spans(labelled.LabelledObjective):
    """Mean cross entropy of start and end over all positions, averaged.

    Source: google-research/bert, run_squad.py. The original also predicts padding. Here
    padding is masked out, so that the loss does not depend on its amount.
    """

    loss_name = "span_loss"
    metric_names = ("start_accuracy", "end_accuracy", "span_accuracy")
    model_class = heads.SpanModel
    num_logits = 2
    label_types: ClassVar = {"start_positions": jnp.int32, "end_positions": jnp.int32}

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return float32 start_logits and end_logits [B, L]."""
        logits = self.logits(params, batch)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

    def logits(
        self, params: Any, batch: Batch, dropout_keys: jax.Array | None = None
    ) -> jax.Array:
        """Return float32 logits [B, L, 2]; very negative at padding."""
        logits = super().logits(params, batch, dropout_keys)
        is_token = batch["attention_mask"][..., None]  # [B, L, 1]
        return jnp.where(is_token, logits, labelled.EXCLUDED)

    def measure_logits(self, logits: jax.Array, batch: Batch) -> metric_sums.MetricSums:
        """Return loss and accuracies; `span_accuracy` requires both ends correct."""
        both = logits[..., 0], logits[..., 1]  # [B, L] each
        labels = batch["start_positions"], batch["end_positions"]
        start_loss, end_loss = map(cross_entropy.cross_entropy, both, labels)
        start, end = map(cross_entropy.is_correct, both, labels)
        values = {
            self.loss_name: (start_loss + end_loss) / 2,
            "start_accuracy": start,
            "end_accuracy": end,
            "span_accuracy": start * end,
        }
        return {
            name: metric_sums.weighted_sum(value, batch["weights"])
            for name, value in values.items()
        }
