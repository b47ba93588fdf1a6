"""Reading of checkpoints of any run: their metadata and their parameters.

Only this module and `checkpoint.py` use Orbax's checkpoints.
"""

import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath
from orbax.checkpoint import v1 as ocp

from bert_jax import io_errors, storage, terminal
from bert_jax.errors import Unavailable, UserError
from bert_jax.model import parameters
from bert_jax.training import checksums, orbax_logs, processes
from bert_jax.training import metadata as metadata_lib

orbax_logs.install()


def absolute(path: str | os.PathLike) -> epath.Path:
    """Make a local path absolute, and return a URL as it is.

    A link before `..` is followed, as the system does. Orbax would drop it.
    """
    if not storage.is_remote(path):
        path = storage.path(path).absolute()
        if ".." in path.parts:
            after = 1 + max(i for i, part in enumerate(path.parts) if part == "..")
            followed = pathlib.Path(*path.parts[:after]).resolve()
            path = followed.joinpath(*path.parts[after:])
    name = os.fspath(path)
    check_name(name)
    try:
        return epath.Path(name)
    except KeyError as error:
        raise UserError(
            f"{name}: checkpoints cannot be at {error}; give a local path or gs://"
        ) from error


def check_name(name: str | os.PathLike) -> None:
    r"""Check that Orbax can read and write a path.

    Orbax does not escape the path in its globs, turns `\` into `/`, and needs UTF-8.

    Raises:
      UserError: The path has a glob character or a backslash, or is not valid UTF-8.
    """
    name = os.fspath(name)
    if bad := re.search(r"[*?\[\]\\\ud800-\udfff]", name):
        raise UserError(
            f"{terminal.printable(name)}: the path of a checkpoint must not contain "
            f"{terminal.printable(bad[0])}; give another path"
        )


def find(path: str | os.PathLike) -> epath.Path:
    """Return the best or newest checkpoint of a workdir, or the checkpoint itself.

    Raises:
      UserError: There is no checkpoint, there are several runs, or the newest
        checkpoint is damaged.
    """
    path = absolute(path)
    if not path.is_dir():
        raise UserError(
            f"{path} is not a folder; give a workdir, a checkpoint in it, or the "
            "folder of a published model (models are not downloaded)"
        )
    folders = (path / "best", path / "checkpoints", path)
    for candidate in itertools.chain.from_iterable(map(list_checkpoints, folders)):
        if is_complete(candidate):
            return candidate
        # On a disk, the name appears when a save is complete, so this one is damaged.
        if not storage.is_remote(path):
            raise UserError(
                f"{candidate} is damaged, it has no metadata; give another checkpoint"
            )
    if is_complete(path):
        return path
    if runs := sorted(path.glob("seed-*")):
        raise UserError(f"{path} has a run for each seed; give one, such as {runs[0]}")
    # Such as the output of a Trainer, or the cache of a hub.
    configs = *path.glob("*/config.json"), *path.glob("snapshots/*/config.json")
    hint = f"; give a folder below it, such as {min(configs).parent}" if configs else ""
    raise UserError(f"{path} holds no complete checkpoint{hint}")


def list_checkpoints(folder: epath.Path) -> list[epath.Path]:
    """Return the folders that are named by a number, newest first."""
    children = folder.iterdir() if folder.is_dir() else []
    steps = [p for p in children if p.name.isdecimal() and p.is_dir()]
    return sorted(steps, key=lambda p: int(p.name), reverse=True)


def is_complete(checkpoint: epath.Path) -> bool:
    """Return whether a checkpoint is complete and has its metadata.

    In an object store, a save in progress already has its name.
    """
    return ocp.is_orbax_checkpoint(checkpoint) and _metadata_file(checkpoint).exists()


def _metadata_file(checkpoint: epath.Path) -> epath.Path:
    return checkpoint / "_CHECKPOINT_METADATA"


def read_metadata(checkpoint: epath.Path) -> metadata_lib.Metadata:
    """Read the metadata of a checkpoint."""
    with storage.reading(checkpoint):
        stored = json.loads(_metadata_file(checkpoint).read_text())
        return metadata_lib.from_json(stored.get("custom_metadata"))


def fingerprint(checkpoint: epath.Path) -> str:
    """Return a hash of all arrays of a checkpoint. All processes must call it."""
    stored = _read(stored_arrays, checkpoint, "checksums")["by_leaf"]
    wanted = {"checksums": {"by_leaf": np.empty(stored.shape, np.uint32)}}
    content = _read(ocp.load_checkpointables, checkpoint, wanted)
    sums = np.asarray(content["checksums"]["by_leaf"])
    return hashlib.sha256(sums.tobytes()).hexdigest()[:16]


def shapes(checkpoint: epath.Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of all parameters by path, with a single-device sharding."""
    stored = _read(stored_arrays, checkpoint, "params")
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return {
        path: jax.ShapeDtypeStruct(tuple(leaf.shape), leaf.dtype, sharding=device)
        for path, leaf in stored.items()
    }


@dataclasses.dataclass(frozen=True)
class LoadedParams:
    """Parameters loaded from a checkpoint, and the paths that did not match."""

    params: dict[str, jax.Array]  # arrays that were loaded, by path
    missing: list[str]  # paths that were not loaded; they keep their initial values
    ignored: list[str]  # paths of the checkpoint that the model lacks

    def describe(self, source: epath.Path) -> str:
        """Describe how many parameters were loaded, are new, and were ignored."""
        lines = [f"from {source}:"]
        groups = {"loaded": self.params, "new": self.missing, "ignored": self.ignored}
        for name, paths in groups.items():
            parts = sorted({path.split("/")[0] for path in paths})
            where = f" ({', '.join(parts)})" if parts else ""
            lines.append(f"  {name}: {len(paths)} parameters{where}")
        return "\n".join(lines)


def load_params(checkpoint: epath.Path, shapes: Any) -> LoadedParams:
    """Load the parameters whose paths are in `shapes`.

    Args:
      checkpoint: Folder, from `find`.
      shapes: `jax.ShapeDtypeStruct`s with shardings, for a model or a part of it.

    Raises:
      UserError: The checkpoint is damaged, or a parameter has another shape.
    """
    stored = _read(stored_arrays, checkpoint, "params")
    sums = _read(stored_arrays, checkpoint, "checksums")["by_leaf"]
    wanted = parameters.flatten(shapes)
    loaded = sorted(wanted.keys() & stored.keys())
    for path in loaded:
        if problem := shape_mismatch(path, stored[path], wanted[path]):
            raise UserError(f"{checkpoint}: {problem}")
    # Embeddings that are stored as differences are loaded as sums.
    differences = {
        path: difference
        for path in loaded
        if (difference := parameters.embedding_difference_path(path)) in stored
        and difference not in wanted
    }
    # Orbax matches trees, so the request has all stored paths, and a placeholder for
    # those that are not loaded.
    request = dict.fromkeys(stored, ocp.PLACEHOLDER)
    request |= {path: wanted[path] for path in loaded}
    request |= {difference: wanted[path] for path, difference in differences.items()}
    params = _read(_load_some, checkpoint, request, sums.shape)
    return LoadedParams(
        params={path: params[path] for path in loaded}
        | {path: params[path] + params[d] for path, d in differences.items()},
        missing=sorted(wanted.keys() - stored.keys()),
        ignored=sorted(stored.keys() - wanted.keys() - {*differences.values()}),
    )


def stored_arrays(checkpoint: epath.Path, part: str) -> dict[str, Any]:
    """Return the shape and dtype of each array in a part of a checkpoint, by path."""
    metadata = ocp.metadata(str(checkpoint), part).metadata
    if metadata is None:
        raise ValueError(f"the metadata of {part} is damaged")
    return parameters.flatten(metadata)


def shape_mismatch(path: str, stored: Any, wanted: jax.ShapeDtypeStruct) -> str:
    """Describe how a stored array's shape differs from the model's; "" if equal."""
    has, wants = tuple(stored.shape), tuple(wanted.shape)
    return f"{path} has shape {has}; expected {wants}" if has != wants else ""


def _load_some(
    checkpoint: epath.Path, request: dict[str, Any], checksums_shape: tuple[int, ...]
) -> dict[str, Any]:
    """Load parameters by path. Placeholders are not loaded."""
    params = parameters.unflatten(request)
    # Checksums of parameters come first, as in `checkpoint._parts`.
    paths = parameters.paths(params)
    by_leaf = np.empty(checksums_shape, np.uint32)
    wanted = {"params": params, "checksums": {"by_leaf": by_leaf}}
    content = ocp.load_checkpointables(str(checkpoint), wanted)
    sums = np.asarray(content["checksums"]["by_leaf"])
    params = parameters.flatten(content["params"])
    arrays = {p: x for p, x in params.items() if x is not ocp.PLACEHOLDER}
    checksums.verify(arrays, dict(zip(paths, sums, strict=False)))
    return params


def merge(params: Any, loaded: LoadedParams) -> Any:
    """Return `params` with the loaded arrays in their places."""
    return parameters.unflatten(parameters.flatten(params) | loaded.params)


# ---- errors of reads


def read_in_all_processes(
    name: str, function: Callable, *arguments: Any
) -> tuple[Any, str]:
    """Call a function that reads a checkpoint, in all processes.

    Args:
      name: Name of the checkpoint in messages.
      function: Function to call with the arguments; may wait for other processes.
      *arguments: Arguments of the function.

    Returns:
      The result, and a description of the damage that any process found; "" if none.

    Raises:
      Unavailable: In all processes, if a later attempt may succeed.
      UserError: In all processes, if one of them has no access to the files.
      JaxRuntimeError: In this process alone, if a device has too little memory.
    """
    result, problem, transient, refused = None, "", "", ""
    try:
        result = function(*arguments)
    # Orbax, TensorStore and asyncio raise many kinds of errors for damaged files.
    except Exception as error:
        is_jax = isinstance(error, jax.errors.JaxRuntimeError)
        if is_jax and str(error).startswith("RESOURCE_EXHAUSTED"):
            raise  # a device has too little memory; the files may be intact
        if io_errors.is_transient(error):
            transient = _first_line(error)
        elif io_errors.is_refused(error):
            refused = _first_line(error)
        else:
            problem = _first_line(error)
    problem, transient, refused = map(
        processes.first_text, (problem, transient, refused)
    )
    if refused:
        raise UserError(f"{name} cannot be read: {refused}")
    # If one process finds damage, the others time out waiting for it.
    if transient and not problem:
        raise Unavailable(f"{name} cannot be read now: {transient}")
    return result, problem


def _read(function: Callable, checkpoint: epath.Path, *arguments: Any) -> Any:
    """Call a function of a checkpoint in all processes; raise if it is damaged."""
    result, problem = read_in_all_processes(
        str(checkpoint), function, checkpoint, *arguments
    )
    if problem:
        advice = "give another checkpoint"
        if not processes.call_on_main(lambda: is_complete(checkpoint)):
            advice = f"its run may have deleted it: run the command again, or {advice}"
        raise UserError(f"{checkpoint} cannot be used: {problem}; {advice}")
    return result


def _first_line(error: BaseException) -> str:
    # The cause says why; the error of Orbax itself says only that something failed.
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    if isinstance(error, UserError):
        return lines[0]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
