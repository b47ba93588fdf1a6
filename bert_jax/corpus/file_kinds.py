"""Kinds of input files: their compression, and their formats by their first bytes."""

import bz2
import codecs
import contextlib
import errno
import functools
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow

from bert_jax import io_errors, storage, terminal
from bert_jax.errors import Unavailable, UserError

_BEGINNING_BYTES = 1024
_BLOCK_BYTES = 1 << 18  # largest block that is decompressed at once
# Errors that damaged files raise.
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, pyarrow.ArrowException)
# First bytes of files that are not text.
_NOT_TEXT = {
    b"PAR1": "a Parquet file; for a corpus use --format=parquet, else write text",
    b"\x1f\x8b": "compressed; rename it to end in .gz",
    b"BZh": "compressed; rename it to end in .bz2",
    b"\xfd7zXZ": "compressed; rename it to end in .xz",
    b"\x28\xb5\x2f\xfd": "compressed; rename it to end in .zst",
    b"PK\x03\x04": "a ZIP archive or an office document; extract its text",
    b"%PDF": "a PDF document; extract its text",
    b"\xff\xfe": "UTF-16; iconv -f UTF-16 -t UTF-8 converts it",
    b"\xfe\xff": "UTF-16; iconv -f UTF-16 -t UTF-8 converts it",
}
# Formats that nothing here parses, by suffix. Read as text, their tags or separators
# would end up in the corpus.
_MARKUP = {
    ".csv": "CSV; convert it to JSON lines",
    ".tsv": "TSV; convert it to JSON lines",
    ".html": "HTML; extract its text",
    ".htm": "HTML; extract its text",
}


class _Blocks(io.RawIOBase):
    """Blocks of bytes as one stream."""

    def __init__(self, blocks: Iterator[bytes]):
        self._blocks, self._block = filter(None, blocks), memoryview(b"")

    def readable(self):
        return True

    def readinto(self, buffer):
        self._block = self._block or memoryview(next(self._blocks, b""))
        size = min(len(buffer), len(self._block))
        buffer[:size], self._block = self._block[:size], self._block[size:]
        return size


def _decompress(make: Callable[[], Any], stream: io.BufferedIOBase) -> Iterator[bytes]:
    """Decompress concatenated streams of bzip2 or xz; zeros may separate them.

    Anything else between two streams raises an error. Python's readers would take it,
    and zeros, for the end of the file.
    """
    decompressor = make()
    while given := stream.read(_BLOCK_BYTES):
        while given:
            if decompressor.eof:
                if not (given := given.lstrip(b"\0")):
                    break
                decompressor = make()
            while not decompressor.eof and (given or not decompressor.needs_input):
                yield decompressor.decompress(given, _BLOCK_BYTES)
                given = b""
            given = decompressor.unused_data if decompressor.eof else b""
    if not decompressor.eof:
        raise EOFError("Compressed file ended before the end-of-stream marker")


def _open_zstd(stream: io.BufferedIOBase) -> io.BufferedIOBase:
    # The decoder of the library `zstandard` takes a truncated file for a complete one.
    return io.BufferedReader(pyarrow.input_stream(stream, compression="zstd"))


def _open_streams(
    make: Callable[[], Any], stream: io.BufferedIOBase
) -> io.BufferedIOBase:
    return io.BufferedReader(_Blocks(_decompress(make, stream)))


_UNPACK = {
    ".gz": gzip.open,
    ".bz2": functools.partial(_open_streams, bz2.BZ2Decompressor),
    ".xz": functools.partial(_open_streams, lzma.LZMADecompressor),
    ".zst": _open_zstd,
}
# Endings of files that are decompressed while they are read.
COMPRESSIONS = tuple(_UNPACK)


@contextlib.contextmanager
def open_decompressed(name: str) -> Iterator[io.BufferedIOBase]:
    """Open a local or remote file, and decompress it while it is read."""
    with storage.path(name).open("rb") as stream:
        functions = (_UNPACK[ending] for ending in _UNPACK if name.endswith(ending))
        with next(functions, contextlib.nullcontext)(stream) as content:
            yield content


def suffix(name: str) -> str:
    """Return the suffix of a file name, before the suffix of a compression."""
    stem, last = os.path.splitext(name)
    return os.path.splitext(stem)[1] if last in COMPRESSIONS else last


def raise_if_transient(name: str, error: BaseException) -> None:
    """Raise `Unavailable` if a file that had this error may be readable later.

    EIO counts as transient, because a network mount that is away gives it. A bad sector
    gives it, too. Leaving out the rest of a file would lose text.
    """
    has_eio = getattr(error, "errno", 0) == errno.EIO
    if has_eio or io_errors.is_transient(error):
        shown, reason = terminal.printable(name), io_errors.message(error)
        hint = "; if this continues, remove the file" * has_eio
        raise Unavailable(f"{shown} cannot be read now: {reason}{hint}") from error


def detect_format(names: Iterable[str]) -> str:
    """Detect the format that files share, from the first bytes of a file per ending.

    Files without text at their beginning do not count.

    Raises:
      UserError: The formats differ, or a file is a JSON array, CSV, TSV or HTML, which
        no format reads.
      Unavailable: A file cannot be read now.
    """
    detected: dict[str, tuple[str, str]] = {}  # format and file, by ending
    for name in names:
        ending = suffix(name).lower()
        if ending not in detected and (kind := _format(name, ending)):
            detected[ending] = kind, name
    formats = dict(detected.values())
    if len(formats) > 1:
        found = ", ".join(
            f"{terminal.printable(os.path.basename(name))} looks like {kind}"
            for kind, name in formats.items()
        )
        raise UserError(
            f"the input has several formats ({found}); give a pattern that matches one "
            "format, or --format to read all files alike"
        )
    return next(iter(formats), "text")


def _format(name: str, ending: str) -> str:
    """Return the format of a file; "" if it is empty or damaged."""
    try:
        with open_decompressed(name) as stream:
            beginning = stream.peek(_BEGINNING_BYTES)[:_BEGINNING_BYTES]
    except READ_ERRORS as error:
        raise_if_transient(name, error)
        return ""  # reported when the file is read as a whole
    beginning = beginning.removeprefix(codecs.BOM_UTF8).lstrip()
    if not beginning:
        return ""
    kinds = {b"<doc ": "wikiextractor", b"PAR1": "parquet"}
    for first, kind in kinds.items():
        if beginning.startswith(first):
            return kind
    if re.match(rb'\{\s*("|\})', beginning):
        return "jsonl"
    kind = _MARKUP.get(ending, "")
    if re.match(rb'\[\s*\{\s*"', beginning):
        kind = "a JSON array; convert it to JSON lines"
    if kind:
        raise UserError(
            f"{terminal.printable(name)} looks like {kind}, or read it as it is with "
            "--format=text"
        )
    return "text"


def binary_kind(stream: io.BufferedIOBase, name: str, start: int) -> str:
    """Return the kind of a file that is not text, by its first bytes; "" for text.

    `stream` is decompressed and has not been read. `start` is the byte at which the
    caller begins to read. If it is not 0, the first bytes are fetched separately.
    """
    if start:
        (beginning,) = storage.read_ranges(name, [(0, _BEGINNING_BYTES)])
    else:
        beginning = stream.peek(_BEGINNING_BYTES)[:_BEGINNING_BYTES]
    for first, kind in _NOT_TEXT.items():
        if beginning.startswith(first):
            return kind
    return "binary" if b"\0" in beginning else ""
