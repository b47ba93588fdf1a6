"""ELECTRA. A folder holds a discriminator or a generator.

Its classes for classification and multiple choice pool with a GELU instead of the tanh
of bert_jax, so only their encoders are read.
"""

from bert_jax.interop.families import bert, family
from bert_jax.interop.families.family import ModelClass

_TASKS = bert.task_classes("Electra", "")


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
        family.TAGGING: _TASKS[family.TAGGING],
        family.ANSWERING: _TASKS[family.ANSWERING],
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
    encoder_only=(
        "ElectraForSequenceClassification",
        "ElectraForMultipleChoice",
        "ElectraForCausalLM",
    ),
    fields={"embedding_size": ("embedding_size", int, None)},
)
