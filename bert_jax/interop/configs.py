"""Conversion of encoder configs from and to `config.json` and `bert_config.json`."""

import dataclasses
import pathlib
from typing import Any, NamedTuple

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop import json_files
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    ANSWERING,
    CLASSIFICATION,
    POOLED,
    TAGGING,
    Family,
)
from bert_jax.interop.huggingface import ModelSpec
from bert_jax.interop.json_files import JsonFile

# Name, type and default of each field in `config.json`. A default of None means that
# the field is required.
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
# Fields that an export may change: the padding of the vocabulary is dropped, and XLNet
# has no limit on the length of a row.
_NOT_COMPARED = {"vocab_multiple", "max_position_embeddings"}
_POSITIONS = "encoder/embeddings/position_embedding"


class ConfigFile(NamedTuple):
    """A `config.json` or `bert_config.json` of a published checkpoint.

    `class_name` is "" if the file names no class.
    """

    file: JsonFile
    family: Family
    class_name: str
    encoder: config_lib.EncoderConfig


def read(path: pathlib.Path) -> ConfigFile:
    """Read a `config.json`.

    Raises:
      UserError: The family or the class is unknown, or bert_jax cannot represent the
        encoder.
    """
    values = json_files.read(path)
    model_type = values.get("model_type", "bert")
    if not (families := [each for each in FAMILIES if each.model_type == model_type]):
        known = ", ".join(sorted(repr(each.model_type) for each in FAMILIES))
        raise UserError(f"{path}: unknown model_type {model_type!r}; expected {known}")
    (family,) = families
    if values.get("quantization_config"):
        raise UserError(
            f"{path} has a quantization_config; bert_jax reads floating-point weights "
            "only; save the model after model.dequantize()"
        )
    aliases = family.synonyms.items()
    values |= {name: values[alias] for alias, name in aliases if alias in values}
    file = family.read_older(JsonFile(path, values))
    named = file.values.get("architectures") or [""]
    name = named[0] if isinstance(named, list) else named
    further = {family.class_prefix + end for end in family.encoder_only}
    known = sorted(further.union(map(family.class_name, family.classes)))
    if name and name not in known:
        raise UserError(
            f"{path}: unknown class {name!r} in architectures; for {family.title}, "
            f"bert_jax reads {', '.join(known)}"
        )
    return ConfigFile(file, family, name, parse_encoder(file, family))


def read_tensorflow(path: pathlib.Path, family: Family) -> ConfigFile:
    """Read the config of a BERT or an ALBERT in TensorFlow; see `read`."""
    file = JsonFile(path, json_files.read(path))
    # In google-research/bert and albert, "gelu" is the approximation by tanh.
    config = parse_encoder(file, family, {"gelu": "gelu_tanh"})
    # Only run_classifier.py has variables named output_weights.
    return ConfigFile(file, family, family.class_name(CLASSIFICATION), config)


def parse_encoder(
    file: JsonFile, family: Family, activations: dict[str, str] = ACTIVATIONS
) -> config_lib.EncoderConfig:
    """Return the config of an encoder, with dtype float32.

    Raises:
      UserError: bert_jax cannot represent the encoder.
    """
    causal = file.value("is_decoder", bool, False)
    constants = {**family.constants, "add_cross_attention": False, "is_causal": causal}
    if _POSITIONS in family.encoder:
        constants["position_embedding_type"] = "absolute"
    file.check_constants(constants)
    activation = file.choice(family.activation, activations)
    fields = {field: file.value(*entry) for field, entry in fields_of(family).items()}
    if family.has_padding_positions:
        fields["max_position_embeddings"] -= pad_id(file) + 1
    fields |= family.read_fields(file)
    head = fields.pop("prediction_head", config_lib.PredictionHeadConfig())
    tied = file.value("tie_word_embeddings", bool, head.tied)
    config = config_lib.EncoderConfig(
        **fields,
        **family.settings,
        prediction_head=dataclasses.replace(head, tied=tied),
        activation=activation,
        causal=causal,
        dtype="float32",
    )
    try:
        config.check_rotary_bases("")
        config_lib.check(config)
    except UserError as error:
        raise UserError(f"{file.path}: {error}") from error
    return config


def pad_id(file: JsonFile) -> int:
    """Return the id of the padding token, from which RoBERTa counts positions."""
    return file.value("pad_token_id", int, 1)


def fields_of(family: Family) -> dict[str, tuple[str, type, Any]]:
    """Return the entries of `FIELDS` for the encoders of a family."""
    fields = FIELDS | dict(family.fields)
    return {
        field: (family.synonyms.get(name, name), kind, default)
        for field, (name, kind, default) in fields.items()
        if field not in family.settings
    }


def to_huggingface(spec: ModelSpec) -> dict[str, Any]:
    """Return the values of a `config.json`."""
    config, family = spec.encoder, spec.family
    computed = {
        "embedding_size": config.embedding_columns,
        "max_position_embeddings": (
            config.max_position_embeddings + spec.skipped_positions
        ),
    }
    fields = {
        name: computed.get(field, getattr(config, field))
        for field, (name, *_) in fields_of(family).items()
    }
    return {
        "model_type": family.model_type,
        **fields,
        **family.constants,
        **family.write_fields(config, spec.purpose),
        family.activation: ACTIVATION_NAMES.get(config.activation, "gelu"),
        "is_decoder": config.causal,
        "tie_word_embeddings": config.prediction_head.tied,
        "dtype": "float32",
        "pad_token_id": spec.pad_id,
    }


def check_export(spec: ModelSpec) -> None:
    """Check that a `config.json` can describe the encoder.

    Raises:
      UserError: Reading the file back would give another encoder.
    """
    file = JsonFile(pathlib.Path("config.json"), to_huggingface(spec))
    read = parse_encoder(file, spec.family)
    written = _architecture(spec.encoder, spec)
    differences = {
        name: f"encoder.{name}={value!r} only, got {written[name]!r}"
        for name, value in _architecture(read, spec).items()
        # `written` lacks the pooler's other fields if `pooler.per_token` is False.
        if written.get(name, value) != value
    }
    if differences:
        hint = "train with these values"
        if all(name.startswith("pooler.") for name in differences):
            hint = (
                "fine-tune again from the folder that run.convert --to=huggingface "
                "makes of the pretrained model"
            )
        raise UserError(
            f"{spec.family.title} of transformers supports "
            f"{'; '.join(differences.values())}; use this checkpoint with bert_jax "
            f"only, or {hint}"
        )


def _architecture(config: config_lib.EncoderConfig, spec: ModelSpec) -> dict[str, Any]:
    """Return the fields that affect the class's outputs, with defaults filled in."""
    fields = {
        field.name: getattr(config, field.name)
        for field in config_lib.architecture(config)
        if field.name not in _NOT_COMPARED
    }
    fields |= {
        "embedding_size": config.embedding_columns,
        "num_key_value_heads": config.key_value_heads,
        "local_rotary_base": config.local_rotary_base or config.rotary_base,
        # With fewer layers than a period, several periods are the same.
        "global_layer_every": [config.is_global(i) for i in range(config.num_layers)],
    }
    del fields["first_global_layer"]
    fields["norm_bias"] &= config.norm == "layer"
    if all(fields["global_layer_every"]):
        fields |= {"attention_window": 0, "local_rotary_base": config.rotary_base}
    head = dataclasses.asdict(fields.pop("prediction_head"))
    if any(path.endswith("/output_embedding") for path in spec.parts):
        activation = head["activation"] or config.activation
        head["activation"] = spec.family.required_activation(spec.purpose) or activation
        head["width"] = head["width"] or config.embedding_columns
        if not head["num_layers"]:
            del head["activation"], head["bias"]
        fields |= {f"prediction_head.{name}": head[name] for name in head}
    pooler = dataclasses.asdict(fields.pop("pooler"))
    is_read = spec.purpose in POOLED
    if spec.purpose in (TAGGING, ANSWERING):
        is_read = fields["pooler.per_token"] = pooler["per_token"]
        del pooler["pooling"]
    del pooler["per_token"]
    if is_read:
        fields |= {f"pooler.{name}": pooler[name] for name in pooler}
    return fields


def to_tensorflow(config: config_lib.EncoderConfig) -> dict[str, Any]:
    """Return the values of a `bert_config.json`.

    Raises:
      UserError: google-research/bert cannot represent the encoder.
    """
    for field, value, expected in (
        ("prediction_head.tied", config.prediction_head.tied, True),
        ("activation", config.activation, "gelu_tanh"),
        ("layer_norm_epsilon", config.layer_norm_epsilon, 1e-12),
        ("causal", config.causal, False),
    ):
        if value != expected:
            raise UserError(
                f"encoder.{field}={value!r} cannot be exported to TensorFlow: "
                f"google-research/bert supports {expected!r} only; use --to=huggingface"
            )
    values = {
        name: getattr(config, field)
        for field, (name, *_) in FIELDS.items()
        if field != "layer_norm_epsilon"
    }
    return {**values, "hidden_act": "gelu"}
