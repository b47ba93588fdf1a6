"""Tables in text files: TSV, CSV and JSON lines, plain or ending in .gz.

The ending of a name says what a file is. A TSV file has no quoting: a quotation mark
is a character like any other, as in the files of GLUE. A CSV file has that of `csv`.
The first line of both names the columns; JSON lines name them in every line.
"""

import csv
import dataclasses
import io
import json
import os
from typing import Any

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.tasks import task_files

_ENDINGS = (".tsv", ".csv", ".jsonl")


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of a file.

    Attributes:
      path: The file.
      header: Names of the columns.
      rows: For each row the number of its line, from 1, and its fields. They are as
        many as the columns, unless the table is from `parse_tsv`; those of JSON lines
        may be of any type, and None where a line lacks a name.
    """

    path: storage.Path
    header: list[str]
    rows: list[tuple[int, list[Any]]]


def read(path: str | os.PathLike) -> Table:
    """The table in a file, here or in an object store.

    Raises:
      UserError: The file is not there, not UTF-8, no table, or a row is incomplete.
      Unavailable: The store does not answer now.
    """
    path = storage.path(path)
    ending = os.path.splitext(path.name.removesuffix(".gz"))[1]
    if ending not in _ENDINGS:
        raise UserError(
            f"{path} may be anything; the name of a file must end in "
            f"{', '.join(_ENDINGS)}, or in one of these and .gz"
        )
    if ending == ".jsonl":
        return _parse_json_lines(path, task_files.read(path))
    parse = parse_tsv if ending == ".tsv" else _parse_csv
    table = parse(path, task_files.read(path))
    columns = len(table.header)
    for line, row in table.rows:
        if len(row) != columns:
            raise UserError(
                f"{path}, line {line}: {len(row)} fields, not {columns} as in the "
                "header"
            )
    return table


def parse_tsv(path: storage.Path, text: str) -> Table:
    """The table in a text with tabs between fields, rows as long as they are."""
    lines = [line.rstrip("\r").split("\t") for line in text.rstrip("\r\n").split("\n")]
    header, rows = lines[0], list(enumerate(lines[1:], 2))
    if len(header) > 1:  # with one column, a blank line is an empty field
        rows = [(line, row) for line, row in rows if row != [""]]
    return Table(path, header, rows)


def _parse_csv(path: storage.Path, text: str) -> Table:
    reader = csv.reader(io.StringIO(text.rstrip("\r\n"), newline=""), strict=True)
    try:
        header = next(reader, [""])
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from error
    if len(header) > 1:
        rows = [(line, row) for line, row in rows if row]
    return Table(path, header, rows)


def _parse_json_lines(path: storage.Path, text: str) -> Table:
    header: list[str] = []
    rows = []
    for line, content in enumerate(text.split("\n"), 1):
        if not content.strip():
            continue
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {line}: no JSON: {error}") from error
        if not isinstance(fields, dict):
            raise UserError(f"{path}, line {line}: not an object with named fields")
        header = header or list(fields)
        rows.append((line, [fields.get(name) for name in header]))
    return Table(path, header, rows)
