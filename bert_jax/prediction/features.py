"""Feature vectors of texts from the layers of an encoder (BERT paper, 5.3).

Source: google-research/bert, extract_features.py. There, layer 0 is the first layer;
negative numbers mean the same as here.
"""

import dataclasses
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.model import heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch
from bert_jax.prediction import text_inputs
from bert_jax.prediction.trained_model import BATCH_SIZE, TrainedModel
from bert_jax.tasks import token_rows

POOLS = ("none", "cls", "mean", "max")
# Texts are read ahead and sorted by length: at most this many batches. After the first
# batch, reading ahead ends when their features reach `_WINDOW_BYTES`.
WINDOW_BATCHES = 8
_WINDOW_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True)
class Features:
    """Feature vectors of a text or pair.

    Attributes:
      tokens: Tokens, special tokens included.
      values: float32 [layers, D] if pooled, else [tokens, layers, D].
      truncated: Whether the text was too long.
    """

    tokens: list[str]
    values: np.ndarray
    truncated: bool


@dataclasses.dataclass(frozen=True)
class HiddenStates(text_inputs.TextComputation):
    """Hidden states of some layers; see `extract`."""

    layers: tuple[int, ...]
    pool: str

    def init(self, key: jax.Array) -> Any:
        return {"encoder": heads.init(heads.make_encoder(self.encoder), key)}

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return float32 [B, K, D] if pooled, else [B, L, K, D], for K layers."""
        encoded = heads.make_encoder(self.encoder).apply(
            {"params": params["encoder"]}, Inputs.of(batch), return_hidden_states=True
        )
        states = [encoded.hidden_states[i] for i in self.layers]
        values = jnp.stack(states, axis=2).astype(jnp.float32)  # [B, L, K, D]
        is_token = batch["attention_mask"][:, :, None, None]
        if self.pool == "cls":
            values = values[:, 0]
        elif self.pool == "mean":
            values = jnp.sum(values * is_token, axis=1) / jnp.sum(is_token, axis=1)
        elif self.pool == "max":
            values = jnp.max(jnp.where(is_token, values, -jnp.inf), axis=1)
        return {"values": values}


def _check_arguments(
    computation: HiddenStates, length: int, min_length: int, batch_size: int
) -> None:
    """Check the arguments of `extract`. `min_length` holds the special tokens."""
    if not computation.layers:
        raise UserError("layers is empty; [-1] is the last layer")
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size} must be at least 1")
    encoder, depth = computation.encoder, computation.encoder.num_layers
    positions = encoder.max_position_embeddings
    for layer in computation.layers:
        if computation.layers.count(layer) > 1:
            raise UserError(f"layers has {layer} more than once")
        if not -depth - 1 <= layer <= depth:
            raise UserError(
                f"there is no layer {layer}; the encoder has {depth}: 1 to {depth}, or "
                f"-{depth} to -1, and 0 or -{depth + 1} for the embeddings"
            )
    if computation.pool not in POOLS:
        raise UserError(f"pool={computation.pool!r} must be one of {', '.join(POOLS)}")
    if computation.pool == "cls" and encoder.causal:
        raise UserError(
            "pool='cls' does not work with a causal encoder, whose [CLS] attends to no "
            "other token; use mean or max"
        )
    if length and not min_length <= length <= positions:
        raise UserError(
            f"length={length} must be from {min_length} to the {positions} positions "
            "of the model"
        )


def extract(
    model: TrainedModel,
    texts: Iterable[text_inputs.Text],
    layers: Sequence[int] = (-1,),
    pool: str = "none",
    length: int = 0,
    batch_size: int = BATCH_SIZE,
) -> Iterator[Features]:
    """Extract feature vectors of the encoder, in the order of the texts.

    Texts are read a few batches ahead, so that there may be any number of them.

    Args:
      model: Any trained model.
      texts: Texts and pairs. An empty text has the vectors of [CLS] and [SEP].
      layers: Layers, each once: -1 is the last, 1 the first, and 0 the embeddings.
      pool: "none" for a vector of each token. For one vector of each text, "cls" takes
        the vector of [CLS]; "mean" and "max" pool all tokens, [CLS] and [SEP] included.
      length: Largest number of tokens, special tokens included; longer texts are
        truncated. 0: the number of positions of the model.
      batch_size: Largest number of texts in a batch.
    """
    text_inputs.check_is_list(texts)
    # 1.0 equals 1, so later calls with 1 would get the engine made for 1.0.
    layers = tuple(map(operator.index, layers))
    computation = HiddenStates(model.encoder, layers, pool)
    min_length = 2 + len(model.tokenizer.pair_separators)  # special tokens of a pair
    _check_arguments(computation, length, min_length, operator.index(batch_size))
    length = length or model.encoder.max_position_embeddings
    return _stream(model, computation, texts, length, batch_size)


def _windows(
    computation: HiddenStates,
    texts: Iterable[text_inputs.Text],
    length: int,
    batch_size: int,
) -> Iterator[list[tuple[str, str]]]:
    """Yield windows of pairs to sort by length: whole batches, bounded in size."""
    vector_bytes = 4 * len(computation.layers) * computation.encoder.hidden_size
    window, size = [], 0
    for index, text in enumerate(texts):
        window += text_inputs.to_pairs([text], index)
        # A text has rarely more tokens than characters.
        characters = sum(map(len, window[-1]))
        vectors = min(length, characters) if computation.pool == "none" else 1
        size += vectors * vector_bytes
        is_full = size >= _WINDOW_BYTES or len(window) == WINDOW_BATCHES * batch_size
        if is_full and len(window) % batch_size == 0:
            yield window
            window, size = [], 0
    if window:
        yield window


def _stream(
    model: TrainedModel,
    computation: HiddenStates,
    texts: Iterable[text_inputs.Text],
    length: int,
    batch_size: int,
) -> Iterator[Features]:
    names = model.tokenizer.tokens
    for window in _windows(computation, texts, length, batch_size):
        rows, truncated = token_rows.to_rows(window, model.tokenizer, length)
        counts = rows["attention_mask"].sum(axis=1)
        values: list[np.ndarray] = [np.zeros(0)] * len(window)
        for indices, answers in model.engine(computation).batches(rows, batch_size):
            for index, vectors in zip(indices, answers["values"], strict=True):
                if computation.pool == "none":
                    vectors = vectors[: counts[index]]
                values[index] = vectors.copy()  # frees the batch
        for i, count in enumerate(counts):
            tokens = [names[token] for token in rows["input_ids"][i, :count]]
            yield Features(tokens, values[i], bool(truncated[i]))
