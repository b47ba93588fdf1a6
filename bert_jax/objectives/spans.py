"""Where in a sequence a span begins and ends: answers in a context (paper, 4.2)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.model import flops, heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch, labelled, metric_sums

# Logit of padding, which is no position.
_NEVER = -1e9


@dataclasses.dataclass(frozen=True)
class Spans:
    """Mean cross entropy of the start and of the end over all positions, averaged.

    Source: google-research/bert, run_squad.py. There, padding is a position, too; here
    it is not, so that the loss does not depend on how much of it there is.
    """

    encoder: config_lib.EncoderConfig

    encoder_path = "encoder"

    @property
    def losses(self) -> dict[str, float]:
        return {"span_loss": 1.0}

    @property
    def metrics(self) -> tuple[str, ...]:
        names = "start_accuracy", "end_accuracy", "exact", "padding_fraction"
        return (*self.losses, *names)

    @property
    def model(self) -> heads.SpanModel:
        """The model that this objective trains."""
        return heads.SpanModel(self.encoder)

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """What a batch looks like; `tasks/squad/` says what is in it."""
        position = (batch_size,), jnp.int32
        return labelled.batch_shapes(
            (batch_size, length), start_positions=position, end_positions=position
        )

    def sequence_flops(self, length: int) -> float:
        """Encoder and a classifier on each position, forward and backward."""
        return flops.training(
            flops.encoder(self.encoder, length)
            + length * flops.classifier(self.encoder, 2)
        )

    def init(self, key: jax.Array) -> Any:
        """Initial parameters, boxed with the names of their dimensions."""
        return heads.init(self.model, key)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Rows in a batch."""
        return {"span_loss": jnp.sum(batch["weights"])}

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Float32 start_logits and end_logits [B, L]."""
        start, end = self._logits(params, batch, None)
        return {"start_logits": start, "end_logits": end}

    def _logits(
        self, params: Any, batch: Batch, dropout_keys: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        logits = self.model.apply(
            {"params": params}, Inputs.of(batch), dropout_keys=dropout_keys
        )
        logits = jnp.where(batch["attention_mask"][..., None], logits, _NEVER)
        return logits[..., 0], logits[..., 1]

    def terms(
        self,
        params: Any,
        batch: Batch,
        *,
        dropout_keys: jax.Array | None,
        sampling_keys: jax.Array,
    ) -> metric_sums.Terms:
        """Loss, accuracies and the share of padding; see `Objective`.

        `exact` is the share of rows with both ends as they should be.
        """
        del sampling_keys  # nothing is drawn
        both = self._logits(params, batch, dropout_keys)
        labels = batch["start_positions"], batch["end_positions"]
        weights = batch["weights"]
        start_loss, end_loss = map(metric_sums.cross_entropy, both, labels)
        start, end = map(metric_sums.is_correct, both, labels)
        return {
            "span_loss": metric_sums.weighted((start_loss + end_loss) / 2, weights),
            "start_accuracy": metric_sums.weighted(start, weights),
            "end_accuracy": metric_sums.weighted(end, weights),
            "exact": metric_sums.weighted(start * end, weights),
            "padding_fraction": metric_sums.padding_fraction(batch["attention_mask"]),
        }
