"""ELECTRA. A folder holds a discriminator or a generator."""

from bert_jax import config as config_lib
from bert_jax.interop.families import bert, family
from bert_jax.interop.families.family import ModelClass


def _exports(encoder, purpose, tokenizer):
    del tokenizer
    return bool(encoder.embedding_size) or purpose == family.REPLACED_TOKENS


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
    classes={
        **bert.task_classes("Electra", "sequence_summary.summary"),
        family.CLASSIFICATION: ModelClass(
            "ElectraForSequenceClassification",
            {
                "encoder/pooler": "classifier.dense",
                "classifier": "classifier.out_proj",
            },
            is_named=True,
        ),
        family.REPLACED_TOKENS: ModelClass(
            "ElectraForPreTraining",
            {
                "discriminator_transform": "discriminator_predictions.dense",
                "discriminator": "discriminator_predictions.dense_prediction",
            },
        ),
        family.MASKED_LM: ModelClass(
            "ElectraForMaskedLM",
            bert.language_model(
                "generator_predictions.dense",
                "generator_predictions.LayerNorm",
                "generator_lm_head",
                "generator_lm_head.bias",
            ),
            head_activation="gelu_erf",
        ),
        family.BARE: ModelClass("ElectraModel", {}),
    },
    exports=_exports,
    encoder_only=("ElectraForCausalLM",),
    fields={"embedding_size": ("embedding_size", int, None)},
    constants={
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    },
    settings={"pooler": config_lib.PoolerConfig(activation="gelu_erf")},
)
