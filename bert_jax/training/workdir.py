"""The folder of a run: whose it is, and that nobody else is working in it."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from bert_jax import knobs, storage
from bert_jax.errors import UserError
from bert_jax.training import processes

_HAD_CHECKPOINT = "had_checkpoint"


@contextlib.contextmanager
def claim(
    path: str | os.PathLike, config: Any, say: Callable[[str], None]
) -> Iterator[storage.Path]:
    """Have the folder for a run, or for the continuation of one, to oneself.

    Of several processes the first claims it for all. An object store has no locks:
    there, nobody notices two runs on one folder.

    Args:
      path: made if it is not there.
      config: resolved, of the run.
      say: is told of differences that do not matter.

    Yields:
      The absolute path, or the URL.

    Raises:
      UserError: the folder cannot be written, is in use, holds another run, or is not
        the same one for all processes.
    """
    folder = storage.path(path)
    if not storage.is_remote(folder):
        folder = folder.absolute()
    with contextlib.ExitStack() as held:
        with processes.fail_together():
            if processes.is_main():
                held.enter_context(_locked(folder))
                _compare(folder, config, say)
                _write(folder / "config.json", config)
        _check_that_all_see(folder)
        yield folder


def _check_that_all_see(folder: storage.Path) -> None:
    """A folder on each host's own disk would fail at the first save, hours later."""
    lock = folder / "lock"
    written = processes.on_main(lambda: lock.read_text(encoding="utf-8"))
    with processes.fail_together():
        if not lock.exists() or lock.read_text(encoding="utf-8") != written:
            raise UserError(
                f"process {jax.process_index()} does not see the {folder} of process "
                "0; give a --workdir on storage that all hosts share"
            )


def first_start(folder: storage.Path) -> float:
    """When the folder was claimed first, in seconds since 1970."""
    return float((folder / "lock").read_text(encoding="utf-8"))


def note_checkpoint(folder: storage.Path) -> None:
    """Remember, outside of the checkpoints, that there has been one."""
    if not had_checkpoint(folder):
        storage.write_text(folder / _HAD_CHECKPOINT, "")


def had_checkpoint(folder: storage.Path) -> bool:
    """Whether there has been one: if there is none now, something is wrong."""
    return (folder / _HAD_CHECKPOINT).exists()


@contextlib.contextmanager
def _locked(folder: storage.Path) -> Iterator[None]:
    if storage.is_remote(folder):
        storage.check(folder / "lock")
        if not (folder / "lock").exists():
            storage.write_text(folder / "lock", f"{time.time()}\n")
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "a+")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process is running on {folder}") from error
        except OSError as error:
            raise UserError(
                f"cannot lock {folder / 'lock'}: {error.strerror}; give a --workdir on "
                "a file system that has locks"
            ) from error
        try:
            if not os.fstat(lock.fileno()).st_size:
                lock.write(f"{time.time()}\n")
                lock.flush()
                os.fsync(lock.fileno())  # other hosts look at it
        except OSError as error:
            raise UserError(f"cannot write to {folder}: {error.strerror}") from error
        yield


def _compare(folder: storage.Path, config: Any, say: Callable[[str], None]) -> None:
    path = folder / "config.json"
    if not path.exists():
        if not had_checkpoint(folder):
            return
        raise UserError(
            f"{folder} holds a run, but not its config.json; put it back (a checkpoint "
            "has it in its metadata), or give another --workdir"
        )
    if not _has_begun(folder):
        return
    text = path.read_text(encoding="utf-8")
    found = knobs.load_json(type(config), text, str(path))
    refused = knobs.differences(found, config, free=False)
    if refused:
        raise UserError(
            f"{folder} holds a run with another config ({'; '.join(refused)}); "
            "give another --workdir"
        )
    for line in knobs.differences(found, config, free=True):
        say(f"config changed since the last start: {line}")


def _has_begun(folder: storage.Path) -> bool:
    """Whether there is anything to lose, beyond what the start of a run leaves."""
    if storage.is_remote(folder):
        # Reports come before checkpoints.
        return (folder / "metrics.jsonl").exists() or had_checkpoint(folder)
    for path in folder.iterdir():
        if path.name in ("lock", "config.json", "tensorboard"):
            continue
        if any(path.iterdir()) if path.is_dir() else path.stat().st_size:
            return True
    return False


def _write(path: storage.Path, config: Any) -> None:
    text = json.dumps(knobs.to_dict(config), indent=2) + "\n"
    try:
        storage.write_text(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
