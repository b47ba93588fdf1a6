"""Helpers that build, damage and compare corpora."""

import bz2
import contextlib
import functools
import gzip
import json
import lzma

import pyarrow
import zstandard

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, local_runner, sources

# Functions that compress bytes, by the ending of a file's name. Results are in names of
# tests, so they must not have the time of day.
COMPRESS = {
    ".gz": functools.partial(gzip.compress, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def with_prefix_space(tokenizer, value):
    """Return a byte-level tokenizer that puts a space before each text, or does not."""
    pipeline = json.loads(tokenizer.pipeline)
    pipeline["pre_tokenizer"]["add_prefix_space"] = value
    return tokenizer_lib.make(pipeline)


class _StopError(Exception):
    pass


def build_reference(
    text_file, tokenizer, output, *, stop_after=None, held_out=0.1, workers=1
):
    """Build the corpus of the fixture `corpus`.

    Args:
      text_file: Fixture of that name.
      tokenizer: Tokenizer of the corpus.
      output: Folder to write.
      stop_after: Number of splits after which the build is interrupted.
      held_out: Fraction of documents to hold out; 0.1 in the fixture.
      workers: Number of processes.

    Returns:
      The indices of the splits that were built.
    """
    indices = []

    def runner(job, todo):
        for index, result in local_runner.run(job, todo, workers=workers):
            yield index, result
            indices.append(index)
            if len(indices) == stop_after:
                raise _StopError

    with contextlib.suppress(_StopError):
        build.build(
            sources.Source(str(text_file), "text", split_bytes=100_000),
            build.Settings(held_out=held_out),
            tokenizer,
            output,
            runner=runner,
        )
    return indices


def build_text(documents, tokenizer, folder, *, held_out=0.0, split_bytes=20_000):
    """Write documents to a file next to a folder, and build the corpus of this file."""
    path = folder.with_suffix(".txt")
    path.write_text("\n\n".join(documents), encoding="utf-8")
    source = sources.Source(str(path), "text", split_bytes=split_bytes)
    return build.build(source, build.Settings(held_out), tokenizer, folder, workers=1)


def documents_of(corpus, split):
    """Yield the documents of a local corpus: dicts of the columns of its shards."""
    for shard in corpus.shards[split]:
        data = (corpus.folder / shard.file).read_bytes()
        yield from pyarrow.ipc.open_file(data).read_all().to_pylist()


def content(folder):
    """Return the content of all files below a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def flipped(data, place):
    """Return the bytes with one bit flipped; a negative place counts from the end."""
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)
