"""XLNet: relative positions, and [CLS] after the text."""

from bert_jax.interop.families import family

_POOLED_HEAD = {
    "encoder/pooler": "sequence_summary.summary",
    "classifier": "logits_proj",
}

XLNET = family.Family(
    model_type="xlnet",
    title="XLNet",
    prefix="transformer.",
    encoder={
        "encoder/embeddings/token_embedding": "transformer.word_embedding.weight",
        "target_embedding": "transformer.mask_emb",
    },
    layer_prefix="transformer.layer.{}",
    layer={
        "attention/query/kernel": "rel_attn.q",
        "attention/key/kernel": "rel_attn.k",
        "attention/value/kernel": "rel_attn.v",
        "attention/output/kernel": "rel_attn.o",
        "attention/distance_kernel": "rel_attn.r",
        "attention/content_bias": "rel_attn.r_w_bias",
        "attention/position_bias": "rel_attn.r_r_bias",
        "attention/segment_bias": "rel_attn.r_s_bias",
        "attention/segment_embedding": "rel_attn.seg_embed",
        "attention_layer_norm": "rel_attn.layer_norm",
        "intermediate": "ff.layer_1",
        "output": "ff.layer_2",
        "output_layer_norm": "ff.layer_norm",
    },
    decoder="lm_loss",
    class_prefix="XLNet",
    classes={
        family.ANSWERING: {"span_classifier": "qa_outputs"},
        family.CLASSIFICATION: _POOLED_HEAD,
        family.TAGGING: {"tagger": "classifier"},
        family.CHOICE: _POOLED_HEAD,
        family.PERMUTATION_LM: {"lm_head/output_bias": "lm_loss.bias"},
        family.BARE: {},
    },
    # The class without "Simple" runs a beam search, which bert_jax does not have.
    endings={family.ANSWERING: "ForQuestionAnsweringSimple"},
    exports=lambda encoder, purpose, tokenizer: encoder.positions == "relative",
    encoder_only=("ForQuestionAnswering",),
    fields={
        "intermediate_size": ("d_inner", int, None),
        "dropout_rate": ("dropout", float, 0.1),
        "attention_dropout_rate": ("dropout", float, 0.1),
    },
    synonyms={
        "n_token": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    },
    constants={
        "attn_type": "bi",
        "bi_data": False,
        "clamp_len": -1,
        "same_length": False,
        "untie_r": True,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
    },
    settings={
        "positions": "relative",
        "type_vocab_size": 2,
        # There is no limit; the published models were trained on rows of this length.
        "max_position_embeddings": 512,
    },
    activation="ff_activation",
    cls_is_last=True,
    min_segments=2,
    lower_case=False,
)
