"""RoBERTa, and XLM-R and CamemBERT, which have its arrays and other tokenizers.

Positions are counted from the id of the padding.
"""

from bert_jax.interop.families import bert, family


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
        classes=family.classes(
            begin,
            {
                **bert.tasks("roberta.pooler.dense"),
                family.CLASSIFICATION: bert.CLASSIFIER,
                family.MASKED_LM: bert.language_model(
                    "lm_head.dense",
                    "lm_head.layer_norm",
                    "lm_head.decoder",
                    "lm_head.bias",
                ),
                family.BARE: {"encoder/pooler": "roberta.pooler.dense"},
            },
            head_activation="gelu_erf",
        ),
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
# Read only: an export writes a RoBERTa or a BERT, which compute the same.
XLM_R = _family("xlm-roberta", "XLM-R", "XLMRoberta", lambda *_: False)
CAMEMBERT = _family("camembert", "CamemBERT", "Camembert", lambda *_: False)
