"""The encoder's config in `config.json` and `bert_config.json`, in and out."""

import pathlib
from typing import Any

from bert_jax import config as config_lib
from bert_jax import knobs
from bert_jax.errors import UserError
from bert_jax.interop import json_files

# Ours by theirs. In transformers "gelu" is exact; google-research/bert computes the
# approximation under that name.
HUGGINGFACE_ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
TENSORFLOW_ACTIVATIONS = {"gelu": "gelu_tanh"}

# Ours: theirs, type, and the value of a file that does not say; None: it has to.
_FIELDS: dict[str, tuple[str, type, Any]] = {
    "vocab_size": ("vocab_size", int, None),
    "hidden_size": ("hidden_size", int, None),
    "num_layers": ("num_hidden_layers", int, None),
    "num_heads": ("num_attention_heads", int, None),
    "intermediate_size": ("intermediate_size", int, None),
    "max_position_embeddings": ("max_position_embeddings", int, None),
    "type_vocab_size": ("type_vocab_size", int, None),
    "dropout_rate": ("hidden_dropout_prob", float, 0.1),
    "attention_dropout_rate": ("attention_probs_dropout_prob", float, 0.1),
    "layer_norm_epsilon": ("layer_norm_eps", float, 1e-12),
    "initializer_range": ("initializer_range", float, 0.02),
}


def encoder(
    path: pathlib.Path, values: dict[str, Any], activations: dict[str, str]
) -> config_lib.EncoderConfig:
    """The config of the encoder that a file describes, to be computed in float32.

    Args:
      path: The file.
      values: What is in it.
      activations: Names of activations, ours by theirs.

    Raises:
      UserError: It describes no encoder that this project has.
    """
    kind = values.get("model_type", "bert")
    if kind != "bert":
        raise UserError(
            f"{path} is of a model of type {kind!r}; this project reads 'bert' only"
        )
    positions = values.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise UserError(
            f"{path}: position_embedding_type is {positions!r}; this project has "
            "'absolute' only"
        )
    if values.get("add_cross_attention"):
        raise UserError(
            f"{path}: add_cross_attention is true; this project has no decoder that "
            "attends to an encoder"
        )
    activation = json_files.value(path, values, "hidden_act", str)
    if activation not in activations:
        raise UserError(
            f"{path}: hidden_act is {activation!r}; this project has "
            f"{', '.join(map(repr, activations))}"
        )
    fields = {
        ours: json_files.value(path, {theirs: default, **values}, theirs, kind)
        if default is not None
        else json_files.value(path, values, theirs, kind)
        for ours, (theirs, kind, default) in _FIELDS.items()
    }
    config = config_lib.EncoderConfig(
        **fields,
        activation=activations[activation],
        causal=bool(values.get("is_decoder", False)),
        dtype="float32",
    )
    try:
        knobs.check(config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return config


def to_huggingface(config: config_lib.EncoderConfig) -> dict[str, Any]:
    """What a `config.json` says of an encoder."""
    return {
        "model_type": "bert",
        **{theirs: getattr(config, ours) for ours, (theirs, *_) in _FIELDS.items()},
        "hidden_act": {"gelu_erf": "gelu", "gelu_tanh": "gelu_new"}[config.activation],
        "is_decoder": config.causal,
        "dtype": "float32",
    }


def to_tensorflow(config: config_lib.EncoderConfig) -> dict[str, Any]:
    """What a `bert_config.json` says of an encoder.

    Raises:
      UserError: google-research/bert has no such encoder.
    """
    for field, ours, theirs in (
        ("activation", config.activation, "gelu_tanh"),
        ("layer_norm_epsilon", config.layer_norm_epsilon, 1e-12),
        ("causal", config.causal, False),
    ):
        if ours != theirs:
            raise UserError(
                f"encoder.{field}={ours!r} cannot go out to TensorFlow: the original "
                f"code has {theirs!r} only; convert --to=huggingface"
            )
    values = {
        theirs: getattr(config, ours)
        for ours, (theirs, *_) in _FIELDS.items()
        if ours != "layer_norm_epsilon"
    }
    return {**values, "hidden_act": "gelu"}
