"""DeBERTa v2 and v3 (He et al. 2020, 2021): disentangled attention.

`transformers` has two heads for masked tokens with other names for the same arrays, and
none for replaced tokens.
"""

from typing import Any

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop.families import bert, family
from bert_jax.interop.json_files import JsonFile

# Purpose of the class for masked tokens with `legacy` false, which is never written.
_OTHER_MASKED_LM = "masked tokens, with other names"
# Default in `transformers`, and the value that bert_jax has.
_REQUIRED: dict[str, tuple[Any, Any]] = {
    "relative_attention": (False, True),
    "share_att_key": (False, True),
    "norm_rel_ebd": ("none", "layer_norm"),
    "position_biased_input": (True, False),
    "conv_kernel_size": (0, 0),
}
_POOLER_ACTIVATIONS = family.ACTIVATIONS | {"tanh": "tanh", "relu": "relu"}


def _read_fields(file: JsonFile) -> dict[str, Any]:
    values = file.values
    hidden_size = values["hidden_size"]
    head_size = hidden_size // max(values["num_attention_heads"], 1)
    required = _REQUIRED | {
        "embedding_size": (hidden_size, hidden_size),
        "pooler_hidden_size": (hidden_size, hidden_size),
        "attention_head_size": (head_size, head_size),
    }
    if not values.get("legacy", True):
        required["tie_word_embeddings"] = True, True
    for name, (default, expected) in required.items():
        file.require(name, expected, default)
    kinds = given = values.get("pos_att_type")
    if isinstance(given, str):
        kinds = [kind.strip() for kind in given.lower().split("|")]
    if not isinstance(kinds, list) or not all(x in kinds for x in ("c2p", "p2c")):
        raise UserError(
            f"{file.path}: pos_att_type is {given!r}; bert_jax supports 'p2c|c2p' only"
        )
    if (buckets := file.value("position_buckets", int, -1)) < 1:
        raise UserError(
            f"{file.path}: position_buckets is {buckets}; bert_jax supports buckets of "
            "distances only"
        )
    distance = file.value("max_relative_positions", int, -1)
    if distance < 1:
        distance = values["max_position_embeddings"]
    activation = file.choice("pooler_hidden_act", _POOLER_ACTIVATIONS, "gelu")
    return {
        "distance_buckets": buckets,
        "max_distance": distance,
        "pooler": config_lib.PoolerConfig(activation=activation),
    }


def _write_fields(encoder: config_lib.EncoderConfig, purpose: str) -> dict[str, Any]:
    is_row = encoder.max_distance == encoder.max_position_embeddings
    activation = encoder.pooler.activation
    return {
        **{name: expected for name, (_, expected) in _REQUIRED.items()},
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": encoder.distance_buckets,
        "max_relative_positions": -1 if is_row else encoder.max_distance,
        # No activation has no name; `check_export` refuses it where a pooler is used.
        "pooler_hidden_act": family.ACTIVATION_NAMES.get(activation, activation)
        or "gelu",
        "legacy": True,
    }


_HEAD = "lm_predictions.lm_head"

DEBERTA = family.Family(
    model_type="deberta-v2",
    title="DeBERTa",
    prefix="deberta.",
    encoder={
        **bert.embeddings("deberta."),
        "encoder/distance_embedding": "deberta.encoder.rel_embeddings.weight",
        "encoder/distance_norm": "deberta.encoder.LayerNorm",
    },
    layer_prefix="deberta.encoder.layer.{}",
    layer=bert.LAYER
    | {f"attention/{name}": f"attention.self.{name}_proj" for name in family.INPUTS},
    decoder="cls.predictions.decoder",
    class_prefix="DebertaV2",
    classes={
        **bert.tasks("pooler.dense"),
        family.MASKED_LM: bert.MASKED_LM,
        _OTHER_MASKED_LM: {
            "mlm_head/transform": f"{_HEAD}.dense",
            "mlm_head/layer_norm": f"{_HEAD}.LayerNorm",
            "mlm_head/output_bias": f"{_HEAD}.bias",
        },
        family.BARE: {},
    },
    endings={_OTHER_MASKED_LM: "ForMaskedLM"},
    # Published discriminators have the head with other names, but do not name the
    # class: `transformers` ignores it, too.
    ambiguous_purposes=(
        family.CLASSIFICATION,
        family.TAGGING,
        family.CHOICE,
        _OTHER_MASKED_LM,
    ),
    exports=lambda encoder, purpose, tokenizer: encoder.positions == "disentangled",
    fields={
        "type_vocab_size": ("type_vocab_size", int, 0),
        "layer_norm_epsilon": ("layer_norm_eps", float, 1e-7),
    },
    settings={"positions": "disentangled"},
    read_fields=_read_fields,
    write_fields=_write_fields,
    min_segments=0,
    lower_case=False,
)
