"""The folder of a run: whose it is, and that nobody else is working in it."""

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax import config as config_lib
from bert_jax.errors import UserError


@contextlib.contextmanager
def claim(
    path: str | os.PathLike, config: Any, say: Callable[[str], None]
) -> Iterator[pathlib.Path]:
    """Have the folder for a run, or for the continuation of one, to oneself.

    Args:
      path: made if it is not there.
      config: resolved, of the run.
      say: is told of differences that do not matter.

    Yields:
      The absolute path.

    Raises:
      UserError: the folder cannot be written, is in use, or holds another run.
    """
    folder = pathlib.Path(path).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "w")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process is running on {folder}") from error
        _compare(folder / "config.json", config, say)
        _write(folder / "config.json", config)
        yield folder


def _compare(path: pathlib.Path, config: Any, say: Callable[[str], None]) -> None:
    if not path.exists() or not _has_begun(path.parent):
        return
    found = config_lib.load_json(type(config), path.read_text(), str(path))
    refused = config_lib.differences(found, config, free_fields=False)
    if refused:
        raise UserError(
            f"{path.parent} holds a run with another config ({'; '.join(refused)}); "
            "give another --workdir"
        )
    for line in config_lib.differences(found, config, free_fields=True):
        say(f"config changed since the last start: {line}")


def _has_begun(folder: pathlib.Path) -> bool:
    """Whether there is anything to lose, beyond what the start of a run leaves."""
    for path in folder.iterdir():
        if path.name in ("lock", "config.json", "tensorboard"):
            continue
        if any(path.iterdir()) if path.is_dir() else path.stat().st_size:
            return True
    return False


def _write(path: pathlib.Path, config: Any) -> None:
    text = json.dumps(config_lib.to_dict(config), indent=2) + "\n"
    temporary = path.with_name("config.json.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
