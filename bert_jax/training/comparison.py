"""Comparison of several runs: config fields that differ, and last metrics."""

import dataclasses
import json
from collections.abc import Sequence

from bert_jax import config as config_lib
from bert_jax import storage, terminal
from bert_jax.errors import UserError
from bert_jax.training import metrics_file
from bert_jax.training.metrics_file import Record

# Value of a field that a config lacks.
_NONE = "-"
# Suffixes of the metrics of a training report that the table shows.
_SHOWN_IN_TRAINING = ("loss", "accuracy")


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """A run in a comparison."""

    name: str  # unique name
    fields: dict[str, str]  # config values by path
    records: list[Record]


def read(workdirs: Sequence[storage.Path]) -> list[ComparedRun]:
    """Read the configs and metrics of several runs.

    Raises:
      UserError: A folder has no run, or is given twice.
    """
    names = [folder.name or str(folder) for folder in workdirs]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in workdirs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{twice} is given twice; give each workdir once")
    # Records come first: their errors say what a folder holds instead of a run.
    records = list(map(metrics_file.read, workdirs))
    return [
        ComparedRun(terminal.printable(name), _fields(folder), of_run)
        for name, folder, of_run in zip(names, workdirs, records, strict=True)
    ]


def table(runs: Sequence[ComparedRun]) -> str:
    """Format a table of the config fields that differ and the last metrics of each run.

    Each run has a column. Its metrics come from its last evaluation, or from the last
    training report if it has no evaluation.
    """
    fields = _rows([run.fields for run in runs])
    rows = [
        ["", *(run.name for run in runs)],
        *(row for row in fields if len(set(row[1:])) > 1),
        [""] * (1 + len(runs)),
        *_rows([_last(run.records) for run in runs]),
    ]
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [
        [path.ljust(first), *map(str.rjust, values, widths)] for path, *values in rows
    ]
    return "\n".join("  ".join(cells).rstrip() for cells in lines)


def _rows(columns: Sequence[dict[str, str]]) -> list[list[str]]:
    """Return a row for each key: the key, and its value in each of the dicts."""
    keys = dict.fromkeys(key for column in columns for key in column)
    return [[key, *(column.get(key, _NONE) for column in columns)] for key in keys]


def _last(records: Sequence[Record]) -> dict[str, str]:
    """Return step and metrics of the last evaluation, or of the last training report.

    An evaluation has losses, scores and baselines. A report has rates and times, too.
    """
    last = {record["split"]: record for record in records}
    if "eval" in last:
        what, chosen = "held out", last["eval"]
        shown = [name for name in chosen if not name.endswith("padding_fraction")]
    else:
        what, chosen = "training", records[-1]
        shown = [name for name in chosen if name.endswith(_SHOWN_IN_TRAINING)]
    values = {f"{what}, step": str(chosen["step"])}
    for name in shown:
        if name not in ("step", "split"):
            values[f"{what}, {name}"] = f"{chosen[name]:.4g}"
    return values


def _fields(folder: storage.Path) -> dict[str, str]:
    """Return the config of a run; each of several corpora is a field of its own."""
    path = folder / "config.json"
    with storage.reading(path):
        values = json.loads(path.read_text(encoding="utf-8"))
    fields = dict(config_lib.leaves(values))
    for name in ("data.corpus", "data.fingerprint"):
        if "," in fields.get(name, ""):
            parts = enumerate(fields.pop(name).split(","))
            fields |= {f"{name}[{i}]": part for i, part in parts}
    return {
        name: terminal.printable(json.dumps(value, ensure_ascii=False))
        for name, value in fields.items()
    }
