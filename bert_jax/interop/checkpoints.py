"""Native and published checkpoints behind one interface.

Each function has the name of a function in `training.restore`, and accepts both kinds.
"""

import atexit
import contextlib
import dataclasses
import functools
import glob
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from etils import epath

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.interop import huggingface_folder, tensorflow
from bert_jax.interop.published import Published
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import processes, restore, workdir

# Arrays in formats that bert_jax does not read, except for Flax's own name of a file.
_UNREAD = re.compile(r"\.(bin|pt|pth|h5|msgpack|onnx|ot|gguf)$")


def open_published(path: str | os.PathLike) -> Published | None:
    """Open a checkpoint of another project. Return None for anything else.

    The result is cached until the files change. Files in a store are copied to the
    local disk, for as long as the process runs.

    The path is a folder, or the common prefix of a TensorFlow checkpoint's files, such
    as `FOLDER/model.ckpt-1000`.

    Raises:
      UserError: The checkpoint is damaged, or of an unknown family.
    """
    if storage.is_remote(path):
        folder, name = os.fspath(path).rstrip("/"), ""
        if not (files := storage.list_files(f"{glob.escape(folder)}/*")):
            folder, _, name = folder.rpartition("/")
            files = storage.list_files(f"{glob.escape(folder)}/*")
        return _read_remote(folder, name, tuple(files))
    local = storage.path(path)
    return _read_local(local, *_state(local if local.is_dir() else local.parent))


def _state(folder: pathlib.Path) -> tuple[str, tuple]:
    """Return a folder's path, and a value that changes when a file in it changes."""
    entries = []
    with contextlib.suppress(OSError):  # not a folder
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):  # a broken link
                entries.append((entry.name, entry.stat()))
    state = [(n, s.st_ino, s.st_size, s.st_mtime_ns) for n, s in sorted(entries)]
    return os.path.abspath(folder), tuple(state)


def _reader(local: pathlib.Path) -> Callable[[pathlib.Path], Published] | None:
    """Return the function that reads a folder or a prefix of files, or None."""
    if local.is_dir() and huggingface_folder.is_checkpoint(local):
        return huggingface_folder.read
    if tensorflow.is_checkpoint(local):
        return tensorflow.read
    # The config of an old BERT has no `model_type`. The reader refuses its pickle.
    has_pickle = any(local.glob(huggingface_folder.PICKLE))
    return huggingface_folder.read if has_pickle else None


@functools.lru_cache(maxsize=2)
def _read_local(local: pathlib.Path, *state: object) -> Published | None:
    del state
    read = _reader(local)
    return read(local) if read else None


@functools.lru_cache(maxsize=2)
def _read_remote(
    folder: str, name: str, files: tuple[storage.FileInfo, ...]
) -> Published | None:
    with _writing_copies():
        copies = pathlib.Path(tempfile.mkdtemp(prefix="bert_jax-"))
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    local = copies / name
    try:
        # Find the format from the names of the files and the content of config.json.
        paths = {copies / file.name.rpartition("/")[2]: file for file in files}
        for path, file in paths.items():
            path.touch()
            if path.name == huggingface_folder.CONFIG:
                _copy(file, path)
        if not (read := _reader(local)):
            shutil.rmtree(copies)
            return None
        safetensors = huggingface_folder.ARRAYS, huggingface_folder.INDEX
        has_safetensors = any((copies / file).exists() for file in safetensors)
        for path, file in paths.items():
            is_part_of_other_checkpoint = read is tensorflow.read and (
                tensorflow.is_part_of_other_checkpoint(local, path.name)
            )
            is_flax = path.name == huggingface_folder.FLAX and not has_safetensors
            is_read = is_flax or not _UNREAD.search(path.name)
            if is_read and not is_part_of_other_checkpoint:
                _copy(file, path)
        made = read(local)
    except UserError as error:
        shutil.rmtree(copies)
        raise UserError(str(error).replace(str(copies), folder)) from error
    return dataclasses.replace(made, source=f"{folder}/{name}".rstrip("/"))


def _copy(file: storage.FileInfo, local: pathlib.Path) -> None:
    with _writing_copies():
        storage.download(file.name, local)


def _writing_copies() -> contextlib.AbstractContextManager[None]:
    return storage.writing(tempfile.gettempdir(), "set TMPDIR to another folder")


def find(path: str | os.PathLike) -> epath.Path:
    """Return the checkpoint at `path`; see `restore.find` and `open_published`."""
    other = open_published(path)
    return restore.absolute(other.source) if other else restore.find(path)


def exists(source: epath.Path) -> bool:
    """Return whether a checkpoint that was found still exists."""
    return open_published(source) is not None or source.exists()


def initial_checkpoint(
    given: str,
    folder: str,
    config_class: type,
    fields: tuple[str, str] = ("init_from", "init_fingerprint"),
) -> tuple[epath.Path, str]:
    """Return the checkpoint that a run starts from, and its fingerprint if known.

    A run that resumes keeps the checkpoint that it started from, even if the source has
    newer ones by now, or was deleted.

    Args:
      given: Checkpoint that this start's config names, or a folder with several.
      folder: Workdir of the run.
      config_class: Class of the run's config.
      fields: Paths of the config's fields with the checkpoint and its fingerprint.
    """
    path, local = restore.absolute(given), storage.path(folder)
    earlier = workdir.read_config(local, config_class)
    saved = dict(config_lib.leaves(config_lib.to_dict(earlier))) if earlier else {}
    started, fingerprint = (saved.get(field, "") for field in fields)
    if started and workdir.has_run(local):
        source = restore.absolute(started)
        is_inside = path == source or path in source.parents
        # The saved path is that of process 0. Another host may have its own.
        if workdir.had_checkpoint(local) and (is_inside or not exists(path)):
            if not is_inside:
                processes.say(f"{given} is missing; this run began with {source}")
            return source, fingerprint
        if is_inside and exists(source):
            return source, ""  # it may have been trained again meanwhile
    return find(path), ""


def read_metadata(source: epath.Path) -> metadata_lib.Metadata:
    """See `restore.read_metadata`."""
    other = open_published(source)
    return other.metadata if other else restore.read_metadata(source)


def fingerprint(source: epath.Path) -> str:
    """See `restore.fingerprint`."""
    if other := open_published(source):
        # In each process, because each reads its own files; `workdir.claim` compares.
        with processes.raise_in_all():
            return other.fingerprint()
    return restore.fingerprint(source)


def load_params(source: epath.Path, shapes: Any) -> restore.LoadedParams:
    """See `restore.load_params`."""
    other = open_published(source)
    return other.load_params(shapes) if other else restore.load_params(source, shapes)
