"""EuroBERT (Boizard et al. 2025): Llama's layers without its causal mask."""

from typing import Any

from bert_jax import config as config_lib
from bert_jax.interop.families import family, rotary
from bert_jax.interop.json_files import JsonFile

LAYER = {
    "attention_norm": "input_layernorm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "intermediate": "mlp.up_proj",
    "output": "mlp.down_proj",
}
FIELDS = {
    "attention_dropout_rate": ("attention_dropout", float, 0.0),
    "layer_norm_epsilon": ("rms_norm_eps", float, 1e-5),
}
SETTINGS = {
    "positions": "rotary",
    "type_vocab_size": 0,
    "feed_forward": "gated",
    "norm": "rms",
    "norm_placement": "pre",
    "embedding_norm": False,
    "dropout_rate": 0.0,
}
_POOLING = {"late": "late_mean", "bos": "cls", "mean": "mean"}


def encoder(prefix: str) -> dict[str, str]:
    """Return the names of the arrays outside the layers."""
    return {
        "encoder/embeddings/token_embedding": f"{prefix}embed_tokens.weight",
        "encoder/final_norm": f"{prefix}norm",
    }


def read_layers(file: JsonFile) -> dict[str, Any]:
    """Return the fields for biases and heads."""
    rotary.check_head_size(file)
    heads = 0  # as many as the queries have
    if file.values.get("num_key_value_heads") is not None:
        heads = file.value("num_key_value_heads", int)
    is_default = heads == file.values["num_attention_heads"]
    return {
        "linear_bias": family.read_linear_bias(file),
        "num_key_value_heads": 0 if is_default else heads,
    }


def write_layers(encoder: config_lib.EncoderConfig) -> dict[str, Any]:
    """Return the values that `read_layers` reads, and the ids of special tokens."""
    return {
        "attention_bias": encoder.linear_bias,
        "mlp_bias": encoder.linear_bias,
        "num_key_value_heads": encoder.key_value_heads,
        # The defaults are ids in the vocabulary of the published models.
        **dict.fromkeys(["bos_token_id", "eos_token_id"]),
    }


def _read_fields(file: JsonFile) -> dict[str, Any]:
    fields = read_layers(file)
    # The class that was published with the models names it `clf_pooling`.
    has_name = "classifier_pooling" in file.values
    pooling = "classifier_pooling" if has_name else "clf_pooling"
    return fields | {
        "rotary_base": rotary.read_base(file, 10_000.0),
        "prediction_head": config_lib.PredictionHeadConfig(
            num_layers=0, norm=False, output_bias=fields["linear_bias"], tied=False
        ),
        "pooler": config_lib.PoolerConfig(
            pooling=file.choice(pooling, _POOLING, "late"), activation="gelu_erf"
        ),
    }


def _write_fields(encoder: config_lib.EncoderConfig, purpose: str) -> dict[str, Any]:
    names = {pooling: name for name, pooling in _POOLING.items()}
    return write_layers(encoder) | {
        "rope_parameters": rotary.write_base(encoder.rotary_base),
        "classifier_pooling": names[encoder.pooler.pooling],
    }


EUROBERT = family.Family(
    model_type="eurobert",
    title="EuroBERT",
    prefix="model.",
    encoder=encoder("model."),
    layer_prefix="model.layers.{}",
    layer=LAYER,
    decoder="lm_head",
    class_prefix="EuroBert",
    classes={
        family.CLASSIFICATION: {"encoder/pooler": "dense", "classifier": "classifier"},
        family.TAGGING: {"tagger": "classifier"},
        family.MASKED_LM: {
            "mlm_head/output_embedding": "lm_head.weight",
            "mlm_head/output_bias": "lm_head.bias",
        },
        family.BARE: {},
    },
    # If it is tied and without biases, the head for masked tokens has no arrays.
    ambiguous_purposes=(family.CLASSIFICATION, family.TAGGING, family.MASKED_LM),
    exports=lambda encoder, purpose, tokenizer: (
        encoder.positions == "rotary"
        and encoder.norm == "rms"
        and not encoder.attention_window
    ),
    fields=FIELDS,
    settings=SETTINGS,
    read_fields=_read_fields,
    write_fields=_write_fields,
    min_segments=0,
    lower_case=False,
)
