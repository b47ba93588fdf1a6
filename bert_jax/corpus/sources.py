"""Documents from files, datasets and installed packages.

`plan` divides the input into splits of similar size without reading it; `read` reads
the documents of one split. Both are pure functions of their arguments and of the input,
so splits can be read in any order, on any machine, in bounded memory.

Formats:
  text, jsonl, wikiextractor, parquet
                               files; see `corpus/document_files.py`.
  tfds:NAME                    a prepared TensorFlow dataset with a text feature.
  python_docs                  docstrings of installed packages and the language
                               reference; see `corpus/python_docs.py`.
"""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterator

from bert_jax import io_errors, storage, terminal
from bert_jax.corpus import document_files, file_kinds, python_docs
from bert_jax.corpus.document_files import Problems, Section
from bert_jax.errors import UserError

# Number of bytes of a file that its fingerprint covers, in evenly spread samples.
_SAMPLED_BYTES = 1 << 20
_SAMPLES = 64
# Largest number of splits, and so of shards, in a build. Input of more than 33 GB has
# larger ones: each start of a run lists all shards, and stores answer slowly.
_MAX_SPLITS = 4096
# Bytes of text per compressed byte, roughly.
_COMPRESSION_RATIO = 3


@dataclasses.dataclass(frozen=True)
class Source:
    """Input of a build and its format."""

    pattern: str  # glob of files; not used by `tfds:` and `python_docs`
    format: str  # one of the formats in the module's docstring
    # Field of a JSON object or TFDS example, or column of a Parquet file.
    text_field: str = "text"
    # Approximate size of the text in a split, and so in a shard. Splits of a large
    # corpus are larger (`_MAX_SPLITS`).
    split_bytes: int = 8_000_000


# Part of the input that is built as a unit, into a shard of training documents and a
# shard of held-out documents.
InputSplit = tuple[Section, ...]


@dataclasses.dataclass(frozen=True)
class Document:
    """A text and its location in the input."""

    text: str
    source: str  # such as "a.txt:3", the third document in a section of the file


# ---- planning


def plan(source: Source, max_splits: float = _MAX_SPLITS) -> list[InputSplit]:
    """Divide the input into `InputSplit`s of about `split_bytes` of text.

    Splits are larger where there would be more than `max_splits`, but not those of
    `python_docs`. Small files share a split. A large file is cut into several, unless
    it is compressed. Parquet files are cut between row groups.

    Raises:
      UserError: The format or the dataset is unknown, or no file matches.
    """
    if source.format.startswith("tfds:"):
        return _plan_tfds(source, max_splits)
    if source.format == "python_docs":
        paths = python_docs.source_files()
        return _group(
            [Section(str(p), 0, p.stat().st_size) for p in paths],
            # Docstrings are about a sixth of the source text.
            source.split_bytes * 6,
        )
    if source.format not in document_files.FORMATS:
        known = ", ".join([*document_files.FORMATS, "tfds:NAME", "python_docs"])
        raise UserError(f"unknown format {source.format!r}; known: {known}")
    files = matching_files(source.pattern)
    # Labels are not whole paths: the same text makes the same corpus wherever it is.
    # `commonpath` would change the slashes of a URL.
    shared = os.path.commonprefix([file.name for file in files])  # noqa: RUF071
    begin = shared.rfind("/") + 1
    wholes = [Section(f.name, 0, f.size, f.checksum, f.name[begin:]) for f in files]
    split_bytes = max(source.split_bytes, sum(map(text_bytes, wholes)) / max_splits)
    sections = []
    for whole in wholes:
        is_divisible = not whole.name.endswith(file_kinds.COMPRESSIONS)
        count = round(text_bytes(whole) / split_bytes) if is_divisible else 1
        sections += [
            dataclasses.replace(whole, start=start, end=end)
            for start, end in _cut(whole.end, max(1, count))
        ]
    return _group(sections, split_bytes)


def _cut(size: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each of `count` nearly equal parts of a range."""
    return itertools.pairwise(size * i // count for i in range(count + 1))


def matching_files(pattern: str) -> list[storage.FileInfo]:
    """List the files that match a glob.

    Raises:
      UserError: There is none.
    """
    matched = storage.list_files(pattern)
    if not matched and os.path.isdir(os.path.expanduser(pattern)):
        raise UserError(
            f"{pattern} is a folder; give a pattern for its files, such as "
            f"--input='{os.path.join(pattern, '*')}'"
        )
    if not matched:
        raise UserError(f"no file matches {pattern!r}")
    return matched


def text_bytes(section: Section) -> int:
    """Estimate the amount of text in a section of a file."""
    size = section.end - section.start
    is_packed = section.name.endswith((*file_kinds.COMPRESSIONS, ".parquet"))
    return size * _COMPRESSION_RATIO if is_packed else size


def _group(sections: list[Section], split_bytes: float) -> list[InputSplit]:
    sizes = list(map(text_bytes, sections))
    total = sum(sizes)
    count = max(1, round(total / split_bytes))
    groups: list[list[Section]] = [[] for _ in range(count)]
    before = 0
    for section, size in zip(sections, sizes, strict=True):
        middle = before + size / 2
        index = int(middle * count / max(1, total))
        groups[min(index, count - 1)].append(section)
        before += size
    return [tuple(group) for group in groups if group]


def fingerprint(source: Source, planned: list[InputSplit]) -> str:
    """Return a hash of the input.

    For files, it covers names (without folders), sizes, sections, and content: the
    checksum from a store's listing, or else up to 1 MiB of evenly spread samples.
    Moving, copying or touching a file does not change it. For datasets and packages, it
    covers names and sizes.
    """
    sections = [[[p.name, p.start, p.end, ""] for p in split] for split in planned]
    if source.format in document_files.FORMATS:
        # The last section of a file ends at the size of the file.
        last = {section.name: section for split in planned for section in split}
        checksums = storage.map_in_threads(_checksum, last.values())
        content = dict(zip(last, checksums, strict=True))
        for section in itertools.chain.from_iterable(sections):
            section[0], section[3] = os.path.basename(section[0]), content[section[0]]
    return hashlib.sha256(json.dumps(sections).encode()).hexdigest()[:16]


def _checksum(section: Section) -> str:
    """Return the checksum of a file, or of samples of it, given its last section."""
    if section.checksum:
        return section.checksum
    size = section.end
    # Read few large samples from a store, because each is a request.
    number = 2 if storage.is_remote(section.name) else _SAMPLES
    sample = _SAMPLED_BYTES // number
    starts = [(size - sample) * i // (number - 1) for i in range(number)]
    ranges = [(start, start + sample) for start in starts]
    if size <= _SAMPLED_BYTES:
        ranges = [(0, size)]
    digest = hashlib.sha256()
    try:
        for part in storage.read_ranges(section.name, ranges):
            digest.update(part)
    except OSError as error:
        file_kinds.raise_if_transient(section.name, error)
        return ""  # reported when the file is read
    return digest.hexdigest()


# ---- reading


def read(split: InputSplit, source: Source, problems: Problems) -> Iterator[Document]:
    """Read the documents of a split, in order."""
    for section in split:
        if source.format.startswith("tfds:"):
            yield from _read_tfds(section, source, problems)
        elif source.format == "python_docs":
            module = python_docs.module_name(section.name)
            for text in python_docs.read_module(section.name, problems.add):
                yield Document(text, terminal.printable(module))
        else:
            texts = document_files.documents(
                section, source.format, source.text_field, problems
            )
            label = terminal.printable(section.label)
            for number, text in enumerate(texts, 1):
                yield Document(text, f"{label}:{number}")


# ---- TensorFlow datasets


def _plan_tfds(source: Source, max_splits: float) -> list[InputSplit]:
    name = source.format.removeprefix("tfds:")
    builder = _tfds_builder(name)
    features = builder.info.features
    import tensorflow_datasets as tfds

    texts = [n for n, kind in features.items() if isinstance(kind, tfds.features.Text)]
    if source.text_field not in texts or "train" not in builder.info.splits:
        raise UserError(
            f"the dataset {name} has splits {', '.join(builder.info.splits)} and text "
            f"features {', '.join(texts) or 'none'}; it needs a split 'train' and a "
            f"text feature {source.text_field!r}, or another in --text_field"
        )
    split = builder.info.splits["train"]
    count = round(split.num_bytes / source.split_bytes)
    count = min(count, max_splits, split.num_examples)
    return [(Section(name, *part),) for part in _cut(split.num_examples, max(1, count))]


def _read_tfds(
    section: Section, source: Source, problems: Problems
) -> Iterator[Document]:
    texts = _tfds_texts(section, source.text_field)
    for number in range(section.start, section.end):
        where = f"{section.name}:{number}"
        try:
            encoded = next(texts)
        # TFDS and its dependencies raise many kinds of errors for damaged files.
        except Exception as error:
            file_kinds.raise_if_transient(section.name, error)
            reason = " ".join(str(error).split())
            if io_errors.is_refused(error):
                raise UserError(f"{section.name} cannot be read: {reason}") from error
            problems.add(
                f"{section.name}: examples {number} to {section.end - 1} cannot be "
                f"read ({reason})"
            )
            return
        try:
            text = encoded.decode("utf-8")
        except UnicodeDecodeError:
            problems.add(f"{where}: not UTF-8; left out")
            continue
        for part in document_files.join_lines(text.splitlines(keepends=True)):
            yield Document(part, where)


def _tfds_texts(section: Section, text_field: str) -> Iterator[bytes]:
    import tensorflow_datasets as tfds  # slow to import

    builder = _tfds_builder(section.name)
    split = f"train[{section.start}:{section.end}]"
    # TFDS reads ArrayRecord files in this way only, and other files in the other.
    if builder.info.file_format is tfds.core.FileFormat.ARRAY_RECORD:
        examples = builder.as_data_source(split=split)
    else:
        config = tfds.ReadConfig(interleave_cycle_length=1)
        examples = tfds.as_numpy(builder.as_dataset(split=split, read_config=config))
    for example in examples:
        yield example[text_field]


def _tfds_builder(name: str):
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name)
    except tfds.core.registered.DatasetNotFoundError as error:
        raise UserError(f"unknown TFDS dataset {name!r}") from error
    except Exception as error:  # of damaged metadata, too
        file_kinds.raise_if_transient(f"the TFDS dataset {name}", error)
        reason = " ".join(str(error).split())
        hint = "" if io_errors.is_refused(error) else "; prepare it again"
        raise UserError(
            f"the TFDS dataset {name} cannot be read ({reason}){hint}"
        ) from error
    if not builder.info.splits:
        raise UserError(
            f"the dataset {name} is not prepared in {builder.data_dir}; prepare it "
            f"with `tfds build {name}`, or set TFDS_DATA_DIR to its folder"
        )
    return builder
