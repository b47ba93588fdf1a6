"""Which of several answers is true (BERT paper, 4.4)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

from bert_jax import config as config_lib
from bert_jax.model import flops, heads, randomness
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch, labelled, metric_sums

# Of a choice that is not there; as a probability it is 0.
_MISSING = -1e9


@dataclasses.dataclass(frozen=True)
class Choice:
    """Mean cross entropy of the true answer.

    Each choice is a sequence of its own, and gets one score; a softmax over the scores
    makes probabilities of them.

    Attributes:
      encoder: Shape of the encoder.
      num_choices: Number of choices in a batch. A question that has fewer is filled up
        with choices that are all padding.
    """

    encoder: config_lib.EncoderConfig
    num_choices: int

    encoder_path = "encoder"

    @property
    def losses(self) -> dict[str, float]:
        return {"choice_loss": 1.0}

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*self.losses, "accuracy", "padding_fraction")

    @property
    def model(self) -> heads.ClassifierModel:
        """The model that this objective trains: one score for each sequence."""
        return heads.ClassifierModel(self.encoder, 1)

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """What a batch looks like; `tasks/choice.py` says what is in it."""
        return labelled.batch_shapes(
            (batch_size, self.num_choices, length), labels=((batch_size,), jnp.int32)
        )

    def sequence_flops(self, length: int) -> float:
        """Encoder, pooler and classifier for each choice, forward and backward."""
        return self.num_choices * flops.training(
            flops.encoder(self.encoder, length, positions=1)
            + flops.pooler(self.encoder)
            + flops.classifier(self.encoder, 1)
        )

    def init(self, key: jax.Array) -> Any:
        """Initial parameters, boxed with the names of their dimensions."""
        return heads.init(self.model, key)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Questions in a batch."""
        return {"choice_loss": jnp.sum(batch["weights"])}

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Float32 logits [B, C]; very negative where a choice is missing."""
        return {"logits": self._logits(params, batch, None)}

    def _logits(
        self, params: Any, batch: Batch, dropout_keys: jax.Array | None
    ) -> jax.Array:
        mask = batch["attention_mask"]
        inputs = Inputs.of(batch)
        inputs = jax.tree.map(lambda x: x.reshape(-1, mask.shape[-1]), inputs)
        scores = self.model.apply(
            {"params": params},
            inputs,
            dropout_keys=_keys_of_choices(dropout_keys, self.num_choices),
        )
        return jnp.where(mask.any(-1), scores.reshape(mask.shape[:2]), _MISSING)

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
        logits = self._logits(params, batch, dropout_keys)
        labels, weights = batch["labels"], batch["weights"]
        mask = batch["attention_mask"]
        loss = metric_sums.cross_entropy(logits, labels)
        return {
            "choice_loss": metric_sums.weighted(loss, weights),
            "accuracy": metric_sums.weighted(
                metric_sums.is_correct(logits, labels), weights
            ),
            "padding_fraction": metric_sums.padding_fraction(
                mask.reshape(-1, mask.shape[-1])
            ),
        }


def _keys_of_choices(
    keys: UInt32[Array, " B"] | None, num_choices: int
) -> UInt32[Array, " rows"] | None:
    """A key for each choice of each row, made of the row's key and its number."""
    if keys is None:
        return None
    keys = randomness.fold_in(keys, "choices")
    of_each = [randomness.fold_in(keys, number) for number in range(num_choices)]
    return jnp.stack(of_each, axis=1).reshape(-1)
