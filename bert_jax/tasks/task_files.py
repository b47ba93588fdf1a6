"""Files of labelled examples: text, tables in TSV, CSV and JSON lines, fingerprints.

Every file may be compressed, with one of `file_kinds.COMPRESSIONS` at the end of its
name. A TSV file has no quoting: a quotation mark is an ordinary character, as in the
files of GLUE. A CSV file is quoted as Python's `csv` does it. The first line of both
names the columns.
"""

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bert_jax import io_errors, storage, terminal
from bert_jax.corpus import file_kinds
from bert_jax.errors import UserError


def paths_by_set(config: Any, advice: str) -> dict[str, str]:
    """Return the files of a task by set: "train", "eval" and maybe "test"."""
    files = {name: getattr(config, name, "") for name in ("train", "eval", "test")}
    for name in ("train", "eval"):
        if not files[name]:
            raise UserError(f"task.{name} is empty; pass --config.task.{name}={advice}")
    return {name: file for name, file in files.items() if file}


def fingerprint(*sets: Iterable[Any]) -> str:
    """Return a hash of the `repr` of examples, to check them when a run continues."""
    digest = hashlib.sha256()
    for examples in sets:
        digest.update(b"a set\n")
        for example in examples:
            digest.update(repr(example).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:16]


def prefix_with_set(name: str, key: str) -> str:
    """Prefix a metric or file name with a held-out set, unless that set is "eval"."""
    return key if name == "eval" else f"{name}_{key}"


def read(path: str | os.PathLike) -> str:
    """Return the text of a UTF-8 file without its byte-order mark.

    Raises:
      UserError: The file is missing, damaged, or not UTF-8.
    """
    path = storage.path(path)
    try:
        with file_kinds.open_decompressed(os.fspath(path)) as stream:
            data = stream.read()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        stream = io.BufferedReader(io.BytesIO(data))
        if kind := file_kinds.binary_kind(stream, os.fspath(path), start=0):
            raise UserError(f"{path}: no text; the file is {kind}") from error
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line}: not UTF-8 ({error.reason} at byte {error.start} of "
            "the file); iconv -f LATIN1 -t UTF-8 converts a file"
        ) from error
    except file_kinds.READ_ERRORS as error:
        raise io_errors.wrap_error(
            error, f"cannot read {path}: {io_errors.message(error)}"
        ) from error
    # Line ends stay as they are, except for a lone \r (old Macintoshes).
    return text if "\n" in text else text.replace("\r", "\n")


def check_suffix(path: str | os.PathLike, suffixes: Sequence[str]) -> str:
    """Return the suffix of a file name, which must be one of `suffixes`."""
    suffix = file_kinds.suffix(os.fspath(path))
    if suffix not in suffixes:
        raise UserError(
            f"{path}: unknown format; the file name must end in {', '.join(suffixes)}, "
            f"or in one of these and {' or '.join(file_kinds.COMPRESSIONS)}"
        )
    return suffix


def write(path: storage.Path, text: str) -> None:
    """Write a text file into an existing folder."""
    with storage.writing(path.parent):
        storage.write_text(path, text)


def write_json_lines(path: storage.Path, objects: Iterable[dict[str, Any]]) -> None:
    """Write a file with a JSON object in each line."""
    lines = [json.dumps(fields, ensure_ascii=False) + "\n" for fields in objects]
    write(path, "".join(lines))


# ---- tables


Rows = list[tuple[int, list[str]]]  # the first line of each row, from 1; its fields


def read_table(
    path: str | os.PathLike,
) -> tuple[list[str], list[tuple[int, dict[str, Any]]]]:
    """Read a table whose rows have equal columns. Values in JSON may have any type.

    Returns:
      Names of the columns; and for each row its first line, from 1, and its fields.

    Raises:
      UserError: The file cannot be read or parsed, has no rows, or a row has other
        columns than the first line.
    """
    suffix = check_suffix(path, (".tsv", ".csv", ".jsonl"))
    text = read(path)
    if suffix == ".jsonl":
        table = list(json_objects(path, text))
        header = list(table[0][1]) if table else []
        for line, fields in table:
            if fields.keys() != set(header):
                raise UserError(
                    f"{path}, line {line}: columns {describe_columns(fields)}, but the "
                    f"first object has {describe_columns(header)}"
                )
    else:
        if suffix == ".tsv":
            header, rows = parse_tsv(text)
        else:
            (_, header), *rows = csv_rows(path, text.rstrip("\r\n")) or [(1, [""])]
            if len(header) > 1:
                rows = [(line, row) for line, row in rows if row]
        table = [(n, by_column(f"{path}, line {n}", header, row)) for n, row in rows]
    if not table:
        raise UserError(f"{path} has no examples")
    return header, table


def parse_tsv(text: str) -> tuple[list[str], Rows]:
    """Split a text at tabs. Rows may have other numbers of fields than the header."""
    lines = [line.rstrip("\r").split("\t") for line in text.rstrip("\r\n").split("\n")]
    header, rows = lines[0], list(enumerate(lines[1:], 2))
    if len(header) > 1:  # in a single column, a blank line is an empty field
        rows = [(line, row) for line, row in rows if row != [""]]
    return header, rows


def csv_rows(path: str | os.PathLike, text: str) -> Rows:
    """Return the rows of a CSV file, each with the line in which it begins."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows, line = [], 1
    try:
        for row in reader:
            rows.append((line, row))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}: the row that begins in line {line} is not CSV: {error}; quote a "
            "field that has commas or quotation marks, and double the marks inside"
        ) from error
    return rows


def json_objects(path: str | os.PathLike, text: str) -> Iterator[tuple[int, dict]]:
    """Yield the objects of JSON lines, each with the number of its line."""
    for line, content in enumerate(text.split("\n"), 1):
        if content.strip():
            yield line, json_object(content, f"{path}, line {line}")


def json_object(text: str, where: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
      UserError: The text is no JSON object, or has an unpaired surrogate.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise UserError(f"{where}: {shorten(text)} is not a JSON object")
    written = json.dumps(fields, ensure_ascii=False)
    if half := re.search("[\ud800-\udfff]", written):
        near = written[max(half.start() - 30, 0) : half.end()]
        raise UserError(
            f"{where}: unpaired surrogate at the end of {near!a}: an escape such as "
            r"\ud83d without \ude00 after it"
        )
    return fields


def find_column(where: str, header: Sequence[str], name: str, advice: str = "") -> int:
    """Return the index of a column, whose name must occur once."""
    if header.count(name) != 1:
        found = "two columns" if name in header else "no column"
        raise UserError(
            f"{where}: {found} {name!r}; there are {describe_columns(header)}{advice}"
        )
    return header.index(name)


def by_column(where: str, header: Sequence[str], row: Sequence[str]) -> dict[str, str]:
    """Return the fields of a row by column, if there are as many as in the header."""
    if len(row) != len(header):
        fields = terminal.pluralise(len(row), "field")
        raise UserError(f"{where}: {fields}, not {len(header)} as in the header")
    return dict(zip(header, row, strict=True))


def describe_columns(names: Iterable[str]) -> str:
    """Format column names for a message. Without a header, they may be sentences."""
    return ", ".join(map(shorten, names))


def shorten(value: Any, limit: int = 40) -> str:
    """Format a value for a message, cut to a number of characters; quote a text."""
    text = value if isinstance(value, str) else repr(value)
    text = text if len(text) <= limit else f"{text[: limit - 4]} ..."
    return repr(text) if isinstance(value, str) else text
