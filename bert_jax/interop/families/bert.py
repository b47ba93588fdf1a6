"""BERT, and the names that other families share with it."""

from bert_jax.interop.families import family
from bert_jax.interop.families.family import ModelClass

LAYER = {
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/output": "attention.output.dense",
    "attention_layer_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}


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


def task_classes(begin: str, pooler: str) -> dict[str, ModelClass]:
    """Return the classes for tasks, as BERT has them."""
    pooled = {"encoder/pooler": pooler, "classifier": "classifier"}
    tagger = {"tagger": "classifier"}
    return {
        family.CLASSIFICATION: ModelClass(
            f"{begin}ForSequenceClassification", pooled, is_named=True
        ),
        family.TAGGING: ModelClass(
            f"{begin}ForTokenClassification", tagger, is_named=True
        ),
        family.CHOICE: ModelClass(f"{begin}ForMultipleChoice", pooled, is_named=True),
        family.ANSWERING: ModelClass(
            f"{begin}ForQuestionAnswering", {"span_classifier": "qa_outputs"}
        ),
    }


_POOLER = {"encoder/pooler": "bert.pooler.dense"}
_HEAD = (
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.bias",
)

BERT = family.Family(
    model_type="bert",
    title="BERT",
    prefix="bert.",
    encoder=embeddings("bert."),
    layer_prefix="bert.encoder.layer.{}",
    layer=LAYER,
    decoder="cls.predictions.decoder",
    classes={
        **task_classes("Bert", "bert.pooler.dense"),
        family.CAUSAL_LM: ModelClass(
            "BertLMHeadModel", language_model(*_HEAD, head="lm_head")
        ),
        family.NEXT_SENTENCE: ModelClass(
            "BertForPreTraining",
            {
                **_POOLER,
                **language_model(*_HEAD),
                "nsp_head": "cls.seq_relationship",
            },
        ),
        family.MASKED_LM: ModelClass("BertForMaskedLM", language_model(*_HEAD)),
        family.BARE: ModelClass("BertModel", _POOLER),
    },
    exports=lambda encoder, purpose, tokenizer: True,
    encoder_only=("BertForNextSentencePrediction",),
)
