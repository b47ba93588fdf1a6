"""Multiple choice: finding the true one of several answers (BERT paper, 4.4)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.objectives import Batch, labelled

# Logit of a missing choice; its probability is 0.
_MISSING = -1e9


@dataclasses.dataclass(frozen=True)
class Choice(labelled.LabelledObjective):
    """Mean cross entropy of the true answer, over a softmax of one score per choice.

    Each choice is a sequence of its own. A question with fewer choices is padded with
    empty ones, which the attention mask excludes.
    """

    num_choices: int

    loss_name = "choice_loss"
    num_logits = 1

    def token_shape(self, batch_size: int, length: int) -> tuple[int, ...]:
        """Return [B, C, L]."""
        return batch_size, self.num_choices, length

    def sequence_flops(self, length: int) -> float:
        return self.num_choices * super().sequence_flops(length)

    def logits(
        self, params: Any, batch: Batch, dropout_keys: jax.Array | None = None
    ) -> jax.Array:
        """Return float32 logits [B, C]; very negative where a choice is missing."""
        mask = batch["attention_mask"]  # [B, C, L]
        scores = self.model.apply(
            {"params": params},
            labelled.flatten_texts(batch),
            dropout_keys=labelled.text_keys(dropout_keys, self.num_choices),
        )
        return jnp.where(mask.any(-1), scores.reshape(mask.shape[:2]), _MISSING)
