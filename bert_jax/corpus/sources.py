"""Where text comes from: files, datasets and installed packages, as documents.

`plan` cuts an input into splits of similar size without reading it; `read` turns one
split into documents. Both are pure functions of their arguments, so that any runner may
read splits in any order. Nothing here is held in memory that grows with the input.

Formats:
  text, jsonl, wikiextractor   files; see `corpus/files.py`.
  tfds:NAME                    a prepared TensorFlow dataset with a text feature.
  python_docs                  docstrings and language reference of the Python at hand.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator

from bert_jax import storage, terminal
from bert_jax.corpus import files, python_docs
from bert_jax.corpus.problems import Problems
from bert_jax.errors import Unavailable, UserError

# Of each file so much is compared when a build is continued, spread over the file.
_SAMPLED_BYTES = 1 << 20
_SAMPLES = 64
_READERS = 16  # threads that read samples
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
      checksum: what a store says of the file's content; "" where nothing does.
    """

    name: str
    start: int
    end: int
    checksum: str = ""


Split = tuple[Piece, ...]


@dataclasses.dataclass(frozen=True)
class Document:
    """A text and where it was found."""

    text: str
    source: str


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
    if source.format not in files.FORMATS:
        known = ", ".join([*files.FORMATS, "tfds:NAME", "python_docs"])
        raise UserError(f"unknown format {source.format!r}; known: {known}")
    matched = storage.find(source.pattern)
    if not matched and os.path.isdir(source.pattern):
        raise UserError(
            f"{source.pattern} is a folder; give the files in it, such as "
            f"--input='{os.path.join(source.pattern, '*')}'"
        )
    if not matched:
        raise UserError(f"no file matches {source.pattern!r}")
    pieces = []
    for file in matched:
        is_whole = files.is_compressed(file.name)
        count = 1 if is_whole else max(1, round(file.size / source.split_bytes))
        cuts = [file.size * i // count for i in range(count + 1)]
        pieces += [
            Piece(file.name, cuts[i], cuts[i + 1], file.checksum) for i in range(count)
        ]
    return _group(pieces, source.split_bytes)


def _group(pieces: list[Piece], split_bytes: int) -> list[Split]:
    """Pieces in order, in groups of similar size."""
    sizes = [
        (p.end - p.start) * (_COMPRESSION if files.is_compressed(p.name) else 1)
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


def fingerprint(source: Source, planned: list[Split]) -> str:
    """A hash of what a plan reads, to notice that an input has changed.

    It covers the splits, and for files their names without folders, their sizes and
    their content: the checksum that a store has of it, or else samples. Where the files
    lie and when they were written does not matter.

    Raises:
      Unavailable: A store does not answer now.
    """
    are_files = source.format in files.FORMATS
    content = {}
    if are_files:
        # The last piece of a file ends where the file ends.
        last = {piece.name: piece for split in planned for piece in split}
        with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
            content = dict(zip(last, pool.map(_content, last.values()), strict=True))
    listing = [
        [
            (
                os.path.basename(piece.name) if are_files else piece.name,
                piece.start,
                piece.end,
                content.get(piece.name, ""),
            )
            for piece in split
        ]
        for split in planned
    ]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:16]


def _content(piece: Piece) -> str:
    """What changes when a file is edited, given its last piece."""
    if piece.checksum:
        return piece.checksum
    size = piece.end
    # A request to a store takes longer than to read what it brings.
    number = 2 if storage.is_remote(piece.name) else _SAMPLES
    sample = _SAMPLED_BYTES // number
    starts = [(size - sample) * i // (number - 1) for i in range(number)]
    ranges = [(start, start + sample) for start in starts]
    if size <= _SAMPLED_BYTES:
        ranges = [(0, size)]
    digest = hashlib.sha256()
    try:
        for part in storage.read_ranges(piece.name, ranges):
            digest.update(part)
    except OSError as error:
        if storage.is_passing(error):
            name = terminal.printable(piece.name)
            raise Unavailable(f"{name} cannot be read now: {error}") from error
        return ""  # reading the file will report it
    return digest.hexdigest()


# ---- reading


def read(split: Split, source: Source, problems: Problems) -> Iterator[Document]:
    """The documents of a split, in order.

    Bad input is told to `problems`, with file and line, and costs no more than the
    line or the rest of the file that cannot be read.
    """
    for piece in split:
        shown = terminal.printable(piece.name)
        if source.format.startswith("tfds:"):
            yield from _read_tfds(piece, source, problems)
        elif source.format == "python_docs":
            module = python_docs.module_name(piece.name)
            for text in python_docs.read_module(piece.name, problems.add):
                yield Document(text, terminal.printable(module))
        else:
            texts = files.documents(
                piece.name,
                piece.start,
                piece.end,
                source.format,
                source.text_field,
                problems,
            )
            for number, text in enumerate(texts, 1):
                yield Document(text, f"{shown}:{number}")


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


def _read_tfds(piece: Piece, source: Source, problems: Problems) -> Iterator[Document]:
    import tensorflow_datasets as tfds  # slow to import, and few need it

    dataset = _tfds_builder(piece.name).as_dataset(
        split=f"train[{piece.start}:{piece.end}]",
        read_config=tfds.ReadConfig(interleave_cycle_length=1),
    )
    following = piece.start
    try:
        for example in tfds.as_numpy(dataset):
            text = example[source.text_field].decode("utf-8", errors="replace")
            for part in files.cut(text):
                yield Document(part, f"{piece.name}:{following}")
            following += 1
    except Exception as error:
        if not type(error).__module__.startswith("tensorflow"):
            raise
        reason = " ".join(str(error).split())
        problems.add(
            f"{piece.name}: example {following} and those up to {piece.end} cannot be "
            f"read ({reason})"
        )


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
