"""Contrastive learning of vectors of texts, with the batch as negative examples."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bert_jax.model import flops, heads
from bert_jax.objectives import Batch, BatchShapes, labelled, metric_sums


@dataclasses.dataclass(frozen=True)
class Embedding(labelled.MultiTextObjective):
    """Mean cross entropy of a row's second text among all other texts of the batch.

    A row has two texts that belong together, and perhaps a third text that does not
    belong to the first; in predictions, one text. The first text is compared with the
    second and third texts of all rows; logits are cosine similarities divided by the
    temperature. Source: SimCSE (Gao et al. 2021), sections 3 and 4. Unlike there, a
    text is no negative example if it equals the row's first text, or is the second text
    of any row with that first text.

    Unlike in other objectives, the loss of a row depends on the other rows of its
    batch. Micro-batches would have fewer negatives, so the config refuses them.
    """

    pool: str
    temperature: float

    loss_name = "contrastive_loss"
    rows_are_independent = False
    label_types: ClassVar = {}

    def batch_shapes(self, batch_size: int, length: int) -> BatchShapes:
        """Return shapes and types. `texts` numbers the texts; a missing one has -1."""
        shape = batch_size, self.num_texts
        texts = {"texts": jax.ShapeDtypeStruct(shape, jnp.int32)}
        return super().batch_shapes(batch_size, length) | texts

    @property
    def model(self) -> heads.EmbeddingModel:
        return heads.EmbeddingModel(self.encoder, self.pool)

    def sequence_flops(self, length: int) -> float:
        read = 1 if self.pool == "cls" else length
        forward = flops.encoder(self.encoder, length, positions=read)
        return self.num_texts * flops.training(forward)

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return float32 unit vectors [B, C, D]."""
        return {"vectors": self.encode_texts(params, batch, None)}

    def logits(
        self, params: Any, batch: Batch, dropout_keys: jax.Array | None = None
    ) -> jax.Array:
        """Return logits of first texts and later texts, float32 [B, B * (C - 1)]."""
        vectors, texts = self.encode_texts(params, batch, dropout_keys), batch["texts"]
        first, others = vectors[:, 0], vectors[:, 1:].reshape(-1, vectors.shape[-1])
        logits = jnp.matmul(first, others.T, precision="highest") / self.temperature
        candidates = texts[:, 1:].reshape(-1)  # [B * (C - 1)]
        is_real = jnp.repeat(batch["weights"] > 0, self.num_texts - 1)
        has_same_first = texts[:, :1] == texts[:, 0]  # [B, B]
        is_second = texts[:, 1:2] == candidates  # [B, B * (C - 1)]
        belongs = jnp.matmul(has_same_first.astype(jnp.float32), is_second) > 0
        belongs |= texts[:, :1] == candidates
        is_negative = is_real & (candidates >= 0) & ~belongs  # [B, B * (C - 1)]
        second = self._second_columns(len(texts))[:, None]  # [B, 1]
        is_own = jnp.arange(len(candidates)) == second
        return jnp.where(is_own | is_negative, logits, labelled.EXCLUDED)

    def _second_columns(self, rows: int) -> jax.Array:
        """Return the column of the second text of each row: int32 [B]."""
        return jnp.arange(rows) * (self.num_texts - 1)

    def measure_logits(self, logits: jax.Array, batch: Batch) -> metric_sums.MetricSums:
        """Return the loss, and how often the second text is the most similar one."""
        return super().measure_logits(
            logits, batch | {"labels": self._second_columns(len(logits))}
        )
