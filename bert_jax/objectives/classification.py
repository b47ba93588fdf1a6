"""Classification of sequences (BERT paper, 4.1)."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.model import heads
from bert_jax.objectives import terms
from bert_jax.objectives.terms import Term


@dataclasses.dataclass(frozen=True)
class Classification:
    """Mean cross entropy of the class."""

    config: config_lib.EncoderConfig
    num_classes: int

    losses = ("classification_loss",)
    metrics = (*losses, "accuracy", "padding_fraction")

    @property
    def model(self) -> heads.ClassifierModel:
        """The model this objective trains."""
        return heads.ClassifierModel(self.config, self.num_classes)

    def init(self, key: jax.Array):
        """Parameters, boxed with the names of their dimensions."""
        ids = jnp.zeros((1, 1), jnp.int32)
        return self.model.init(key, ids, ids, ids == 0)["params"]

    def counts(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Examples in a batch."""
        return {"classification_loss": jnp.sum(batch["weights"])}

    def logits(
        self, params, batch: dict[str, jax.Array], dropout_keys: jax.Array | None
    ) -> jax.Array:
        """Float32 logits [B, C] of a batch."""
        return self.model.apply(
            {"params": params},
            batch["input_ids"],
            batch["segment_ids"],
            batch["attention_mask"],
            dropout_keys=dropout_keys,
        )

    def terms(
        self, params, batch: dict[str, jax.Array], dropout_keys: jax.Array | None
    ) -> terms.Terms:
        """Loss, accuracy and the share of padding.

        Args:
          params: of `model`.
          batch: see `data/examples.py` and `tasks/classification.py`.
          dropout_keys: one for each example; None for evaluation.
        """
        logits = self.logits(params, batch, dropout_keys)
        labels, weights = batch["labels"], batch["weights"]
        loss = terms.cross_entropy(logits, labels)
        is_padding = 1.0 - batch["attention_mask"]
        return {
            "classification_loss": terms.weighted(loss, weights),
            "accuracy": terms.weighted(terms.is_correct(logits, labels), weights),
            "padding_fraction": Term(jnp.sum(is_padding), jnp.float32(is_padding.size)),
        }
