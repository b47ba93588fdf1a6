"""Multiple choice: finding the true one of several answers (BERT paper, 4.4)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.objectives import Batch, labelled


@dataclasses.dataclass(frozen=True)
class Choice(labelled.MultiTextObjective):
    """Mean cross entropy of the true answer, over a softmax of one score per choice.

    Each choice is a text.
    """

    loss_name = "choice_loss"
    num_logits = 1

    def sequence_flops(self, length: int) -> float:
        return self.num_texts * super().sequence_flops(length)

    def logits(
        self, params: Any, batch: Batch, dropout_keys: jax.Array | None = None
    ) -> jax.Array:
        """Return float32 logits [B, C]; very negative where a choice is missing."""
        scores = self.encode_texts(params, batch, dropout_keys)  # [B, C, 1]
        exists = batch["attention_mask"].any(-1)  # [B, C]
        return jnp.where(exists, scores[..., 0], labelled.EXCLUDED)
