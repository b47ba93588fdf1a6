"""Classification of sequences (BERT paper, 4.1)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.model import flops, heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch, labelled, metric_sums


@dataclasses.dataclass(frozen=True)
class Classification:
    """Mean cross entropy of the class.

    With smoothing e, an example of class y costs

        -(1 - e) log p_y - e / C sum_c log p_c

    and with weights w of classes, the mean over examples i, as PyTorch's, is

        sum_i w_{y_i} loss_i / sum_i w_{y_i}.

    The accuracy is of examples that all count alike.

    Attributes:
      encoder: Shape of the encoder.
      num_classes: C.
      class_weights: w; (): all are 1.
      label_smoothing: e.
    """

    encoder: config_lib.EncoderConfig
    num_classes: int
    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0

    encoder_path = "encoder"

    @property
    def losses(self) -> dict[str, float]:
        return {"classification_loss": 1.0}

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*self.losses, "accuracy", "padding_fraction")

    @property
    def model(self) -> heads.ClassifierModel:
        """The model that this objective trains."""
        return heads.ClassifierModel(self.encoder, self.num_classes)

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """What a batch looks like; `tasks/classification.py` says what is in it."""
        return labelled.batch_shapes(
            (batch_size, length), labels=((batch_size,), jnp.int32)
        )

    def sequence_flops(self, length: int) -> float:
        """Encoder, pooler and classifier, forward and backward."""
        return flops.training(
            flops.encoder(self.encoder, length, positions=1)
            + flops.pooler(self.encoder)
            + flops.classifier(self.encoder, self.num_classes)
        )

    def init(self, key: jax.Array) -> Any:
        """Initial parameters, boxed with the names of their dimensions."""
        return heads.init(self.model, key)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Examples in a batch, by the weights of their classes."""
        return {"classification_loss": jnp.sum(self._weights(batch))}

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Float32 logits [B, C]."""
        return {"logits": self._logits(params, batch, None)}

    def _weights(self, batch: Batch) -> jax.Array:
        """What each row counts in the loss."""
        if not self.class_weights:
            return batch["weights"]
        return batch["weights"] * jnp.array(self.class_weights)[batch["labels"]]

    def _logits(
        self, params: Any, batch: Batch, dropout_keys: jax.Array | None
    ) -> jax.Array:
        return self.model.apply(
            {"params": params}, Inputs.of(batch), dropout_keys=dropout_keys
        )

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
        loss = metric_sums.cross_entropy(logits, labels)
        if self.label_smoothing:
            uniform = jax.nn.logsumexp(logits, axis=-1) - jnp.mean(logits, axis=-1)
            loss += self.label_smoothing * (uniform - loss)
        return {
            "classification_loss": metric_sums.weighted(loss, self._weights(batch)),
            "accuracy": metric_sums.weighted(
                metric_sums.is_correct(logits, labels), weights
            ),
            "padding_fraction": metric_sums.padding_fraction(batch["attention_mask"]),
        }
