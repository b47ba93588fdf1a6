"""The encoder's config in `config.json` and `bert_config.json`, in and out."""

import pathlib
from typing import Any

from bert_jax import config as config_lib
from bert_jax import knobs
from bert_jax.errors import UserError
from bert_jax.interop import json_files
from bert_jax.interop.architectures import ARCHITECTURES, Architecture
from bert_jax.interop.huggingface import Form

# Ours by theirs. In transformers "gelu" is exact; google-research/bert computes the
# approximation under that name.
HUGGINGFACE_ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
_ACTIVATIONS = {"gelu_erf": "gelu", "gelu_tanh": "gelu_new"}
TENSORFLOW_ACTIVATIONS = {"gelu": "gelu_tanh"}

# Ours: theirs, type, and the value of a file that does not say; None: it has to.
FIELDS: dict[str, tuple[str, type, Any]] = {
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


def architecture(path: pathlib.Path, values: dict[str, Any]) -> Architecture:
    """The architecture that a `config.json` names.

    Args:
      path: The file.
      values: What is in it.

    Raises:
      UserError: This project has no such one.
    """
    kind = values.get("model_type", "bert")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise UserError(
            f"{path} is of a model of type {kind!r}; this project reads "
            f"{', '.join(map(repr, ARCHITECTURES))} only"
        )
    return ARCHITECTURES[kind]


def encoder(
    path: pathlib.Path,
    values: dict[str, Any],
    activations: dict[str, str],
    theirs: Architecture,
) -> config_lib.EncoderConfig:
    """The config of the encoder that a file describes, to be computed in float32.

    Args:
      path: The file.
      values: What is in it.
      activations: Names of activations, ours by theirs.
      theirs: Architecture that it is of.

    Raises:
      UserError: It describes no encoder that this project has.
    """
    for name, value in theirs.constants.items():
        if values.get(name, value) != value:
            raise UserError(
                f"{path}: {name} is {values[name]!r}; this project has {value!r} only"
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
    activation = json_files.value(path, values, theirs.activation, str)
    if activation not in activations:
        raise UserError(
            f"{path}: {theirs.activation} is {activation!r}; this project has "
            f"{', '.join(map(repr, activations))}"
        )
    fields = {}
    for ours, (name, kind, default) in _fields(theirs).items():
        given = values if default is None else {name: default, **values}
        fields[ours] = json_files.value(path, given, name, kind)
    if theirs.is_offset:
        fields["max_position_embeddings"] -= pad_id(path, values) + 1
    config = config_lib.EncoderConfig(
        **fields,
        **theirs.settings,
        activation=activations[activation],
        causal=bool(values.get("is_decoder", False)),
        dtype="float32",
    )
    try:
        knobs.check(config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return config


def pad_id(path: pathlib.Path, values: dict[str, Any]) -> int:
    """The id of the padding, from which RoBERTa counts positions."""
    return json_files.value(path, {"pad_token_id": 1, **values}, "pad_token_id", int)


def _fields(theirs: Architecture) -> dict[str, tuple[str, type, Any]]:
    fields = FIELDS | dict(theirs.fields)
    return {name: fields[name] for name in fields if name not in theirs.settings}


def to_huggingface(form: Form) -> dict[str, Any]:
    """What a `config.json` says of an encoder."""
    config, theirs = form.encoder, form.architecture
    values = {
        "embedding_size": config.embedding_columns,
        "max_position_embeddings": (
            config.max_position_embeddings + form.skipped_positions
        ),
    }
    fields = {
        name: values.get(name, getattr(config, ours))
        for ours, (name, *_) in _fields(theirs).items()
    }
    return {
        "model_type": theirs.kind,
        **fields,
        **theirs.constants,
        theirs.activation: _ACTIVATIONS[config.activation],
        "is_decoder": config.causal,
        "dtype": "float32",
        "pad_token_id": form.pad_id,
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
        for ours, (theirs, *_) in FIELDS.items()
        if ours != "layer_norm_epsilon"
    }
    return {**values, "hidden_act": "gelu"}
