"""Multiple choice: finding the true one of several answers (BERT paper, 4.4)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

from bert_jax.model import randomness
from bert_jax.model.inputs import Inputs
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
        inputs = jax.tree.map(
            lambda x: x.reshape(-1, mask.shape[-1]), Inputs.of(batch)
        )  # [B * C, L]
        scores = self.model.apply(
            {"params": params},
            inputs,
            dropout_keys=_choice_keys(dropout_keys, self.num_choices),
        )
        return jnp.where(mask.any(-1), scores.reshape(mask.shape[:2]), _MISSING)


def _choice_keys(
    keys: UInt32[Array, " B"] | None, num_choices: int
) -> UInt32[Array, " rows"] | None:
    """Derive a dropout key for each choice from the key of its row."""
    if keys is None:
        return None
    keys = randomness.fold_in(keys, "choices")
    per_choice = [randomness.fold_in(keys, number) for number in range(num_choices)]
    return jnp.stack(per_choice, axis=1).reshape(-1)  # [B * C]
