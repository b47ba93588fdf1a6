"""A corpus on disk: Arrow shards of token ids, their tokenizer, and `corpus.json`.

A row of a shard is one document:
  tokens           list of uint16 (int32 if the vocabulary has more than 65,536 tokens)
  sentence_starts  list of int32: index of each sentence's first token; the first is 0
  source           location of the document in the input
Shards are Arrow IPC files. They are memory-mapped here, and pandas, polars and Hugging
Face datasets read them as they are; from an object store they are fetched, one at a
time. `corpus.json` has counts and a checksum for each.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow

from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import records
from bert_jax.errors import UserError

TRAIN, HELD_OUT = "train", "held_out"
SPLITS = (TRAIN, HELD_OUT)
MANIFEST = "corpus.json"
TOKENIZER = "tokenizer"
_FORMAT = "bert_jax corpus 1"


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file, as `corpus.json` describes it.

    Attributes:
      file: Name of the file in the folder of the corpus.
      documents: Number of documents, which are rows.
      sentences: Number of sentences.
      tokens: Number of tokens.
      sha256: Checksum of the file, in hexadecimal.
      unknown_tokens: Number of tokens that are `[UNK]`; None if the corpus was built
        before they were counted.
    """

    file: str
    documents: int
    sentences: int
    tokens: int
    sha256: str
    unknown_tokens: int | None = None


@dataclasses.dataclass(frozen=True)
class Listing:
    """The shards for training, or those held out, with their totals."""

    documents: int
    sentences: int
    tokens: int
    shards: tuple[Shard, ...]
    unknown_tokens: int | None = None


@dataclasses.dataclass(frozen=True)
class Problems:
    """Parts of the input that were left out: their number, and the first in words."""

    count: int
    first: list[str]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The content of `corpus.json`.

    Attributes:
      format: Name and version of the format.
      fingerprint: Hash of tokenizer and shards.
      tokenizer_fingerprint: Hash of the tokenizer.
      vocab_size: Number of tokens of the vocabulary.
      settings: Source and settings of the build (`unfinished.Identity`).
      problems: Parts of the input that were left out.
      train: Shards for training.
      held_out: Shards for evaluation.
    """

    format: str
    fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    settings: dict
    problems: Problems
    train: Listing
    held_out: Listing


@dataclasses.dataclass(frozen=True)
class Corpus:
    """An opened corpus: its manifest and its tokenizer, but no token ids."""

    folder: storage.Path
    tokenizer: tokenizer_lib.Tokenizer
    shards: dict[str, tuple[Shard, ...]]
    settings: dict
    fingerprint: str

    def count(self, split: str, what: str) -> int:
        """Total of `documents`, `sentences` or `tokens` of a split."""
        return sum(getattr(shard, what) for shard in self.shards[split])

    def unknown_share(self, split: str) -> float | None:
        """Fraction of a split's tokens that are `[UNK]`; None if not counted."""
        unknown = _unknown_tokens(self.shards[split])
        return (
            None if unknown is None else unknown / max(1, self.count(split, "tokens"))
        )


def open_corpus(folder: str | os.PathLike) -> Corpus:
    """Read the manifest and the tokenizer of a corpus.

    Raises:
      UserError: The folder holds no complete corpus, or a damaged one, or cannot be
        reached.
      Unavailable: A store does not answer now.
    """
    if not str(folder):
        raise UserError(
            "no corpus given; pass --config.data.corpus=DIR, a folder from "
            "run.build_corpus"
        )
    folder = storage.path(folder)
    path = folder / MANIFEST
    storage.check(path)
    try:
        manifest = _parse_manifest(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"no corpus in {folder}: {MANIFEST} is missing; run.build_corpus makes one"
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise storage.failure(error)(
            f"{path} cannot be read as a corpus: {reason}; restore the file or build "
            "the corpus again"
        ) from error
    tokenizer = tokenizer_lib.Tokenizer.load(folder / TOKENIZER)
    if (tokenizer.fingerprint, tokenizer.vocab_size) != (
        manifest.tokenizer_fingerprint,
        manifest.vocab_size,
    ):
        raise UserError(f"{folder / TOKENIZER} is not the tokenizer of this corpus")
    return Corpus(
        folder,
        tokenizer,
        {split: getattr(manifest, split).shards for split in SPLITS},
        manifest.settings,
        manifest.fingerprint,
    )


def _parse_manifest(text: str) -> Manifest:
    """Read the manifest, and check that its parts agree.

    Raises:
      ValueError: The manifest is damaged or was edited.
    """
    manifest = records.from_json(Manifest, text)
    if manifest.format != _FORMAT:
        raise ValueError(f"format is {manifest.format!r}, not {_FORMAT!r}")
    shards = {split: getattr(manifest, split).shards for split in SPLITS}
    for split in SPLITS:
        if getattr(manifest, split) != _listing(shards[split]):
            raise ValueError(f"the totals of {split} are not the sums of its shards")
    if manifest.fingerprint != _fingerprint(manifest.tokenizer_fingerprint, shards):
        raise ValueError("the fingerprint is not that of tokenizer and shards")
    return manifest


def _listing(shards: Sequence[Shard]) -> Listing:
    def total(what):
        return sum(getattr(shard, what) for shard in shards)

    return Listing(
        total("documents"),
        total("sentences"),
        total("tokens"),
        tuple(shards),
        _unknown_tokens(shards),
    )


def _unknown_tokens(shards: Sequence[Shard]) -> int | None:
    counts = [shard.unknown_tokens for shard in shards]
    return None if None in counts else sum(counts)


def _fingerprint(tokenizer: str, shards: Mapping[str, Sequence[Shard]]) -> str:
    sums = [shard.sha256 for split in SPLITS for shard in shards[split]]
    return hashlib.sha256("\n".join([tokenizer, *sums]).encode()).hexdigest()[:16]


def write_manifest(
    folder: storage.Path,
    tokenizer: tokenizer_lib.Tokenizer,
    shards: Mapping[str, Sequence[Shard]],
    settings: dict,
    problems: Problems,
) -> None:
    """Complete a corpus, so that `open_corpus` opens it."""
    manifest = Manifest(
        _FORMAT,
        _fingerprint(tokenizer.fingerprint, shards),
        tokenizer.fingerprint,
        tokenizer.vocab_size,
        settings,
        problems,
        _listing(shards[TRAIN]),
        _listing(shards[HELD_OUT]),
    )
    text = records.to_json(manifest, indent=1) + "\n"
    storage.write_text(folder / MANIFEST, text)


def checksum(path: str | os.PathLike) -> str:
    """SHA-256 of a local file, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclasses.dataclass(frozen=True)
class Rows:
    """Documents of one record batch, flat.

    Attributes:
      tokens: uint16 or int32 [tokens].
      document_starts: int64 [documents + 1], into `tokens`.
      sentence_starts: int64 [sentences], into `tokens`.
      sentences_before: int64 [documents + 1], into `sentence_starts`.
      sources: Place of each document in the input.
    """

    tokens: np.ndarray
    document_starts: np.ndarray
    sentence_starts: np.ndarray
    sentences_before: np.ndarray
    sources: Sequence[str]


def check_file(folder: storage.Path, shard: Shard) -> None:
    """Check that a shard is the file that was built, or, in a store, that it exists.

    Raises:
      UserError: The file is missing or damaged.
    """
    path = folder / shard.file
    if not storage.is_remote(path):
        _read_checked(path, shard)
    elif not path.exists():
        raise UserError(f"shard {path} is missing")


def _read_checked(path: storage.Path, shard: Shard) -> bytes | None:
    """Check the checksum of a shard. Returns its content if it came from a store."""
    content = None
    try:
        if storage.is_remote(path):
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
        else:
            digest = checksum(path)
    except OSError as error:
        raise storage.failure(error)(
            f"shard {path} cannot be read: {error.strerror or error}"
        ) from error
    if digest != shard.sha256:
        raise UserError(
            f"shard {path} has changed since the corpus was built (checksum); "
            "build the corpus again or restore the file"
        )
    return content


def read_shard(folder: storage.Path, shard: Shard) -> Iterator[Rows]:
    """Check one shard and read its rows.

    Args:
      folder: Folder of the corpus.
      shard: Description of the shard.

    Yields:
      Documents of one record batch after the other.

    Raises:
      UserError: The file is missing or has changed, or its description has.
      Unavailable: A store does not answer now.
    """
    path = folder / shard.file
    content = _read_checked(path, shard)
    file = pyarrow.memory_map(os.fsencode(path)) if content is None else None
    with file or pyarrow.BufferReader(content) as stream:
        reader = pyarrow.ipc.open_file(stream)
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        _check_counts(folder, shard, batches)
        for batch in batches:
            tokens, starts, sources = batch.columns
            documents = tokens.offsets.to_numpy().astype(np.int64)
            sentences = starts.offsets.to_numpy().astype(np.int64)
            local = starts.values.to_numpy().astype(np.int64)
            per_document = np.repeat(documents[:-1], np.diff(sentences))
            yield Rows(
                tokens.values.to_numpy(),
                documents,
                local + per_document,
                sentences,
                sources.to_pylist(),
            )


def _check_counts(
    folder: storage.Path, shard: Shard, batches: Sequence[pyarrow.RecordBatch]
) -> None:
    actual = dataclasses.replace(
        shard,
        documents=sum(batch.num_rows for batch in batches),
        sentences=sum(len(batch.column("sentence_starts").values) for batch in batches),
        tokens=sum(len(batch.column("tokens").values) for batch in batches),
    )
    if actual != shard:
        raise UserError(
            f"{folder / MANIFEST} has changed since the corpus was built: it says "
            f"{shard.file} holds {_counts(shard)}, but it holds {_counts(actual)}"
        )


def _counts(shard: Shard) -> str:
    return (
        f"{shard.documents:,} documents, {shard.sentences:,} sentences and "
        f"{shard.tokens:,} tokens"
    )
