"""Local paths and object stores such as `gs://`, behind one interface.

`path` returns a `pathlib.Path` for a local path and a `RemotePath` for a URL.

Functions of bert_jax that read or write files raise `Unavailable` if a store does not
answer now, and `UserError` for other failures, even if their docstrings do not say so.
The helpers in this module may let errors through: `reading` and `writing` convert them.
"""

import collections
import concurrent.futures
import contextlib
import fcntl
import glob as glob_lib
import os
import pathlib
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bert_jax import io_errors, object_store
from bert_jax.errors import Unavailable, UserError
from bert_jax.object_store import FileInfo, RemotePath

Path = pathlib.Path | RemotePath


def is_remote(name: str | os.PathLike) -> bool:
    """Return whether a path is the URL of an object store."""
    return "://" in os.fspath(name)


def path(name: str | os.PathLike) -> Path:
    """Return the path object for a path or URL; ~ is the user's folder.

    Raises:
      UserError: The store is unknown, or the library for it is missing; or the name of
        a local path begins with file://.
    """
    if os.fspath(name).startswith("file://"):
        raise UserError(f"{name}: give a path without file://")
    if not is_remote(name):
        # Shells expand ~ only at the beginning of a word, not in --flag=~/run.
        return pathlib.Path(os.path.expanduser(name))
    url = os.fspath(name)
    try:
        object_store.open_store(url)
    except (ImportError, ValueError) as error:
        hint = "; pip install -e '.[gcs]'" if url.startswith("gs://") else ""
        raise UserError(f"{url} cannot be reached: {error}{hint}") from error
    return RemotePath(url)


# ---- writing and removing


def check_new_folder(name: str) -> Path:
    """Check that a folder is new or empty and can be written. Return its path.

    In a store, check only that the store answers and that the folder has no objects.

    Raises:
      UserError: The path is a file, or the folder is not empty or cannot be written.
    """
    folder = path(name.rstrip("/") if is_remote(name) else name)
    with writing(folder):
        if not is_remote(folder):
            existing = next(p for p in (folder, *folder.parents) if p.exists())
            if not existing.is_dir():
                raise UserError(f"{existing} is a file; give a new folder")
            tempfile.TemporaryFile(dir=existing).close()
        if not is_empty(folder):
            raise UserError(f"{folder} is not empty; give a new folder")
    return folder


def is_empty(folder: Path, besides: str = "") -> bool:
    """Return whether a folder has nothing in it besides an entry of this name.

    A folder that does not exist is empty.
    """
    if not is_remote(folder):
        names = {each.name for each in folder.iterdir()} if folder.exists() else set()
        return names <= {besides}
    folder.exists()  # raises if the store does not answer, unlike a glob
    # Hidden objects count, too.
    url = glob_lib.escape(str(folder))
    found = [
        f.name for glob in (f"{url}/**", url) for f in object_store.list_objects(glob)
    ]
    prefix = f"{folder}/{besides}/"
    return all(besides and name.startswith(prefix) for name in found)


def make_folder(folder: Path) -> None:
    """Make a local folder and its parents. Do nothing in a store.

    Raises:
      UserError: The path is a file, or a link to nothing.
    """
    if is_remote(folder):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UserError(
            f"{folder} is a file or a broken link; give a folder"
        ) from error


def remove_folder(folder: Path) -> None:
    """Remove a folder and its content."""
    if not is_remote(folder):
        shutil.rmtree(folder)
        return
    store = object_store.open_store(folder.url)
    # By name: if the URL is a bucket, a recursive `rm` of gcsfs would remove it, too.
    if names := store.find(folder.url):
        store.rm([glob_lib.escape(name) for name in names])  # `rm` takes globs


def write_text(where: Path, text: str) -> None:
    """Write a file atomically: it appears in full or not at all."""
    write_bytes(where, text.encode("utf-8"))


def write_bytes(where: Path, data: bytes) -> None:
    """Write a file atomically: it appears in full or not at all."""
    if is_remote(where):
        object_store.open_store(where.url).pipe_file(where.url, data)
        return
    temporary = temporary_file(where)
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, where)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def temporary_file(where: Path) -> pathlib.Path:
    """Return a new local path for a file that `move_into_place` will move.

    The path is unique: on a cluster, two workers may write the same split.
    """
    name = f"{where.name}.{uuid.uuid4().hex[:12]}.tmp"
    if is_remote(where):
        return pathlib.Path(tempfile.gettempdir()) / name
    return where.with_name(name)


def move_into_place(temporary: pathlib.Path, where: Path) -> None:
    """Move a local file into place atomically."""
    if not is_remote(where):
        os.replace(temporary, where)
        return
    try:
        object_store.open_store(where.url).put_file(str(temporary), where.url)
    finally:
        temporary.unlink()


def download(url: str, local: pathlib.Path) -> None:
    """Copy an object of a store to a local file.

    Raises:
      OSError: The local disk is full or fails in another way.
    """
    try:
        object_store.open_store(url).get_file(url, str(local))
    except Exception as error:
        if io_errors.disk_message(error):
            raise
        raise object_store.unreachable(url, error) from error


# ---- failures to read and write, and locks


@contextlib.contextmanager
def reading(where: str | os.PathLike) -> Iterator[None]:
    """Context that turns a failure to read or parse a file into an error of one line.

    Raises:
      UserError: The file is missing or damaged, or its content is invalid.
      Unavailable: The failure is transient.
    """
    try:
        yield
    except (OSError, ValueError, UserError) as error:
        raise io_errors.wrap_error(
            error, f"cannot read {where}: {io_errors.message(error)}"
        ) from error


@contextlib.contextmanager
def writing(where: str | os.PathLike, hint: str = "") -> Iterator[None]:
    """Context that turns a failure to write into an error of one line.

    The message ends with `hint`.

    Raises:
      UserError: The disk is full, read-only, or fails in another way.
      Unavailable: The failure is transient.
    """
    try:
        yield
    except (UserError, Unavailable):
        raise
    except Exception as error:
        # Errors of stores have no common base class.
        if not isinstance(error, OSError) and not is_remote(where):
            raise
        text = io_errors.disk_message(error) or io_errors.message(error)
        advice = f"; {hint}" if hint else ""
        raise io_errors.wrap_error(
            error, f"cannot write to {where}: {text}{advice}"
        ) from error


@contextlib.contextmanager
def locked(where: Path, busy: str) -> Iterator[None]:
    """Context that holds an exclusive lock on a file.

    The system releases the lock when the process ends. Object stores and some network
    file systems have no locks; there, every process proceeds. The file is created if
    needed, and not removed. `busy` is the message if another process holds the lock.

    Raises:
      UserError: Another process holds the lock, or the file cannot be created.
    """
    if is_remote(where):
        yield
        return
    with writing(where):
        stream = open(where, "a")  # noqa: SIM115
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(busy) from error
        except OSError:
            pass  # this file system has no locks
        yield


# ---- finding and reading files


def list_files(pattern: str) -> list[FileInfo]:
    """List the files that match a glob, sorted by name.

    Brackets are taken literally if they match nothing as a glob.
    """
    for glob in dict.fromkeys((pattern, pattern.replace("[", "[[]"))):
        if is_remote(glob):
            path(glob).exists()  # raises if the store does not answer, unlike a glob
            matched = object_store.list_objects(glob)
            # As on a disk, wildcards match no name that begins with a dot.
            fixed = os.path.dirname(re.split(r"[*?[]", glob)[0])
            if "/." not in glob[len(fixed) :]:
                matched = [f for f in matched if "/." not in f.name[len(fixed) :]]
        else:
            names = sorted(glob_lib.glob(os.path.expanduser(glob), recursive=True))
            # Several links, or two `**`, may lead to one file. Keep its first name.
            first = {os.path.realpath(name): name for name in reversed(names)}
            files = [name for name in sorted(first.values()) if os.path.isfile(name)]
            matched = [FileInfo(name, os.path.getsize(name), "") for name in files]
        if matched:
            return matched
    return []


def read_ranges(name: str, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the bytes of ranges of a file."""
    if is_remote(name):
        store = object_store.open_store(name)
        for start, end in ranges:
            with object_store.requests(name):
                part = store.cat_file(name, start, end)
            yield part
        return
    with open(name, "rb", buffering=0) as stream:
        for start, end in ranges:
            stream.seek(start)
            yield stream.read(end - start)


def map_in_threads(read: Callable, *arguments: Iterable) -> Iterator[Any]:
    """Apply a function as `map` does, in 16 threads, because stores answer slowly.

    No more than 16 results wait in memory.
    """
    waiting: collections.deque[concurrent.futures.Future] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for each in zip(*arguments, strict=False):
            if len(waiting) == 16:
                yield waiting.popleft().result()
            waiting.append(pool.submit(read, *each))
        while waiting:
            yield waiting.popleft().result()
