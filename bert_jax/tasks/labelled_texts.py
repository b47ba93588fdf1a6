"""Texts and pairs of texts with labels, and tables of them with named columns."""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from bert_jax.errors import UserError
from bert_jax.tasks import task_files


@dataclasses.dataclass(frozen=True)
class Example:
    """A text or a pair of texts."""

    text_a: str  # the text, or the first of a pair
    text_b: str  # the second of a pair; "" for a single text
    label: str  # as in the file, or the JSON of `probabilities`; "" if unknown
    # File and line, for messages.
    where: str = dataclasses.field(default="", compare=False, repr=False)
    # Probability of each label, if the label is a distribution.
    probabilities: dict[str, float] | None = dataclasses.field(
        default=None, compare=False, repr=False
    )


# Examples by set, such as "train", "eval" and "test". Either all examples of a set have
# labels, or none.
ExampleSets = dict[str, list[Example]]


def read(
    path: str | os.PathLike,
    text_a: str = "",
    text_b: str = "",
    label: str = "",
    *,
    needs_labels: bool = True,
) -> list[Example]:
    """Read the examples of a local or remote file.

    Columns that are "" have their usual names: text_a or text, text_b if there is one,
    and label. With `needs_labels=False`, labels may be missing: all are "" if there is
    no such column, or no label in it.

    Raises:
      UserError: The file cannot be read, lacks a column, or a row is incomplete.
    """
    path = os.fspath(path)
    header, rows = task_files.read_table(path)
    first = text_a or ("text_a" if "text_a" in header else "text")
    second = text_b or ("text_b" if "text_b" in header else "")
    target = label or "label"
    if not needs_labels and not _has_labels(rows, target):
        target = ""
    advice = (
        "; the first line must name the columns text (or text_a and text_b)"
        f"{' and label' * needs_labels}, or pass your column names as "
        "--config.task.text_a, text_b and label; files of GLUE need "
        "--config.task.name=glue/NAME and --config.task.folder=DIR"
    )
    for name in filter(None, (first, second, target)):
        task_files.find_column(path, header, name, advice)
    examples = []
    for line, fields in rows:
        where = f"{path}, line {line}"
        a = text_of(fields, first, where)
        if not a.strip():
            raise UserError(f"{where}: {first} is empty")
        b = text_of(fields, second, where) if second else ""
        c, probabilities = "", None
        if target and isinstance(fields[target], dict):
            probabilities = _probabilities(fields[target], target, where)
            c = json.dumps(probabilities, sort_keys=True)
        elif target:
            c = _label(fields[target], target, where)
        examples.append(Example(a, b, c, where, probabilities))
    return examples


def write_tsv(path: pathlib.Path, examples: Iterable[Example]) -> None:
    """Write pairs of texts as a table for `read`. Tabs become spaces."""
    rows = [("text_a", "text_b", "label")]
    rows += [(e.text_a, e.text_b, e.label) for e in examples]
    lines = ["\t".join(field.replace("\t", " ") for field in row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _has_labels(rows: list[tuple[int, dict[str, Any]]], name: str) -> bool:
    """Return whether there is a column of this name with labels.

    Test sets of Hugging Face's `datasets` have -1 or -1.0 in place of each label.
    """
    values = {str(fields.get(name, "")).strip() for _, fields in rows}
    # As JSON, a missing value is null, or NaN as Python writes it.
    return not values <= {"", "-1", "-1.0", "None", "nan", "NaN"}


def text_of(fields: dict[str, Any], name: str, where: str) -> str:
    """Return a field of a row, which must be a text."""
    value = fields[name]
    if not isinstance(value, str):
        raise UserError(f"{where}: {name} is {json.dumps(value)}, not a text")
    return value


def _label(value: Any, name: str, where: str) -> str:
    # JSON; bool is an int. Python writes a missing float as NaN.
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        value = json.dumps(value)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {name} is {json.dumps(value)}, not a label")
    return value.strip()


def _probabilities(value: dict[str, Any], name: str, where: str) -> dict[str, float]:
    numbers = value.values()
    if not all(isinstance(x, int | float) and 0 <= x <= 1 for x in numbers):
        raise UserError(
            f"{where}: {name} is {json.dumps(value)}; expected a probability between 0 "
            "and 1 for each label"
        )
    if abs(sum(numbers) - 1) > 0.001:
        raise UserError(
            f"{where}: the probabilities in {name} add up to {sum(numbers):g}, not to 1"
        )
    labels = [_label(label, name, where) for label in value]
    if len({*labels}) < len(labels):
        raise UserError(f"{where}: {name} is {json.dumps(value)}, with one label twice")
    return dict(zip(labels, numbers, strict=True))
