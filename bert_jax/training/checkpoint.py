"""Checkpoints: complete or invisible, readable on any mesh. The only user of Orbax.

A checkpoint is a folder `<step>/` with the parts `params` and `train` (optimizer, step,
running terms), so that fine-tuning reads the first alone, and `checksums` of both. Its
metadata holds whatever says what the arrays are: config, tokenizer, fingerprints,
versions.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging as absl_logging
from etils import epath
from orbax.checkpoint import v1 as ocp

from bert_jax import storage
from bert_jax.errors import Unavailable, UserError
from bert_jax.training import processes
from bert_jax.training import step as step_lib

# A save that takes longer has failed: in another process, if not in this one. Then the
# others wait for it in vain.
_SAVE_SECONDS = 300

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
        self._folder = absolute(folder)
        self._metadata = metadata
        self._pending = None
        absl_logging.get_absl_logger().addFilter(_is_untold)
        context = ocp.Context()
        context.asynchronous.timeout_secs = _SAVE_SECONDS
        self._checkpointer = ocp.training.Checkpointer(
            str(self._folder),
            context=context,
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
        A checkpoint that one process cannot read counts as damaged for all.

        Args:
          shapes: of the state, with the shardings to read it into.
          say: is told of damaged checkpoints.

        Raises:
          UserError: there are checkpoints, and none can be read.
          Unavailable: the newest may be readable later.
        """
        # One process says which there are: folders may look different on each.
        steps = processes.on_main(lambda: json.dumps(self._steps()))
        steps = json.loads(steps)
        unreadable: list[int] = []
        for step in sorted(steps, reverse=True):
            found, problem = _read(f"checkpoint {step}", self._load, step, shapes)
            if problem:
                say(f"checkpoint {step} cannot be used: {problem}")
                unreadable.append(step)
                continue
            for damaged in unreadable:
                aside = processes.on_main(lambda step=damaged: self._set_aside(step))
                say(f"checkpoint {damaged} is set aside as {aside}")
            self._checkpointer.reload()
            return found
        if steps:
            raise UserError(
                f"none of the checkpoints in {self._folder} can be used; they are left "
                "as they are; to start from step 0, give another --workdir"
            )
        return None

    def _load(self, step: int, shapes: step_lib.TrainState) -> step_lib.TrainState:
        # What the run would look up later, and what fine-tuning lives on.
        read_metadata(self._folder / str(step))
        parts = _parts(shapes)
        everywhere = shapes.step.sharding
        checksums = jax.ShapeDtypeStruct(
            (len(jax.tree.leaves(parts)),), jnp.uint32, sharding=everywhere
        )
        wanted = {**parts, "checksums": {"by_leaf": checksums}}
        found = self._checkpointer.load_checkpointables(step, wanted)
        stored = np.asarray(found.pop("checksums")["by_leaf"])
        _verify(found, dict(zip(_paths(found), stored, strict=True)))
        return _whole(found)

    def newest(self) -> int | None:
        """The newest step that is complete."""
        return next((int(p.name) for p in _steps_of(self._folder)), None)

    def _steps(self) -> list[int]:
        return [c.step for c in self._checkpointer.checkpoints]

    def _set_aside(self, step: int) -> str:
        damaged = self._folder / str(step)
        names = (f"damaged-{step}" + "+" * i for i in itertools.count())
        aside = next(p for name in names if not (p := self._folder / name).exists())
        if damaged.exists():
            damaged.rename(aside)
        return aside.name

    def metadata(self, step: int) -> dict[str, Any]:
        """What was stored with a checkpoint: `make_metadata`, and the `extra` then."""
        return read_metadata(self._folder / str(step))

    def compile(self, state: step_lib.TrainState) -> None:
        """Compile what a save needs, so that the first one starts at once."""
        _checksums(_parts(state), state.step.sharding)

    def save(
        self, step: int, state: step_lib.TrainState, extra: dict[str, Any]
    ) -> None:
        """Begin to write a checkpoint; it appears when all of it is written.

        The state may be donated or changed as soon as this returns.

        Args:
          step: of the state.
          state: to save.
          extra: metadata of this checkpoint alone, JSON.

        Raises:
          UserError: the disk is full, or refuses for another reason of its own.
          Exception: what else went wrong with the checkpoint before this one.
        """
        self.wait()
        parts = _parts(state)
        parts["checksums"] = {"by_leaf": _checksums(parts, state.step.sharding)}
        with self._agreed(step):
            response = self._checkpointer.save_checkpointables_async(
                step, parts, custom_metadata={**self._metadata, **extra}
            )
        self._pending = step, response

    def wait(self) -> None:
        """Return when the last checkpoint is complete, or raise as `save` does."""
        if self._pending is not None:
            (step, pending), self._pending = self._pending, None
            with self._agreed(step):
                pending.result()

    @contextlib.contextmanager
    def _agreed(self, step: int) -> Iterator[None]:
        """Make one line of a disk's errors, in all processes if one met them."""
        problem, told = None, ""
        try:
            yield
        except Exception as error:
            problem, told = error, storage.disk_error(error) or "?"
        everywhere = [text for text in processes.gather_text(told) if text]
        reason = next((text for text in everywhere if text != "?"), "")
        if reason:
            complete = _steps_of(self._folder)
            last = (
                f"the last complete one is {complete[0].name}"
                if complete
                else ("there is no complete one")
            )
            agreed = UserError(
                f"cannot write checkpoint {step} to {self._folder}: {reason}; {last}; "
                "make room and run the same command"
            )
            agreed.everywhere = True
            raise agreed from problem
        if problem:
            raise problem
        if everywhere:
            raise RuntimeError(f"checkpoint {step} failed in another process")

    def close(self) -> None:
        """Wait, and end the threads that write."""
        self.wait()
        self._checkpointer.close()


# Where Orbax' threads log what they then raise.
_RAISED_FROM = ("future.py", "async_checkpointer.py", "checkpoint_manager.py")


def _is_untold(record: logging.LogRecord) -> bool:
    """Whether a log record of Orbax says what we do not say in one line.

    Each of the threads that find a disk full logs it with a traceback, some of them
    after the one line that `wait` makes of it. And metadata that cannot be read are
    None with a warning, for each part.
    """
    file = os.path.basename(record.pathname)
    if file == "orbax_layout.py":
        return not str(record.msg).startswith("Failed to get metadata")
    if not record.exc_info or file not in _RAISED_FROM:
        return True
    error = record.exc_info[1]
    return error is None or not storage.disk_error(error)


def _parts(state: step_lib.TrainState) -> dict[str, Any]:
    train = {
        name: getattr(state, name) for name in ("step", "opt_state", "terms", "skipped")
    }
    return {"params": state.params, "train": train}


def _whole(parts: dict[str, Any]) -> step_lib.TrainState:
    return step_lib.TrainState(params=parts["params"], **parts["train"])


@functools.partial(jax.jit, static_argnums=1)
def _checksums(tree: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """Uint32 [leaves], in all places of `sharding`."""
    sums = jnp.stack(_checksum_each(tree))
    return jax.lax.with_sharding_constraint(sums, sharding)


@jax.jit
def _checksum_each(tree: Any) -> list[jax.Array]:
    """Uint32 for each leaf: changes with any of its bits, and not with its sharding.

    The files' own format does not notice most of the bits that a disk may flip in the
    values. An odd factor for each place, and a sum modulo 2**32, which has no order.
    """

    def checksum(x):
        if x.dtype.itemsize != 4:
            raise TypeError(f"checksums are for types of 4 bytes, not {x.dtype}")
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
        place = jnp.zeros((), jnp.uint32)
        for dim in range(x.ndim):
            place = place * jnp.uint32(x.shape[dim])
            place = place + jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim)
        factor = place * jnp.uint32(0x9E3779B9) | jnp.uint32(1)
        return jnp.sum(bits * factor, dtype=jnp.uint32)

    return [checksum(x) for x in jax.tree.leaves(tree)]


def _verify(tree: Any, stored: dict[str, int]) -> None:
    """Compare what was read with the checksums of what was saved, by path.

    Raises:
      ValueError: a leaf has other values.
    """
    found = jax.device_get(_checksum_each(tree))
    for path, checksum in zip(_paths(tree), found, strict=True):
        if checksum != stored[path]:
            raise ValueError(f"{path} is not what was saved (checksum)")


def _paths(tree: Any) -> list[str]:
    """Of the leaves, in JAX's order."""
    return [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree.leaves_with_path(tree)
    ]


def _read(name: str, function: Callable, *arguments: Any) -> tuple[Any, str]:
    """What `function` reads, and what is wrong with the files, for all processes.

    Raises:
      Unavailable: in all processes, if a later attempt may succeed.
    """
    found, problem, passing = None, "", ""
    try:
        found = function(*arguments)
    # Whatever is wrong with the files, Orbax and what it stands on have many kinds of
    # errors for it.
    except Exception as error:
        if storage.is_passing(error):
            passing = _first_line(error)
        else:
            problem = _first_line(error)
    problem = next(filter(None, processes.gather_text(problem)), "")
    # Where one process fails, the others wait for it until their time is up.
    passing = next(filter(None, processes.gather_text(passing)), "")
    if passing and not problem:
        raise Unavailable(f"{name} cannot be read now: {passing}")
    return found, problem


def _first_line(error: BaseException) -> str:
    # What Orbax raises says that something failed; why is in what it was raised from.
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]


# ---- from other runs


def absolute(path: str | os.PathLike) -> epath.Path:
    """A local path made absolute, or a URL as it is."""
    if storage.is_remote(path):
        return epath.Path(os.fspath(path))
    return epath.Path(os.path.abspath(path))


def find(path: str | os.PathLike) -> epath.Path:
    """The checkpoint that `path` means: a workdir's newest, or `path` itself.

    Raises:
      UserError: there is none, or the newest is damaged.
    """
    path = absolute(path)
    if not path.is_dir():
        raise UserError(f"{path} is no folder; give a workdir or a checkpoint in it")
    steps = _steps_of(path / "checkpoints") or _steps_of(path)
    for candidate in steps or [path]:
        if ocp.is_orbax_checkpoint(candidate) and _metadata_file(candidate).exists():
            return candidate
        # In an object store a save under way has this name already. On a disk it gets
        # it when it is complete, and an older one is not what was asked for.
        if steps and not storage.is_remote(path):
            raise UserError(
                f"{candidate} is damaged, it has no metadata; give another checkpoint"
            )
    raise UserError(f"{path} holds no complete checkpoint")


def _steps_of(folder: epath.Path) -> list[epath.Path]:
    """Folders named by a number, newest first."""
    found = folder.iterdir() if folder.is_dir() else []
    steps = [p for p in found if p.name.isdecimal() and p.is_dir()]
    return sorted(steps, key=lambda p: int(p.name), reverse=True)


def _metadata_file(checkpoint: epath.Path) -> epath.Path:
    return checkpoint / "_CHECKPOINT_METADATA"


def read_metadata(checkpoint: epath.Path) -> dict[str, Any]:
    """What `make_metadata` stored in a checkpoint.

    Raises:
      UserError: it is another program's checkpoint.
    """
    try:
        metadata = json.loads(_metadata_file(checkpoint).read_text())
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


def load_params(checkpoint: epath.Path, shapes: Any, below: str = "") -> Loaded:
    """Read the parameters whose paths are in `shapes`.

    Args:
      checkpoint: from `find`.
      shapes: `jax.ShapeDtypeStruct`s with shardings, for all parameters of a model.
      below: beginning of the paths to load; others are new, even if they are stored.

    Raises:
      UserError: the checkpoint is damaged, or a parameter has another shape in it.
      Unavailable: it may be readable later.
    """

    def read(*function_and_arguments):
        found, problem = _read(str(checkpoint), *function_and_arguments)
        if problem:
            raise UserError(
                f"{checkpoint} cannot be used: {problem}; give another checkpoint"
            )
        return found

    stored = _flatten(read(_metadata_of_arrays, checkpoint, "params"))
    checksums = read(_metadata_of_arrays, checkpoint, "checksums")["by_leaf"]
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
    found = read(_load_some, checkpoint, request, checksums.shape)
    return Loaded(
        params={path: found[path] for path in loaded},
        loaded=loaded,
        new=sorted(wanted.keys() - set(loaded)),
        ignored=sorted(stored.keys() - set(loaded)),
    )


def _metadata_of_arrays(checkpoint: epath.Path, part: str) -> Any:
    """A tree with shapes and types."""
    absl_logging.get_absl_logger().addFilter(_is_untold)
    found = ocp.metadata(str(checkpoint), part).metadata
    if found is None:
        raise ValueError(f"the metadata of {part} are damaged")
    return found


def _load_some(
    checkpoint: epath.Path, request: dict[str, Any], checksums: tuple[int, ...]
) -> dict[str, Any]:
    """Parameters by path; a placeholder stays what it is."""
    params = _unflatten(request)
    # Checksums of parameters come first, as in `_parts`.
    places = _paths(params)
    by_leaf = np.empty(checksums, np.uint32)
    wanted = {"params": params, "checksums": {"by_leaf": by_leaf}}
    found = ocp.load_checkpointables(str(checkpoint), wanted)
    stored = dict(zip(places, np.asarray(found["checksums"]["by_leaf"]), strict=False))
    params = _flatten(found["params"])
    _verify({p: x for p, x in params.items() if x is not ocp.PLACEHOLDER}, stored)
    return params


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
