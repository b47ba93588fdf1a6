"""Permutation language modelling (Yang et al. 2019, XLNet, 2.2 to 2.3)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.model import flops, heads
from bert_jax.model.inputs import Inputs
from bert_jax.model.xlnet.permutation_model import PermutationModel
from bert_jax.objectives import Batch, metric_sums, row_shapes


@dataclasses.dataclass(frozen=True)
class PermutationLm:
    """Mean loss of the last tokens in a random order, given all tokens before them.

    Source: zihangdai/xlnet, function_builder.py, two_stream_loss. The second stream has
    vectors at predicted positions only. The paper's memory (2.4) is not implemented.
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
        """Model that this objective trains."""
        return PermutationModel(self.encoder)

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shapes and types; `data/batches.py` documents the arrays."""
        predictions = self.config.predictions(length)
        return {
            **row_shapes.shapes(self.config, batch_size, length),
            **row_shapes.of_predictions("target", batch_size, predictions),
            "ranks": jax.ShapeDtypeStruct((batch_size, length), jnp.int32),
        }

    def sequence_flops(self, length: int) -> float:
        """Return the FLOPs of encoder and head, forward and backward."""
        predictions = self.config.predictions(length)
        return flops.training(
            flops.two_streams(self.encoder, length, predictions)
            + flops.vocabulary(self.encoder, predictions)
        )

    def init(self, key: jax.Array) -> Any:
        """Return initial parameters, boxed with the names of their dimensions."""
        ids = jnp.zeros((1, 1), jnp.int32)
        return heads.init(self.model, key, ids, ids)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the number of predicted tokens in a batch."""
        return {"plm_loss": jnp.sum(batch["target_weights"])}

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
            {"params": params},
            Inputs.of(batch),
            batch["ranks"],
            batch["target_positions"],
            dropout_keys=dropout_keys,
        )
        labels, weights = batch["target_labels"], batch["target_weights"]
        terms = metric_sums.predictions("plm", logits, labels, weights)
        return terms | row_shapes.terms_of(batch)
