"""Vectors of texts from a model that was fine-tuned on pairs of texts."""

from collections.abc import Sequence

import numpy as np

from bert_jax import config as config_lib
from bert_jax.objectives import embedding
from bert_jax.prediction import text_inputs
from bert_jax.prediction.trained_model import BATCH_SIZE, TrainedModel
from bert_jax.tasks import token_rows


def embed(model: TrainedModel, texts: Sequence[str]) -> np.ndarray:
    """Return a unit vector for each text, float32 [texts, D].

    The product of two vectors is their cosine similarity. Texts longer than
    `task.length` are truncated, as in training.
    """
    text_inputs.check_texts(texts)
    config, _ = model.task(config_lib.EmbeddingConfig)
    objective = embedding.Embedding(model.encoder, 1, config.pool, config.temperature)
    engine = model.engine(objective)
    rows, _ = token_rows.to_rows(
        [(text, "") for text in texts], model.tokenizer, config.length, engine.bucket
    )
    rows = {name: values[:, None] for name, values in rows.items()}  # [R, 1, L]
    return engine.outputs(rows, BATCH_SIZE)["vectors"][:, 0]
