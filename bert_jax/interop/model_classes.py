"""Model classes of `transformers` that checkpoints correspond to."""

import dataclasses
from collections.abc import Collection
from typing import Any

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop import configs, huggingface
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.families.family import (
    ANSWERING,
    BARE,
    CAUSAL_LM,
    CHOICE,
    CLASSIFICATION,
    MASKED_LM,
    NEXT_SENTENCE,
    PERMUTATION_LM,
    REPLACED_TOKENS,
    SENTENCE_ORDER,
    TAGGING,
    TASKS,
    Family,
)
from bert_jax.interop.huggingface import ModelSpec
from bert_jax.interop.json_files import JsonFile
from bert_jax.interop.safetensors import LazyArray
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

# By the `kind` of a task or an objective. Checkpoints of other kinds are bare encoders.
_PURPOSES = {
    "classification": CLASSIFICATION,
    "tagging": TAGGING,
    "squad": ANSWERING,
    "choice": CHOICE,
    "masked_lm": MASKED_LM,
    "distillation": MASKED_LM,
    "causal_lm": CAUSAL_LM,
    "permutation_lm": PERMUTATION_LM,
    "replaced_tokens": REPLACED_TOKENS,
}
# Of objectives with masked tokens, by `segments`.
_PAIR_PURPOSES = {"next_sentence": NEXT_SENTENCE, "sentence_order": SENTENCE_ORDER}
# Objectives and their configs; all other purposes have masked tokens.
_PRETRAINING: dict[str, tuple[Any, Any]] = {
    CAUSAL_LM: (causal_lm.CausalLm, config_lib.CausalLmConfig()),
    PERMUTATION_LM: (permutation_lm.PermutationLm, config_lib.PermutationLmConfig()),
    REPLACED_TOKENS: (
        replaced_tokens.ReplacedTokens,
        # A folder has only the discriminator, and no size of a generator.
        config_lib.ReplacedTokensConfig(generator_size=1.0),
    ),
}
# `segments` of the objective with the heads of a class.
_SEGMENTS = {purpose: segments for segments, purpose in _PAIR_PURPOSES.items()}


def purpose_of_arrays(
    family: Family,
    class_name: str,
    names: Collection[str],
    encoder: config_lib.EncoderConfig,
) -> str:
    """Infer the purpose of a published checkpoint from its arrays.

    Folders often name a class with fewer heads than their arrays belong to. The class
    decides only where the heads of several classes have the same names.
    """
    if class_name.removeprefix(family.class_prefix) in family.encoder_only:
        return BARE
    head = encoder.prediction_head
    absent = *huggingface.absent_parts(head), "encoder/pooler"

    def is_there(name):
        return name in names or f"{name}.weight" in names

    for purpose, parts in family.classes.items():
        is_ambiguous = purpose in family.ambiguous_purposes
        if is_ambiguous and class_name != family.class_name(purpose):
            continue
        if purpose in (CAUSAL_LM, MASKED_LM, NEXT_SENTENCE) and encoder.causal != (
            purpose == CAUSAL_LM
        ):
            continue
        if purpose == PERMUTATION_LM and not head.tied:
            continue  # the head of bert_jax's XLNet is always tied
        if all(
            is_there(name) for path, name in parts.items() if not path.endswith(absent)
        ):
            return purpose
    return BARE


def export_spec(metadata: metadata_lib.Metadata, source: str) -> ModelSpec:
    """Return the class that a checkpoint is exported as; `source` is its path.

    Raises:
      UserError: No class computes the same.
    """
    encoder, trained_for = metadata.encoder, _purpose(metadata)
    candidates = [
        family
        for family in FAMILIES
        if family.exports(encoder, trained_for, metadata.tokenizer)
    ]
    first, refusal = candidates[0], None
    for purpose in _with_fewer_heads(trained_for, first):
        for family in candidates:
            if purpose not in family.classes:
                continue
            segments = max(family.min_segments, encoder.type_vocab_size)
            padded = dataclasses.replace(encoder, type_vocab_size=segments)
            try:
                spec = ModelSpec(family, purpose, padded, metadata.tokenizer.pad_id)
                configs.check_export(spec)
                return spec
            except UserError as error:
                if family is first:
                    refusal = refusal or error
    reason = refusal or (
        f"{first.title} of transformers has no class for {trained_for} that computes "
        "the same as bert_jax; use this checkpoint with bert_jax only"
    )
    raise UserError(f"{source} cannot be exported: {reason}") from refusal


def _with_fewer_heads(purpose: str, family: Family) -> list[str]:
    """Return a purpose, then purposes with fewer heads that an export falls back to.

    A pretrained model is exported without a head if its family has no class for its
    purpose.
    """
    purposes = [purpose]
    if purpose in (NEXT_SENTENCE, SENTENCE_ORDER):
        purposes.append(MASKED_LM)
    if purpose not in TASKS and family.classes.keys().isdisjoint(purposes):
        purposes.append(BARE)
    return purposes


def _purpose(metadata: metadata_lib.Metadata) -> str:
    """Return the purpose that a native checkpoint was trained for."""
    saved = metadata.config
    trained_for = saved.get("task") or saved.get("objective") or {}
    purpose = _PURPOSES.get(trained_for.get("kind"), BARE)
    if purpose == MASKED_LM:
        return _PAIR_PURPOSES.get(trained_for["segments"], MASKED_LM)
    return purpose


def metadata_and_objective(
    spec: ModelSpec,
    config: configs.ConfigFile,
    tokenizer: Tokenizer,
    arrays: dict[str, LazyArray],
) -> tuple[metadata_lib.Metadata, Objective]:
    """Build the metadata of a published checkpoint, and a matching objective.

    The objective has the same parameters as the class.

    Raises:
      UserError: Config and arrays contradict each other.
    """
    settings: dict[str, Any] = {}
    if spec.purpose in TASKS:
        task, objective, settings = _finetuning(spec, config, arrays)
        known = {"kind": "finetuning", "task": config_lib.to_dict(task)}
    else:
        known, objective = _pretraining(spec.purpose, spec.encoder)
    encoder = objective.encoder
    return metadata_lib.Metadata(known, encoder, tokenizer, task=settings), objective


def _pretraining(
    purpose: str, encoder: config_lib.EncoderConfig
) -> tuple[dict[str, Any], Objective]:
    """Return the known part of a run's config, and the objective of the run."""
    segments = "consecutive" if encoder.type_vocab_size >= 2 else "full_sentences"
    make, settings = _PRETRAINING.get(
        purpose, (masked_lm.MaskedLm, config_lib.MaskedLmConfig())
    )
    settings = dataclasses.replace(settings, segments=_SEGMENTS.get(purpose, segments))
    # A folder may have a pooler, whatever its class.
    is_masked = purpose in (BARE, MASKED_LM)
    with_pooler = dataclasses.replace(settings, segments="next_sentence")
    objective = make(encoder, with_pooler if is_masked else settings)
    if purpose == BARE:
        return {"kind": BARE}, objective
    return {"kind": "pretraining", "objective": config_lib.to_dict(settings)}, objective


def _finetuning(
    spec: ModelSpec, config: configs.ConfigFile, arrays: dict[str, LazyArray]
) -> tuple[config_lib.TaskConfig, Objective, dict[str, Any]]:
    """Return the config of a task, its objective, and its labels."""
    purpose, encoder, file = spec.purpose, spec.encoder, config.file
    length = encoder.max_position_embeddings
    if purpose == CHOICE:
        return config_lib.ChoiceConfig(length=length), choice.Choice(encoder, 2), {}
    if purpose == ANSWERING:
        squad = config_lib.SquadConfig(
            length=length, max_question=min(64, length // 4), stride=length // 4
        )
        return squad, spans.Spans(encoder), {}
    head = "tagger" if purpose == TAGGING else "classifier"
    (classifier,) = huggingface.names(f"{head}/kernel", spec)
    count = arrays[classifier].shape[0]
    labels = _labels(file, classifier, count)
    if purpose == TAGGING:
        tags = {"tags": labels, "scheme": _scheme(labels)}
        task = config_lib.TaggingConfig(length=length)
        return task, tagging.Tagging(encoder, count), tags
    problem = file.values.get("problem_type")
    if problem == "multi_label_classification" or (
        problem == "regression" and count > 1
    ):
        bare = spec.family.class_name(BARE)
        raise UserError(
            f"{file.path}: problem_type is {problem!r}, with {count} outputs; "
            "bert_jax predicts one class or one number for each text. To read only "
            f'the encoder, set architectures to ["{bare}"]'
        )
    if problem == "regression" or count == 1:
        task = config_lib.ClassificationConfig(target="number", length=length)
        output = {"labels": [], "output": labels[0], "problem_type": problem}
        return task, regression.Regression(encoder), output
    task = config_lib.ClassificationConfig(length=length)
    return task, classification.Classification(encoder, count), {"labels": labels}


def _labels(file: JsonFile, classifier: str, count: int) -> list[str]:
    """Return the names of the classes, in the order of the classifier's rows."""
    names = file.values.get("id2label")
    if names is None:
        return [f"LABEL_{i}" for i in range(count)]
    wanted = {str(i) for i in range(count)}
    if not isinstance(names, dict) or set(names) != wanted:
        raise UserError(
            f"{file.path}: id2label must name the {count} classes of {classifier}, 0 "
            f"to {count - 1}"
        )
    labels = [str(names[str(i)]) for i in range(count)]
    if repeated := [label for i, label in enumerate(labels) if label in labels[:i]]:
        raise UserError(f"{file.path}: id2label names two classes {repeated[0]!r}")
    return labels


def _scheme(tags: list[str]) -> str:
    """Infer the tagging scheme from the names of the tags."""
    letters = {tag[0] for tag in tags if tag[1:2] == "-"}
    if not letters or letters - set("BIES") or not letters & set("BI"):
        return "none"
    # IOB1 and IOB2 have the same tags, and BIOES without E is a scheme, too.
    return "lenient"


def labels(metadata: metadata_lib.Metadata) -> dict[str, Any]:
    """Return the values of a `config.json` that name the classes of a checkpoint."""
    if names := metadata.task.get("labels") or metadata.task.get("tags"):
        return {
            "id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)},
        }
    if _purpose(metadata) == CLASSIFICATION:  # numbers
        # Without a type, a pipeline of `transformers` applies a sigmoid.
        name = metadata.task.get("output", "LABEL_0")
        problem = metadata.task.get("problem_type", "regression")
        values = {"id2label": {"0": name}, "label2id": {name: 0}}
        return values | ({"problem_type": problem} if problem else {})
    return {}
