"""metrics.jsonl: the metrics of a run, one JSON object per line."""

import json
import os
from typing import Any

from bert_jax import storage
from bert_jax.errors import UserError

FILE = "metrics.jsonl"

# Names of baselines (objectives/unigram_baseline.py): the unigram entropy of held-out
# text, and the suffix for the value of a metric, such as `mlm_loss_without_context`, of
# a model that knows token frequencies but no context.
UNIGRAM_ENTROPY = "unigram_entropy"
WITHOUT_CONTEXT = "_without_context"

# Metrics of a step: `step`, `split` ("train" or "eval"), and numbers by name.
Record = dict[str, Any]


def rounded(value: float) -> float:
    """Return a value as records have it."""
    return float(f"{value:.7g}")


def parse(line: str | bytes) -> Record | None:
    """Parse a line; return None if it is not a record.

    A crash may leave half a line, and a power failure zeros.
    """
    try:
        record = json.loads(line)
    except ValueError:
        return None
    is_record = (
        isinstance(record, dict)
        and type(record.get("step")) is int
        and isinstance(record.get("split"), str)
    )
    return record if is_record else None


def read(workdir: str | os.PathLike) -> list[Record]:
    """Read the records of a run.

    Raises:
      UserError: There are no records.
    """
    path = storage.path(workdir) / FILE
    if not path.exists():
        if runs := sorted(map(str, storage.path(workdir).glob(f"seed-*/{FILE}"))):
            raise UserError(
                f"{workdir} holds {len(runs)} runs; give some of them, such as "
                f"{runs[0].removesuffix(f'/{FILE}')}"
            )
        raise UserError(
            f"{workdir} has no {FILE}; give the workdir of a run that logged metrics"
        )
    with storage.reading(path):
        lines = path.read_bytes().splitlines()
    records = [record for line in lines if (record := parse(line)) is not None]
    if not records:
        raise UserError(f"{path} has no records; the run has not logged metrics yet")
    return records
