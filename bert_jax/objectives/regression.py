"""Prediction of a number for a sequence (BERT paper, 4.1: STS-B)."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bert_jax.objectives import Batch, labelled, metric_sums


@dataclasses.dataclass(frozen=True)
class Regression(labelled.LabelledObjective):
    """Mean squared error of one logit. Labels are not rescaled."""

    loss_name = "regression_loss"
    metric_names = ()
    num_logits = 1
    label_types: ClassVar = {"labels": jnp.float32}

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return float32 predictions [B]."""
        return {"predictions": self.logits(params, batch)[:, 0]}

    def measure_logits(self, logits: jax.Array, batch: Batch) -> metric_sums.MetricSums:
        loss = jnp.square(logits[:, 0] - batch["labels"])
        return {self.loss_name: metric_sums.weighted_sum(loss, batch["weights"])}
