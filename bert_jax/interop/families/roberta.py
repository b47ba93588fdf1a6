"""RoBERTa, and XLM-R and CamemBERT, which have its arrays and other tokenizers.

Positions are counted from the id of the padding.
"""

import dataclasses

from bert_jax.interop.families import bert, family

ROBERTA = family.Family(
    model_type="roberta",
    title="RoBERTa",
    prefix="roberta.",
    encoder=bert.embeddings("roberta."),
    layer_prefix="roberta.encoder.layer.{}",
    layer=bert.LAYER,
    decoder="lm_head.decoder",
    class_prefix="Roberta",
    classes={
        **bert.tasks("roberta.pooler.dense"),
        family.CLASSIFICATION: bert.CLASSIFIER,
        family.MASKED_LM: bert.language_model(
            "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"
        ),
        family.BARE: {"encoder/pooler": "roberta.pooler.dense"},
    },
    masked_lm_activation="gelu_erf",
    exports=lambda encoder, purpose, tokenizer: len(tokenizer.pair_separators) == 2,
    encoder_only=("ForCausalLM",),
    has_padding_positions=True,
)
# Read only: an export writes a RoBERTa or a BERT, which compute the same.
_READ_ONLY = dataclasses.replace(ROBERTA, exports=lambda *_: False)
XLM_R = dataclasses.replace(
    _READ_ONLY, model_type="xlm-roberta", title="XLM-R", class_prefix="XLMRoberta"
)
CAMEMBERT = dataclasses.replace(
    _READ_ONLY, model_type="camembert", title="CamemBERT", class_prefix="Camembert"
)
