"""Texts and pairs of texts from one's own files: tables with named columns."""

import json
import os
from collections.abc import Sequence
from typing import Any

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.tasks import glue, tables, task_files
from bert_jax.tasks.texts import Example, ExampleSets


def read_all(config: config_lib.ClassificationConfig) -> ExampleSets:
    """The examples of the files that a config names.

    Raises:
      UserError: A file is not given or cannot be used.
      Unavailable: The store does not answer now.
    """
    task_files.check_given(
        config,
        "FILE.tsv, or --config.task.name=glue/... and --config.task.folder=DIR",
    )
    names = (config.text_a, config.text_b, config.label)
    return ExampleSets(
        train=read(config.train, *names),
        labelled={"eval": read(config.eval, *names)},
        unlabelled=(
            {"test": read(config.test, *names, labelled=False)} if config.test else {}
        ),
        about={},
    )


def read(
    path: str | os.PathLike,
    text_a: str = "",
    text_b: str = "",
    label: str = "",
    *,
    labelled: bool = True,
) -> list[Example]:
    """Examples of a file.

    Args:
      path: File, here or in an object store.
      text_a: Column of the text or the first of two; "": text_a or text.
      text_b: Column of the second; "": text_b, if there is one.
      label: Column of the label; "": label.
      labelled: Whether there are labels; if not, the column is left alone.

    Raises:
      UserError: The file is not there, no table, has no such columns, or a row is
        incomplete.
      Unavailable: The store does not answer now.
    """
    table = tables.read(path)
    first = text_a or ("text_a" if "text_a" in table.header else "text")
    second = text_b or ("text_b" if "text_b" in table.header else "")
    target = (label or "label") if labelled else ""
    missing = [n for n in (first, second, target) if n and n not in table.header]
    if missing:
        raise UserError(
            f"{table.path} has no column {' or '.join(missing)}; "
            f"{_advice(table, labelled)}"
        )
    a, b, c = (
        table.header.index(name) if name else None for name in (first, second, target)
    )
    examples = []
    for line, row in table.rows:
        where = f"{table.path}, line {line}"
        example = Example(
            _text(row, a, first, where),
            _text(row, b, second, where),
            _label(row, c, target, where),
            where,
        )
        if not example.text_a.strip():
            raise UserError(f"{where}: {first} is empty")
        examples.append(example)
    if not examples:
        raise UserError(f"{table.path} has no examples")
    return examples


def _text(row: Sequence[Any], index: int | None, name: str, where: str) -> str:
    if index is None:
        return ""
    if not isinstance(row[index], str):
        raise UserError(f"{where}: {name} is {json.dumps(row[index])}, not a text")
    return row[index]


def _label(row: Sequence[Any], index: int | None, name: str, where: str) -> str:
    """A label as text; in JSON it may be a number, or true or false."""
    if index is None:
        return ""
    value = row[index]
    if isinstance(value, int | float):
        value = json.dumps(value)
    if not isinstance(value, str) or not value:
        raise UserError(f"{where}: {name} is {json.dumps(value)}, not a label")
    return value


def _advice(table: tables.Table, labelled: bool) -> str:
    """What would make the file one that can be read."""
    wanted = "the columns text (or text_a and text_b)" + " and label" * labelled
    advice = (
        f"{wanted} are needed, or others named by --config.task.text_a, text_b and "
        f"label, and the first line has {glue.named(table.header)}"
    )
    known = [f"glue/{name}" for name in glue.recognise(table.header)]
    if known:
        return (
            f"{advice}; files of GLUE are read with --config.task.name="
            f"{' or '.join(known)} and --config.task.folder=DIR"
        )
    return f"{advice}; if that is an example, put a line with names in front of it"
