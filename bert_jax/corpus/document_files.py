"""Documents of one file of text or Parquet, or of a range of its bytes.

Formats:
  text           UTF-8, with blank lines between documents. A paragraph may be one line
                 or wrapped.
  jsonl          one JSON object per line, with the text in one of its fields.
  wikiextractor  `<doc ...>`, title (left out), paragraphs, `</doc>`.
  parquet        one document per row, with the text in one of the columns.
Text files that end in .gz, .bz2, .xz or .zst are decompressed while they are read.
Lines may end in line feeds, carriage returns or both. Memory use does not grow with the
file.
"""

import dataclasses
import functools
import io
import itertools
import json
import math
import re
import reprlib
from collections.abc import Iterable, Iterator
from xml.sax import saxutils

from bert_jax import terminal
from bert_jax.corpus import file_kinds, parquet_files
from bert_jax.errors import UserError

FORMATS = ("text", "jsonl", "wikiextractor", "parquet")
_MAX_LINES = 20  # of problems
# Longer documents and lines are cut, to bound the memory.
_MAX_DOCUMENT_CHARS = 1_000_000
_MAX_LINE_BYTES = 1 << 24
# A line, in a text that also has carriage returns. Faulty conversions put two of them
# before a line feed.
_LINE = re.compile(rb"[^\r\n]*(?:\r{0,2}\n|\r|\Z)")


@dataclasses.dataclass
class Problems:
    """Parts of the input that were left out, and hints about how to read it."""

    count: int = 0  # of problems; for each, a line or the rest of a file is left out
    # Messages about the first problems; each names the file.
    lines: list[str] = dataclasses.field(default_factory=list)
    # Possible mistakes in the flags. Nothing is left out because of them.
    hints: list[str] = dataclasses.field(default_factory=list)

    def add(self, line: str) -> None:
        """Report a part of the input that is left out."""
        self.count += 1
        if len(self.lines) < _MAX_LINES:
            self.lines.append(line)

    def hint(self, line: str) -> None:
        """Report a possible mistake once."""
        if line not in self.hints:
            self.hints.append(line)


@dataclasses.dataclass(frozen=True)
class Section:
    """Range of one input: bytes of a file, or examples of a dataset.

    A document belongs to the section in which it begins.
    """

    name: str  # path of the file, or name of the dataset
    start: int
    end: int  # exclusive
    checksum: str = ""  # of the file, from a store's listing; "" if there is none
    # Path of an input file, without the folders that all of them share; else "".
    label: str = ""


def documents(
    section: Section, format: str, text_field: str, problems: Problems
) -> Iterator[str]:
    """Yield the texts of the documents that begin in a section of a file, in order.

    `text_field` is the field of a JSON object, or the column, that holds the text.
    Bad lines, or the rest of a damaged file, are left out; `problems` collects messages
    about them.

    Raises:
      UserError: The file does not exist, or has no such column.
      Unavailable: The file cannot be read now.
    """
    shown = terminal.printable(section.name)
    if not section.end:
        problems.add(f"{shown}: empty file")
        return
    kept, until = 0, ""
    try:
        with file_kinds.open_decompressed(section.name) as stream:
            lines = _Lines(stream, section, problems)
            if format != "parquet" and (
                kind := file_kinds.binary_kind(stream, section.name, section.start)
            ):
                if section.start == 0:
                    problems.add(f"{shown}: no text; the file is {kind}; left out")
                return
            parse = {
                "text": _text_lines,
                "jsonl": functools.partial(_jsonl_lines, text_field=text_field),
                "wikiextractor": _wikiextractor_lines,
                "parquet": functools.partial(_parquet_lines, text_field=text_field),
            }[format]
            for text in join_lines(parse(lines)):
                yield text
                kept, until = kept + 1, f", up to {lines.location}"
    except FileNotFoundError as error:
        # It existed when the splits were planned. The corpus would lack it.
        raise UserError(f"{shown} was deleted, or is not on all machines") from error
    except (*file_kinds.READ_ERRORS, MemoryError) as error:
        # The file may be intact: leaving out the rest would lose text.
        file_kinds.raise_if_transient(section.name, error)
        problems.add(
            f"{shown}: cannot be read to its end ({error}); "
            f"kept the {terminal.pluralise(kept, 'document')} before{until}"
        )


class _Lines:
    """Decoded lines of a file, with the byte at which each begins.

    Iteration starts with the first line that begins in the range, and goes on to the
    end of the file: the reader decides where to stop. A compressed file is one range.
    """

    def __init__(self, stream: io.BufferedIOBase, section: Section, problems: Problems):
        self.stream = stream
        self.name = section.name
        self.problems = problems
        self._number = self._offset = 0
        self._reported: set[str] = set()
        self.row = 0  # of a Parquet file; 0 in other files
        self.is_cut = False  # whether the last line was too long, and continues next
        self.continues = False  # whether the last line continues the one before
        self.start = section.start
        is_compressed = section.name.endswith(file_kinds.COMPRESSIONS)
        self.end = math.inf if is_compressed else section.end

    def __iter__(self) -> Iterator[tuple[int, str]]:
        offset = 0
        if self.start > 0:
            # Skip to the end of the line that contains the byte before the range.
            offset = self.stream.seek(self.start - 1)
            for line in self._lines():
                offset += len(line)
                if offset >= self.end:  # no line begins in the range
                    return
                if line.endswith((b"\n", b"\r")):
                    break
            self.stream.seek(offset)
        for line in self._lines():
            self.continues = self.is_cut
            self._number += not self.continues
            self._offset = offset
            offset += len(line)
            self.is_cut = len(line) >= _MAX_LINE_BYTES and line[-1:] not in b"\r\n"
            try:
                text = line.decode("utf-8" if self._offset else "utf-8-sig")
                yield self._offset, text
            except UnicodeDecodeError:
                if self._offset < self.end:  # the next range reports later lines
                    self.report("not UTF-8; left out")

    def _lines(self) -> Iterator[bytes]:
        """Yield lines from the stream's position on, and cut long ones."""
        begun = b""  # beginning of a line that continues in the next block
        while line := begun + self.stream.readline(_MAX_LINE_BYTES - len(begun)):
            is_cut = len(line) == _MAX_LINE_BYTES
            begun = b""
            rest = bytearray()  # rest of a line's end: do not cut inside one
            while (
                is_cut
                and (rest or line).endswith(b"\r")
                and self.stream.peek(1)[:1] in (b"\r", b"\n")
            ):
                rest += self.stream.read(1)
            line += rest
            if line.count(b"\r") > line.endswith(b"\r\n"):
                lines = list(filter(None, _LINE.findall(line)))
                if is_cut and len(lines) > 1 and not line.endswith(b"\n"):
                    begun = lines.pop()
                yield from lines
                continue
            for _ in range(3 * is_cut):  # do not cut inside a character
                if b"\x80" <= self.stream.peek(1)[:1] < b"\xc0":
                    line += self.stream.read(1)
            yield line

    @property
    def location(self) -> str:
        """Location of the last line: its number, or its byte in a later range."""
        if self.row:
            return f"row {self.row}"
        return f"byte {self._offset}" if self.start else f"line {self._number}"

    def report(self, what: str) -> None:
        """Report a problem of the last line. Only count further equal ones."""
        shown = terminal.printable(self.name)
        if what in self._reported:
            self.problems.count += 1
        else:
            self.problems.add(f"{shown}, {self.location}: {what}")
            self._reported.add(what)


def _unescape(text: str) -> str:
    """Undo `html.escape`, which WikiExtractor applies by default."""
    return saxutils.unescape(text, {"&quot;": '"', "&#x27;": "'", "&#39;": "'"})


# The parsers yield the lines of documents, and None after each document.


def _text_lines(lines: _Lines) -> Iterator[str | None]:
    # A document belongs to the range with the blank line before it.
    inside, size = lines.start == 0, 0
    for offset, line in lines:
        if not inside and offset >= lines.end:
            return
        if offset == 0:
            _hint_at_other_formats(line, lines.problems)
        if not line.strip() and not lines.continues:
            yield None
            inside, size = True, 0
            if offset >= lines.end:
                return
        elif inside:
            yield line
            size += len(line)
            if size > _MAX_DOCUMENT_CHARS:
                lines.problems.hint(
                    f"the input has documents of more than {_MAX_DOCUMENT_CHARS:,} "
                    "characters, which are split between lines; put blank lines "
                    "between documents, or use --format=jsonl"
                )


def _hint_at_other_formats(first_line: str, problems: Problems) -> None:
    if first_line.startswith("<doc "):
        problems.hint(
            "the input looks like WikiExtractor output (a file begins with '<doc '); "
            "use --format=wikiextractor to read it without the tags"
        )
    if first_line.startswith('{"'):
        problems.hint(
            "the input looks like JSON lines (a file begins with '{'); use "
            "--format=jsonl to read only their texts"
        )


def _wikiextractor_lines(lines: _Lines) -> Iterator[str | None]:
    # Text belongs to the range with the `<doc` line before it, or to the first range.
    inside, title = False, ""
    has_begun = lines.start == 0
    for offset, line in lines:
        if offset >= lines.end and (line.startswith("<doc ") or not has_begun):
            return
        if line.startswith("<doc "):
            if inside:  # a document without its end
                yield None
            attribute = re.search(r'title="(.*?)">?\s*$', line)
            inside, title = True, _unescape(attribute[1]) if attribute else ""
            has_begun = True
        elif line.startswith("</doc>"):
            yield None
            inside = False
        elif inside and line.strip():
            line = _unescape(line)
            if line.strip() == title:  # the first line repeats the title
                title = ""
            else:
                yield line
        elif has_begun and line.strip():
            lines.report("text outside <doc ...> and </doc>; left out")


def _jsonl_lines(lines: _Lines, text_field: str) -> Iterator[str | None]:
    for offset, line in lines:
        if offset >= lines.end:
            return
        if lines.continues or not line.strip():
            continue
        try:
            fields = json.loads(line)
            text = fields[text_field]
            text.encode("utf-8")
        except UnicodeEncodeError:
            lines.report(f"unpaired surrogate in {text_field!r}; left out")
        except KeyError:
            there = reprlib.repr(list(fields))
            lines.report(
                f"the fields are {there}, not {text_field!r} (--text_field); left out"
            )
        except (ValueError, TypeError, AttributeError, RecursionError):
            problem = f"no JSON object with a text in {text_field!r}"
            if lines.is_cut:
                problem = f"longer than {_MAX_LINE_BYTES:,} bytes"
            lines.report(f"{problem}; left out")
        else:
            yield from text.splitlines(keepends=True)
            yield None


def _parquet_lines(lines: _Lines, text_field: str) -> Iterator[str | None]:
    for row, text in parquet_files.texts(
        lines.stream, lines.name, lines.start, lines.end, text_field
    ):
        lines.row = row
        if text is None:
            lines.report(f"no text in {text_field!r}; left out")
        else:
            yield from text.splitlines(keepends=True)
            yield None


def join_lines(lines: Iterable[str | None]) -> Iterator[str]:
    """Join lines into documents, which end at None or at `_MAX_DOCUMENT_CHARS`."""
    document: list[str] = []
    size = 0
    for line in itertools.chain(lines, [None]):
        if line is None or (document and size + len(line) > _MAX_DOCUMENT_CHARS):
            text = "".join(document)
            document, size = [], 0
            if text.strip():
                yield text
        if line is not None:
            document.append(line)
            size += len(line)
