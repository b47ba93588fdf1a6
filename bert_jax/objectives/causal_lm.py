"""Causal language modelling, left to right (BERT paper, 5.1, "LTR")."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.model import flops, heads
from bert_jax.objectives import Batch, BatchShapes, metric_sums, pretraining


@dataclasses.dataclass(frozen=True)
class CausalLm(pretraining.PretrainingObjective):
    """Mean loss of the next token, from [CLS] up to and including [SEP].

    The encoder is BERT's with a causal mask. The head is the same as for masked tokens.
    """

    config: config_lib.CausalLmConfig = config_lib.CausalLmConfig()

    loss_weights: ClassVar = {"lm_loss": 1.0}
    model_arguments = ()
    prediction_prefix = ""

    @property
    def model(self) -> heads.CausalModel:
        return heads.CausalModel(self.encoder)

    def batch_shapes(self, batch_size: int, length: int) -> BatchShapes:
        weights = jax.ShapeDtypeStruct((batch_size,), jnp.float32)
        return super().batch_shapes(batch_size, length) | {"weights": weights}

    def num_predictions(self, length: int) -> int:
        return length

    def sequence_flops(self, length: int) -> float:
        """Return the FLOPs of encoder and head, as if attention were not causal."""
        return flops.training(
            flops.encoder(self.encoder, length)
            + flops.prediction_head(self.encoder, length)
        )

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        return {"lm_loss": jnp.sum(_weights(batch))}

    def measure(self, params, batch, dropout_keys, sampling_keys):
        logits = self.logits(params, batch, dropout_keys=dropout_keys)  # [B, L, V]
        # The last token of an example has no next token; its weight is 0.
        labels, weights = jnp.roll(batch["input_ids"], -1, axis=1), _weights(batch)
        return metric_sums.loss_and_accuracy("lm", logits, labels, weights)


def _weights(batch: Batch) -> jax.Array:
    """Return float32 [B, L]: the weight of the row where a next token exists, or 0."""
    has_next = jnp.pad(batch["attention_mask"][:, 1:], ((0, 0), (0, 1)))
    if (documents := batch.get("documents")) is not None:
        has_next &= documents == jnp.roll(documents, -1, axis=1)
    return has_next * batch["weights"][:, None]
