"""Documents of one text file, or of a range of its bytes.

Formats:
  text           UTF-8, with blank lines between documents. A paragraph may be one line
                 or wrapped.
  jsonl          one JSON object per line, with the text in one of its fields.
  wikiextractor  `<doc ...>`, title, paragraphs, `</doc>`.
Files that end in .gz or .zst are decompressed while they are read. Memory use does not
grow with the file.
"""

import contextlib
import dataclasses
import functools
import gzip
import io
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator

import pyarrow

from bert_jax import storage, terminal
from bert_jax.errors import Unavailable, UserError

FORMATS = ("text", "jsonl", "wikiextractor")
_MAX_LINES = 20  # of problems
# Longer documents and lines are cut, to bound the memory.
_MAX_DOCUMENT_CHARS = 1_000_000
_MAX_LINE_BYTES = 1 << 24


@dataclasses.dataclass
class Problems:
    """Parts of the input that were left out, and hints about how to read it.

    Attributes:
      count: Number of problems. Each cost a line, or the rest of a file.
      lines: Messages about the first problems; each names the file.
      hints: Possible mistakes in how the input is read. They cost nothing.
    """

    count: int = 0
    lines: list[str] = dataclasses.field(default_factory=list)
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


def is_compressed(path: str) -> bool:
    """Return whether a file is decompressed while it is read."""
    return path.endswith((".gz", ".zst"))


def documents(
    name: str,
    start: int,
    end: int,
    format: str,
    text_field: str,
    problems: Problems,
) -> Iterator[str]:
    """Yield the texts of the documents that begin in a range of a file, in order.

    Args:
      name: Path or URL of the file.
      start: First byte of the range.
      end: End of the range, exclusive.
      format: One of `FORMATS`.
      text_field: Field of a JSON object that holds the text.
      problems: Collects bad input, which costs its line or the rest of the file.

    Raises:
      UserError: The file does not exist.
    """
    shown = terminal.printable(name)
    if not end:
        problems.add(f"{shown}: empty file")
        return
    kept, until = 0, ""
    try:
        with unpacked(name) as stream:
            lines = _Lines(stream, name, start, end, problems)
            parse = {
                "text": _text_lines,
                "jsonl": functools.partial(_jsonl_lines, text_field=text_field),
                "wikiextractor": _wikiextractor_lines,
            }[format]
            for text in join(parse(lines)):
                yield text
                kept, until = kept + 1, f", up to {lines.location}"
    except FileNotFoundError as error:
        # It existed when the splits were planned. The corpus would lack it.
        raise UserError(f"{shown} was deleted, or is not on all machines") from error
    except (OSError, EOFError, zlib.error, MemoryError) as error:
        if storage.is_passing(error):
            # The file may be intact: leaving out the rest would lose text.
            raise Unavailable(f"{shown} cannot be read now: {error}") from error
        problems.add(
            f"{shown}: cannot be read to its end ({error}); "
            f"kept the {kept} documents before{until}"
        )


@contextlib.contextmanager
def unpacked(name: str) -> Iterator[io.BufferedIOBase]:
    """Open a local or remote file, and decompress it while it is read."""
    with storage.path(name).open("rb") as stream:
        if name.endswith(".gz"):
            with gzip.GzipFile(fileobj=stream) as content:
                yield content
        elif name.endswith(".zst"):
            with pyarrow.input_stream(stream, compression="zstd") as content:
                yield io.BufferedReader(content)
        else:
            yield stream


class _Lines:
    """Decoded lines of a file, with the byte at which each begins.

    Iteration starts with the first line that begins in the range, and goes on to the
    end of the file: the reader decides where to stop. A compressed file is one range.
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
            # Skip to the end of the line that contains the byte before the range.
            following = self._stream.seek(self.start - 1)
            while part := self._stream.readline(_MAX_LINE_BYTES):
                following += len(part)
                if part.endswith(b"\n"):
                    break
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

    @property
    def location(self) -> str:
        """Location of the last line: its number, or its byte in a later range."""
        return f"byte {self._offset}" if self.start else f"line {self._number}"

    def report(self, what: str) -> None:
        """Report a problem with the last line."""
        self._problems.add(f"{self._name}, {self.location}: {what}")

    def hint(self, what: str) -> None:
        """Report a possible mistake in how the input is read."""
        self._problems.hint(what)


# The parsers yield the lines of documents, and None after each document.


def _text_lines(lines: _Lines) -> Iterator[str | None]:
    # A document belongs to the range with the blank line before it.
    inside = lines.start == 0
    for offset, line in lines:
        if offset == 0 and line.startswith("<doc "):
            lines.hint(
                "the input looks like WikiExtractor output (a file begins with "
                "'<doc '); use --format=wikiextractor to read it without the tags"
            )
        if line.strip():
            if inside:
                yield line
            continue
        yield None
        inside = True
        if offset >= lines.end:
            return


def _wikiextractor_lines(lines: _Lines) -> Iterator[str | None]:
    # A document belongs to the range with its `<doc` line.
    inside, title = False, ""
    for offset, line in lines:
        if line.startswith("<doc "):
            if offset >= lines.end:
                return
            attribute = re.search(r'title="(.*?)">?\s*$', line)
            inside, title = True, attribute[1] if attribute else ""
        elif line.startswith("</doc>"):
            yield None
            inside = False
        elif inside and line.strip():
            if line.strip() == title:  # the first line repeats the title
                title = ""
            else:
                yield line


def _jsonl_lines(lines: _Lines, text_field: str) -> Iterator[str | None]:
    for offset, line in lines:
        if offset >= lines.end:
            return
        if not line.strip():
            continue
        try:
            text = json.loads(line)[text_field]
            text.encode("utf-8")
        except UnicodeEncodeError:
            lines.report(f"unpaired surrogate in {text_field!r}; left out")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            lines.report(f"no JSON object with a text in {text_field!r}; left out")
        else:
            yield from text.splitlines(keepends=True)
            yield None


def join(lines: Iterable[str | None]) -> Iterator[str]:
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
