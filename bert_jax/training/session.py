"""A session of training: one start of a run, in its workdir.

Pretraining and fine-tuning share it: they read their inputs inside `reading_inputs`,
claim the workdir with `open_session`, and call `train`.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.tokenizer import Tokenizer
from bert_jax.training import (
    checkpoint,
    goodput,
    interrupts,
    loop,
    metrics_file,
    processes,
    reporting,
    restore,
    saving,
    sharding,
    watchdog,
    workdir,
)
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import step as step_lib
from bert_jax.training.run_description import Run


@contextlib.contextmanager
def reading_inputs(
    config: config_lib.PretrainConfig | config_lib.FinetuneConfig,
) -> Iterator[goodput.Ledger]:
    """Context in which a run reads its inputs: an error in one process ends all.

    Nothing inside may wait for other processes. Yields the account of wall time, which
    starts here.

    Raises:
      UserError: Processes have different configs, or one of them had an error.
    """
    ledger = goodput.Ledger()
    with watchdog.watch(config.loop.hang_seconds):
        with processes.raise_in_all():
            # Before the first compilation, when JAX opens its cache.
            if config.loop.compilation_cache:
                cache = os.fspath(storage.path(config.loop.compilation_cache))
                jax.config.update("jax_compilation_cache_dir", cache)
                compilation_cache.reset_cache()  # an earlier run may have another
        workdir.check_that_all_agree(config)
        with processes.raise_in_all():
            yield ledger


@contextlib.contextmanager
def open_session(
    run: Run,
    folder: str,
    tokenizer: Tokenizer,
    ledger: goodput.Ledger,
    task: dict[str, Any] | None = None,
) -> Iterator[saving.Saver]:
    """Claim a workdir for a run, and open its checkpoints.

    The folder is created if needed, and gets the config. Each checkpoint gets the
    tokenizer and the settings of the task (`tasks.Task`). The ledger comes from
    `reading_inputs`.

    Raises:
      UserError: The folder cannot be written, is in use, or holds another run.
    """
    config = run.config.loop
    if config.profile_step > run.total_steps:
        raise UserError(
            f"loop.profile_step={config.profile_step} is more than the "
            f"{run.total_steps} steps of the run"
        )
    saved, encoder = config_lib.to_dict(run.config), run.objective.encoder
    metadata = metadata_lib.Metadata(saved, encoder, tokenizer, task=task or {})
    with (
        watchdog.watch(config.hang_seconds) as heartbeat,
        workdir.claim(folder, run.config) as path,
    ):
        leaves = jax.tree.leaves(run.state_shapes)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        checkpoints = checkpoint.Checkpoints(
            path / "checkpoints", config.keep_checkpoints, size=size
        )
        best = None
        if run.best_metric:
            best = checkpoint.Checkpoints(path / "best", 1, size=size)
        yield saving.Saver(run, path, checkpoints, best, metadata, ledger, heartbeat)


def train(
    saver: saving.Saver,
    load_initial: Callable[[step_lib.TrainState], step_lib.TrainState] | None = None,
) -> step_lib.TrainState:
    """Train to the last step, from the newest checkpoint if there is one.

    `load_initial` changes the initial state; it is not called when a run resumes.
    The result is the best state if it is kept, or else the last. Both are saved.
    A request to stop that comes after the last step ends the process once both are
    saved, because the caller may go on, with predictions or another run.

    Raises:
      Interrupted: On SIGTERM or SIGINT, after saving. Before the first step of a phase,
        the process exits instead (`interrupts.StopRequests`).
      UserError: A loss or gradient is not finite, a checkpoint cannot be read or
        written, or the run had checkpoints that are gone.
      Unavailable: A checkpoint may be readable later.
    """
    run = saver.run
    with interrupts.StopRequests() as stop_requests:
        platform = run.mesh.devices.flat[0].platform
        for line in run.describe_kernels("cuda" if platform == "gpu" else platform):
            processes.say(line)
        shapes = run.state_shapes
        state = saver.checkpoints.restore(shapes)
        if state is None:
            if processes.call_on_main(lambda: workdir.had_checkpoint(saver.folder)):
                raise UserError(
                    f"the checkpoints in {saver.folder} are missing; restore them, or "
                    "give another --workdir to start from step 0",
                    in_all_processes=True,
                )
            processes.say("initialising the parameters")
            key = jax.random.key(run.config.seed)
            state = sharding.initialise(run.init, shapes, key)
            state = load_initial(state) if load_initial else state
        elif processes.call_on_main(lambda: _lacks_records(saver.folder)):
            raise UserError(
                f"{saver.folder / metrics_file.FILE} is missing, and with it the "
                f"scores of the checkpoint in {saver.folder / 'best'}; restore it, or "
                "give another --workdir",
                in_all_processes=True,
            )
        constants = run.read_constants(run.constant_shapes())
        step = int(state.step)
        if 0 < run.config.loop.profile_step <= step:
            processes.say(
                f"loop.profile_step={run.config.loop.profile_step}: this start makes "
                f"no profile, because it resumes after step {step}"
            )
        if processes.is_main():
            _resume_ledger(saver, step)
        reports = reporting.Reporter(saver.folder, run.total_steps, step)
        with sharding.use(run.mesh), reports as reporter:
            training = loop.Loop(saver, state, constants, reporter, stop_requests)
            state = training.train()
        if saver.best_checkpoints:
            # The result is the best state. The run itself resumes from its last, which
            # is saved. Devices may have too little memory for both.
            for leaf in jax.tree.leaves(state):
                leaf.delete()
            state = saver.best_checkpoints.restore(shapes)
            saver.best_checkpoints.close()
            if state is None:
                raise UserError(
                    f"the checkpoint in {saver.folder / 'best'} is missing; restore it "
                    "or give another --workdir",
                    in_all_processes=True,
                )
        saver.checkpoints.close()
        stop_requests.exit_on_request()
        return state


def _lacks_records(folder: storage.Path) -> bool:
    """Return whether there is a best checkpoint, and no records that rank it."""
    best = restore.list_checkpoints(restore.absolute(folder / "best"))
    return bool(best) and not (folder / metrics_file.FILE).exists()


def _resume_ledger(saver: saving.Saver, step: int) -> None:
    """Add the time of earlier starts to the account of a run that is at this step."""
    earlier = {}
    if step:
        workdir.note_checkpoint(saver.folder)
        earlier = saver.checkpoints.metadata(step).time
    is_done = step >= saver.run.total_steps
    begun = workdir.first_start(saver.folder)
    saver.ledger.add_earlier_starts(earlier, begun, is_done=is_done)
