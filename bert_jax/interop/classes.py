"""Which class of `transformers` a checkpoint is of, and what that is here."""

import pathlib
from collections.abc import Collection
from typing import Any

from bert_jax import config as config_lib
from bert_jax import knobs
from bert_jax.errors import UserError
from bert_jax.interop.safetensors import Stored
from bert_jax.objectives import (
    Objective,
    causal_lm,
    choice,
    classification,
    masked_lm,
    regression,
    spans,
    tagging,
)
from bert_jax.tokenizer import Tokenizer
from bert_jax.training import metadata as metadata_lib

BARE = "BertModel"
PRETRAINING = "BertForPreTraining"
MASKED_LM = "BertForMaskedLM"
CAUSAL_LM = "BertLMHeadModel"
NEXT_SENTENCE = "BertForNextSentencePrediction"
CLASSIFICATION = "BertForSequenceClassification"
TAGGING = "BertForTokenClassification"
ANSWERING = "BertForQuestionAnswering"
CHOICE = "BertForMultipleChoice"

_TASKS = {
    "classification": CLASSIFICATION,
    "tagging": TAGGING,
    "squad": ANSWERING,
    "choice": CHOICE,
}
# Parts of our parameters that a class has, besides the encoder.
HEADS = {
    BARE: ("encoder/pooler",),
    PRETRAINING: ("encoder/pooler", "mlm_head", "nsp_head"),
    MASKED_LM: ("mlm_head",),
    CAUSAL_LM: ("lm_head",),
    CLASSIFICATION: ("encoder/pooler", "classifier"),
    TAGGING: ("tagger",),
    ANSWERING: ("span_classifier",),
    CHOICE: ("encoder/pooler", "classifier"),
}


def of_arrays(named: str, names: Collection[str], *, causal: bool) -> str:
    """The class that arrays are of.

    The arrays decide, as published folders often name a class with fewer heads. Only
    three classes, whose heads are all called "classifier", have to be named.
    """
    if "classifier.weight" in names and named in (CLASSIFICATION, TAGGING, CHOICE):
        return named
    if "qa_outputs.weight" in names:
        return ANSWERING
    has_pairs = "cls.seq_relationship.weight" in names
    if "cls.predictions.bias" in names:
        if causal:
            return CAUSAL_LM
        return PRETRAINING if has_pairs else MASKED_LM
    return NEXT_SENTENCE if has_pairs else BARE


def of_metadata(metadata: metadata_lib.Metadata) -> str:
    """The class that fits a checkpoint of ours.

    Raises:
      UserError: There is none.
    """
    saved = metadata.config
    if saved.get("kind") == "finetuning":
        return _TASKS.get(_kind(saved.get("task")), BARE)
    if saved.get("kind") != "pretraining":
        return BARE
    objective = saved.get("objective")
    if _kind(objective) == knobs.kind_of(config_lib.CausalLmConfig):
        return CAUSAL_LM
    if _kind(objective) != knobs.kind_of(config_lib.MaskedLmConfig):
        raise UserError(
            f"no class is known for what objective.kind={_kind(objective)!r} trains; "
            "it can be used with bert_jax only"
        )
    return PRETRAINING if objective.get("segments") == "next_sentence" else MASKED_LM


def metadata(
    name: str,
    path: pathlib.Path,
    values: dict[str, Any],
    encoder: config_lib.EncoderConfig,
    tokenizer: Tokenizer,
    arrays: dict[str, Stored],
) -> tuple[metadata_lib.Metadata, Objective]:
    """What a published checkpoint is here, as one of ours would say it of itself.

    Args:
      name: Class, from `of_arrays`.
      path: File with its config.
      values: What is in it.
      encoder: Config of the encoder.
      tokenizer: Tokenizer of the encoder.
      arrays: Arrays by their names.

    Returns:
      Metadata, and the objective that has the parameters of the class.

    Raises:
      UserError: Config and arrays contradict each other.
    """
    length = encoder.max_position_embeddings
    settings: dict[str, Any] = {}
    objective: Objective
    if name in (CLASSIFICATION, TAGGING):
        count = arrays["classifier.weight"].shape[0]
        labels = _labels(path, values, count)
        if name == TAGGING:
            task = config_lib.TaggingConfig(length=length)
            settings = {"tags": labels, "scheme": _scheme(labels)}
            objective = tagging.Tagging(encoder, count)
        elif values.get("problem_type") == "regression" or count == 1:
            task = config_lib.ClassificationConfig(target="number", length=length)
            settings = {"labels": []}
            objective = regression.Regression(encoder)
        else:
            task = config_lib.ClassificationConfig(length=length)
            settings = {"labels": labels}
            objective = classification.Classification(encoder, count)
    elif name == CHOICE:
        task = config_lib.ChoiceConfig(length=length)
        objective = choice.Choice(encoder, 2)
    elif name == ANSWERING:
        task = config_lib.SquadConfig(
            length=length, max_question=min(64, length // 4), stride=length // 4
        )
        objective = spans.Spans(encoder)
    else:
        return _pretraining(name, encoder, tokenizer)
    # No more of a config than is known.
    known = {"kind": "finetuning", "task": knobs.to_dict(task)}
    return _metadata(known, objective, tokenizer, settings), objective


def _metadata(
    config: dict[str, Any],
    objective: Objective,
    tokenizer: Tokenizer,
    settings: dict[str, Any] | None = None,
) -> metadata_lib.Metadata:
    return metadata_lib.Metadata(
        config=config,
        encoder=objective.encoder,
        encoder_path=objective.encoder_path,
        tokenizer=tokenizer,
        versions=metadata_lib.versions(),
        time={},
        task=settings or {},
    )


def _pretraining(
    name: str, encoder: config_lib.EncoderConfig, tokenizer: Tokenizer
) -> tuple[metadata_lib.Metadata, Objective]:
    pairs = encoder.type_vocab_size >= 2
    without_question = "consecutive" if pairs else "full_sentences"
    objective: Objective
    if name == CAUSAL_LM:
        asked = config_lib.CausalLmConfig(segments=without_question)
        objective = causal_lm.CausalLm(encoder, asked)
    else:
        segments = without_question if name == MASKED_LM else "next_sentence"
        asked = config_lib.MaskedLmConfig(segments=segments)
        objective = masked_lm.MaskedLm(encoder, asked)
    known = {"kind": "pretraining", "objective": knobs.to_dict(asked)}
    if name == BARE:
        known = {"kind": "bare encoder"}
    return _metadata(known, objective, tokenizer), objective


def _labels(path: pathlib.Path, values: dict[str, Any], count: int) -> list[str]:
    """Names of classes in the order of the rows of their classifier."""
    names = values.get("id2label")
    if names is None:
        return [f"LABEL_{i}" for i in range(count)]
    wanted = {str(i) for i in range(count)}
    if not isinstance(names, dict) or set(names) != wanted:
        raise UserError(
            f"{path}: id2label does not name the {count} classes of classifier.weight"
        )
    return [str(names[str(i)]) for i in range(count)]


def _scheme(tags: list[str]) -> str:
    """How tags name entities, as far as the tags alone say it."""
    letters = {tag[0] for tag in tags if tag[1:2] == "-"}
    if not letters or letters - set("BIES") or not letters & set("BI"):
        return "none"
    if letters & set("ES"):
        return "BIOES"
    return "IOB2" if "B" in letters else "IOB1"


def _kind(values: Any) -> str:
    return str(values.get("kind")) if isinstance(values, dict) else ""


def labels(metadata: metadata_lib.Metadata) -> dict[str, Any]:
    """What a `config.json` says of the classes of a checkpoint."""
    names = metadata.task.get("labels") or metadata.task.get("tags")
    if names:
        return {
            "id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)},
        }
    if of_metadata(metadata) == CLASSIFICATION:  # numbers
        return {
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "problem_type": "regression",
        }
    return {}
