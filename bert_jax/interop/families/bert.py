"""BERT, and the names that other families share with it."""

from bert_jax.interop.families import family

LAYER = {
    **{f"attention/{name}": f"attention.self.{name}" for name in family.INPUTS},
    "attention/output": "attention.output.dense",
    "attention_layer_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}
# Classifier of RoBERTa and ELECTRA, which includes the pooler.
CLASSIFIER = {"encoder/pooler": "classifier.dense", "classifier": "classifier.out_proj"}


def embeddings(prefix: str) -> dict[str, str]:
    """Return the names of the embeddings' arrays, for a prefix such as "bert."."""
    names = {
        "token_embedding": "word_embeddings.weight",
        "position_embedding": "position_embeddings.weight",
        "segment_embedding": "token_type_embeddings.weight",
        "layer_norm": "LayerNorm",
    }
    return {
        f"encoder/embeddings/{path}": f"{prefix}embeddings.{name}"
        for path, name in names.items()
    }


def language_model(
    transform: str, layer_norm: str, decoder: str, bias: str, head: str = "mlm_head"
) -> dict[str, str]:
    """Return the names of a language model's head."""
    return {
        f"{head}/transform": transform,
        f"{head}/layer_norm": layer_norm,
        f"{head}/output_embedding": f"{decoder}.weight",
        f"{head}/output_bias": bias,
    }


def tasks(pooler: str) -> dict[str, dict[str, str]]:
    """Return the names of the arrays of heads, by purpose.

    `pooler` is the name of the pooler's layer.
    """
    pooled = {"encoder/pooler": pooler, "classifier": "classifier"}
    return {
        family.CLASSIFICATION: pooled,
        family.TAGGING: {"tagger": "classifier"},
        family.CHOICE: pooled,
        family.ANSWERING: {"span_classifier": "qa_outputs"},
    }


_POOLER = {"encoder/pooler": "bert.pooler.dense"}
_HEAD = (
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.bias",
)
MASKED_LM = language_model(*_HEAD)

BERT = family.Family(
    model_type="bert",
    title="BERT",
    prefix="bert.",
    encoder=embeddings("bert."),
    layer_prefix="bert.encoder.layer.{}",
    layer=LAYER,
    decoder="cls.predictions.decoder",
    class_prefix="Bert",
    classes={
        **tasks("bert.pooler.dense"),
        family.CAUSAL_LM: language_model(*_HEAD, head="lm_head"),
        family.NEXT_SENTENCE: {
            **_POOLER,
            **MASKED_LM,
            "nsp_head": "cls.seq_relationship",
        },
        family.MASKED_LM: {**_POOLER, **MASKED_LM},
        family.BARE: _POOLER,
    },
    exports=lambda encoder, purpose, tokenizer: True,
    encoder_only=("ForNextSentencePrediction",),
)
