"""Permutation language modelling (Yang et al. 2019, XLNet, 2.2 to 2.3)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.model import flops
from bert_jax.model.xlnet.permutation_model import PermutationModel
from bert_jax.objectives import Batch, BatchShapes, metric_sums, pretraining


@dataclasses.dataclass(frozen=True)
class PermutationLm(pretraining.PretrainingObjective):
    """Mean loss of the last tokens in a random order, given all tokens before them.

    Source: zihangdai/xlnet, function_builder.py, two_stream_loss. The second stream has
    vectors at predicted positions only. The paper's memory (2.4) is not implemented.
    """

    config: config_lib.PermutationLmConfig = config_lib.PermutationLmConfig()

    loss_weights: ClassVar = {"plm_loss": 1.0}
    model_arguments = ("ranks", "target_positions")
    prediction_prefix = "target"

    @property
    def model(self) -> PermutationModel:
        return PermutationModel(self.encoder)

    def batch_shapes(self, batch_size: int, length: int) -> BatchShapes:
        ranks = jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
        return super().batch_shapes(batch_size, length) | {"ranks": ranks}

    def num_predictions(self, length: int) -> int:
        return self.config.num_predictions(length)

    def sequence_flops(self, length: int) -> float:
        predictions = self.num_predictions(length)
        return flops.training(
            flops.encoder(self.encoder, length, predictions, targets=predictions)
            + flops.vocabulary(self.encoder, predictions)
        )

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        return {"plm_loss": jnp.sum(batch["target_weights"])}

    def measure(self, params, batch, dropout_keys, sampling_keys):
        logits = self.logits(params, batch, dropout_keys=dropout_keys)  # [B, P, V]
        labels, weights = batch["target_labels"], batch["target_weights"]
        return metric_sums.loss_and_accuracy("plm", logits, labels, weights)
