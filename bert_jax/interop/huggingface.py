"""Parameter names and layouts of Hugging Face's BERT models.

Only arrays and names; neither torch nor transformers is needed. A name of ours is the
path of a parameter; it stands for one array of theirs or, where layers are stacked, for
one in each layer.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax.model import parameters

# Ours: theirs. A kernel of theirs is ours transposed.
_LANGUAGE_MODEL_HEAD = {
    "transform": "cls.predictions.transform.dense",
    "layer_norm": "cls.predictions.transform.LayerNorm",
    "output_bias": "cls.predictions.bias",
}
_OUTSIDE = {
    "encoder/embeddings/token_embedding": "bert.embeddings.word_embeddings.weight",
    "encoder/embeddings/position_embedding": (
        "bert.embeddings.position_embeddings.weight"
    ),
    "encoder/embeddings/segment_embedding": (
        "bert.embeddings.token_type_embeddings.weight"
    ),
    "encoder/embeddings/layer_norm": "bert.embeddings.LayerNorm",
    "encoder/pooler": "bert.pooler.dense",
    **{f"mlm_head/{ours}": theirs for ours, theirs in _LANGUAGE_MODEL_HEAD.items()},
    **{f"lm_head/{ours}": theirs for ours, theirs in _LANGUAGE_MODEL_HEAD.items()},
    "nsp_head": "cls.seq_relationship",
    "classifier": "classifier",
    "tagger": "classifier",
    "span_classifier": "qa_outputs",
}
_LAYER = {
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/output": "attention.output.dense",
    "attention_layer_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}
_LEAF = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_STACKED = "encoder/layers/"


def names(path: str, config: config_lib.EncoderConfig) -> list[str]:
    """Their names for a parameter: one, or one for each layer; [] if they have none."""
    if not path.startswith(_STACKED):
        name = _name(path, _OUTSIDE)
        return [name] if name else []
    name = _name(path.removeprefix(_STACKED), _LAYER)
    return [f"bert.encoder.layer.{i}.{name}" for i in range(config.num_layers)]


def _name(path: str, table: dict[str, str]) -> str:
    if path in table:
        return table[path]
    parent, _, leaf = path.rpartition("/")
    return f"{table[parent]}.{_LEAF[leaf]}" if parent in table else ""


def shape(
    path: str, ours: Sequence[int], config: config_lib.EncoderConfig
) -> tuple[int, ...]:
    """The shape of each of their arrays for a parameter of this shape of ours."""
    if path.startswith(_STACKED):
        ours = ours[1:]
    if _is_padded(path):
        return config.vocab_size, *ours[1:]
    if path.endswith("attention/output/kernel"):  # H K D
        return ours[-1], math.prod(ours[:-1])
    if path.endswith("kernel"):  # D F, or D H K
        return math.prod(ours[1:]), ours[0]
    if path.endswith("bias"):  # F, or H K
        return (math.prod(ours),)
    return tuple(ours)


def _is_padded(path: str) -> bool:
    """Whether a parameter has rows for the padding of the vocabulary."""
    return path.endswith(("token_embedding", "output_bias"))


def to_theirs(
    path: str, value: np.ndarray, config: config_lib.EncoderConfig
) -> list[np.ndarray]:
    """Arrays of theirs, in the order of `names`; views of the parameter."""
    layers = list(value) if path.startswith(_STACKED) else [value]
    if path.endswith("kernel"):
        # The transposed of D F, of D (H K) and of (H K) D.
        theirs = shape(path, value.shape, config)
        return [layer.reshape(theirs[::-1]).T for layer in layers]
    rows = slice(config.vocab_size if _is_padded(path) else None)
    return [layer[rows].reshape(shape(path, value.shape, config)) for layer in layers]


def to_ours(path: str, arrays: Sequence[np.ndarray], ours: Sequence[int]) -> np.ndarray:
    """A parameter, float32, of arrays of theirs; padding of the vocabulary becomes 0.

    Args:
      path: Name of the parameter.
      arrays: Arrays in the order of `names`.
      ours: Shape of the parameter.
    """
    value = np.zeros(ours, np.float32)
    layers = value if path.startswith(_STACKED) else value[None]
    for layer, array in zip(layers, arrays, strict=True):
        if path.endswith("kernel"):
            layer[...] = array.T.reshape(layer.shape)
        elif _is_padded(path):
            layer[: len(array)] = array
        else:
            layer[...] = array.reshape(layer.shape)
    return value


def to_huggingface(
    params: Any, config: config_lib.EncoderConfig
) -> dict[str, np.ndarray]:
    """Parameters by the names of a Hugging Face state dict.

    Args:
      params: Parameters without boxes, or a tree like them, such as gradients. Those
        that Hugging Face has no name for are left out.
      config: Config of the encoder.
    """
    state = {}
    for path, value in parameters.flatten(params).items():
        theirs = names(path, config)
        if theirs:
            arrays = to_theirs(path, np.asarray(value), config)
            state |= dict(zip(theirs, arrays, strict=True))
    return state


def from_huggingface(
    state: Mapping[str, np.ndarray], template: Any, config: config_lib.EncoderConfig
) -> Any:
    """The inverse of `to_huggingface`. The vocabulary's padding becomes 0.

    Args:
      state: Arrays by Hugging Face's names.
      template: Tree of arrays or shapes like the parameters to make.
      config: Config of the encoder.

    Raises:
      KeyError: A parameter is missing from `state`.
    """

    def ours(path, leaf):
        arrays = [np.asarray(state[name]) for name in names(path, config)]
        return to_ours(path, arrays, leaf.shape)

    return parameters.map_with_path(ours, template)
