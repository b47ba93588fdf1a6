"""Encoder configs as `config.json` or `bert_config.json`, in and out."""

import dataclasses
import pathlib
from typing import Any

from bert_jax import config as config_lib
from bert_jax import knobs
from bert_jax.errors import UserError
from bert_jax.interop import json_files
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.families.family import ACTIVATION_NAMES, ACTIVATIONS, Family
from bert_jax.interop.huggingface import Form

# google-research/bert computes the approximation by tanh under this name.
TENSORFLOW_ACTIVATIONS = {"gelu": "gelu_tanh"}

# Name and type of each field in `config.json`, and its default; None: it is required.
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
# Fields that an export may change: the vocabulary's padding is left out, and XLNet does
# not limit the length of a row.
_NOT_COMPARED = {"vocab_multiple", "max_position_embeddings"}
# Required values of all families.
_CONSTANTS = {"position_embedding_type": "absolute", "add_cross_attention": False}


def family_of(path: pathlib.Path, values: dict[str, Any]) -> Family:
    """Return the family that a `config.json` names.

    Args:
      path: The file, for messages.
      values: Its values.

    Raises:
      UserError: The family is unknown.
    """
    model_type = values.get("model_type", "bert")
    for family in FAMILIES:
        if family.model_type == model_type:
            return family
    known = ", ".join(sorted(repr(family.model_type) for family in FAMILIES))
    raise UserError(f"{path}: unknown model_type {model_type!r}; expected {known}")


def encoder(
    path: pathlib.Path,
    values: dict[str, Any],
    activations: dict[str, str],
    family: Family,
) -> config_lib.EncoderConfig:
    """Return the config of an encoder that a file describes, with dtype float32.

    Args:
      path: The file, for messages.
      values: Its values.
      activations: Activations of bert_jax, by their names in the file.
      family: Family of the encoder.

    Raises:
      UserError: bert_jax has no such encoder.
    """
    for name, value in (_CONSTANTS | dict(family.constants)).items():
        if values.get(name, value) != value:
            raise UserError(
                f"{path}: {name} is {values[name]!r}; bert_jax supports {value!r} only"
            )
    activation = json_files.value(path, values, family.activation, str)
    if activation not in activations:
        raise UserError(
            f"{path}: {family.activation} is {activation!r}; bert_jax supports "
            f"{', '.join(map(repr, activations))}"
        )
    fields = {}
    for field, (name, kind, default) in _fields(family).items():
        given = values if default is None else {name: default, **values}
        fields[field] = json_files.value(path, given, name, kind)
    if family.has_padding_positions:
        fields["max_position_embeddings"] -= pad_id(path, values) + 1
    fields |= family.read_fields(path, values)
    tied = {"tie_word_embeddings": True, **values}
    head = dataclasses.replace(
        fields.pop("prediction_head", config_lib.PredictionHeadConfig()),
        tied=json_files.value(path, tied, "tie_word_embeddings", bool),
    )
    config = config_lib.EncoderConfig(
        **fields,
        **family.settings,
        prediction_head=head,
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
    """Return the id of the padding, from which RoBERTa counts positions."""
    return json_files.value(path, {"pad_token_id": 1, **values}, "pad_token_id", int)


def _fields(family: Family) -> dict[str, tuple[str, type, Any]]:
    fields = FIELDS | dict(family.fields)
    return {name: fields[name] for name in fields if name not in family.settings}


def to_huggingface(form: Form) -> dict[str, Any]:
    """Return the values of a `config.json`."""
    config, family = form.encoder, form.family
    computed = {
        "embedding_size": config.embedding_columns,
        "max_position_embeddings": (
            config.max_position_embeddings + form.skipped_positions
        ),
    }
    fields = {
        name: computed.get(field, getattr(config, field))
        for field, (name, *_) in _fields(family).items()
    }
    return {
        "model_type": family.model_type,
        **fields,
        **family.constants,
        **family.write_fields(config),
        family.activation: ACTIVATION_NAMES[config.activation],
        "is_decoder": config.causal,
        "tie_word_embeddings": config.prediction_head.tied,
        "dtype": "float32",
        "pad_token_id": form.pad_id,
    }


def check_export(form: Form) -> None:
    """Check that a `config.json` can describe the encoder.

    Raises:
      UserError: Reading the file gives another encoder; the message names the field.
    """
    values = to_huggingface(form)
    read = encoder(pathlib.Path("config.json"), values, ACTIVATIONS, form.family)
    written = _architecture(form.encoder, form)
    for name, value in _architecture(read, form).items():
        if written[name] != value:
            raise UserError(
                f"{form.family.title} of transformers has encoder.{name}={value!r} "
                f"only, not {written[name]!r}"
            )


def _architecture(config: config_lib.EncoderConfig, form: Form) -> dict[str, Any]:
    """Return the fields that the class computes with, defaults filled in."""
    fields = {
        field.name: getattr(config, field.name)
        for field in knobs.architecture(config)
        if field.name not in _NOT_COMPARED
    }
    fields |= {
        "embedding_size": config.embedding_columns,
        "num_key_value_heads": config.key_value_heads,
        "local_rotary_base": config.local_rotary_base or config.rotary_base,
    }
    head = dataclasses.asdict(fields.pop("prediction_head"))
    if any(path.endswith("/output_embedding") for path in form.model_class.parts):
        activation = head["activation"] or config.activation
        head["activation"] = form.model_class.head_activation or activation
        fields |= {f"prediction_head.{name}": head[name] for name in head}
    return fields


def to_tensorflow(config: config_lib.EncoderConfig) -> dict[str, Any]:
    """Return the values of a `bert_config.json`.

    Raises:
      UserError: google-research/bert has no such encoder.
    """
    for field, value, expected in (
        ("prediction_head.tied", config.prediction_head.tied, True),
        ("activation", config.activation, "gelu_tanh"),
        ("layer_norm_epsilon", config.layer_norm_epsilon, 1e-12),
        ("causal", config.causal, False),
    ):
        if value != expected:
            raise UserError(
                f"encoder.{field}={value!r} cannot go out to TensorFlow: "
                f"google-research/bert has {expected!r} only; convert --to=huggingface"
            )
    values = {
        name: getattr(config, field)
        for field, (name, *_) in FIELDS.items()
        if field != "layer_norm_epsilon"
    }
    return {**values, "hidden_act": "gelu"}
