"""ModernBERT (Warner et al. 2024): rotary positions, local attention, gated layers.

Its tokenizers and its classes for tasks are not supported.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop import json_files
from bert_jax.interop.families import bert, family
from bert_jax.interop.families.family import ModelClass

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
# Default bases of rotary positions, and their names before `rope_parameters`.
_BASES = {
    _GLOBAL: ("global_rope_theta", 160_000.0),
    _LOCAL: ("local_rope_theta", 10_000.0),
}


def _read_fields(path: pathlib.Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that depend on several values of the config."""

    def value(name, default):
        return json_files.value(path, {name: default, **values}, name, type(default))

    linear_bias = value("attention_bias", False)
    if value("mlp_bias", False) != linear_bias:
        raise UserError(
            f"{path}: attention_bias is {linear_bias} and mlp_bias is "
            f"{not linear_bias}; bert_jax supports equal values only"
        )
    name = value("classifier_activation", "gelu")
    if name not in family.ACTIVATIONS:
        raise UserError(
            f"{path}: classifier_activation is {name!r}; bert_jax supports "
            f"{', '.join(map(repr, family.ACTIVATIONS))}"
        )
    activation = family.ACTIVATIONS[name]
    if activation == family.ACTIVATIONS[values["hidden_activation"]]:
        activation = ""
    fields = {
        "rotary_base": _base(path, values, _GLOBAL),
        "linear_bias": linear_bias,
        "prediction_head": config_lib.PredictionHeadConfig(
            activation=activation,
            bias=value("classifier_bias", False),
            output_bias=value("decoder_bias", True),
        ),
    }
    every, first = _period(path, values)
    if every == 1:
        return fields
    return fields | {
        "global_layer_every": every,
        "first_global_layer": first,
        # `local_attention` is the width of the window, both sides together.
        "attention_window": value("local_attention", 128) // 2,
        "local_rotary_base": _base(path, values, _LOCAL),
    }


def _base(path: pathlib.Path, values: Mapping[str, Any], kind: str) -> float:
    """Return the rotary base of global or local layers."""
    older_name, default = _BASES[kind]
    named = "rope_parameters", "rope_scaling"
    given = {name: values.get(name) or {} for name in named}
    parameters, scaling = (json_files.value(path, given, n, dict) for n in named)
    parameters = parameters.get(kind) or {}
    for each in (parameters, scaling):
        rope_type = each.get("rope_type", each.get("type", "default"))
        if rope_type != "default":
            raise UserError(
                f"{path}: rope_type is {rope_type!r}; bert_jax supports 'default' only"
            )
    base = {"rope_theta": values.get(older_name, default), **parameters}
    return json_files.value(path, base, "rope_theta", float)


def _period(path: pathlib.Path, values: Mapping[str, Any]) -> tuple[int, int]:
    """Return the period of global layers, and the index of the first one."""
    count = values["num_hidden_layers"]
    kinds = values.get("layer_types")
    if kinds is None:
        every = json_files.value(
            path,
            {"global_attn_every_n_layers": 3, **values},
            "global_attn_every_n_layers",
            int,
        )
        return every, 0
    if not isinstance(kinds, list) or len(kinds) != count:
        raise UserError(f"{path}: layer_types must list {count} layers, got {kinds!r}")
    for every in range(1, count + 2):
        for first in range(every):
            if kinds == _layer_types(count, every, first):
                return every, first
    raise UserError(
        f"{path}: layer_types is {', '.join(map(str, kinds))}; bert_jax supports "
        f"{_GLOBAL} in every K-th layer and {_LOCAL} in the others only"
    )


def _layer_types(count: int, every: int, first: int) -> list[str]:
    return [_GLOBAL if i % every == first else _LOCAL for i in range(count)]


def _write_fields(encoder: config_lib.EncoderConfig) -> dict[str, Any]:
    """Return the values that `_read_fields` reads, and the ids of special tokens."""
    head = encoder.prediction_head
    bases = {
        _GLOBAL: encoder.rotary_base,
        _LOCAL: encoder.local_rotary_base or encoder.rotary_base,
    }
    return {
        "layer_types": _layer_types(
            encoder.num_layers, encoder.global_layer_every, encoder.first_global_layer
        ),
        "local_attention": 2 * encoder.attention_window,
        "rope_parameters": {
            kind: {"rope_theta": base, "rope_type": "default"}
            for kind, base in bases.items()
        },
        "attention_bias": encoder.linear_bias,
        "mlp_bias": encoder.linear_bias,
        "classifier_activation": family.ACTIVATION_NAMES[
            head.activation or encoder.activation
        ],
        "classifier_bias": head.bias,
        "decoder_bias": head.output_bias,
        # The defaults are ids in the vocabulary of the published models.
        **dict.fromkeys([f"{name}_token_id" for name in ("bos", "eos", "cls", "sep")]),
    }


MODERNBERT = family.Family(
    model_type="modernbert",
    title="ModernBERT",
    prefix="model.",
    encoder={
        "encoder/embeddings/token_embedding": "model.embeddings.tok_embeddings.weight",
        "encoder/embeddings/layer_norm": "model.embeddings.norm",
        "encoder/final_norm": "model.final_norm",
    },
    layer_prefix="model.layers.{}",
    layer={
        "attention_norm": "attn_norm",
        "attention/query": "attn.Wqkv",
        "attention/key": "attn.Wqkv",
        "attention/value": "attn.Wqkv",
        "attention/output": "attn.Wo",
        "feed_forward_norm": "mlp_norm",
        "gate": "mlp.Wi",
        "intermediate": "mlp.Wi",
        "output": "mlp.Wo",
    },
    decoder="decoder",
    classes={
        # Classes for tasks have arrays of the same names.
        family.MASKED_LM: ModelClass(
            "ModernBertForMaskedLM",
            bert.language_model("head.dense", "head.norm", "decoder", "decoder.bias"),
            is_named=True,
        ),
        family.BARE: ModelClass("ModernBertModel", {}),
    },
    exports=lambda encoder, purpose, tokenizer: encoder.positions == "rotary",
    encoder_only=tuple(
        f"ModernBertFor{task}"
        for task in (
            "SequenceClassification",
            "TokenClassification",
            "QuestionAnswering",
            "MultipleChoice",
        )
    ),
    fields={
        "dropout_rate": ("embedding_dropout", float, 0.0),
        "attention_dropout_rate": ("attention_dropout", float, 0.0),
        "layer_norm_epsilon": ("norm_eps", float, 1e-5),
        "norm_bias": ("norm_bias", bool, False),
    },
    settings={
        "positions": "rotary",
        "type_vocab_size": 0,
        "feed_forward": "gated",
        "norm_placement": "pre",
        "first_attention_norm": False,
        "depth_scaled_init": True,
    },
    read_fields=_read_fields,
    write_fields=_write_fields,
    activation="hidden_activation",
    min_segments=0,
    lower_case=False,
)
