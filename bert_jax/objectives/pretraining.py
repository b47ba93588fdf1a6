"""Base class of the pretraining objectives, with the arrays and metrics they share.

`data/batches.py` documents the arrays.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.model import heads
from bert_jax.objectives import Batch, BatchShapes, metric_sums


@dataclasses.dataclass(frozen=True)
class PretrainingObjective:
    """Objective whose rows are made from a corpus.

    A subclass has a field `config` with a default. It defines `model`, the rest of
    `Objective`, and `measure`, which `sums` calls.
    """

    encoder: config_lib.EncoderConfig

    logits_reader: ClassVar[str] = ""
    rows_are_independent: ClassVar[bool] = True
    # Arrays of a batch that the model takes after `Inputs`, all int32 [B, ...].
    model_arguments: ClassVar[tuple[str, ...]] = ("mlm_positions",)
    # Prefix of the arrays of predicted tokens, [B, P]; "": there are none.
    prediction_prefix: ClassVar[str] = "mlm"

    @property
    def metrics(self) -> tuple[str, ...]:
        accuracies = [name.replace("loss", "accuracy") for name in self.loss_weights]
        packed = ("examples_per_row",) if self.config.examples_per_row > 1 else ()
        return (*self.loss_weights, *accuracies, "padding_fraction", *packed)

    def batch_shapes(self, batch_size: int, length: int) -> BatchShapes:
        """Return shapes of tokens, boundaries of examples, and predicted tokens."""
        names = ["input_ids"]
        if self.config.segments not in config_lib.SINGLE_SEGMENTS:
            names.append("segment_ids")
        if self.config.examples_per_row > 1:
            names += ["positions", "documents"]
        tokens = batch_size, length
        shapes = {name: jax.ShapeDtypeStruct(tokens, jnp.int32) for name in names}
        shapes["attention_mask"] = jax.ShapeDtypeStruct(tokens, jnp.bool_)
        if self.prediction_prefix:
            size = batch_size, self.num_predictions(length)
            for part in ("positions", "labels", "weights"):
                dtype = jnp.float32 if part == "weights" else jnp.int32
                name = f"{self.prediction_prefix}_{part}"
                shapes[name] = jax.ShapeDtypeStruct(size, dtype)
        return shapes

    def init(self, key: jax.Array) -> Any:
        return heads.init(self.model, key, self.model_arguments)

    def logits(self, params: Any, batch: Batch, **options: Any) -> Any:
        """Return the output of the model, with options as in `heads.apply`."""
        return heads.apply(self.model, params, batch, self.model_arguments, **options)

    def sums(
        self,
        params: Any,
        batch: Batch,
        *,
        dropout_keys: jax.Array | None,
        sampling_keys: jax.Array,
    ) -> metric_sums.MetricSums:
        sums = self.measure(params, batch, dropout_keys, sampling_keys)
        sums["padding_fraction"] = metric_sums.padding_fraction(batch["attention_mask"])
        if "documents" in batch:
            examples = 1.0 + jnp.max(batch["documents"], axis=1)  # [B]
            rows = jnp.float32(examples.size)
            sums["examples_per_row"] = metric_sums.MetricSum(jnp.sum(examples), rows)
        return sums
