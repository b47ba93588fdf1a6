"""RoBERTa: positions that are counted from the id of the padding."""

from bert_jax.interop.families import bert, family
from bert_jax.interop.families.family import ModelClass

ROBERTA = family.Family(
    model_type="roberta",
    title="RoBERTa",
    prefix="roberta.",
    encoder=bert.embeddings("roberta."),
    layer_prefix="roberta.encoder.layer.{}",
    layer=bert.LAYER,
    decoder="lm_head.decoder",
    classes={
        **bert.task_classes("Roberta", "roberta.pooler.dense"),
        family.CLASSIFICATION: ModelClass(
            "RobertaForSequenceClassification",
            {
                "encoder/pooler": "classifier.dense",
                "classifier": "classifier.out_proj",
            },
            is_named=True,
        ),
        family.MASKED_LM: ModelClass(
            "RobertaForMaskedLM",
            bert.language_model(
                "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"
            ),
            head_activation="gelu_erf",
        ),
        family.BARE: ModelClass(
            "RobertaModel", {"encoder/pooler": "roberta.pooler.dense"}
        ),
    },
    exports=lambda encoder, purpose, tokenizer: tokenizer == "byte_bpe",
    encoder_only=("RobertaForCausalLM",),
    has_padding_positions=True,
)
