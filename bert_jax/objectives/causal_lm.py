"""Causal language modelling, left to right (BERT paper, 5.1, "LTR")."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.model import flops, heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch, metric_sums, row_shapes


@dataclasses.dataclass(frozen=True)
class CausalLm:
    """Mean loss of the next token, from [CLS] up to and including [SEP].

    The encoder is BERT's with a causal mask. The head is that of masked tokens.
    """

    encoder: config_lib.EncoderConfig
    config: config_lib.CausalLmConfig = config_lib.CausalLmConfig()

    encoder_path = "encoder"

    @property
    def losses(self) -> dict[str, float]:
        return {"lm_loss": 1.0}

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("lm_loss", "lm_accuracy", *row_shapes.metrics(self.config))

    @property
    def model(self) -> heads.CausalModel:
        """Model that this objective trains."""
        return heads.CausalModel(self.encoder)

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shapes and types; `data/batches.py` documents the arrays."""
        weights = jax.ShapeDtypeStruct((batch_size,), jnp.float32)
        return {
            **row_shapes.shapes(self.config, batch_size, length),
            "weights": weights,
        }

    def sequence_flops(self, length: int) -> float:
        """Return the FLOPs of encoder and head, as if attention were not causal."""
        return flops.training(
            flops.encoder(self.encoder, length)
            + flops.prediction_head(self.encoder, length)
        )

    def init(self, key: jax.Array) -> Any:
        """Return initial parameters, boxed with the names of their dimensions."""
        return heads.init(self.model, key)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the number of predicted tokens in a batch."""
        return {"lm_loss": jnp.sum(_weights(batch))}

    def terms(
        self,
        params: Any,
        batch: Batch,
        *,
        dropout_keys: jax.Array | None,
        sampling_keys: jax.Array,
    ) -> metric_sums.Terms:
        """Return loss, accuracy and the share of padding; see `Objective`."""
        del sampling_keys  # Nothing is sampled.
        logits = self.model.apply(
            {"params": params}, Inputs.of(batch), dropout_keys=dropout_keys
        )
        # The last token of an example has no next token; its weight is 0.
        labels, weights = jnp.roll(batch["input_ids"], -1, axis=1), _weights(batch)
        terms = metric_sums.predictions("lm", logits, labels, weights)
        return terms | row_shapes.terms_of(batch)


def _weights(batch: Batch) -> jax.Array:
    """Return float32 [B, L]: the weight of the row where a next token exists, or 0."""
    has_next = jnp.pad(batch["attention_mask"][:, 1:], ((0, 0), (0, 1)))
    if (documents := batch.get("documents")) is not None:
        has_next &= documents == jnp.roll(documents, -1, axis=1)
    return has_next * batch["weights"][:, None]
