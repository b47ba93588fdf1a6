"""Each token from those before it: left to right (BERT paper, 5.1, "LTR")."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax.model import flops, heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch, metric_sums, row_shapes, unigram_baseline


@dataclasses.dataclass(frozen=True)
class CausalLm:
    """Mean loss of the next token, [SEP] included, from [CLS] on.

    The encoder is BERT's with a causal mask, and the head that of masked tokens.
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
        """The model that this objective trains."""
        return heads.CausalModel(self.encoder)

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """What a batch looks like; `data/batches.py` says what is in it."""
        weights = jax.ShapeDtypeStruct((batch_size,), jnp.float32)
        return {
            **row_shapes.shapes(self.config, batch_size, length),
            "weights": weights,
        }

    def sequence_flops(self, length: int) -> float:
        """Encoder and head, forward and backward, as if nothing were masked."""
        return flops.training(
            flops.encoder(self.encoder, length)
            + flops.prediction_head(self.encoder, length)
        )

    def init(self, key: jax.Array) -> Any:
        """Initial parameters, boxed with the names of their dimensions."""
        return heads.init(self.model, key)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Predicted tokens in a batch."""
        return {"lm_loss": jnp.sum(_weights(batch))}

    def without_context(self, frequencies: np.ndarray) -> dict[str, float]:
        """Of next tokens; see `PretrainingObjective`."""
        loss, accuracy = unigram_baseline.next_token(frequencies)
        return {"lm_loss": loss, "lm_accuracy": accuracy}

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
        logits = self.model.apply(
            {"params": params}, Inputs.of(batch), dropout_keys=dropout_keys
        )
        # The last one of an example has no next token; its prediction weighs nothing.
        labels, weights = jnp.roll(batch["input_ids"], -1, axis=1), _weights(batch)
        loss = metric_sums.cross_entropy(logits, labels)
        correct = metric_sums.is_correct(logits, labels)
        return {
            "lm_loss": metric_sums.weighted(loss, weights),
            "lm_accuracy": metric_sums.weighted(correct, weights),
            **row_shapes.terms_of(batch),
        }


def _weights(batch: Batch) -> jax.Array:
    """1 where the example has a next token, of rows that count: float32 [B, L]."""
    has_next = jnp.pad(batch["attention_mask"][:, 1:], ((0, 0), (0, 1)))
    if (documents := batch.get("documents")) is not None:
        has_next &= documents == jnp.roll(documents, -1, axis=1)
    return has_next * batch["weights"][:, None]
