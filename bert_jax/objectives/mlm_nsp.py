"""Masked language modelling and next sentence prediction (BERT paper, 3.1)."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.model import heads
from bert_jax.objectives import terms
from bert_jax.objectives.terms import Term


@dataclasses.dataclass(frozen=True)
class MlmNsp:
    """The objective of BERT: mean loss of masked tokens plus mean loss of pairs.

    Source: google-research/bert, run_pretraining.py. It adds 1e-5 to the number of
    masked tokens against division by zero; here an empty count gives 0.
    """

    config: config_lib.EncoderConfig

    losses = ("mlm_loss", "nsp_loss")
    metrics = (*losses, "mlm_accuracy", "nsp_accuracy", "padding_fraction")

    @property
    def model(self) -> heads.PretrainingModel:
        """The model this objective trains."""
        return heads.PretrainingModel(self.config)

    def init(self, key: jax.Array):
        """Parameters, boxed with the names of their dimensions."""
        ids = jnp.zeros((1, 1), jnp.int32)
        return self.model.init(key, ids, ids, ids == 0, ids)["params"]

    def batch_shapes(
        self, batch_size: int, length: int, max_predictions: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """What a batch looks like; `data/sentence_pairs.py` says what is in it."""
        rows, tokens = (batch_size,), (batch_size, length)
        predictions = batch_size, max_predictions
        shapes = {
            "input_ids": (tokens, jnp.int32),
            "segment_ids": (tokens, jnp.int32),
            "attention_mask": (tokens, jnp.bool_),
            "mlm_positions": (predictions, jnp.int32),
            "mlm_labels": (predictions, jnp.int32),
            "mlm_weights": (predictions, jnp.float32),
            "nsp_labels": (rows, jnp.int32),
            "nsp_weights": (rows, jnp.float32),
        }
        return {name: jax.ShapeDtypeStruct(*shape) for name, shape in shapes.items()}

    def counts(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Masked tokens and pairs in a batch."""
        return {
            "mlm_loss": jnp.sum(batch["mlm_weights"]),
            "nsp_loss": jnp.sum(batch["nsp_weights"]),
        }

    def terms(
        self, params, batch: dict[str, jax.Array], dropout_keys: jax.Array | None
    ) -> terms.Terms:
        """Losses, accuracies and the share of padding.

        Args:
          params: of `model`.
          batch: see `data/sentence_pairs.py`.
          dropout_keys: one for each example; None for evaluation.
        """
        logits = self.model.apply(
            {"params": params},
            batch["input_ids"],
            batch["segment_ids"],
            batch["attention_mask"],
            batch["mlm_positions"],
            dropout_keys=dropout_keys,
        )
        mlm_labels, mlm_weights = batch["mlm_labels"], batch["mlm_weights"]
        nsp_labels, nsp_weights = batch["nsp_labels"], batch["nsp_weights"]
        mlm_loss = terms.cross_entropy(logits.mlm, mlm_labels)
        nsp_loss = terms.cross_entropy(logits.nsp, nsp_labels)
        mlm_correct = terms.is_correct(logits.mlm, mlm_labels)
        nsp_correct = terms.is_correct(logits.nsp, nsp_labels)
        is_padding = 1.0 - batch["attention_mask"]
        return {
            "mlm_loss": terms.weighted(mlm_loss, mlm_weights),
            "mlm_accuracy": terms.weighted(mlm_correct, mlm_weights),
            "nsp_loss": terms.weighted(nsp_loss, nsp_weights),
            "nsp_accuracy": terms.weighted(nsp_correct, nsp_weights),
            "padding_fraction": Term(jnp.sum(is_padding), jnp.float32(is_padding.size)),
        }
