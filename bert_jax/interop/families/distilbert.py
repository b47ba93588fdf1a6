"""DistilBERT (Sanh et al. 2019): BERT without segments and without a pooler.

Its classes for classification and multiple choice pool with a ReLU instead of the tanh
of bert_jax, so only their encoders are read.
"""

from bert_jax.interop.families import bert, family
from bert_jax.interop.families.family import ModelClass

_SEGMENTS = "encoder/embeddings/segment_embedding"
_TASKS = bert.task_classes("DistilBert", "")

DISTILBERT = family.Family(
    model_type="distilbert",
    title="DistilBERT",
    prefix="distilbert.",
    encoder={
        path: name
        for path, name in bert.embeddings("distilbert.").items()
        if path != _SEGMENTS
    },
    layer_prefix="distilbert.transformer.layer.{}",
    layer={
        "attention/query": "attention.q_lin",
        "attention/key": "attention.k_lin",
        "attention/value": "attention.v_lin",
        "attention/output": "attention.out_lin",
        "attention_layer_norm": "sa_layer_norm",
        "intermediate": "ffn.lin1",
        "output": "ffn.lin2",
        "output_layer_norm": "output_layer_norm",
    },
    decoder="vocab_projector",
    classes={
        family.TAGGING: _TASKS[family.TAGGING],
        family.ANSWERING: _TASKS[family.ANSWERING],
        family.MASKED_LM: ModelClass(
            "DistilBertForMaskedLM",
            bert.language_model(
                "vocab_transform",
                "vocab_layer_norm",
                "vocab_projector",
                "vocab_projector.bias",
            ),
        ),
        family.BARE: ModelClass("DistilBertModel", {}),
    },
    exports=lambda encoder, purpose, tokenizer: not encoder.type_vocab_size,
    encoder_only=(
        "DistilBertForSequenceClassification",
        "DistilBertForMultipleChoice",
    ),
    fields={
        "hidden_size": ("dim", int, None),
        "num_layers": ("n_layers", int, None),
        "num_heads": ("n_heads", int, None),
        "intermediate_size": ("hidden_dim", int, None),
        "dropout_rate": ("dropout", float, 0.1),
        "attention_dropout_rate": ("attention_dropout", float, 0.1),
    },
    settings={"type_vocab_size": 0, "layer_norm_epsilon": 1e-12},
    activation="activation",
    min_segments=0,
)
