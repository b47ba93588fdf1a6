"""Masked language modelling, with or without a question about pairs of segments.

BERT asks whether the second segment follows the first (paper, 3.1), ALBERT whether the
two are in order (Lan et al. 2019, 3.1), RoBERTa asks nothing (Liu et al. 2019, 4.2).
"""

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
class MaskedLm:
    """Mean loss of masked tokens, plus mean loss of pairs if they are asked about.

    Source: google-research/bert, run_pretraining.py. It adds 1e-5 to the number of
    masked tokens against division by zero; here an empty count gives 0.
    """

    encoder: config_lib.EncoderConfig
    config: config_lib.MaskedLmConfig = config_lib.MaskedLmConfig()

    encoder_path = "encoder"

    @property
    def _question(self) -> str:
        """Short name of what is asked about pairs; "" for nothing."""
        return config_lib.PAIR_QUESTIONS.get(self.config.segments, "")

    @property
    def losses(self) -> dict[str, float]:
        names = ["mlm_loss", *([f"{self._question}_loss"] if self._question else [])]
        return dict.fromkeys(names, 1.0)

    @property
    def metrics(self) -> tuple[str, ...]:
        accuracies = [name.replace("loss", "accuracy") for name in self.losses]
        return (*self.losses, *accuracies, *row_shapes.metrics(self.config))

    @property
    def model(self) -> heads.PretrainingModel:
        """The model that this objective trains."""
        head = f"{self._question}_head" if self._question else ""
        return heads.PretrainingModel(self.encoder, head)

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """What a batch looks like; `data/batches.py` says what is in it."""
        shapes = row_shapes.shapes(self.config, batch_size, length)
        shapes |= row_shapes.of_predictions(
            "mlm", batch_size, self._predictions(length)
        )
        if self._question:
            asked = (batch_size,)
            if self.config.examples_per_row > 1:
                asked = batch_size, self.config.examples_per_row
                shapes["pooled_positions"] = jax.ShapeDtypeStruct(asked, jnp.int32)
            for part, dtype in (("labels", jnp.int32), ("weights", jnp.float32)):
                name = f"{self._question}_{part}"
                shapes[name] = jax.ShapeDtypeStruct(asked, dtype)
        return shapes

    def sequence_flops(self, length: int) -> float:
        """Encoder and heads, forward and backward, of a row."""
        predictions = self._predictions(length)
        questions = self.config.examples_per_row if self._question else 0
        forward = flops.encoder(self.encoder, length, predictions + questions)
        forward += flops.prediction_head(self.encoder, predictions)
        forward += questions * flops.pooler(self.encoder)
        forward += questions * flops.classifier(self.encoder, 2)
        return flops.training(forward)

    def _predictions(self, length: int) -> int:
        """The dimension P of a batch."""
        return self.config.masking.predictions(length, self.config.examples_per_row)

    def init(self, key: jax.Array) -> Any:
        """Initial parameters, boxed with the names of their dimensions."""
        return heads.init(self.model, key, jnp.zeros((1, 1), jnp.int32))

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Masked tokens and pairs in a batch."""
        return {
            name: jnp.sum(batch[name.replace("loss", "weights")])
            for name in self.losses
        }

    def without_context(self, frequencies: np.ndarray) -> dict[str, float]:
        """Of masked tokens; see `PretrainingObjective`."""
        loss, accuracy = unigram_baseline.masked_token(frequencies, self.config.masking)
        return {"mlm_loss": loss, "mlm_accuracy": accuracy}

    def terms(
        self,
        params: Any,
        batch: Batch,
        *,
        dropout_keys: jax.Array | None,
        sampling_keys: jax.Array,
    ) -> metric_sums.Terms:
        """Losses, accuracies and the share of padding; see `Objective`."""
        del sampling_keys  # nothing is drawn
        logits = self.model.apply(
            {"params": params},
            Inputs.of(batch),
            batch["mlm_positions"],
            batch.get("pooled_positions"),
            dropout_keys=dropout_keys,
        )
        measured = row_shapes.terms_of(batch)
        for name, scores in (("mlm", logits.mlm), (self._question, logits.sentence)):
            if scores is not None:
                labels, weights = batch[f"{name}_labels"], batch[f"{name}_weights"]
                loss = metric_sums.cross_entropy(scores, labels)
                correct = metric_sums.is_correct(scores, labels)
                measured[f"{name}_loss"] = metric_sums.weighted(loss, weights)
                measured[f"{name}_accuracy"] = metric_sums.weighted(correct, weights)
        return measured
