"""Checkpoints of a run: complete or invisible, readable on any mesh.

A checkpoint is a folder `<step>/` with three parts: `params`, which is all that
fine-tuning reads; `train`, with optimizer state, step and running metrics; and
`checksums` of both. Its metadata has the config, tokenizer, fingerprints and versions.

Only this module and `restore.py`, which reads checkpoints of any run, use Orbax's
checkpoints.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from bert_jax import io_errors
from bert_jax.errors import UserError
from bert_jax.model import parameters
from bert_jax.training import checksums, processes, restore
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import step as step_lib

# Time limit of a save, in any process: five minutes, and the time to write its part to
# slow storage.
_SAVE_SECONDS = 300
_SLOW_BYTES_PER_SECOND = 10e6
# Names in checkpoints of metrics that were renamed since. Checkpoints keep the old
# names, so that runs of earlier versions can resume.
_STORED_METRICS = {"span_accuracy": "exact"}


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: str | os.PathLike, keep: int, *, size: int = 0):
        """Open a folder of checkpoints, and create it if needed.

        Args:
          folder: Folder that belongs to this run.
          keep: Number of the newest checkpoints to keep.
          size: Bytes of a checkpoint, over all processes.

        Raises:
          UserError: Orbax cannot write to this path; see `restore.check_name`.
        """
        self._folder = restore.absolute(folder)
        self._pending = None
        context = ocp.Context()
        own_size = size / jax.process_count()
        context.asynchronous.timeout_secs = round(
            _SAVE_SECONDS + own_size / _SLOW_BYTES_PER_SECOND
        )
        self._checkpointer = ocp.training.Checkpointer(
            str(self._folder),
            context=context,
            # The loop decides when to save.
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(
                1
            ),
            preservation_policy=ocp.training.preservation_policies.LatestN(keep),
            cleanup_tmp_directories=True,
        )

    def restore(self, shapes: step_lib.TrainState) -> step_lib.TrainState | None:
        """Return the newest state that can be read; None if there is no checkpoint.

        A damaged checkpoint is renamed, but only if an older one can be read. If none
        can be read, the fault may lie elsewhere, and all stay as they are. A checkpoint
        that one process cannot read counts as damaged for all processes.

        Raises:
          UserError: There are checkpoints, and none can be read.
          Unavailable: The newest may be readable later.
        """
        # Process 0 lists the steps: folders may look different on each host.
        steps = processes.call_on_main(
            lambda: [c.step for c in self._checkpointer.checkpoints]
        )
        unreadable: list[int] = []
        for step in sorted(steps, reverse=True):
            name = f"checkpoint {self._folder / str(step)}"
            state, problem = restore.read_in_all_processes(
                name, self._load, step, shapes
            )
            if problem:
                processes.say(f"{name} cannot be used: {problem}")
                unreadable.append(step)
                continue
            for damaged in unreadable:
                aside = processes.call_on_main(
                    lambda step=damaged: self._set_aside(step)
                )
                processes.say(f"checkpoint {damaged} is set aside as {aside}")
            self._checkpointer.reload()
            return state
        if steps:
            raise UserError(
                f"none of the checkpoints in {self._folder} can be used; they are left "
                "as they are; to start from step 0, give another --workdir"
            )
        return None

    def _load(self, step: int, shapes: step_lib.TrainState) -> step_lib.TrainState:
        # Damaged metadata must fail here: the session and fine-tuning read it later.
        path = self._folder / str(step)
        restore.read_metadata(path)
        # Orbax's own message about an array of another shape is hard to read.
        stored = restore.stored_arrays(path, "params")
        for name, wanted in parameters.flatten(shapes.params).items():
            if name not in stored:
                raise UserError(f"it lacks {name}, which the model of this run has")
            if problem := restore.shape_mismatch(name, stored[name], wanted):
                raise UserError(problem)
        request = _parts(shapes)
        by_leaf = jax.ShapeDtypeStruct(
            (len(jax.tree.leaves(request)),), jnp.uint32, sharding=shapes.step.sharding
        )
        request["checksums"] = {"by_leaf": by_leaf}
        loaded = self._checkpointer.load_checkpointables(step, request)
        sums = np.asarray(loaded.pop("checksums")["by_leaf"])
        checksums.verify(loaded, dict(zip(parameters.paths(loaded), sums, strict=True)))
        stored_sums = loaded["train"].pop("terms")
        metric_sums = {name: stored_sums[_stored(name)] for name in shapes.metric_sums}
        return step_lib.TrainState(
            params=loaded["params"], metric_sums=metric_sums, **loaded["train"]
        )

    def newest(self) -> int | None:
        """Return the newest step with a complete checkpoint; None if there is none."""
        for path in restore.list_checkpoints(self._folder):
            if restore.is_complete(path):
                return int(path.name)
        return None

    def describe_newest(self) -> str:
        """Describe the newest complete checkpoint, for messages."""
        newest = self.newest()
        if newest is None:
            return "there is no complete checkpoint"
        return f"the newest complete checkpoint is of step {newest}"

    def _set_aside(self, step: int) -> str:
        damaged = self._folder / str(step)
        aside = self._folder / f"damaged-{step}"
        while aside.exists():
            aside = self._folder / f"{aside.name}+"
        if damaged.exists():
            damaged.rename(aside)
        return aside.name

    def metadata(self, step: int) -> metadata_lib.Metadata:
        """Return the metadata of the checkpoint of a step."""
        return restore.read_metadata(self._folder / str(step))

    def compile(self, state: step_lib.TrainState) -> None:
        """Compile the checksums, so that the first save starts at once."""
        checksums.compute(_parts(state), state.step.sharding)

    def save(
        self, step: int, state: step_lib.TrainState, metadata: metadata_lib.Metadata
    ) -> None:
        """Start to write a checkpoint, which appears when it is complete.

        The state may be donated or changed as soon as this returns. `step` is the
        number of completed steps.

        Raises:
          UserError: The disk is full or read-only, or the store refuses access.
          Exception: The previous checkpoint failed for another reason.
        """
        self.wait()
        parts = _parts(state)
        parts["checksums"] = {"by_leaf": checksums.compute(parts, state.step.sharding)}
        with self._raise_write_errors_in_all(step):
            response = self._checkpointer.save_checkpointables_async(
                step, parts, custom_metadata=metadata.to_json()
            )
        self._pending = step, response

    def delete_from(self, step: int) -> None:
        """Delete the checkpoints of this step and of later ones."""
        with self._raise_write_errors_in_all(step):
            if processes.is_main():
                for path in restore.list_checkpoints(self._folder):
                    if int(path.name) >= step:
                        path.rmtree()
        self._checkpointer.reload()

    def wait(self) -> None:
        """Wait for the last checkpoint to be complete, or raise as `save` does."""
        if self._pending is not None:
            (step, response), self._pending = self._pending, None
            with self._raise_write_errors_in_all(step):
                response.result()

    @contextlib.contextmanager
    def _raise_write_errors_in_all(self, step: int) -> Iterator[None]:
        """Raise an error in all processes, as a `UserError` if it is about storage."""
        with processes.raise_in_all():
            try:
                yield
            except Exception as error:
                reason = io_errors.disk_message(error) or io_errors.refusal(error)
                if not reason:
                    raise
                raise UserError(
                    f"cannot write checkpoint {step} to {self._folder}: {reason}; "
                    f"{self.describe_newest()}; run the same command when the folder "
                    "can be written again"
                ) from error

    def close(self) -> None:
        """Wait for the last checkpoint, and stop the threads that write."""
        self.wait()
        self._checkpointer.close()


def save_parameters(
    folder: str | os.PathLike, params: Any, metadata: metadata_lib.Metadata
) -> None:
    """Write parameters, which are on one device, as a checkpoint of step 0.

    Runs can start from its parameters, but no run can be resumed from it.
    """
    parts = {"params": params}
    parts["checksums"] = {"by_leaf": checksums.compute_one_by_one(parts)}
    context = ocp.Context()
    # Memory may have room for little more than the parameters. They need no copy, since
    # nothing changes them; compression saves a twelfth of the disk and needs a copy.
    context.memory.deepcopy_host_arrays = False
    context.array.saving.use_compression = False
    with context:
        ocp.save_checkpointables(
            str(restore.absolute(folder) / "0"),
            parts,
            custom_metadata=metadata.to_json(),
        )


def _parts(state: step_lib.TrainState) -> dict[str, Any]:
    train = {name: getattr(state, name) for name in ("step", "opt_state", "skipped")}
    train["terms"] = {_stored(name): x for name, x in state.metric_sums.items()}
    return {"params": state.params, "train": train}


def _stored(metric: str) -> str:
    """Return the name of a metric in checkpoints."""
    return _STORED_METRICS.get(metric, metric)
