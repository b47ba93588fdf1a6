"""Architectures of `transformers`: names of arrays, of classes, and of what they have.

Tables only; `huggingface.py` applies them. Paths of our parameters stand before the
names of theirs. A path may be that of a layer with a kernel, or scale, and a bias.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

# What a checkpoint is made for, whatever the architecture.
BARE = "bare encoder"
NEXT_SENTENCE = "masked tokens with next sentence"
SENTENCE_ORDER = "masked tokens with sentence order"
MASKED_LM = "masked tokens"
ONLY_NEXT_SENTENCE = "next sentence"
CAUSAL_LM = "left to right"
PERMUTATION_LM = "permuted tokens"
REPLACED_TOKENS = "replaced tokens"
CLASSIFICATION = "classification"
TAGGING = "tagging"
ANSWERING = "answering"
CHOICE = "multiple choice"


@dataclasses.dataclass(frozen=True)
class Class:
    """A class of `transformers`.

    Attributes:
      name: Its name.
      parts: What it has besides the encoder: paths of ours, and names of theirs.
      activation: Activation of its head whatever `hidden_act` says, as ours is called;
        "": that of the encoder.
    """

    name: str
    parts: Mapping[str, str]
    activation: str = ""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What the classes of one `model_type` have in common.

    Attributes:
      kind: `model_type`.
      prefix: How names of the encoder's arrays begin.
      title: What people call it.
      outside: The encoder but for layers and pooler: paths of ours, names of theirs.
      layers: How names of a layer's arrays begin, with {} for its number.
      layer: Paths in a layer of ours, names in one of theirs. An array that is named
        itself, not as a part of a layer with a kernel, has dimensions as ours, those
        of what comes out first.
      decoder: The layer that may hold the token embedding once more.
      classes: Classes by what they are made for; of several that fit the arrays of a
        folder, the first.
      fields: Fields of our config, as `configs.FIELDS`, that others do not have or have
        other defaults for.
      constants: What a `config.json` has to say, if it says something.
      settings: Fields of our config that every encoder of it has.
      activation: What `config.json` calls the activation.
      is_projected: Whether embeddings are projected even if they are as wide as hidden
        states.
      is_offset: Whether positions are counted from the one behind the id of [PAD].
      lower_case: What tokenizers do whose settings do not say it.
    """

    kind: str
    prefix: str
    title: str
    outside: Mapping[str, str]
    layers: str
    layer: Mapping[str, str]
    decoder: str
    classes: Mapping[str, Class]
    fields: Mapping[str, tuple[str, type, Any]] = dataclasses.field(
        default_factory=dict
    )
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    activation: str = "hidden_act"
    is_projected: bool = False
    is_offset: bool = False
    lower_case: bool = True

    @property
    def of_encoder(self) -> set[str]:
        """How names of the encoder's arrays begin in a folder of the encoder alone."""
        names = [*self.outside.values(), self.layers]
        for each in self.classes.values():
            names += each.parts.values()
        own = [n.removeprefix(self.prefix) for n in names if n.startswith(self.prefix)]
        return {name.split(".")[0] for name in own}

    @property
    def language_model(self) -> dict[str, str]:
        """Parts of the head of its language model: ours, and names of theirs."""
        kind = MASKED_LM if MASKED_LM in self.classes else PERMUTATION_LM
        parts = self.classes[kind].parts
        return {path.partition("/")[2]: name for path, name in parts.items()}


def _embeddings(kind: str) -> dict[str, str]:
    names = {
        "token_embedding": "word_embeddings.weight",
        "position_embedding": "position_embeddings.weight",
        "segment_embedding": "token_type_embeddings.weight",
        "layer_norm": "LayerNorm",
    }
    return {
        f"encoder/embeddings/{ours}": f"{kind}.embeddings.{theirs}"
        for ours, theirs in names.items()
    }


def _language_model(
    transform: str, layer_norm: str, bias: str, head: str = "mlm_head"
) -> dict[str, str]:
    return {
        f"{head}/transform": transform,
        f"{head}/layer_norm": layer_norm,
        f"{head}/output_bias": bias,
    }


def _task_classes(begin: str, pooler: str) -> dict[str, Class]:
    """Classes for tasks, as BERT has them."""
    pooled = {"encoder/pooler": pooler, "classifier": "classifier"}
    return {
        CLASSIFICATION: Class(f"{begin}ForSequenceClassification", pooled),
        TAGGING: Class(f"{begin}ForTokenClassification", {"tagger": "classifier"}),
        CHOICE: Class(f"{begin}ForMultipleChoice", pooled),
        ANSWERING: Class(
            f"{begin}ForQuestionAnswering", {"span_classifier": "qa_outputs"}
        ),
    }


_EMBEDDING_SIZE = {"embedding_size": ("embedding_size", int, None)}
_BERT_LAYER = {
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/output": "attention.output.dense",
    "attention_layer_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}
_BERT_POOLER = {"encoder/pooler": "bert.pooler.dense"}
_BERT_HEAD = (
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.bias",
)
_BERT_PAIRS = {"nsp_head": "cls.seq_relationship"}

BERT = Architecture(
    kind="bert",
    prefix="bert.",
    title="BERT",
    outside=_embeddings("bert"),
    layers="bert.encoder.layer.{}",
    layer=_BERT_LAYER,
    decoder="cls.predictions.decoder",
    classes={
        **_task_classes("Bert", "bert.pooler.dense"),
        CAUSAL_LM: Class(
            "BertLMHeadModel", _language_model(*_BERT_HEAD, head="lm_head")
        ),
        NEXT_SENTENCE: Class(
            "BertForPreTraining",
            {**_BERT_POOLER, **_language_model(*_BERT_HEAD), **_BERT_PAIRS},
        ),
        MASKED_LM: Class("BertForMaskedLM", _language_model(*_BERT_HEAD)),
        ONLY_NEXT_SENTENCE: Class(
            "BertForNextSentencePrediction", {**_BERT_POOLER, **_BERT_PAIRS}
        ),
        BARE: Class("BertModel", _BERT_POOLER),
    },
)

_ALBERT_POOLER = {"encoder/pooler": "albert.pooler"}
_ALBERT_HEAD = _language_model(
    "predictions.dense", "predictions.LayerNorm", "predictions.bias"
)

ALBERT = Architecture(
    kind="albert",
    prefix="albert.",
    title="ALBERT",
    outside={
        **_embeddings("albert"),
        "encoder/embedding_projection": "albert.encoder.embedding_hidden_mapping_in",
    },
    layers="albert.encoder.albert_layer_groups.{}.albert_layers.0",
    layer={
        "attention/query": "attention.query",
        "attention/key": "attention.key",
        "attention/value": "attention.value",
        "attention/output": "attention.dense",
        "attention_layer_norm": "attention.LayerNorm",
        "intermediate": "ffn",
        "output": "ffn_output",
        "output_layer_norm": "full_layer_layer_norm",
    },
    decoder="predictions.decoder",
    classes={
        **_task_classes("Albert", "albert.pooler"),
        SENTENCE_ORDER: Class(
            "AlbertForPreTraining",
            {**_ALBERT_POOLER, **_ALBERT_HEAD, "sop_head": "sop_classifier.classifier"},
        ),
        MASKED_LM: Class("AlbertForMaskedLM", _ALBERT_HEAD),
        BARE: Class("AlbertModel", _ALBERT_POOLER),
    },
    fields={
        **_EMBEDDING_SIZE,
        "num_layer_groups": ("num_hidden_groups", int, 1),
        "dropout_rate": ("hidden_dropout_prob", float, 0.0),
        "attention_dropout_rate": ("attention_probs_dropout_prob", float, 0.0),
    },
    constants={"inner_group_num": 1},
    is_projected=True,
)

# Its classes for classification and choices have another pooler than ours: a GELU in
# the place of the tanh, and in classification another dropout.
ELECTRA = Architecture(
    kind="electra",
    prefix="electra.",
    title="ELECTRA",
    outside={
        **_embeddings("electra"),
        "encoder/embedding_projection": "electra.embeddings_project",
    },
    layers="electra.encoder.layer.{}",
    layer=_BERT_LAYER,
    decoder="generator_lm_head",
    classes={
        TAGGING: _task_classes("Electra", "")[TAGGING],
        ANSWERING: _task_classes("Electra", "")[ANSWERING],
        REPLACED_TOKENS: Class(
            "ElectraForPreTraining",
            {
                "discriminator_transform": "discriminator_predictions.dense",
                "discriminator": "discriminator_predictions.dense_prediction",
            },
        ),
        MASKED_LM: Class(
            "ElectraForMaskedLM",
            _language_model(
                "generator_predictions.dense",
                "generator_predictions.LayerNorm",
                "generator_lm_head.bias",
            ),
            activation="gelu_erf",
        ),
        BARE: Class("ElectraModel", {}),
    },
    fields=_EMBEDDING_SIZE,
)

_ROBERTA_POOLER = {"encoder/pooler": "roberta.pooler.dense"}
_ROBERTA_HEAD = "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"

ROBERTA = Architecture(
    kind="roberta",
    prefix="roberta.",
    title="RoBERTa",
    outside=_embeddings("roberta"),
    layers="roberta.encoder.layer.{}",
    layer=_BERT_LAYER,
    decoder="lm_head.decoder",
    classes={
        **_task_classes("Roberta", "roberta.pooler.dense"),
        CLASSIFICATION: Class(
            "RobertaForSequenceClassification",
            {
                "encoder/pooler": "classifier.dense",
                "classifier": "classifier.out_proj",
            },
        ),
        MASKED_LM: Class(
            "RobertaForMaskedLM", _language_model(*_ROBERTA_HEAD), activation="gelu_erf"
        ),
        BARE: Class("RobertaModel", _ROBERTA_POOLER),
    },
    is_offset=True,
)

_XLNET_POOLED = {
    "encoder/pooler": "sequence_summary.summary",
    "classifier": "logits_proj",
}

XLNET = Architecture(
    kind="xlnet",
    prefix="transformer.",
    title="XLNet",
    outside={
        "encoder/embeddings/token_embedding": "transformer.word_embedding.weight",
        "target_embedding": "transformer.mask_emb",
    },
    layers="transformer.layer.{}",
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
    classes={
        CLASSIFICATION: Class("XLNetForSequenceClassification", _XLNET_POOLED),
        TAGGING: Class("XLNetForTokenClassification", {"tagger": "classifier"}),
        CHOICE: Class("XLNetForMultipleChoice", _XLNET_POOLED),
        # Its other class for answers searches, and computes something else.
        ANSWERING: Class(
            "XLNetForQuestionAnsweringSimple", {"span_classifier": "qa_outputs"}
        ),
        PERMUTATION_LM: Class(
            "XLNetLMHeadModel", {"lm_head/output_bias": "lm_loss.bias"}
        ),
        BARE: Class("XLNetModel", {}),
    },
    fields={
        "hidden_size": ("d_model", int, None),
        "num_layers": ("n_layer", int, None),
        "num_heads": ("n_head", int, None),
        "intermediate_size": ("d_inner", int, None),
        "dropout_rate": ("dropout", float, 0.1),
        "attention_dropout_rate": ("dropout", float, 0.1),
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
        # There is no limit; this is the length of the published ones' rows.
        "max_position_embeddings": 512,
    },
    activation="ff_activation",
    lower_case=False,
)

ARCHITECTURES = {each.kind: each for each in (BERT, ALBERT, ELECTRA, ROBERTA, XLNET)}
