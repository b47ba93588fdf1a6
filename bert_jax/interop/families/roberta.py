"""RoBERTa, and XLM-R and CamemBERT, which have its arrays and other tokenizers.

Positions are counted from the id of the padding.
"""

from bert_jax.interop.families import bert, family
from bert_jax.interop.families.family import ModelClass


def _family(model_type: str, title: str, begin: str, exports) -> family.Family:
    """Return a family; `begin` is the first part of the names of its classes."""
    return family.Family(
        model_type=model_type,
        title=title,
        prefix="roberta.",
        encoder=bert.embeddings("roberta."),
        layer_prefix="roberta.encoder.layer.{}",
        layer=bert.LAYER,
        decoder="lm_head.decoder",
        classes={
            **bert.task_classes(begin, "roberta.pooler.dense"),
            family.CLASSIFICATION: ModelClass(
                f"{begin}ForSequenceClassification",
                {
                    "encoder/pooler": "classifier.dense",
                    "classifier": "classifier.out_proj",
                },
                is_named=True,
            ),
            family.MASKED_LM: ModelClass(
                f"{begin}ForMaskedLM",
                bert.language_model(
                    "lm_head.dense",
                    "lm_head.layer_norm",
                    "lm_head.decoder",
                    "lm_head.bias",
                ),
                head_activation="gelu_erf",
            ),
            family.BARE: ModelClass(
                f"{begin}Model", {"encoder/pooler": "roberta.pooler.dense"}
            ),
        },
        exports=exports,
        encoder_only=(f"{begin}ForCausalLM",),
        has_padding_positions=True,
    )


ROBERTA = _family(
    "roberta",
    "RoBERTa",
    "Roberta",
    lambda encoder, purpose, tokenizer: len(tokenizer.pair_separators) == 2,
)
# They are read, and written as a RoBERTa or a BERT, which compute the same.
XLM_R = _family("xlm-roberta", "XLM-R", "XLMRoberta", lambda *_: False)
CAMEMBERT = _family("camembert", "CamemBERT", "Camembert", lambda *_: False)
