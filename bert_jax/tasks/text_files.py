"""Tables of labelled texts and pairs of texts, with named columns."""

import json
import math
import os
from typing import Any

from bert_jax.errors import UserError
from bert_jax.tasks import task_files
from bert_jax.tasks.texts import Example


def read(
    path: str | os.PathLike,
    text_a: str = "",
    text_b: str = "",
    label: str = "",
    *,
    labelled: bool = True,
) -> list[Example]:
    """Read the examples of a local or remote file.

    Columns that are "" have their usual names: text_a or text, text_b if there is one,
    and label.

    Raises:
      UserError: The file cannot be read, lacks a column, or a row is incomplete.
    """
    path = os.fspath(path)
    header, rows = task_files.read_table(path)
    if not rows:
        raise UserError(f"{path} has no examples")
    first = text_a or ("text_a" if "text_a" in header else "text")
    second = text_b or ("text_b" if "text_b" in header else "")
    target = (label or "label") if labelled else ""
    try:
        for name in filter(None, (first, second, target)):
            task_files.find_column(path, header, name)
    except UserError as error:
        columns = "text (or text_a and text_b)" + " and label" * labelled
        raise UserError(
            f"{error}; the first line must name the columns {columns}, or pass "
            "your column names as --config.task.text_a, text_b and label; files of "
            "GLUE need --config.task.name=glue/NAME and --config.task.folder=DIR"
        ) from error
    examples = []
    for line, row in rows:
        where = f"{path}, line {line}"
        fields = dict(zip(header, row, strict=True))
        a = _text(fields[first], first, where)
        if not a.strip():
            raise UserError(f"{where}: {first} is empty")
        b = _text(fields[second], second, where) if second else ""
        c, probabilities = "", None
        if target and isinstance(fields[target], dict):
            probabilities = _probabilities(fields[target], target, where)
            c = json.dumps(probabilities, sort_keys=True)
        elif target:
            c = _label(fields[target], target, where)
        examples.append(Example(a, b, c, where, probabilities))
    return examples


def _text(value: Any, name: str, where: str) -> str:
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
    return value
