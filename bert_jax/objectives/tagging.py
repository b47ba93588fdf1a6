"""A class for each token that has a label (BERT paper, 5.3)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.model import flops, heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch, metric_sums


@dataclasses.dataclass(frozen=True)
class Tagging:
    """Mean cross entropy of the classes, over all tokens with a label."""

    encoder: config_lib.EncoderConfig
    num_classes: int

    encoder_path = "encoder"

    @property
    def losses(self) -> dict[str, float]:
        return {"tagging_loss": 1.0}

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*self.losses, "accuracy", "padding_fraction")

    @property
    def model(self) -> heads.TaggerModel:
        """The model that this objective trains."""
        return heads.TaggerModel(self.encoder, self.num_classes)

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """What a batch looks like; a label below 0 is none."""
        rows, tokens = (batch_size,), (batch_size, length)
        shapes = {
            "input_ids": (tokens, jnp.int32),
            "attention_mask": (tokens, jnp.bool_),
            "labels": (tokens, jnp.int32),
            "weights": (rows, jnp.float32),
        }
        return {name: jax.ShapeDtypeStruct(*shape) for name, shape in shapes.items()}

    def sequence_flops(self, length: int) -> float:
        """Encoder and classifier, forward and backward."""
        return flops.training(
            flops.encoder(self.encoder, length)
            + length * flops.classifier(self.encoder, self.num_classes)
        )

    def init(self, key: jax.Array) -> Any:
        """Initial parameters, boxed with the names of their dimensions."""
        return heads.init(self.model, key)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Tokens with a label in a batch."""
        return {"tagging_loss": jnp.sum(_token_weights(batch))}

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """The class of each token, int32 [B, L]."""
        logits = self._logits(params, batch, None)
        return {"predictions": jnp.argmax(logits, axis=-1).astype(jnp.int32)}

    def _logits(
        self, params: Any, batch: Batch, dropout_keys: jax.Array | None
    ) -> jax.Array:
        return self.model.apply(
            {"params": params}, Inputs.of(batch), dropout_keys=dropout_keys
        )

    def terms(
        self,
        params: Any,
        batch: Batch,
        *,
        dropout_keys: jax.Array | None,
        sampling_keys: jax.Array,
    ) -> metric_sums.Terms:
        """Loss, accuracy and the share of padding; see `Objective`."""
        del sampling_keys  # nothing is drawn
        logits = self._logits(params, batch, dropout_keys)
        labels, weights = batch["labels"], _token_weights(batch)
        loss = metric_sums.cross_entropy(logits, labels)
        return {
            "tagging_loss": metric_sums.weighted(loss, weights),
            "accuracy": metric_sums.weighted(
                metric_sums.is_correct(logits, labels), weights
            ),
            "padding_fraction": metric_sums.padding_fraction(batch["attention_mask"]),
        }


def _token_weights(batch: Batch) -> jax.Array:
    return (batch["labels"] >= 0) * batch["weights"][:, None]
