"""Workdir of a run: its lock, its config, and whether it had checkpoints."""

import contextlib
import json
import os
import pathlib
import re
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import jax

from bert_jax import config as config_lib
from bert_jax import storage, terminal
from bert_jax.config import migrations
from bert_jax.corpus import shards
from bert_jax.errors import UserError
from bert_jax.training import metrics_file, processes, restore

T = TypeVar("T")

_HAD_CHECKPOINT = "had_checkpoint"
_LOCK = "lock"
_CACHE = "loop.compilation_cache"
# Fields with paths, which may differ by host. Fingerprints compare their contents.
_PATHS = {
    *("init_from", "objective.teacher", "data.corpus"),
    *(f"task.{name}" for name in ("folder", "train", "eval", "test")),
}


@contextlib.contextmanager
def claim(path: str | os.PathLike, config: Any) -> Iterator[storage.Path]:
    """Lock a workdir, check that it belongs to this run, and write its config.

    Process 0 does so for all processes. It prints a line about each harmless change of
    the config. An object store has no locks, so two runs in one folder there go
    unnoticed.

    Args:
      path: Workdir, created if needed.
      config: Config of the run with all fields filled in.

    Yields:
      The absolute path, or the URL.

    Raises:
      UserError: The folder cannot be written, is in use, holds another run, or differs
        between processes.
    """
    folder = storage.path(path)
    if not storage.is_remote(folder):
        folder = pathlib.Path(restore.absolute(folder))  # as for checkpoints
    with contextlib.ExitStack() as held:
        with processes.raise_in_all():
            restore.check_name(folder)
            if processes.is_main():
                _check_is_workdir(folder, type(config))
                with storage.writing(folder):
                    storage.make_folder(folder)
                other = f"another process uses {folder}"
                busy = f"{other}; wait for it, or give another --workdir"
                held.enter_context(storage.locked(folder / _LOCK, busy))
                _check_same_run(folder, config)
                text = json.dumps(config_lib.to_dict(config), indent=2) + "\n"
                with storage.writing(folder):
                    _write_first_start(folder)
                    storage.write_text(folder / "config.json", text)
        _check_that_all_see(folder)
        check_that_all_agree(config)
        yield folder


def check_that_all_agree(config: Any) -> None:
    """Check that all processes have the same config. Paths may differ, if all are set.

    To be called before a run reads a checkpoint: processes with different configs would
    wait for each other at different places.

    Raises:
      UserError: A process differs from process 0.
    """
    own = _values(config)
    main_values = processes.call_on_main(lambda: own)
    with processes.raise_in_all():
        fields = own.keys() | main_values.keys()
        if fields := {f for f in fields if own.get(f) != main_values.get(f)}:
            raise UserError(
                f"process {jax.process_index()} differs from process 0 in "
                f"{', '.join(sorted(fields))}; give all processes the same arguments, "
                "code and data"
            )


def _values(config: Any) -> dict[str, Any]:
    """Return the fields of a config; for a path to files, whether it is set."""
    fields = dict(config_lib.leaves(config_lib.to_dict(config)))
    fields.pop(_CACHE, None)  # not all hosts need one
    return {f: bool(x) if f in _PATHS else x for f, x in fields.items()}


def _check_that_all_see(folder: storage.Path) -> None:
    """Check that all processes see the same folder. Otherwise, the first save fails."""
    lock = folder / _LOCK
    written = processes.call_on_main(lambda: lock.read_text(encoding="utf-8"))
    with processes.raise_in_all():
        if not lock.exists() or lock.read_text(encoding="utf-8") != written:
            raise UserError(
                f"process {jax.process_index()} does not see the {folder} of process "
                "0; give a --workdir on storage that all hosts share"
            )


def read_config(folder: storage.Path, cls: type[T]) -> T | None:
    """Return the config of the run in a folder; None if there is none.

    Raises:
      UserError: The config is damaged, belongs to another kind of run, or to an earlier
        version whose runs cannot be resumed.
    """
    path = folder / "config.json"
    if not path.exists():
        return None
    with storage.reading(path):
        values = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(values, dict) and values.get("kind", cls.kind) != cls.kind:
        raise UserError(
            f"{folder} holds a run of {values['kind']}, not of {cls.kind}; give "
            "another --workdir"
        )
    with storage.reading(path):
        return config_lib.from_dict(cls, migrations.upgrade(values, for_resume=True))


def first_start(folder: storage.Path) -> float:
    """Return the time when the folder was claimed first, in seconds since 1970."""
    return float((folder / _LOCK).read_text(encoding="utf-8"))


def note_checkpoint(folder: storage.Path) -> None:
    """Record, outside of the checkpoints, that the run has had one."""
    if not had_checkpoint(folder):
        with storage.writing(folder):
            storage.write_text(folder / _HAD_CHECKPOINT, "")


def had_checkpoint(folder: storage.Path) -> bool:
    """Return whether the run has had a checkpoint, even if there is none now."""
    return (folder / _HAD_CHECKPOINT).exists()


def _write_first_start(folder: storage.Path) -> None:
    """Write the current time into the lock file, unless it has a time."""
    lock = folder / _LOCK
    with contextlib.suppress(FileNotFoundError, ValueError):
        first_start(folder)
        return
    # In place, because this file is locked.
    text = f"{time.time()}\n"
    if storage.is_remote(lock):
        storage.write_text(lock, text)
    else:
        with open(lock, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())  # other hosts read it


def _check_is_workdir(folder: storage.Path, cls: type) -> None:
    """Check, before anything is written, that a folder has no corpus and no model."""
    with storage.writing(folder):  # its parent may be a file
        has_corpus = (folder / shards.MANIFEST).exists()
    if has_corpus:
        raise UserError(f"{folder} holds a corpus; give another --workdir")
    # Refuses the config.json of another program, such as transformers.
    read_config(folder, cls)


def _check_same_run(folder: storage.Path, config: Any) -> None:
    """Check that a folder has no run, or a run that this config may resume."""
    earlier = read_config(folder, type(config))
    # A demo makes its tokenizer and corpus before its first run.
    has_tokenizer = config.kind == "demo" and (folder / "tokenizer").exists()
    if not (has_tokenizer or has_run(folder)):
        return
    if earlier is None:
        if had_checkpoint(folder):
            raise UserError(
                f"{folder} has a run, but its config.json is missing; restore the file "
                "(a checkpoint's metadata has a copy), or give another --workdir"
            )
        if _has_checkpoints(folder):
            raise UserError(
                f"{folder} holds a checkpoint, but no run; pass "
                f"--config.init_from={folder}, and give another --workdir"
            )
        return
    if refused := config_lib.differences(earlier, config, free=False):
        remedy = "give another --workdir"
        if any(re.match(r"(data|task)\.fingerprint:", line) for line in refused):
            remedy = f"restore the data that the run began with, or {remedy}"
        if any(line.startswith("init_fingerprint:") for line in refused):
            remedy = f"the run began with {earlier.init_from}; {remedy}"
        raise UserError(
            f"{folder} holds a run with another config ({'; '.join(refused)}); {remedy}"
        )
    for line in config_lib.differences(earlier, config, free=True):
        terminal.say(f"config changed since the last start: {line}")


def has_run(folder: storage.Path) -> bool:
    """Return whether a folder has checkpoints or reports, also in subfolders."""
    reports = folder / metrics_file.FILE
    if had_checkpoint(folder):
        return True
    if storage.is_remote(folder):  # reports come before checkpoints
        return reports.exists()
    below = folder.glob(f"*/{metrics_file.FILE}")  # the runs of a demo
    if any(path.exists() and path.stat().st_size for path in (reports, *below)):
        return True
    return _has_checkpoints(folder)


def _has_checkpoints(folder: storage.Path) -> bool:
    parts = (restore.absolute(folder / name) for name in ("checkpoints", "best"))
    return any(map(restore.list_checkpoints, parts))
