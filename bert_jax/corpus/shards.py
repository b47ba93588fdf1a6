"""A corpus on disk: Arrow shards of token ids, their tokenizer, and `corpus.json`.

A row of a shard is one document:
  tokens           list of uint16 (int32 if the vocabulary has more than 65,536 tokens)
  sentence_starts  list of int32: index of each sentence's first token; the first is 0
  source           location of the document in the input
Shards are Arrow IPC files. Local shards are memory-mapped; shards in an object store
are fetched one at a time. `corpus.json` has counts and a checksum for each shard.
"""

import contextlib
import dataclasses
import glob
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow

from bert_jax import io_errors, storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError

TRAIN, HELD_OUT = "train", "held_out"
SPLITS = (TRAIN, HELD_OUT)
MANIFEST = "corpus.json"
TOKENIZER = "tokenizer"
COUNTS = ("documents", "sentences", "tokens", "unknown_tokens")
# Advice after a failure to write.
RESUME_HINT = "finished splits are kept; run the same command again to continue"
_FORMAT = "bert_jax corpus 1"
_BATCH_TOKENS = 1_000_000  # approximate size of a record batch


@dataclasses.dataclass(frozen=True)
class Shard:
    """One shard, as `corpus.json` describes it."""

    file: str  # in the folder of the corpus
    documents: int
    sentences: int
    tokens: int
    sha256: str  # in hexadecimal
    # Not counted in corpora of early versions.
    unknown_tokens: int = 0
    size: int = 0  # bytes


@dataclasses.dataclass(frozen=True)
class Corpus:
    """An opened corpus: its manifest and its tokenizer, but no token ids."""

    folder: storage.Path
    tokenizer: tokenizer_lib.Tokenizer
    shards: dict[str, tuple[Shard, ...]]
    settings: dict[str, Any]
    fingerprint: str

    def count(self, split: str, what: str) -> int:
        """Return the total of one of `COUNTS` over the shards of a split."""
        return sum(getattr(shard, what) for shard in self.shards[split])


def open_corpus(folder: str | os.PathLike) -> Corpus:
    """Read the manifest and the tokenizer of a corpus.

    Raises:
      UserError: The folder holds no complete corpus, or a damaged one.
    """
    if not str(folder):
        raise UserError(
            "no corpus given; pass --config.data.corpus=DIR, a folder from "
            "run.build_corpus"
        )
    folder = storage.path(folder)
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != _FORMAT:
            raise ValueError(f"format is {manifest['format']!r}, not {_FORMAT!r}")
        shards = {
            split: tuple(Shard(**shard) for shard in manifest[split]["shards"])
            for split in SPLITS
        }
        tokenizer_fingerprint = manifest["tokenizer_fingerprint"]
        if manifest["fingerprint"] != _fingerprint(tokenizer_fingerprint, shards):
            raise ValueError("the fingerprint does not match the tokenizer and shards")
    except FileNotFoundError as error:
        raise UserError(
            f"no corpus in {folder}: {MANIFEST} is missing; run.build_corpus makes one"
        ) from error
    except NotADirectoryError as error:
        raise UserError(f"{folder} is a file; give the folder of the corpus") from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise io_errors.wrap_error(
            error,
            f"{path} cannot be read as a corpus: {error}; restore the file or build "
            "the corpus again",
        ) from error
    tokenizer = tokenizer_lib.Tokenizer.load(folder / TOKENIZER)
    if not tokenizer.has_fingerprint(tokenizer_fingerprint):
        raise UserError(f"{folder / TOKENIZER} is not the tokenizer of this corpus")
    return Corpus(
        folder, tokenizer, shards, manifest["settings"], manifest["fingerprint"]
    )


def write_manifest(
    folder: storage.Path,
    tokenizer: tokenizer_lib.Tokenizer,
    shards: Mapping[str, Sequence[Shard]],
    settings: dict[str, Any],
    problems: dict[str, Any],
) -> None:
    """Write `corpus.json`, which completes a corpus."""
    manifest: dict[str, Any] = {
        "format": _FORMAT,
        "fingerprint": _fingerprint(tokenizer.fingerprint, shards),
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "settings": settings,
        "problems": problems,
    }
    for split in SPLITS:
        listed = [dataclasses.asdict(shard) for shard in shards[split]]
        totals = {name: sum(shard[name] for shard in listed) for name in COUNTS}
        manifest[split] = totals | {"shards": listed}
    storage.write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _fingerprint(tokenizer: str, shards: Mapping[str, Sequence[Shard]]) -> str:
    sums = [shard.sha256 for split in SPLITS for shard in shards[split]]
    return hashlib.sha256("\n".join([tokenizer, *sums]).encode()).hexdigest()[:16]


def token_dtype(tokenizer: tokenizer_lib.Tokenizer) -> np.dtype:
    """Return the type of the tokens in shards and tables."""
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32)


class ShardWriter:
    """Writer of one shard, row by row, in bounded memory.

    The file appears at `close`. A writer is a context manager that removes a file that
    was not closed.
    """

    def __init__(self, path: storage.Path, tokenizer: tokenizer_lib.Tokenizer):
        self._dtype = token_dtype(tokenizer)
        self._unk_id = tokenizer.unk_id
        token = pyarrow.from_numpy_dtype(self._dtype)
        self._schema = pyarrow.schema(
            [
                ("tokens", pyarrow.list_(token)),
                ("sentence_starts", pyarrow.list_(pyarrow.int32())),
                ("source", pyarrow.string()),
            ]
        )
        self._path = path
        self._temporary = storage.temporary_file(path)
        # A shard for a store is written to the local disk first.
        self._where = self._temporary if storage.is_remote(path) else path
        with storage.writing(self._where, RESUME_HINT):
            self._file = pyarrow.OSFile(os.fsencode(self._temporary), "wb")
            self._writer = pyarrow.ipc.new_file(self._file, self._schema)
        self._rows: list[tuple[np.ndarray, np.ndarray, str]] = []
        self._pending = 0  # tokens in `_rows`
        self._counts = dict.fromkeys(COUNTS, 0)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):  # the disk may be full
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def add(self, sentences: Sequence[Sequence[int]], source: str) -> None:
        """Append a document."""
        lengths = [len(sentence) for sentence in sentences]
        starts = np.cumsum([0, *lengths[:-1]], dtype=np.int32)
        tokens = np.fromiter(itertools.chain.from_iterable(sentences), self._dtype)
        self._rows.append((tokens, starts, source))
        unknown = int(np.count_nonzero(tokens == self._unk_id))
        added = (1, len(sentences), len(tokens), unknown)
        for name, count in zip(COUNTS, added, strict=True):
            self._counts[name] += count
        self._pending += len(tokens)
        if self._pending >= _BATCH_TOKENS:
            self._flush()

    def close(self) -> Shard:
        """Complete the file, and return its description."""
        self._flush()
        with storage.writing(self._where, RESUME_HINT):
            self._writer.close()
            self._file.close()
        with open(self._temporary, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            size = stream.tell()
        with storage.writing(self._path, RESUME_HINT):
            storage.move_into_place(self._temporary, self._path)
        return Shard(file=self._path.name, sha256=digest, size=size, **self._counts)

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        arrays = [
            pyarrow.array(values, field.type)
            for values, field in zip(columns, self._schema, strict=True)
        ]
        with storage.writing(self._where, RESUME_HINT):
            self._writer.write(pyarrow.record_batch(arrays, schema=self._schema))
        self._rows, self._pending = [], 0


@dataclasses.dataclass(frozen=True)
class TokenTable:
    """Concatenated documents."""

    tokens: np.ndarray  # uint16 or int32 [tokens]
    # int64 [sentences + 1]; first token of each sentence, and the number of tokens.
    sentence_starts: np.ndarray
    # int64 [documents + 1]; first sentence of each, and the number of sentences.
    document_sentences: np.ndarray

    def documents(self, sentences: np.ndarray) -> np.ndarray:
        """Return the index of each sentence's document."""
        return np.searchsorted(self.document_sentences, sentences, side="right") - 1


def check_sizes(corpus: Corpus) -> None:
    """Check that all shards exist and have their sizes, by a listing of the folder.

    Raises:
      UserError: A shard is missing or has another size.
    """
    pattern = glob.escape(os.fspath(corpus.folder))
    sizes = {
        os.path.basename(file.name): file.size
        for file in storage.list_files(f"{pattern}/*.arrow")
    }
    for shard in itertools.chain.from_iterable(corpus.shards.values()):
        size = sizes.get(shard.file)
        if size is None or (shard.size and size != shard.size):
            path = corpus.folder / shard.file
            problem = "No such file" if size is None else f"it has {size:,} bytes"
            raise UserError(
                f"shard {path} cannot be read: {problem}; restore the file or build "
                "the corpus again"
            )


def check_file(folder: storage.Path, shard: Shard) -> None:
    """Check the checksum of a local shard, or that a shard in a store exists."""
    path = folder / shard.file
    if not storage.is_remote(path):
        _read_checked(path, shard)
    elif not path.exists():
        raise UserError(f"shard {path} is missing")


def _read_checked(path: storage.Path, shard: Shard) -> pyarrow.Buffer:
    """Return the content of a shard whose checksum is right. Map a local file."""
    try:
        if storage.is_remote(path):
            content = pyarrow.py_buffer(path.read_bytes())
        else:
            with pyarrow.memory_map(os.fsencode(path)) as file:
                content = file.read_buffer()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        text = f"shard {path} cannot be read: {reason}"
        raise io_errors.wrap_error(error, text) from error
    if hashlib.sha256(content).hexdigest() != shard.sha256:
        raise UserError(
            f"shard {path} has changed since the corpus was built (checksum); "
            "build the corpus again or restore the file"
        )
    return content


def read_shard(folder: storage.Path, shard: Shard) -> Iterator[TokenTable]:
    """Check one shard, and yield the documents of each of its record batches.

    Raises:
      UserError: The file is missing, or does not match its description.
    """
    reader = pyarrow.ipc.open_file(_read_checked(folder / shard.file, shard))
    for batch in map(reader.get_batch, range(reader.num_record_batches)):
        tokens, starts, _ = batch.columns
        # First token and first sentence of each document, and their numbers.
        first_tokens = tokens.offsets.to_numpy().astype(np.int64)
        first_sentences = starts.offsets.to_numpy().astype(np.int64)
        # [sentences]: first token of the sentence's document
        shift = np.repeat(first_tokens[:-1], np.diff(first_sentences))
        sentence_starts = np.append(starts.values.to_numpy() + shift, first_tokens[-1:])
        yield TokenTable(tokens.values.to_numpy(), sentence_starts, first_sentences)
