"""Parameter names and layouts of Hugging Face's `BertForPreTraining`.

Only arrays and names; neither torch nor transformers is needed.
"""

from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax.model import parameters

# Ours: theirs. `{}` is the number of a layer. A kernel of theirs is ours transposed.
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
    "mlm_head/transform": "cls.predictions.transform.dense",
    "mlm_head/layer_norm": "cls.predictions.transform.LayerNorm",
    "mlm_head/output_bias": "cls.predictions.bias",
    "nsp_head": "cls.seq_relationship",
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


def to_huggingface(
    params: Any, config: config_lib.EncoderConfig
) -> dict[str, np.ndarray]:
    """Parameters of `PretrainingModel` by the names of a Hugging Face state dict.

    Args:
      params: Parameters without boxes, or a tree like them, such as gradients.
      config: Config of the encoder.
    """
    state = {}
    for name, leaf in parameters.flatten(params).items():
        value = np.asarray(leaf)
        if name.startswith("encoder/layers/"):
            inner = name.removeprefix("encoder/layers/")
            for i in range(config.num_layers):
                theirs = f"bert.encoder.layer.{i}.{_their_name(inner, _LAYER)}"
                state[theirs] = _their_layout(inner, value[i], config)
        else:
            state[_their_name(name, _OUTSIDE)] = _their_layout(name, value, config)
    return state


def _their_name(name: str, table: dict[str, str]) -> str:
    if name in table:
        return table[name]
    parent, _, leaf = name.rpartition("/")
    return f"{table[parent]}.{_LEAF[leaf]}"


def _their_layout(
    name: str, value: np.ndarray, config: config_lib.EncoderConfig
) -> np.ndarray:
    if name.endswith(("token_embedding", "output_bias")):
        return value[: config.vocab_size]
    if name.endswith("attention/output/kernel"):  # H K D
        return value.reshape(-1, config.hidden_size).T
    if name.endswith("kernel"):  # D F, or D H K
        return value.reshape(value.shape[0], -1).T
    if name.endswith("bias"):  # F, or H K
        return value.reshape(-1)
    return value


def from_huggingface(
    state: dict[str, np.ndarray], template: Any, config: config_lib.EncoderConfig
) -> Any:
    """The inverse of `to_huggingface`. The vocabulary's padding becomes 0.

    Args:
      state: Arrays by Hugging Face's names.
      template: Tree of arrays or shapes like the parameters to make.
      config: Config of the encoder.

    Raises:
      KeyError: A parameter is missing from `state`.
    """

    def ours(name, leaf):
        inner = name.removeprefix("encoder/layers/")
        if inner != name:
            theirs = _their_name(inner, _LAYER)
            layers = range(config.num_layers)
            value = np.stack(
                [state[f"bert.encoder.layer.{i}.{theirs}"] for i in layers]
            )
        else:
            value = np.asarray(state[_their_name(name, _OUTSIDE)])
        if name.endswith("kernel"):
            value = value.swapaxes(-1, -2)
        if name.endswith(("token_embedding", "output_bias")):
            missing = leaf.shape[0] - value.shape[0]
            value = np.pad(value, [(0, missing), *[(0, 0)] * (value.ndim - 1)])
        return value.reshape(leaf.shape)

    return parameters.map_with_path(ours, template)
