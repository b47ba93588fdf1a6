"""Files of texts to ask a model about: lines, pairs in lines, columns of TSV files."""

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any

from bert_jax import io_errors, terminal
from bert_jax.corpus import file_kinds
from bert_jax.errors import UserError
from bert_jax.prediction.text_inputs import Text
from bert_jax.tasks import task_files

STDIN = "-"
# A longer line is not text, and may not fit into memory.
_MAX_LINE_BYTES = 1 << 24
# A text pair in one line, as in extract_features.py of google-research/bert. Either
# text may be empty.
_PAIR = re.compile(r"(?:(.*) )?\|\|\|(?: (.*))?")


def read_lines(name: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a file, each after its place, such as "a.txt, line 3".

    Args:
      name: Path or URL of a file, plain or with one of `file_kinds.COMPRESSIONS` at
        the end of its name; "-" for standard input.

    Raises:
      UserError: The file cannot be read, has no lines, or a line is not UTF-8.
    """
    is_stdin = name == STDIN
    shown = _shown(name)
    number, kind = 0, ""
    try:
        with (
            contextlib.nullcontext(sys.stdin.buffer)
            if is_stdin
            else file_kinds.open_decompressed(name)
        ) as stream:
            if not is_stdin:
                kind = file_kinds.binary_kind(stream, name, start=0)
            while line := stream.readline(_MAX_LINE_BYTES):
                number += 1
                where = f"{shown}, line {number}"
                if len(line) == _MAX_LINE_BYTES:
                    raise UserError(f"{where} is longer than {_MAX_LINE_BYTES:,} bytes")
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                # Old Macs end lines with \r. Then the whole file is read as one line.
                if number == 1 and not text.endswith("\n"):
                    lines = text.removesuffix("\r").split("\r")
                    for number, part in enumerate(lines, 1):
                        yield f"{shown}, line {number}", part
                    return
                yield where, text.rstrip("\r\n")
    except UnicodeDecodeError as error:
        if kind:
            raise UserError(f"{shown}: no text; the file is {kind}") from error
        raise UserError(f"{where}: not UTF-8; convert it with iconv") from error
    except file_kinds.READ_ERRORS as error:
        reason = io_errors.message(error)
        raise io_errors.wrap_error(error, f"cannot read {shown}: {reason}") from error
    if not number:
        raise UserError(f"{shown} has no lines")


def read_objects(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of JSON lines, each after its place; see `read_lines`."""
    is_blank = True
    for where, line in read_lines(name):
        if line.strip():
            is_blank = False
            yield where, task_files.json_object(line, where)
    if is_blank:
        raise UserError(f"{_shown(name)}: all lines are blank")


def _shown(name: str) -> str:
    return "standard input" if name == STDIN else terminal.printable(name)


def check_suffix(name: str, text_a: str) -> None:
    """Refuse files whose lines are not texts: CSV, JSON, and TSV without `text_a`.

    `text_a` is as in `read_texts`.
    """
    suffix = file_kinds.suffix(name)
    if suffix in (".csv", ".jsonl", ".json"):
        reason = (
            "columns are read from .tsv files only"
            if text_a
            else "each line would be read as one text"
        )
        raise UserError(
            f"{name}: {reason}; write the texts to a .txt file, one in each line, or "
            "to a .tsv file with a header, and pass text_a"
        )
    if suffix == ".tsv" and not text_a:
        raise UserError(
            f"{name}: each line would be a text; pass text_a, the column of the texts, "
            "or rename a file without columns to .txt"
        )


def read_texts(
    name: str, text_a: str = "", text_b: str = ""
) -> Iterator[tuple[str, Text]]:
    """Yield the texts and text pairs of a file, each after its place; see `read_lines`.

    Args:
      name: See `read_lines`.
      text_a: Column of a TSV file that has the texts, named in its first line; "": each
        line is a text, or a pair `A ||| B`, of which A or B may be empty.
      text_b: Column with the second texts; "": there are none.

    Raises:
      UserError, Unavailable: See `read_lines`; or a column is missing.
    """
    if text_b and not text_a:
        raise UserError("text_b needs text_a, the column of the first texts")
    lines = read_lines(name)
    if not text_a:
        for where, line in lines:
            pair = _PAIR.fullmatch(line.strip())
            yield where, (pair[1] or "", pair[2] or "") if pair else line
        return
    where, line = next(lines)
    header = line.split("\t")
    columns = [name for name in (text_a, text_b) if name]
    for name in columns:
        task_files.find_column(where, header, name)
    row = None
    for row_where, line in lines:
        if not line and len(header) > 1:
            continue  # in a single column, a blank line is an empty text
        row = line.split("\t")
        fields = task_files.by_column(row_where, header, row)
        first, *second = (fields[name] for name in columns)
        yield row_where, (first, *second) if second else first
    if row is None:
        raise UserError(f"{where}: there are no rows below the header")
