"""ALBERT: layers that share parameters, and embeddings that are projected."""

from bert_jax.interop.families import bert, family

_POOLER = {"encoder/pooler": "albert.pooler"}
_HEAD = bert.language_model(
    "predictions.dense",
    "predictions.LayerNorm",
    "predictions.decoder",
    "predictions.bias",
)

ALBERT = family.Family(
    model_type="albert",
    title="ALBERT",
    prefix="albert.",
    encoder={
        **bert.embeddings("albert."),
        "encoder/embedding_projection": "albert.encoder.embedding_hidden_mapping_in",
    },
    layer_prefix="albert.encoder.albert_layer_groups.{}.albert_layers.0",
    layer={
        **{f"attention/{name}": f"attention.{name}" for name in family.INPUTS},
        "attention/output": "attention.dense",
        "attention_layer_norm": "attention.LayerNorm",
        "intermediate": "ffn",
        "output": "ffn_output",
        "output_layer_norm": "full_layer_layer_norm",
    },
    decoder="predictions.decoder",
    class_prefix="Albert",
    classes={
        **bert.tasks("albert.pooler"),
        family.SENTENCE_ORDER: {
            **_POOLER,
            **_HEAD,
            "sop_head": "sop_classifier.classifier",
        },
        family.MASKED_LM: {**_POOLER, **_HEAD},
        family.BARE: _POOLER,
    },
    exports=lambda encoder, purpose, tokenizer: bool(encoder.num_layer_groups),
    fields={
        "embedding_size": ("embedding_size", int, None),
        "num_layer_groups": ("num_hidden_groups", int, 1),
        "dropout_rate": ("hidden_dropout_prob", float, 0.0),
        "attention_dropout_rate": ("attention_probs_dropout_prob", float, 0.0),
    },
    constants={"inner_group_num": 1},
    is_projected=True,
)
