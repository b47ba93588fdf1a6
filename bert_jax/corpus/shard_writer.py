"""Writer of a shard. `corpus/shards.py` describes the format."""

import contextlib
import hashlib
import itertools
import os
from collections.abc import Sequence

import numpy as np
import pyarrow

from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards

# Advice after a failure to write.
CONTINUES = "finished splits are kept; run the same command again to continue"
_BATCH_TOKENS = 1_000_000  # approximate size of a record batch


class ShardWriter:
    """Writer of one shard, row by row, in bounded memory.

    The file appears at `close`. A writer is a context manager that removes a file that
    was not closed.
    """

    def __init__(self, path: storage.Path, tokenizer: tokenizer_lib.Tokenizer):
        self._dtype = shards.token_dtype(tokenizer)
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
        with storage.writing(self._where, CONTINUES):
            self._file = pyarrow.OSFile(os.fsencode(self._temporary), "wb")
            self._writer = pyarrow.ipc.new_file(self._file, self._schema)
        self._rows: list[tuple[np.ndarray, np.ndarray, str]] = []
        self._pending = 0  # tokens in `_rows`
        self._counts = dict.fromkeys(shards.COUNTS, 0)

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
        for name, count in zip(shards.COUNTS, added, strict=True):
            self._counts[name] += count
        self._pending += len(tokens)
        if self._pending >= _BATCH_TOKENS:
            self._flush()

    def close(self) -> shards.Shard:
        """Complete the file, and return its description."""
        self._flush()
        with storage.writing(self._where, CONTINUES):
            self._writer.close()
            self._file.close()
        with open(self._temporary, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            size = stream.tell()
        with storage.writing(self._path, CONTINUES):
            storage.move_into_place(self._temporary, self._path)
        return shards.Shard(
            file=self._path.name, sha256=digest, size=size, **self._counts
        )

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        arrays = [
            pyarrow.array(values, field.type)
            for values, field in zip(columns, self._schema, strict=True)
        ]
        with storage.writing(self._where, CONTINUES):
            self._writer.write(pyarrow.record_batch(arrays, schema=self._schema))
        self._rows, self._pending = [], 0
