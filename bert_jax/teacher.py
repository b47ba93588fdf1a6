"""Teachers for distillation: checkpoints that a student imitates."""

import dataclasses
from collections.abc import Collection
from typing import Any

from bert_jax import config as config_lib
from bert_jax import warm_start
from bert_jax.corpus import shards
from bert_jax.errors import UserError
from bert_jax.interop import checkpoints
from bert_jax.model import parameters
from bert_jax.objectives import distillation
from bert_jax.training import processes, restore

_WHERE = "objective.teacher_encoder"


def fill_in_teacher(
    config: config_lib.PretrainConfig,
    folder: str,
    corpus: shards.Corpus,
    overrides: Collection[str],
) -> config_lib.PretrainConfig:
    """Return the config with path and architecture of the teacher.

    A run that resumes in its workdir `folder` keeps its teacher, even if the teacher's
    workdir has newer checkpoints by now.

    Raises:
      UserError: The checkpoint does not exist, or not any more, or it does not fit the
        corpus.
    """
    objective = config.objective
    if not objective.teacher:
        raise UserError(
            "objective.teacher is not set; pass --config.objective.teacher=DIR: a "
            "workdir, a checkpoint in it, or the folder of a published model"
        )
    path, _ = checkpoints.initial_checkpoint(
        objective.teacher,
        folder,
        type(config),
        ("objective.teacher", "objective.teacher_fingerprint"),
    )
    if not checkpoints.exists(path):
        raise UserError(
            f"the teacher {path}, with which the run in {folder} started, is gone; a "
            "student needs it in each step: restore it, or use another workdir"
        )
    source = warm_start.read_checkpoint(path)
    warm_start.check_tokenizer(source, corpus)
    return adopt_teacher_encoder(config, source, overrides)


def adopt_teacher_encoder(
    config: config_lib.PretrainConfig,
    source: warm_start.PretrainedCheckpoint,
    overrides: Collection[str],
) -> config_lib.PretrainConfig:
    """Return the config with the path and the encoder of a teacher's checkpoint.

    Fields of the teacher's computation, such as `dtype`, default to the student's. Set
    fields stay.

    Raises:
      UserError: A field of the teacher's architecture is set, and contradicts it.
    """
    encoder = warm_start.resolve_encoder(
        _with_fields_of_student(config, overrides),
        source,
        overrides,
        _WHERE,
        may_adapt=False,  # a teacher does not learn
    )
    objective = dataclasses.replace(
        config.objective, teacher=str(source.path), teacher_encoder=encoder
    )
    if objective.hidden_weight:
        objective.compared_states(config.encoder)
    config = dataclasses.replace(config, objective=objective)
    config_lib.check(config)
    return config


def assume_encoder(
    config: config_lib.PretrainConfig, overrides: Collection[str]
) -> config_lib.PretrainConfig:
    """Return the config of a plan, which needs no checkpoint of the teacher.

    The teacher's vocabulary is the student's. All else is as in
    `adopt_teacher_encoder`.
    """
    encoder = _with_fields_of_student(config, overrides, "vocab_size")
    objective = dataclasses.replace(config.objective, teacher_encoder=encoder)
    return dataclasses.replace(config, objective=objective)


def _with_fields_of_student(
    config: config_lib.PretrainConfig, overrides: Collection[str], *others: str
) -> config_lib.EncoderConfig:
    """Return the teacher's encoder with the student's computation, where unset.

    `others` names further fields to take from the student.
    """
    given = config.objective.teacher_encoder
    changes = {
        field.name: getattr(config.encoder, field.name)
        for field in dataclasses.fields(given)
        if (field.metadata.get("free") or field.name in others)
        and getattr(given, field.name) == field.default
        and f"{_WHERE}.{field.name}" not in overrides
    }
    return dataclasses.replace(given, **changes)


def fill_in_fingerprint(config: config_lib.PretrainConfig) -> config_lib.PretrainConfig:
    """Return the config with a hash of the teacher's parameters, from all processes."""
    path = restore.absolute(config.objective.teacher)
    return config_lib.fill_in(
        config,
        "objective.teacher_fingerprint",
        checkpoints.fingerprint(path),
        f"the parameters of the teacher {path} have changed",
    )


def load(path: str, shapes: Any) -> dict[str, Any]:
    """Load the teacher's parameters. All processes must call it.

    Raises:
      UserError: The checkpoint lacks some of them.
    """
    source = restore.absolute(path)
    loaded = checkpoints.load_params(source, shapes[distillation.TEACHER])
    if loaded.missing:
        raise UserError(
            f"the teacher {source} has no {loaded.missing[0]}; use a checkpoint that "
            "was pretrained to predict masked tokens",
            in_all_processes=True,
        )
    processes.say(f"teacher {loaded.describe(source)}")
    return {distillation.TEACHER: parameters.unflatten(loaded.params)}
