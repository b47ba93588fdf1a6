"""The documents of one text file, or of a part of it.

Formats:
  text           UTF-8, with blank lines between documents. A paragraph may be one line
                 or wrapped.
  jsonl          one JSON object per line, with the text in one of its fields.
  wikiextractor  `<doc ...>`, title, paragraphs, `</doc>`.
Files that end in .gz or .zst are decompressed while they are read. Memory use does not
grow with the file.
"""

import contextlib
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterator

import pyarrow

from bert_jax import storage, terminal
from bert_jax.corpus.problems import Problems
from bert_jax.errors import Unavailable, UserError

FORMATS = ("text", "jsonl", "wikiextractor")
# Longer documents and lines are cut, so that memory stays bounded.
_MAX_DOCUMENT_CHARS = 1_000_000
_MAX_LINE_BYTES = 1 << 24


def is_compressed(path: str) -> bool:
    """Whether a file is decompressed while it is read."""
    return path.endswith((".gz", ".zst"))


def documents(
    name: str,
    start: int,
    end: int,
    format: str,
    text_field: str,
    problems: Problems,
) -> Iterator[str]:
    """Read the documents of a part of a file.

    A document belongs to the part in which it begins. What cannot be read is reported
    and costs its line, or the rest of the file.

    Args:
      name: Path or URL of the file.
      start: First byte of the part.
      end: One past the last byte of the part.
      format: One of `FORMATS`.
      text_field: Field of a JSON object that holds the text.
      problems: Problems to add to.

    Yields:
      Texts of the documents, in order.

    Raises:
      UserError: The file does not exist.
      Unavailable: The store that has the file does not answer now.
    """
    shown = terminal.printable(name)
    if not end:
        problems.add(f"{shown}: empty file")
        return
    kept, until = 0, ""
    try:
        with unpacked(name) as stream:
            lines = _Lines(stream, name, start, end, problems)
            for text in _parse(lines, format, text_field):
                yield text
                kept, until = kept + 1, f", up to {lines.location}"
    except FileNotFoundError as error:
        # It existed when the splits were planned. Without it, the corpus is another.
        raise UserError(f"{shown} is gone, or not on each machine") from error
    except (OSError, EOFError, zlib.error, MemoryError) as error:
        if storage.is_passing(error):
            # The file may be whole: leaving out the rest would lose text.
            raise Unavailable(f"{shown} cannot be read now: {error}") from error
        problems.add(
            f"{shown}: cannot be read to its end ({error}); "
            f"kept the {kept} documents before that{until}"
        )


@contextlib.contextmanager
def unpacked(name: str) -> Iterator[io.BufferedIOBase]:
    """Open a file, here or in an object store, to read what is packed in it."""
    is_remote = storage.is_remote(name)
    with storage.path(name).open() if is_remote else open(name, "rb") as stream:
        if name.endswith(".gz"):
            with gzip.GzipFile(fileobj=stream) as content:
                yield content
        elif name.endswith(".zst"):
            with pyarrow.input_stream(stream, compression="zstd") as content:
                yield io.BufferedReader(content)
        else:
            yield stream


class _Lines:
    """Decoded lines of a part of a file, with the byte at which each begins.

    Iteration starts with the first line that begins in the part, and goes on to the end
    of the file: the reader decides where to stop. A compressed file is one part.
    """

    def __init__(
        self,
        stream: io.BufferedIOBase,
        name: str,
        start: int,
        end: int,
        problems: Problems,
    ):
        self._stream = stream
        self._name = terminal.printable(name)
        self._problems = problems
        self._number = self._offset = 0
        self.start = start
        self.end = math.inf if is_compressed(name) else end

    def __iter__(self) -> Iterator[tuple[int, str]]:
        following = 0
        if self.start > 0:
            self._stream.seek(self.start - 1)
            following = self.start - 1 + self._skip_line()
        while line := self._stream.readline(_MAX_LINE_BYTES):
            offset, following = following, following + len(line)
            self._number, self._offset = self._number + 1, offset
            is_cut = len(line) == _MAX_LINE_BYTES  # possibly inside a character
            try:
                text = line.decode(
                    "utf-8-sig" if offset == 0 else "utf-8",
                    errors="ignore" if is_cut else "strict",
                )
                yield offset, text
            except UnicodeDecodeError:
                self.report("not UTF-8; left out this line")

    def _skip_line(self) -> int:
        """Skip to the end of a line, and return the number of bytes."""
        skipped = 0
        while part := self._stream.readline(_MAX_LINE_BYTES):
            skipped += len(part)
            if part.endswith(b"\n"):
                break
        return skipped

    @property
    def location(self) -> str:
        """Where the last line is. Lines have numbers only from the start of a file."""
        return f"byte {self._offset}" if self.start else f"line {self._number}"

    def report(self, what: str) -> None:
        """Report a problem in the last line."""
        self._problems.add(f"{self._name}, {self.location}: {what}")

    def hint(self, what: str) -> None:
        """Report a possible mistake in how the input is read."""
        self._problems.hint(what)


def _parse(lines: _Lines, format: str, text_field: str) -> Iterator[str]:
    if format == "text":
        return _text_documents(lines)
    if format == "jsonl":
        return _jsonl_documents(lines, text_field)
    return _wikiextractor_documents(lines)


def _text_documents(lines: _Lines) -> Iterator[str]:
    """A document belongs to the part that holds the blank line before it."""
    inside = lines.start == 0
    collected = _Collector()
    for offset, line in lines:
        if offset == 0 and line.startswith("<doc "):
            lines.hint(
                "the input looks like output of WikiExtractor (a file begins with "
                "'<doc '); --format=wikiextractor reads it without the tags"
            )
        if line.strip():
            if inside:
                yield from collected.add(line)
            continue
        yield from collected.flush()
        inside = True
        if offset >= lines.end:
            return
    yield from collected.flush()


def _wikiextractor_documents(lines: _Lines) -> Iterator[str]:
    """A document belongs to the part that holds its `<doc` line."""
    inside, title = False, ""
    collected = _Collector()
    for offset, line in lines:
        if line.startswith("<doc "):
            if offset >= lines.end:
                return
            attribute = re.search(r'title="(.*?)">?\s*$', line)
            inside, title = True, attribute[1] if attribute else ""
        elif line.startswith("</doc>"):
            yield from collected.flush()
            inside = False
        elif inside and line.strip():
            if line.strip() == title:  # the first line repeats the title
                title = ""
            else:
                yield from collected.add(line)
    yield from collected.flush()


def _jsonl_documents(lines: _Lines, text_field: str) -> Iterator[str]:
    for offset, line in lines:
        if offset >= lines.end:
            return
        if not line.strip():
            continue
        try:
            text = _json_text(line, text_field)
        except ValueError as error:
            lines.report(f"{error}; left out")
        else:
            yield from cut(text)


def _json_text(line: str, text_field: str) -> str:
    try:
        text = json.loads(line)[text_field]
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error
    except (ValueError, KeyError, TypeError, IndexError):
        text = None
    if not isinstance(text, str):
        raise ValueError(f"no JSON object with a text in {text_field!r}")
    if not _is_unicode(text):
        raise ValueError(f"the text in {text_field!r} has half of a surrogate pair")
    return text


def _is_unicode(text: str) -> bool:
    """Whether a text can be encoded: Python strings may hold half a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _Collector:
    """Joins lines into documents of at most `_MAX_DOCUMENT_CHARS`."""

    def __init__(self):
        self._lines: list[str] = []
        self._size = 0

    def add(self, line: str) -> Iterator[str]:
        if self._lines and self._size + len(line) > _MAX_DOCUMENT_CHARS:
            yield from self.flush()
        self._lines.append(line)
        self._size += len(line)

    def flush(self) -> Iterator[str]:
        text = "".join(self._lines)
        self._lines, self._size = [], 0
        if text.strip():
            yield text


def cut(text: str) -> Iterator[str]:
    """Cut a text into documents, if it is longer than one document may be."""
    collected = _Collector()
    for line in text.splitlines(keepends=True):
        yield from collected.add(line)
    yield from collected.flush()
