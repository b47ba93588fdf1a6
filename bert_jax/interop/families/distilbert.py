"""DistilBERT (Sanh et al. 2019): BERT without segments, and with a ReLU as pooler."""

from bert_jax import config as config_lib
from bert_jax.interop.families import bert, family

DISTILBERT = family.Family(
    model_type="distilbert",
    title="DistilBERT",
    prefix="distilbert.",
    encoder=bert.embeddings("distilbert."),
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
    class_prefix="DistilBert",
    classes={
        **bert.tasks("pre_classifier"),
        family.MASKED_LM: bert.language_model(
            "vocab_transform",
            "vocab_layer_norm",
            "vocab_projector",
            "vocab_projector.bias",
        ),
        family.BARE: {},
    },
    exports=lambda encoder, purpose, tokenizer: not encoder.type_vocab_size,
    fields={
        "intermediate_size": ("hidden_dim", int, None),
        "dropout_rate": ("dropout", float, 0.1),
        "attention_dropout_rate": ("attention_dropout", float, 0.1),
    },
    synonyms={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
    },
    settings={
        "type_vocab_size": 0,
        "layer_norm_epsilon": 1e-12,
        "pooler": config_lib.PoolerConfig(activation="relu"),
    },
    activation="activation",
    min_segments=0,
)
