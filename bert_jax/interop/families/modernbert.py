"""ModernBERT (Warner et al. 2024): rotary positions, local attention, gated layers.

All its classes have a head of a dense layer, an activation and a norm, which bert_jax
has as prediction head or as pooler.
"""

from typing import Any

from bert_jax import config as config_lib
from bert_jax.interop.families import bert, family, rotary
from bert_jax.interop.json_files import JsonFile

_POOLING = {"cls": "cls", "mean": "mean"}
_HEAD = {"encoder/pooler": "head.dense", "encoder/pooler/layer_norm": "head.norm"}


def _read_fields(file: JsonFile) -> dict[str, Any]:
    activation = file.choice("classifier_activation", family.ACTIVATIONS, "gelu")
    bias = file.value("classifier_bias", bool, False)
    is_same = activation == family.ACTIVATIONS[file.values["hidden_activation"]]
    # `local_attention` is the width of the window, both sides together.
    window = file.value("local_attention", int, 128) // 2
    period = file.value("global_attn_every_n_layers", int, 3), 0
    return {
        **rotary.read_local_layers(file, period, window, "local_rope_theta"),
        "rotary_base": rotary.read_base(
            file, 160_000.0, rotary.GLOBAL, "global_rope_theta"
        ),
        "linear_bias": family.read_linear_bias(file),
        "prediction_head": config_lib.PredictionHeadConfig(
            activation="" if is_same else activation,
            bias=bias,
            output_bias=file.value("decoder_bias", bool, True),
        ),
        "pooler": config_lib.PoolerConfig(
            pooling=file.choice("classifier_pooling", _POOLING, "cls"),
            activation=activation,
            bias=bias,
            norm=True,
            per_token=True,
        ),
    }


def _write_fields(encoder: config_lib.EncoderConfig, purpose: str) -> dict[str, Any]:
    """Return the values that `_read_fields` reads, and the ids of special tokens."""
    head, pooler = encoder.prediction_head, encoder.pooler
    activation, bias = encoder.head_activation, head.bias
    if purpose in family.TASKS:
        activation, bias = pooler.activation, pooler.bias
    return {
        **rotary.write_layers(encoder),
        "local_attention": 2 * encoder.attention_window,
        "attention_bias": encoder.linear_bias,
        "mlp_bias": encoder.linear_bias,
        "classifier_pooling": _POOLING.get(pooler.pooling, "cls"),
        "classifier_activation": family.ACTIVATION_NAMES.get(activation, "gelu"),
        "classifier_bias": bias,
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
        **{f"attention/{name}": "attn.Wqkv" for name in family.INPUTS},
        "attention/output": "attn.Wo",
        "feed_forward_norm": "mlp_norm",
        "gate": "mlp.Wi",
        "intermediate": "mlp.Wi",
        "output": "mlp.Wo",
    },
    decoder="decoder",
    class_prefix="ModernBert",
    classes={
        family.CLASSIFICATION: {**_HEAD, "classifier": "classifier"},
        family.TAGGING: {**_HEAD, "tagger": "classifier"},
        family.ANSWERING: {**_HEAD, "span_classifier": "classifier"},
        family.CHOICE: {**_HEAD, "classifier": "classifier"},
        family.MASKED_LM: bert.language_model(
            "head.dense", "head.norm", "decoder", "decoder.bias"
        ),
        family.BARE: {},
    },
    ambiguous_purposes=(*family.TASKS, family.MASKED_LM),
    exports=lambda encoder, purpose, tokenizer: (
        encoder.positions == "rotary"
        and encoder.norm == "layer"
        and encoder.norm_placement == "pre"
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
