"""A corpus on disk: Arrow shards of token ids, their tokenizer, and `corpus.json`.

A row of a shard is one document:
  tokens           list of uint16 (int32 for more than 65,536 tokens): all its tokens
  sentence_starts  list of int32: index of each sentence's first token; the first is 0
  source           where the text was found
Shards are Arrow IPC files: memory-mapped here, read as they are by pandas, polars and
Hugging Face datasets. `corpus.json` has counts and a checksum for each. In an object
store they are fetched instead, one at a time.
"""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow

from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError

TRAIN, HELD_OUT = "train", "held_out"
SPLITS = (TRAIN, HELD_OUT)
MANIFEST = "corpus.json"
TOKENIZER = "tokenizer"
_FORMAT = "bert_jax corpus 1"
_BATCH_TOKENS = 1_000_000  # rows are written in batches of about this many tokens


@dataclasses.dataclass(frozen=True)
class Shard:
    """What `corpus.json` says of one file."""

    file: str
    documents: int
    sentences: int
    tokens: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Corpus:
    """An opened corpus: what it holds, not the tokens themselves."""

    folder: storage.Path
    tokenizer: tokenizer_lib.Tokenizer
    shards: dict[str, tuple[Shard, ...]]
    settings: dict
    fingerprint: str

    def count(self, split: str, what: str) -> int:
        """Total of `documents`, `sentences` or `tokens` of a split."""
        return sum(getattr(shard, what) for shard in self.shards[split])


def open_corpus(folder: str | os.PathLike) -> Corpus:
    """Read the manifest and the tokenizer of a corpus.

    Raises:
      UserError: there is no complete corpus in the folder, or no way to it.
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
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != _FORMAT:
            raise ValueError(f"format is {manifest['format']!r}, not {_FORMAT!r}")
        shards = {s: tuple(Shard(**v) for v in manifest[s]["shards"]) for s in SPLITS}
    except FileNotFoundError as error:
        raise UserError(
            f"no corpus in {folder}: {MANIFEST} is missing; run.build_corpus makes one"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise storage.failure(error)(
            f"{path} cannot be read as a corpus: {error!r}"
        ) from error
    tokenizer = tokenizer_lib.Tokenizer.load(folder / TOKENIZER)
    if tokenizer.fingerprint != manifest["tokenizer_fingerprint"]:
        raise UserError(f"{folder / TOKENIZER} is not the tokenizer of this corpus")
    return Corpus(
        folder, tokenizer, shards, manifest["settings"], manifest["fingerprint"]
    )


def write_manifest(
    folder: storage.Path,
    tokenizer: tokenizer_lib.Tokenizer,
    shards: dict[str, Sequence[Shard]],
    settings: dict,
    problems: dict,
) -> None:
    """Make the corpus complete: `open_corpus` works from here on."""
    sums = [shard.sha256 for split in SPLITS for shard in shards[split]]
    fingerprint = hashlib.sha256("\n".join([tokenizer.fingerprint, *sums]).encode())
    manifest = {
        "format": _FORMAT,
        "fingerprint": fingerprint.hexdigest()[:16],
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "settings": settings,
        "problems": problems,
    }
    for split in SPLITS:
        manifest[split] = {
            what: sum(getattr(shard, what) for shard in shards[split])
            for what in ("documents", "sentences", "tokens")
        }
        manifest[split]["shards"] = [dataclasses.asdict(s) for s in shards[split]]
    storage.write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


class ShardWriter:
    """Writes one shard, row by row, in bounded memory. The file appears at `close`."""

    def __init__(self, path: storage.Path, vocab_size: int):
        self._dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.int32)
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
        self._file = pyarrow.OSFile(str(self._temporary), "wb")
        self._writer = pyarrow.ipc.new_file(self._file, self._schema)
        self._rows: list[tuple[np.ndarray, np.ndarray, str]] = []
        self._pending = self._documents = self._sentences = self._tokens = 0

    def add(self, sentences: Sequence[Sequence[int]], source: str) -> None:
        """Append a document, given as the token ids of its sentences (none empty)."""
        lengths = [len(sentence) for sentence in sentences]
        starts = np.cumsum([0, *lengths[:-1]], dtype=np.int32)
        tokens = np.fromiter(itertools.chain.from_iterable(sentences), self._dtype)
        self._rows.append((tokens, starts, source))
        self._pending += len(tokens)
        self._documents += 1
        self._sentences += len(sentences)
        self._tokens += len(tokens)
        if self._pending >= _BATCH_TOKENS:
            self._flush()

    def close(self) -> Shard:
        """Finish the file and say what it holds."""
        self._flush()
        self._writer.close()
        self._file.close()
        digest = checksum(self._temporary)
        storage.put(self._temporary, self._path)
        return Shard(
            self._path.name, self._documents, self._sentences, self._tokens, digest
        )

    def _flush(self) -> None:
        if not self._rows:
            return
        tokens, starts, sources = zip(*self._rows, strict=True)
        arrays = [
            _list_array(tokens, self._schema.field("tokens").type),
            _list_array(starts, self._schema.field("sentence_starts").type),
            pyarrow.array(sources, pyarrow.string()),
        ]
        self._writer.write(pyarrow.record_batch(arrays, schema=self._schema))
        self._rows, self._pending = [], 0


def _list_array(values: Sequence[np.ndarray], kind: pyarrow.DataType):
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pyarrow.ListArray.from_arrays(
        pyarrow.array(offsets), pyarrow.array(np.concatenate(values)), type=kind
    )


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
      sources: where each document was found.
    """

    tokens: np.ndarray
    document_starts: np.ndarray
    sentence_starts: np.ndarray
    sentences_before: np.ndarray
    sources: Sequence[str]


def read_shard(folder: storage.Path, shard: Shard) -> Iterator[Rows]:
    """Rows of one shard, a record batch at a time, after checking the checksum.

    Raises:
      UserError: the file is missing or not the one that was built.
    """
    path = folder / shard.file
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
    file = pyarrow.memory_map(str(path)) if content is None else None
    with file or pyarrow.BufferReader(content) as stream:
        reader = pyarrow.ipc.open_file(stream)
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
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
