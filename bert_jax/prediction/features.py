"""Vectors of an encoder for texts, as ELMo's are used (BERT paper, 5.3).

Source: google-research/bert, extract_features.py.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.model import heads
from bert_jax.model.inputs import Inputs
from bert_jax.model.make_encoder import make_encoder
from bert_jax.objectives import Batch
from bert_jax.prediction import text_rows as rows_lib
from bert_jax.prediction.trained import Trained
from bert_jax.tasks import texts as texts_lib

POOLS = ("none", "cls", "mean", "max")
# Texts are sorted by length among those of this many batches.
WINDOW_BATCHES = 8


@dataclasses.dataclass(frozen=True)
class Features:
    """Vectors of a text or of a pair of texts.

    Attributes:
      tokens: Its tokens, special ones included.
      values: float32 [layers, D] if pooled, else [tokens, layers, D].
      truncated: Whether it lost tokens.
    """

    tokens: list[str]
    values: np.ndarray
    truncated: bool


@dataclasses.dataclass(frozen=True)
class Hidden:
    """Hidden states of some layers; see `trained.Question` and `Model.features`."""

    encoder: config_lib.EncoderConfig
    layers: tuple[int, ...]
    pool: str

    encoder_path = "encoder"

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Rows of one segment or two."""
        return rows_lib.shapes(batch_size, length)

    def init(self, key: jax.Array) -> Any:
        """Initial parameters, boxed with the names of their dimensions."""
        return {"encoder": heads.init(make_encoder(self.encoder), key)}

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Float32 [B, K, D] if pooled, else [B, L, K, D], for K layers."""
        encoded = make_encoder(self.encoder).apply(
            {"params": params["encoder"]}, Inputs.of(batch), return_hidden_states=True
        )
        states = [encoded.hidden_states[i] for i in self.layers]
        values = jnp.stack(states, axis=2).astype(jnp.float32)
        is_token = batch["attention_mask"][:, :, None, None]
        if self.pool == "cls":
            values = values[:, 0]
        elif self.pool == "mean":
            values = jnp.sum(values * is_token, axis=1) / jnp.sum(is_token, axis=1)
        elif self.pool == "max":
            values = jnp.max(jnp.where(is_token, values, -jnp.inf), axis=1)
        return {"values": values}


def check(asked: Hidden, length: int, batch_size: int) -> None:
    """Check the arguments of `Model.features`.

    Raises:
      UserError: One of them cannot work.
    """
    depth, positions = asked.encoder.num_layers, asked.encoder.max_position_embeddings
    if not asked.layers:
        raise UserError("layers is empty; give one or several, such as -1")
    for layer in asked.layers:
        if not -depth - 1 <= layer <= depth:
            raise UserError(
                f"there is no layer {layer}; the encoder has {depth}: 1 to {depth}, or "
                f"-{depth} to -1, and 0 or -{depth + 1} for the embeddings"
            )
    if len(set(asked.layers)) < len(asked.layers):
        raise UserError(f"layers={','.join(map(str, asked.layers))} has one twice")
    if asked.pool not in POOLS:
        raise UserError(f"pool={asked.pool!r} must be one of {', '.join(POOLS)}")
    if asked.pool == "cls" and asked.encoder.causal:
        raise UserError(
            "pool='cls' is of no use with an encoder from left to right, whose [CLS] "
            "sees no other token; give mean or max"
        )
    if length and not 3 <= length <= positions:
        raise UserError(
            f"length={length} must be from 3 to the {positions} positions of the model"
        )
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size} must be at least 1")


def stream(
    model: Trained,
    asked: Hidden,
    texts: Iterable[rows_lib.Text],
    length: int,
    batch_size: int,
) -> Iterator[Features]:
    """See `Model.features`."""
    texts, names = iter(texts), model.tokenizer.tokens
    while window := list(itertools.islice(texts, WINDOW_BATCHES * batch_size)):
        rows, truncated = texts_lib.to_rows(
            rows_lib.pairs_of(window), model.tokenizer, length
        )
        counts = rows["attention_mask"].sum(axis=1)
        values: list[np.ndarray] = [np.zeros(0)] * len(window)
        for indices, answers in model.batches(asked, rows, batch_size):
            for index, vectors in zip(indices, answers["values"], strict=True):
                if asked.pool == "none":
                    vectors = vectors[: counts[index]]
                values[index] = vectors.copy()  # the rest of the batch can go
        for i, count in enumerate(counts):
            tokens = [names[token] for token in rows["input_ids"][i, :count]]
            yield Features(tokens, values[i], bool(truncated[i]))
