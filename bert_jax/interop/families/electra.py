"""ELECTRA. A folder holds a discriminator or a generator."""

from bert_jax import config as config_lib
from bert_jax.interop.families import bert, family

ELECTRA = family.Family(
    model_type="electra",
    title="ELECTRA",
    prefix="electra.",
    encoder={
        **bert.embeddings("electra."),
        "encoder/embedding_projection": "electra.embeddings_project",
    },
    layer_prefix="electra.encoder.layer.{}",
    layer=bert.LAYER,
    decoder="generator_lm_head",
    class_prefix="Electra",
    classes={
        **bert.tasks("sequence_summary.summary"),
        family.CLASSIFICATION: bert.CLASSIFIER,
        family.REPLACED_TOKENS: {
            "discriminator_transform": "discriminator_predictions.dense",
            "discriminator": "discriminator_predictions.dense_prediction",
        },
        family.MASKED_LM: bert.language_model(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head",
            "generator_lm_head.bias",
        ),
        family.BARE: {},
    },
    masked_lm_activation="gelu_erf",
    exports=lambda encoder, purpose, tokenizer: (
        bool(encoder.embedding_size) or purpose == family.REPLACED_TOKENS
    ),
    encoder_only=("ForCausalLM",),
    fields={"embedding_size": ("embedding_size", int, None)},
    constants={
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    },
    settings={"pooler": config_lib.PoolerConfig(activation="gelu_erf")},
)
