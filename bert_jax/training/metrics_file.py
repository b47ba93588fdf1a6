"""metrics.jsonl: what a run measured, one JSON object on a line."""

import json
import os
from typing import Any

from bert_jax import storage
from bert_jax.errors import UserError

FILE = "metrics.jsonl"

# What a run compares evaluations with (objectives/unigram_baseline.py): the unigram
# entropy of the held-out text; and, of some metrics, the value of a model that knows
# token frequencies and no context, such as `mlm_loss_without_context`.
UNIGRAM_ENTROPY = "unigram_entropy"
WITHOUT_CONTEXT = "_without_context"

# Values of a step: `step`, `split` ("train" or "eval"), then numbers by name.
Record = dict[str, Any]


def parse(line: str | bytes) -> Record | None:
    """The record on a line; None if there is none.

    A crash leaves half a line, a loss of power zeros, and an editor anything.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    values = dict(record)
    step, split = values.pop("step", None), values.pop("split", None)
    if type(step) is not int or not isinstance(split, str):
        return None
    if not all(isinstance(value, int | float) for value in values.values()):
        return None
    return record


def read(workdir: str | os.PathLike) -> list[Record]:
    """The records of a run.

    Raises:
      UserError: There are none.
      Unavailable: A store does not answer now.
    """
    path = storage.path(workdir) / FILE
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise storage.failure(error)(f"cannot read {path}: {error}") from error
    records = [record for line in lines if (record := parse(line)) is not None]
    if not records:
        raise UserError(f"{path} has no records; the run has not reported anything yet")
    return records
