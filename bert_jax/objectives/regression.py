"""Prediction of a number for a sequence (BERT paper, 4.1: STS-B)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.model import flops, heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch, labelled, metric_sums


@dataclasses.dataclass(frozen=True)
class Regression:
    """Mean squared error of one logit; numbers are learnt as they are, unscaled."""

    encoder: config_lib.EncoderConfig

    encoder_path = "encoder"

    @property
    def losses(self) -> dict[str, float]:
        return {"regression_loss": 1.0}

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*self.losses, "padding_fraction")

    @property
    def model(self) -> heads.ClassifierModel:
        """The model that this objective trains: a classifier with one class."""
        return heads.ClassifierModel(self.encoder, 1)

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """What a batch looks like; `tasks/classification.py` says what is in it."""
        return labelled.batch_shapes(
            (batch_size, length), labels=((batch_size,), jnp.float32)
        )

    def sequence_flops(self, length: int) -> float:
        """Encoder, pooler and one logit, forward and backward."""
        return flops.training(
            flops.encoder(self.encoder, length, positions=1)
            + flops.pooler(self.encoder)
            + flops.classifier(self.encoder, 1)
        )

    def init(self, key: jax.Array) -> Any:
        """Initial parameters, boxed with the names of their dimensions."""
        return heads.init(self.model, key)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Examples in a batch."""
        return {"regression_loss": jnp.sum(batch["weights"])}

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Float32 predictions [B]."""
        return {"predictions": self._predictions(params, batch, None)}

    def _predictions(
        self, params: Any, batch: Batch, dropout_keys: jax.Array | None
    ) -> jax.Array:
        logits = self.model.apply(
            {"params": params}, Inputs.of(batch), dropout_keys=dropout_keys
        )
        return logits[:, 0]

    def terms(
        self,
        params: Any,
        batch: Batch,
        *,
        dropout_keys: jax.Array | None,
        sampling_keys: jax.Array,
    ) -> metric_sums.Terms:
        """Loss and the share of padding; see `Objective`."""
        del sampling_keys  # nothing is drawn
        predictions = self._predictions(params, batch, dropout_keys)
        loss = jnp.square(predictions - batch["labels"])
        return {
            "regression_loss": metric_sums.weighted(loss, batch["weights"]),
            "padding_fraction": metric_sums.padding_fraction(batch["attention_mask"]),
        }
