"""Where text comes from: files, datasets and installed packages, as documents.

`plan` cuts an input into splits of similar size without reading it; `read` turns one
split into documents. Both are pure functions of their arguments, so that any runner may
read splits in any order. Nothing here is held in memory that grows with the input.

Formats:
  text           UTF-8; blank lines part documents. One paragraph a line or wrapped.
  jsonl          one JSON object a line, the text in one of its fields.
  wikiextractor  `<doc ...>`, title, paragraphs, `</doc>`.
  tfds:NAME      a prepared TensorFlow dataset with a text feature.
  python_docs    docstrings and language reference of the Python at hand.
Files that end in .gz or .zst are decompressed on the way.
"""

import dataclasses
import gzip
import io
import json
import math
import re
from collections.abc import Iterator

import pyarrow

from bert_jax import storage
from bert_jax.corpus import python_docs
from bert_jax.errors import UserError

FILE_FORMATS = ("text", "jsonl", "wikiextractor")
# Longer documents and lines are cut, so that memory stays bounded.
_MAX_DOCUMENT_CHARS = 1_000_000
_MAX_LINE_BYTES = 1 << 24
# A compressed byte stands for about this many bytes of text.
_COMPRESSION = 3


@dataclasses.dataclass(frozen=True)
class Source:
    """What to read and how.

    Attributes:
      pattern: glob of files; not used by `tfds:` and `python_docs`.
      format: see the module's docstring.
      text_field: the field of a JSON object or TFDS example that holds the text.
      split_bytes: text to a split, about; also what becomes one shard.
    """

    pattern: str
    format: str
    text_field: str = "text"
    split_bytes: int = 8_000_000


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of one input: bytes of a file, or examples of a dataset.

    Attributes:
      name: path of the file, or name of the dataset.
      start: first byte or example.
      end: one past the last; a document belongs to the piece in which it begins.
    """

    name: str
    start: int
    end: int


Split = tuple[Piece, ...]


@dataclasses.dataclass(frozen=True)
class Document:
    """A text and where it was found."""

    text: str
    source: str


class Problems:
    """What was wrong with the input: counted in full, spelled out up to a limit."""

    def __init__(self, limit: int = 20):
        self.count = 0
        self.lines: list[str] = []
        self._limit = limit

    def add(self, line: str) -> None:
        self.count += 1
        if len(self.lines) < self._limit:
            self.lines.append(line)


# ---- planning


def plan(source: Source) -> list[Split]:
    """Cut the input into splits of about `split_bytes` of text.

    Small files share a split, a large uncompressed file is cut into several, a
    compressed file stays whole.

    Raises:
      UserError: an unknown format, a pattern that matches nothing, no such dataset.
    """
    if source.format.startswith("tfds:"):
        return _plan_tfds(source)
    if source.format == "python_docs":
        paths = python_docs.source_files()
        return _group(
            [Piece(str(p), 0, p.stat().st_size) for p in paths],
            # Docstrings are about a sixth of the source text.
            source.split_bytes * 6,
        )
    if source.format not in FILE_FORMATS:
        known = ", ".join([*FILE_FORMATS, "tfds:NAME", "python_docs"])
        raise UserError(f"unknown format {source.format!r}; known: {known}")
    files = storage.find(source.pattern)
    if not files:
        raise UserError(f"no file matches {source.pattern!r}")
    pieces = []
    for path, size in files:
        if _is_compressed(path):
            pieces.append(Piece(path, 0, size))
            continue
        count = max(1, round(size / source.split_bytes))
        cuts = [size * i // count for i in range(count + 1)]
        pieces += [Piece(path, cuts[i], cuts[i + 1]) for i in range(count)]
    return _group(pieces, source.split_bytes)


def _group(pieces: list[Piece], split_bytes: int) -> list[Split]:
    """Pieces in order, in groups of similar size."""
    sizes = [
        (p.end - p.start) * (_COMPRESSION if _is_compressed(p.name) else 1)
        for p in pieces
    ]
    count = max(1, round(sum(sizes) / split_bytes))
    groups: list[list[Piece]] = [[] for _ in range(count)]
    before = 0
    for piece, size in zip(pieces, sizes, strict=True):
        middle = before + size / 2
        index = int(middle * count / max(1, sum(sizes)))
        groups[min(index, count - 1)].append(piece)
        before += size
    return [tuple(group) for group in groups if group]


def _is_compressed(path: str) -> bool:
    return path.endswith((".gz", ".zst"))


# ---- reading


def read(split: Split, source: Source, problems: Problems) -> Iterator[Document]:
    """The documents of a split, in order.

    Bad input is told to `problems`, with file and line, and costs no more than the
    line or the rest of the file that cannot be read.
    """
    for piece in split:
        if source.format.startswith("tfds:"):
            yield from _read_tfds(piece, source)
        elif source.format == "python_docs":
            for text in python_docs.read_module(piece.name, problems.add):
                yield Document(text, python_docs.module_name(piece.name))
        else:
            yield from _read_file(piece, source, problems)


def _read_file(piece: Piece, source: Source, problems: Problems) -> Iterator[Document]:
    if not piece.end:
        problems.add(f"{piece.name}: empty file")
        return
    documents = {
        "text": _text_documents,
        "jsonl": _jsonl_documents,
        "wikiextractor": _wikiextractor_documents,
    }[source.format]
    found = 0
    try:
        with _open(piece.name) as stream:
            lines = _Lines(stream, piece, problems)
            for found, text in enumerate(documents(lines, source), 1):
                yield Document(text, f"{piece.name}:{found}")
    except FileNotFoundError as error:
        # Planned, so it was there. Going on would build another corpus.
        raise UserError(f"{piece.name} is gone, or not on each machine") from error
    except (OSError, EOFError) as error:
        problems.add(
            f"{piece.name}: cannot be read to its end ({error}); "
            f"kept the {found} documents before that"
        )


def _open(path: str) -> io.BufferedIOBase:
    remote = storage.path(path).open() if storage.is_remote(path) else None
    if path.endswith(".gz"):
        return gzip.open(remote or path, "rb")
    if path.endswith(".zst"):
        stream = pyarrow.input_stream(remote or path, compression="zstd")
        return io.BufferedReader(stream)
    return remote or open(path, "rb")


class _Lines:
    """Decoded lines of a piece, with the byte at which each begins.

    Begins with the first line that starts in the piece and runs on to the end of the
    file; whoever reads decides where to stop. Compressed files are read from byte 0,
    and all that they hold counts as inside.
    """

    def __init__(self, stream: io.BufferedIOBase, piece: Piece, problems: Problems):
        self._stream = stream
        self._path = piece.name
        self._problems = problems
        self._number = 0
        self.start = piece.start
        self.end = math.inf if _is_compressed(piece.name) else piece.end

    def __iter__(self) -> Iterator[tuple[int, str]]:
        offset = 0
        if self.start > 0:
            self._stream.seek(self.start - 1)
            offset = self.start - 1 + len(self._stream.readline())
        while line := self._stream.readline(_MAX_LINE_BYTES):
            self._number += 1
            is_cut = len(line) == _MAX_LINE_BYTES  # perhaps inside a character
            try:
                text = line.decode(
                    "utf-8-sig" if offset == 0 else "utf-8",
                    errors="ignore" if is_cut else "strict",
                )
                yield offset, text
            except UnicodeDecodeError:
                self.report(offset, "not UTF-8; left out this line")
            offset += len(line)

    def report(self, offset: int, what: str) -> None:
        """Tell of a problem in the line that was read last and begins at `offset`."""
        where = f"byte {offset}" if self.start else f"line {self._number}"
        self._problems.add(f"{self._path}, {where}: {what}")


def _text_documents(lines: _Lines, source: Source) -> Iterator[str]:
    """A document belongs to the piece that holds the blank line before it."""
    del source
    inside = lines.start == 0
    collected = _Collector()
    for offset, line in lines:
        if line.strip():
            if inside:
                yield from collected.add(line)
            continue
        yield from collected.flush()
        inside = True
        if offset >= lines.end:
            return
    yield from collected.flush()


def _wikiextractor_documents(lines: _Lines, source: Source) -> Iterator[str]:
    """A document belongs to the piece that holds its `<doc` line."""
    del source
    inside, title = False, ""
    collected = _Collector()
    for offset, line in lines:
        if line.startswith("<doc "):
            if offset >= lines.end:
                return
            found = re.search(r'title="(.*?)">?\s*$', line)
            inside, title = True, found.group(1) if found else ""
        elif line.startswith("</doc>"):
            yield from collected.flush()
            inside = False
        elif inside and line.strip():
            if line.strip() == title:  # the first line repeats it
                title = ""
            else:
                yield from collected.add(line)
    yield from collected.flush()


def _jsonl_documents(lines: _Lines, source: Source) -> Iterator[str]:
    for offset, line in lines:
        if offset >= lines.end:
            return
        if not line.strip():
            continue
        try:
            text = json.loads(line)[source.text_field]
        except (ValueError, KeyError, TypeError, IndexError):
            text = None
        if isinstance(text, str):
            yield from _cut(text)
        else:
            what = f"no JSON object with a text in {source.text_field!r}; left out"
            lines.report(offset, what)


class _Collector:
    """Joins lines to documents of at most `_MAX_DOCUMENT_CHARS`."""

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


def _cut(text: str) -> Iterator[str]:
    """A text as one document, or as several if it is longer than a document may be."""
    collected = _Collector()
    for line in text.splitlines(keepends=True):
        yield from collected.add(line)
    yield from collected.flush()


# ---- TensorFlow datasets


def _plan_tfds(source: Source) -> list[Split]:
    name = source.format.removeprefix("tfds:")
    builder = _tfds_builder(name)
    features = builder.info.features
    if source.text_field not in features:
        raise UserError(
            f"the dataset {name} has no feature {source.text_field!r}; it has "
            f"{', '.join(features)}; pass --text_field"
        )
    if "train" not in builder.info.splits:
        raise UserError(f"the dataset {name} has no split 'train'")
    import tensorflow_datasets as tfds

    if not isinstance(features[source.text_field], tfds.features.Text):
        raise UserError(
            f"feature {source.text_field!r} of the dataset {name} is no text; pass "
            "--text_field"
        )
    split = builder.info.splits["train"]
    count = max(1, round(split.num_bytes / source.split_bytes))
    cuts = [split.num_examples * i // count for i in range(count + 1)]
    return [(Piece(name, cuts[i], cuts[i + 1]),) for i in range(count)]


def _read_tfds(piece: Piece, source: Source) -> Iterator[Document]:
    import tensorflow_datasets as tfds  # slow to import, and few need it

    dataset = _tfds_builder(piece.name).as_dataset(
        split=f"train[{piece.start}:{piece.end}]",
        read_config=tfds.ReadConfig(interleave_cycle_length=1),
    )
    for i, example in enumerate(tfds.as_numpy(dataset), piece.start):
        text = example[source.text_field].decode("utf-8", errors="replace")
        for part in _cut(text):
            yield Document(part, f"{piece.name}:{i}")


def _tfds_builder(name: str):
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name)
    except (tfds.core.registered.DatasetNotFoundError, ValueError) as error:
        raise UserError(f"TFDS knows no dataset {name!r}") from error
    if not builder.info.splits:
        raise UserError(
            f"the dataset {name} is not prepared in {builder.data_dir}; "
            f"`tfds build {name}` prepares it, TFDS_DATA_DIR says where it is"
        )
    return builder
