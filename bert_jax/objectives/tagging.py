"""Classification of each token that has a label (BERT paper, 5.3)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model import heads
from bert_jax.objectives import Batch, BatchShapes, labelled


@dataclasses.dataclass(frozen=True)
class Tagging(labelled.LabelledObjective):
    """Mean cross entropy of the class, over all tokens with a label."""

    num_classes: int

    loss_name = "tagging_loss"
    model_class = heads.TaggerModel

    def batch_shapes(self, batch_size: int, length: int) -> BatchShapes:
        """Return shapes and types. Rows have one segment; negative labels mean none."""
        shapes = super().batch_shapes(batch_size, length)
        del shapes["segment_ids"]
        return shapes | {"labels": shapes["input_ids"]}

    def example_weights(self, batch: Batch) -> jax.Array:
        """Return the weight of each token [B, L]; 0 without a label."""
        return (batch["labels"] >= 0) * batch["weights"][:, None]

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return the class of each token, int32 [B, L]."""
        logits = self.logits(params, batch)
        return {"predictions": jnp.argmax(logits, axis=-1).astype(jnp.int32)}
