"""What a model may begin with: a checkpoint of ours, or of another project.

The functions are those of `stored`, and say which of the two it is.
"""

import os
import pathlib
from typing import Any

from etils import epath

from bert_jax import storage
from bert_jax.interop import huggingface_folder, tensorflow
from bert_jax.interop.published import Published
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import processes, stored, workdir


def published(path: str | os.PathLike) -> Published | None:
    """A checkpoint of another project, read; None for anything else.

    Args:
      path: Local folder, or of TensorFlow's also the common beginning of the names of
        a checkpoint's files, such as `FOLDER/model.ckpt-1000`.

    Raises:
      UserError: It is one, and is damaged or of another architecture.
    """
    if storage.is_remote(path):
        return None
    local = pathlib.Path(path)
    if local.is_dir() and huggingface_folder.is_one(local):
        return huggingface_folder.read(local)
    if tensorflow.is_one(local):
        return tensorflow.read(local)
    return None


def find(path: str | os.PathLike) -> epath.Path:
    """The checkpoint that `path` means; see `stored.find` and `published`."""
    other = published(path)
    return stored.absolute(other.source) if other else stored.find(path)


def of_run(init_from: str, folder: str, config_class: type) -> tuple[epath.Path, str]:
    """The checkpoint that a run begins with, and its fingerprint if that is known.

    Of a run that has begun it is the one that it began with: the source may have gone
    on since, and have newer checkpoints, or be gone.

    Args:
      init_from: What the config of the run names.
      folder: Workdir of the run.
      config_class: Class of its config.
    """
    given = stored.absolute(init_from)
    earlier = workdir.read_config(storage.path(folder), config_class)
    if earlier is not None and earlier.init_from:
        source = stored.absolute(earlier.init_from)
        if given == source or given in source.parents:
            return source, earlier.init_fingerprint
    return find(given), ""


def read_metadata(source: epath.Path) -> metadata_lib.Metadata:
    """See `stored.read_metadata`."""
    other = published(source)
    return other.metadata if other else stored.read_metadata(source)


def fingerprint(source: epath.Path) -> str:
    """See `stored.fingerprint`."""
    other = published(source)
    return processes.on_main(other.fingerprint) if other else stored.fingerprint(source)


def load_params(
    source: epath.Path, shapes: Any, *, part: str = "", stored_part: str = ""
) -> stored.Loaded:
    """See `stored.load_params`."""
    if other := published(source):
        return other.load_params(shapes, part, stored_part)
    return stored.load_params(source, shapes, part=part, stored_part=stored_part)
