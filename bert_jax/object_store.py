"""Object stores such as `gs://`, through fsspec.

An object store has no folders, so none has to be made and none is empty. It cannot
rename objects, but an object appears only when it is complete.

fsspec chooses the library for a store: gcsfs for `gs://`. `etils.epath` is no
replacement: it takes every error to mean that an object is missing, it caches listings,
and it cannot access fsspec's other stores.
"""

import contextlib
import dataclasses
import glob as glob_lib
import io
import os
from collections.abc import Iterator

import fsspec

from bert_jax import io_errors
from bert_jax.errors import Unavailable, UserError


@dataclasses.dataclass(frozen=True)
class FileInfo:
    """File that matches a glob."""

    name: str  # path or URL
    size: int  # bytes
    checksum: str  # from the store's listing; "" if there is none


@dataclasses.dataclass(frozen=True)
class RemotePath:
    """URL in an object store, with the methods of `pathlib.Path` that are in use."""

    url: str

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self.url.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> "RemotePath":
        """Folder above; a bucket is its own parent."""
        above = self.url.rstrip("/").rpartition("/")[0]
        return self if above.endswith(":/") else RemotePath(above)

    def exists(self) -> bool:
        # fsspec's own `exists` returns false for every error.
        with contextlib.suppress(FileNotFoundError), requests(self.url):
            self._store.info(self.url)
            return True
        return False

    def is_dir(self) -> bool:
        with requests(self.url):
            return self._store.isdir(self.url)

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        folder = RemotePath(glob_lib.escape(self.url))
        return (RemotePath(file.name) for file in list_objects(folder / pattern))

    def open(self, mode: str) -> io.BufferedReader:
        with requests(self.url):
            stream = self._store.open(self.url, mode)
        return io.BufferedReader(_RemoteStream(self.url, stream))

    def read_bytes(self) -> bytes:
        with requests(self.url):
            return self._store.cat_file(self.url)

    def read_text(self, encoding: str) -> str:
        return self.read_bytes().decode(encoding)

    def unlink(self, missing_ok: bool = False) -> None:
        if self.exists() or not missing_ok:
            self._store.rm_file(self.url)

    @property
    def _store(self) -> fsspec.AbstractFileSystem:
        return open_store(self.url)


class _RemoteStream(io.RawIOBase):
    """Open object of a store, which may raise the errors of `requests`."""

    def __init__(self, url: str, stream: io.IOBase):
        self._url, self._stream = url, stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        with requests(self._url):
            return self._stream.readinto(buffer)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def close(self) -> None:
        self._stream.close()
        super().close()


def open_store(url: str) -> fsspec.AbstractFileSystem:
    """Return the client of the store that a URL belongs to.

    Raises:
      ImportError: The library for the store is missing.
      ValueError: The store is unknown.
    """
    # A cached listing would hide what other processes have written.
    return fsspec.core.url_to_fs(url, use_listings_cache=False)[0]


def list_objects(pattern: str | os.PathLike) -> list[FileInfo]:
    """List the objects that match a glob, sorted by name."""
    url = os.fspath(pattern)
    scheme = url.partition("://")[0]
    matched = {}  # also if the bucket is missing
    with contextlib.suppress(FileNotFoundError), requests(url):
        matched = open_store(url).glob(url, detail=True)
    return [
        FileInfo(f"{scheme}://{name.lstrip('/')}", about["size"], _checksum(about))
        for name, about in sorted(matched.items())
        # Consoles mark empty folders by an object whose name ends in a slash.
        if about["type"] == "file" and not name.endswith("/")
    ]


def _checksum(about: dict) -> str:
    """Return the checksum of an object; prefer checksums that copies share."""
    names = ("crc32c", "md5Hash", "ETag", "etag")
    return next((str(about[name]) for name in names if about.get(name)), "")


@contextlib.contextmanager
def requests(url: str) -> Iterator[None]:
    """Context that turns an error of a store's library into an error of one line.

    Only the `FileNotFoundError` of a missing object passes. Other `OSError`s of gcsfs
    mean that access is refused or the store does not answer, and not that a file is
    damaged.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise unreachable(url, error) from error


def unreachable(url: str, error: Exception) -> UserError | Unavailable:
    """Return the error of one line to raise for the error of a store."""
    # Errors of aiohttp, google.auth and gcsfs have no common base class.
    text = " ".join(str(error).split()) or type(error).__name__
    return io_errors.wrap_error(error, f"{url} cannot be reached: {text}")
