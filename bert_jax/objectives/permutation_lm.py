"""Permutation language modelling (Yang et al. 2019, XLNet, 2.2 to 2.3)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax.model import flops, heads
from bert_jax.model.inputs import Inputs
from bert_jax.model.xlnet.permutation_model import PermutationModel
from bert_jax.objectives import Batch, metric_sums, row_shapes, unigram_baseline


@dataclasses.dataclass(frozen=True)
class PermutationLm:
    """Mean loss of the last tokens of a random order, each from those before it.

    Source: zihangdai/xlnet, function_builder.py, two_stream_loss. The second stream has
    vectors where something is predicted, and no others. The paper's memory (2.4) is
    left out.
    """

    encoder: config_lib.EncoderConfig
    config: config_lib.PermutationLmConfig = config_lib.PermutationLmConfig()

    encoder_path = "encoder"

    @property
    def losses(self) -> dict[str, float]:
        return {"plm_loss": 1.0}

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("plm_loss", "plm_accuracy", *row_shapes.metrics(self.config))

    @property
    def model(self) -> PermutationModel:
        """The model that this objective trains."""
        return PermutationModel(self.encoder)

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """What a batch looks like; `data/batches.py` says what is in it."""
        predictions = self.config.predictions(length)
        return {
            **row_shapes.shapes(self.config, batch_size, length),
            **row_shapes.of_predictions("target", batch_size, predictions),
            "ranks": jax.ShapeDtypeStruct((batch_size, length), jnp.int32),
        }

    def sequence_flops(self, length: int) -> float:
        """Return the operations of encoder and head, forward and backward."""
        predictions = self.config.predictions(length)
        return flops.training(
            flops.two_streams(self.encoder, length, predictions)
            + flops.vocabulary(self.encoder, predictions)
        )

    def init(self, key: jax.Array) -> Any:
        """Initial parameters, boxed with the names of their dimensions."""
        ids = jnp.zeros((1, 1), jnp.int32)
        return heads.init(self.model, key, ids, ids)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Predicted tokens in a batch."""
        return {"plm_loss": jnp.sum(batch["target_weights"])}

    def without_context(self, frequencies: np.ndarray) -> dict[str, float]:
        """Of predicted tokens; see `PretrainingObjective`."""
        loss, accuracy = unigram_baseline.next_token(frequencies)
        return {"plm_loss": loss, "plm_accuracy": accuracy}

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
            {"params": params},
            Inputs.of(batch),
            batch["ranks"],
            batch["target_positions"],
            dropout_keys=dropout_keys,
        )
        labels, weights = batch["target_labels"], batch["target_weights"]
        loss = metric_sums.cross_entropy(logits, labels)
        correct = metric_sums.is_correct(logits, labels)
        return {
            "plm_loss": metric_sums.weighted(loss, weights),
            "plm_accuracy": metric_sums.weighted(correct, weights),
            **row_shapes.terms_of(batch),
        }
