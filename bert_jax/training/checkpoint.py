"""Checkpoints: complete or invisible, readable on any mesh. The only user of Orbax.

A checkpoint is a folder `<step>/` with two parts, `params` and `train` (optimizer,
step, running terms), so that fine-tuning reads the first alone. Its metadata holds
whatever says what the arrays are: config, tokenizer, fingerprints, versions.
"""

import dataclasses
import importlib.metadata
import itertools
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from bert_jax.errors import UserError
from bert_jax.training import step as step_lib

_PACKAGES = ("bert_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def make_metadata(config: dict, encoder: dict, tokenizer: str) -> dict[str, Any]:
    """What a checkpoint says of itself.

    Args:
      config: of the run, resolved.
      encoder: of the model; what fine-tuning builds.
      tokenizer: from `Tokenizer.dumps`.
    """
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "unknown"
    return {
        "config": config,
        "encoder": encoder,
        "tokenizer": tokenizer,
        "versions": versions,
    }


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: str | os.PathLike, keep: int, metadata: dict[str, Any]):
        """Open or make a folder of checkpoints.

        Args:
          folder: of this run alone.
          keep: how many of the newest to keep.
          metadata: stored with each.
        """
        self._folder = pathlib.Path(folder).absolute()
        self._metadata = metadata
        self._pending = None
        self._checkpointer = ocp.training.Checkpointer(
            str(self._folder),
            # The loop decides when to save; this says yes to all it asks for.
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(
                1
            ),
            preservation_policy=ocp.training.preservation_policies.LatestN(keep),
            cleanup_tmp_directories=True,
        )

    def restore(
        self, shapes: step_lib.TrainState, say: Callable[[str], None]
    ) -> step_lib.TrainState | None:
        """The newest state that can be read, or None if there has been no checkpoint.

        A damaged checkpoint is set aside under another name, but only when an older one
        can be read: if none can, the fault may lie elsewhere, and all stay as they are.

        Args:
          shapes: of the state, with the shardings to read it into.
          say: is told of damaged checkpoints.

        Raises:
          UserError: there are checkpoints, and none can be read.
        """
        steps = [c.step for c in self._checkpointer.checkpoints]
        unreadable: list[int] = []
        for step in sorted(steps, reverse=True):
            try:
                found = self._checkpointer.load_checkpointables(step, _parts(shapes))
            # Whatever is wrong with the files, Orbax and what it stands on have many
            # kinds of errors for it.
            except Exception as error:
                say(f"checkpoint {step} cannot be read: {_first_line(error)}")
                unreadable.append(step)
                continue
            for damaged in unreadable:
                aside = self._set_aside(damaged)
                say(f"checkpoint {damaged} is set aside as {aside.name}")
            return _whole(found)
        if steps:
            raise UserError(
                f"none of the checkpoints in {self._folder} can be read; they are left "
                "as they are; to start from step 0, give another --workdir"
            )
        return None

    def _set_aside(self, step: int) -> pathlib.Path:
        damaged = self._folder / str(step)
        names = (f"damaged-{step}" + "+" * i for i in itertools.count())
        aside = next(p for name in names if not (p := self._folder / name).exists())
        if damaged.exists():
            damaged.rename(aside)
        self._checkpointer.reload()
        return aside

    def save(self, step: int, state: step_lib.TrainState) -> None:
        """Begin to write a checkpoint; it appears when all of it is written.

        The state may be donated or changed as soon as this returns.

        Raises:
          Exception: what went wrong with the checkpoint before this one.
        """
        self.wait()
        self._pending = self._checkpointer.save_checkpointables_async(
            step, _parts(state), custom_metadata=self._metadata
        )

    def wait(self) -> None:
        """Return when the last checkpoint is complete, or raise what went wrong."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def close(self) -> None:
        """Wait, and end the threads that write."""
        self.wait()
        self._checkpointer.close()


def _parts(state: step_lib.TrainState) -> dict[str, Any]:
    train = {"step": state.step, "opt_state": state.opt_state, "terms": state.terms}
    return {"params": state.params, "train": train}


def _whole(parts: dict[str, Any]) -> step_lib.TrainState:
    return step_lib.TrainState(params=parts["params"], **parts["train"])


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]


# ---- from other runs


def find(path: str | os.PathLike) -> pathlib.Path:
    """The checkpoint that `path` means: a workdir's newest, or `path` itself.

    Raises:
      UserError: there is none.
    """
    path = pathlib.Path(path).absolute()
    if not path.is_dir():
        raise UserError(f"{path} is no folder; give a workdir or a checkpoint in it")
    folder = path / "checkpoints"
    for candidate in [*_steps_of(folder), *_steps_of(path), path]:
        if ocp.is_orbax_checkpoint(candidate) and _metadata_file(candidate).exists():
            return candidate
    raise UserError(f"{path} holds no complete checkpoint")


def _steps_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """Folders named by a number, newest first."""
    found = folder.iterdir() if folder.is_dir() else []
    steps = [p for p in found if p.name.isdecimal() and p.is_dir()]
    return sorted(steps, key=lambda p: int(p.name), reverse=True)


def _metadata_file(checkpoint: pathlib.Path) -> pathlib.Path:
    return checkpoint / "_CHECKPOINT_METADATA"


def read_metadata(checkpoint: pathlib.Path) -> dict[str, Any]:
    """What `make_metadata` stored in a checkpoint.

    Raises:
      UserError: it is another program's checkpoint.
    """
    try:
        metadata = json.loads(_metadata_file(checkpoint).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {_metadata_file(checkpoint)}: {error}") from error
    found = metadata.get("custom_metadata") or {}
    if not {"encoder", "tokenizer"} <= found.keys():
        raise UserError(f"{checkpoint} is no checkpoint of bert_jax")
    return found


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Parameters of another run, and what became of each name.

    Attributes:
      params: a tree with `loaded` leaves only, by path.
      loaded: paths taken from the checkpoint.
      new: paths that were not loaded; they keep their initial values.
      ignored: paths of the checkpoint that nobody asked for.
    """

    params: dict[str, jax.Array]
    loaded: list[str]
    new: list[str]
    ignored: list[str]


def load_params(checkpoint: pathlib.Path, shapes: Any, below: str = "") -> Loaded:
    """Read the parameters whose paths are in `shapes`.

    Args:
      checkpoint: from `find`.
      shapes: `jax.ShapeDtypeStruct`s with shardings, for all parameters of a model.
      below: beginning of the paths to load; others are new, even if they are stored.

    Raises:
      UserError: a parameter has another shape in the checkpoint.
    """
    stored = ocp.checkpointables_metadata(str(checkpoint)).metadata["params"]
    stored = _flatten(stored)
    wanted = _flatten(shapes)
    loaded = sorted(p for p in wanted.keys() & stored.keys() if p.startswith(below))
    for path in loaded:
        if tuple(stored[path].shape) != tuple(wanted[path].shape):
            raise UserError(
                f"{checkpoint}: {path} has shape {tuple(stored[path].shape)}, "
                f"the model wants {tuple(wanted[path].shape)}"
            )
    # Orbax matches trees, so all that is stored must be asked for; what is not wanted
    # is asked for as a placeholder.
    request = dict.fromkeys(stored, ocp.PLACEHOLDER)
    request |= {path: wanted[path] for path in loaded}
    found = ocp.load_checkpointables(str(checkpoint), {"params": _unflatten(request)})
    found = _flatten(found["params"])
    return Loaded(
        params={path: found[path] for path in loaded},
        loaded=loaded,
        new=sorted(wanted.keys() - set(loaded)),
        ignored=sorted(stored.keys() - set(loaded)),
    )


def merge(params: Any, loaded: Loaded) -> Any:
    """`params` with what was loaded in its places."""
    return _unflatten(_flatten(params) | loaded.params)


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    flat = {}
    for name, value in tree.items():
        flat |= _flatten(value, f"{prefix}/{name}" if prefix else name)
    return flat


def _unflatten(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree
