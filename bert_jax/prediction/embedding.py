"""Vectors of texts from a model that was fine-tuned on pairs of texts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax.model import heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch
from bert_jax.prediction import text_inputs
from bert_jax.prediction.trained_model import BATCH_SIZE, TrainedModel
from bert_jax.tasks import token_rows


@dataclasses.dataclass(frozen=True)
class TextVectors(text_inputs.TextComputation):
    """Unit vectors of texts; see `embed`."""

    pool: str

    @property
    def model(self) -> heads.EmbeddingModel:
        return heads.EmbeddingModel(self.encoder, self.pool)

    def init(self, key: jax.Array) -> Any:
        return heads.init(self.model, key)

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return float32 unit vectors [B, D]."""
        return {"vectors": self.model.apply({"params": params}, Inputs.of(batch))}


def embed(model: TrainedModel, texts: Sequence[str]) -> np.ndarray:
    """Return a unit vector for each text, float32 [texts, D].

    The product of two vectors is their cosine similarity. Texts longer than
    `task.length` are truncated, as in training.
    """
    text_inputs.check_texts(texts)
    config, _ = model.task(config_lib.EmbeddingConfig)
    rows, _ = token_rows.to_rows(
        [(text, "") for text in texts], model.tokenizer, config.length
    )
    computation = TextVectors(model.encoder, config.pool)
    return model.engine(computation).outputs(rows, BATCH_SIZE)["vectors"]
