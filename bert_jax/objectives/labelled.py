"""Base class of the fine-tuning objectives: one head, one loss, labelled rows."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from bert_jax import config as config_lib
from bert_jax.model import cross_entropy, flops, heads, randomness
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch, BatchShapes, metric_sums

# Logit of what a softmax must not choose; its probability is 0.
EXCLUDED = -1e9


@dataclasses.dataclass(frozen=True)
class LabelledObjective:
    """Objective whose head gives logits for each row, or for each token of a row.

    A subclass sets the constants, and overrides the members in which it differs.
    """

    encoder: config_lib.EncoderConfig

    logits_reader = ""
    rows_are_independent = True
    loss_name: ClassVar[str]
    # Metrics besides the loss and the share of padding.
    metric_names: ClassVar[tuple[str, ...]] = ("accuracy",)
    # Encoder with a head, which reads each token or the pooled vector of the sequence.
    model_class: ClassVar[type[heads.ClassifierModel]] = heads.ClassifierModel
    # Type of each label array [B].
    label_types: ClassVar[dict[str, Any]] = {"labels": jnp.int32}

    @property
    def num_logits(self) -> int:
        """Number of logits for each position that the head reads."""
        return self.num_classes

    def token_shape(self, batch_size: int, length: int) -> tuple[int, ...]:
        """Return the shape of the token arrays."""
        return batch_size, length

    def batch_shapes(self, batch_size: int, length: int) -> BatchShapes:
        """Return shapes and types. `weights` is 0 for rows that pad a batch."""
        tokens = {"input_ids": jnp.int32, "segment_ids": jnp.int32}
        tokens["attention_mask"] = jnp.bool_
        shape = self.token_shape(batch_size, length)
        shapes = {n: jax.ShapeDtypeStruct(shape, dtype) for n, dtype in tokens.items()}
        for name, dtype in (*self.label_types.items(), ("weights", jnp.float32)):
            shapes[name] = jax.ShapeDtypeStruct((batch_size,), dtype)
        return shapes

    def num_predictions(self, length: int) -> int:
        """Return 0: labels are not tokens of the vocabulary."""
        return 0

    def sequence_flops(self, length: int) -> float:
        c, pooling = self.encoder, self.encoder.pooler.pooling
        # Vectors that the encoder, the pooler and the head compute.
        if issubclass(self.model_class, heads.TaggerModel):
            read, pooled, scored = length, length * c.pooler.per_token, length
        else:
            read = 1 if pooling == "cls" else length
            pooled, scored = length if pooling == "late_mean" else 1, 1
        forward = flops.encoder(c, length, positions=read) + pooled * flops.pooler(c)
        return flops.training(forward + scored * flops.classifier(c, self.num_logits))

    def logits(
        self, params: Any, batch: Batch, dropout_keys: jax.Array | None = None
    ) -> jax.Array:
        """Return the float32 logits of the head."""
        return heads.apply(self.model, params, batch, dropout_keys=dropout_keys)

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return float32 logits [B, C]; see `tasks.TaskObjective`."""
        return {"logits": self.logits(params, batch)}

    def measure_logits(self, logits: jax.Array, batch: Batch) -> metric_sums.MetricSums:
        """Return the loss and the metrics in `metric_names`."""
        labels, weights = batch["labels"], self.example_weights(batch)
        loss = cross_entropy.cross_entropy(logits, labels)
        correct = cross_entropy.is_correct(logits, labels)
        return {
            self.loss_name: metric_sums.weighted_sum(loss, weights),
            "accuracy": metric_sums.weighted_sum(correct, weights),
        }

    def example_weights(self, batch: Batch) -> jax.Array:
        """Return the weight of each labelled row or token in the loss."""
        return batch["weights"]

    @property
    def model(self) -> heads.ClassifierModel:
        return self.model_class(self.encoder, self.num_logits)

    @property
    def loss_weights(self) -> dict[str, float]:
        return {self.loss_name: 1.0}

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.loss_name, *self.metric_names, "padding_fraction")

    def init(self, key: jax.Array) -> Any:
        return heads.init(self.model, key)

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        return {self.loss_name: jnp.sum(self.example_weights(batch))}

    def sums(
        self,
        params: Any,
        batch: Batch,
        *,
        dropout_keys: jax.Array | None,
        sampling_keys: jax.Array,
    ) -> metric_sums.MetricSums:
        del sampling_keys  # These objectives sample nothing.
        sums = self.measure_logits(self.logits(params, batch, dropout_keys), batch)
        padding = metric_sums.padding_fraction(batch["attention_mask"])
        return sums | {"padding_fraction": padding}


@dataclasses.dataclass(frozen=True)
class MultiTextObjective(LabelledObjective):
    """Objective on rows of C texts, each of which is a sequence of its own.

    Rows with fewer texts are padded with empty ones, which the attention mask excludes.
    """

    num_texts: int  # C

    def token_shape(self, batch_size: int, length: int) -> tuple[int, ...]:
        """Return [B, C, L]."""
        return batch_size, self.num_texts, length

    def encode_texts(
        self, params: Any, batch: Batch, keys: UInt32[Array, " B"] | None
    ) -> Float[Array, "B C D"]:
        """Return the output of the model for each text."""
        num_texts = batch["input_ids"].shape[1]
        texts = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), Inputs.of(batch))
        if keys is not None:
            # A key for each text. The name stays, so that runs resume.
            keys = randomness.fold_in(keys, "choices")
            by_text = [randomness.fold_in(keys, i) for i in range(num_texts)]
            keys = jnp.stack(by_text, axis=1).reshape(-1)  # [B * C]
        outputs = self.model.apply({"params": params}, texts, dropout_keys=keys)
        return outputs.reshape(-1, num_texts, outputs.shape[-1])
