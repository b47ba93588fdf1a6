"""Tables of labelled texts and pairs of texts, with named columns."""

import json
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

    Args:
      path: Path or URL.
      text_a: Column of the text or of the first of a pair; "": text_a or text.
      text_b: Column of the second text; "": text_b, if there is one.
      label: Column of the label; "": label.
      labelled: Whether to read labels.

    Raises:
      UserError: The file cannot be read, lacks a column, or a row is incomplete.
      Unavailable: The store does not answer now.
    """
    path = os.fspath(path)
    header, rows = task_files.read_table(path)
    if not rows:
        raise UserError(f"{path} has no examples")
    first = text_a or ("text_a" if "text_a" in header else "text")
    second = text_b or ("text_b" if "text_b" in header else "")
    target = (label or "label") if labelled else ""
    try:
        a, b, c = (
            task_files.find_column(path, header, name) if name else None
            for name in (first, second, target)
        )
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
        text = _text(row[a], first, where)
        if not text.strip():
            raise UserError(f"{where}: {first} is empty")
        examples.append(
            Example(
                text,
                "" if b is None else _text(row[b], second, where),
                "" if c is None else _label(row[c], target, where),
                where,
            )
        )
    return examples


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: {name} is {json.dumps(value)}, not a text")
    return value


def _label(value: Any, name: str, where: str) -> str:
    if isinstance(value, int | float):  # JSON; bool is an int
        value = json.dumps(value)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {name} is {json.dumps(value)}, not a label")
    return value.strip()
