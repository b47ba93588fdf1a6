"""Which class of `transformers` a checkpoint is of, and what that is here."""

import pathlib
from collections.abc import Collection
from typing import Any

from bert_jax import config as config_lib
from bert_jax import knobs
from bert_jax.errors import UserError
from bert_jax.interop import huggingface
from bert_jax.interop.architectures import (
    ALBERT,
    ANSWERING,
    BARE,
    BERT,
    CAUSAL_LM,
    CHOICE,
    CLASSIFICATION,
    ELECTRA,
    MASKED_LM,
    NEXT_SENTENCE,
    ONLY_NEXT_SENTENCE,
    PERMUTATION_LM,
    REPLACED_TOKENS,
    ROBERTA,
    SENTENCE_ORDER,
    TAGGING,
    XLNET,
    Architecture,
)
from bert_jax.interop.safetensors import Stored
from bert_jax.objectives import (
    Objective,
    causal_lm,
    choice,
    classification,
    masked_lm,
    permutation_lm,
    regression,
    replaced_tokens,
    spans,
    tagging,
)
from bert_jax.tokenizer import Tokenizer
from bert_jax.training import metadata as metadata_lib

_TASKS = {
    "classification": CLASSIFICATION,
    "tagging": TAGGING,
    "squad": ANSWERING,
    "choice": CHOICE,
}
# What has no class of its own in an architecture, or one with a head less.
_INSTEAD = {NEXT_SENTENCE: MASKED_LM, SENTENCE_ORDER: MASKED_LM}


def of_arrays(
    theirs: Architecture, named: str, names: Collection[str], *, causal: bool
) -> str:
    """What the class that arrays are of is made for.

    The arrays decide, as published folders often name a class with fewer heads. Only
    classes whose heads are all called "classifier" have to be named.

    Args:
      theirs: Architecture.
      named: Class that the folder names.
      names: Names of the arrays.
      causal: Whether the encoder goes from left to right.
    """

    def is_there(name):
        return name in names or f"{name}.weight" in names

    for kind, each in theirs.classes.items():
        if kind in (CLASSIFICATION, TAGGING, CHOICE) and each.name != named:
            continue
        if kind in (CAUSAL_LM, MASKED_LM, NEXT_SENTENCE) and causal != (
            kind == CAUSAL_LM
        ):
            continue
        heads = [name for ours, name in each.parts.items() if ours != "encoder/pooler"]
        if all(map(is_there, heads)):
            return kind
    return BARE


def of_metadata(metadata: metadata_lib.Metadata) -> huggingface.Form:
    """The class that fits a checkpoint of ours.

    Raises:
      UserError: There is none.
    """
    kind = _made_for(metadata)
    candidates = _architectures(metadata)
    refusals = []
    for each in (kind, _INSTEAD.get(kind)):
        for theirs in candidates:
            if each not in theirs.classes:
                continue
            try:
                return huggingface.Form(
                    theirs, each, metadata.encoder, metadata.tokenizer.pad_id
                )
            except UserError as error:
                refusals.append(error)
    if refusals:
        raise refusals[0]
    raise UserError(
        f"{candidates[0].title} of transformers has no class for {kind} that computes "
        "what bert_jax does; such a checkpoint can be used with bert_jax only"
    )


def _made_for(metadata: metadata_lib.Metadata) -> str:
    """What a checkpoint of ours is made for."""
    saved = metadata.config
    if saved.get("kind") == "finetuning":
        return _TASKS.get(_kind(saved.get("task")), BARE)
    if saved.get("kind") != "pretraining":
        return BARE
    objective = saved.get("objective")
    if _kind(objective) == knobs.kind_of(config_lib.CausalLmConfig):
        return CAUSAL_LM
    if _kind(objective) == knobs.kind_of(config_lib.PermutationLmConfig):
        return PERMUTATION_LM
    if _kind(objective) == knobs.kind_of(config_lib.ReplacedTokensConfig):
        return REPLACED_TOKENS
    questions = {"next_sentence": NEXT_SENTENCE, "sentence_order": SENTENCE_ORDER}
    return questions.get(objective.get("segments"), MASKED_LM)


def _architectures(metadata: metadata_lib.Metadata) -> tuple[Architecture, ...]:
    """What an encoder is, first; then what computes the same."""
    encoder = metadata.encoder
    if encoder.is_relative:
        return (XLNET,)
    if encoder.num_layer_groups:
        return (ALBERT,)
    if encoder.embedding_columns != encoder.hidden_size:
        return (ELECTRA,)
    if encoder.embedding_size or _made_for(metadata) == REPLACED_TOKENS:
        return ELECTRA, BERT
    return (ROBERTA, BERT) if metadata.tokenizer.kind == "byte_bpe" else (BERT,)


def metadata(
    form: huggingface.Form,
    path: pathlib.Path,
    values: dict[str, Any],
    tokenizer: Tokenizer,
    arrays: dict[str, Stored],
) -> tuple[metadata_lib.Metadata, Objective]:
    """What a published checkpoint is here, as one of ours would say it of itself.

    Args:
      form: Class and encoder.
      path: File with its config.
      values: What is in it.
      tokenizer: Tokenizer of the encoder.
      arrays: Arrays by their names.

    Returns:
      Metadata, and the objective that has the parameters of the class.

    Raises:
      UserError: Config and arrays contradict each other.
    """
    kind, encoder = form.kind, form.encoder
    length = encoder.max_position_embeddings
    settings: dict[str, Any] = {}
    objective: Objective
    if kind in (CLASSIFICATION, TAGGING):
        classifier = "tagger" if kind == TAGGING else "classifier"
        (classifier,) = huggingface.names(f"{classifier}/kernel", form)
        count = arrays[classifier].shape[0]
        labels = _labels(path, values, classifier, count)
        if kind == TAGGING:
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
    elif kind == CHOICE:
        task = config_lib.ChoiceConfig(length=length)
        objective = choice.Choice(encoder, 2)
    elif kind == ANSWERING:
        task = config_lib.SquadConfig(
            length=length, max_question=min(64, length // 4), stride=length // 4
        )
        objective = spans.Spans(encoder)
    else:
        return _pretraining(kind, encoder, tokenizer)
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
    kind: str, encoder: config_lib.EncoderConfig, tokenizer: Tokenizer
) -> tuple[metadata_lib.Metadata, Objective]:
    pairs = encoder.type_vocab_size >= 2
    without_question = "consecutive" if pairs else "full_sentences"
    objective: Objective
    if kind == CAUSAL_LM:
        asked = config_lib.CausalLmConfig(segments=without_question)
        objective = causal_lm.CausalLm(encoder, asked)
    elif kind == PERMUTATION_LM:
        asked = config_lib.PermutationLmConfig(segments=without_question)
        objective = permutation_lm.PermutationLm(encoder, asked)
    elif kind == REPLACED_TOKENS:
        # The folder has the discriminator only; a generator of its size always exists.
        asked = config_lib.ReplacedTokensConfig(
            segments=without_question, generator_size=1.0
        )
        objective = replaced_tokens.ReplacedTokens(encoder, asked)
    else:
        questions = {
            NEXT_SENTENCE: "next_sentence",
            ONLY_NEXT_SENTENCE: "next_sentence",
            SENTENCE_ORDER: "sentence_order",
            BARE: "next_sentence",  # for the pooler
        }
        asked = config_lib.MaskedLmConfig(
            segments=questions.get(kind, without_question)
        )
        objective = masked_lm.MaskedLm(encoder, asked)
    known = {"kind": "pretraining", "objective": knobs.to_dict(asked)}
    if kind == BARE:
        known = {"kind": "bare encoder"}
    return _metadata(known, objective, tokenizer), objective


def _labels(
    path: pathlib.Path, values: dict[str, Any], classifier: str, count: int
) -> list[str]:
    """Names of classes in the order of the rows of their classifier."""
    names = values.get("id2label")
    if names is None:
        return [f"LABEL_{i}" for i in range(count)]
    wanted = {str(i) for i in range(count)}
    if not isinstance(names, dict) or set(names) != wanted:
        raise UserError(
            f"{path}: id2label does not name the {count} classes of {classifier}"
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
    if _made_for(metadata) == CLASSIFICATION:  # numbers
        return {
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "problem_type": "regression",
        }
    return {}
