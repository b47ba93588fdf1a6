"""A session of training: one start of a run, up to its last checkpoint.

Pretraining and fine-tuning share it: read the inputs, claim the workdir, restore or
initialise the state, and train.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.training import (
    checkpoint,
    goodput,
    interrupts,
    loop,
    processes,
    reporting,
    sharding,
    watchdog,
    workdir,
)
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import step as step_lib
from bert_jax.training.run import Run


@contextlib.contextmanager
def prepare(config: config_lib.LoopConfig) -> Iterator[goodput.Ledger]:
    """Context in which a run reads its inputs: an error in one process ends all.

    Nothing inside may wait for other processes.

    Yields:
      The account of wall time, which starts here.

    Raises:
      UserError: In all processes, if one process raised it.
    """
    ledger = goodput.Ledger()
    if config.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", config.compilation_cache)
    with watchdog.watch(config.hang_seconds), processes.fail_together():
        yield ledger


class Session:
    """A run with its folder, which nobody else works in meanwhile.

    Attributes:
      folder: Workdir, absolute or a URL.
      heartbeat: Function to call whenever there is progress.
    """

    def __init__(
        self,
        run: Run,
        folder: storage.Path,
        checkpoints: checkpoint.Checkpoints,
        best: checkpoint.Checkpoints | None,
        ledger: goodput.Ledger,
        heartbeat: Callable[[], None],
    ):
        self.folder = folder
        self.heartbeat = heartbeat
        self._run = run
        self._checkpoints = checkpoints
        self._best = best
        self._ledger = ledger

    def train(
        self,
        begin: Callable[[step_lib.TrainState], step_lib.TrainState] = lambda s: s,
    ) -> step_lib.TrainState:
        """Train to the end, from the newest checkpoint if there is one.

        Args:
          begin: Function that changes the initial state. It is not called when a run
            resumes.

        Returns:
          The best state if it is kept, or else the state after the last step.

        Raises:
          Interrupted: On SIGTERM or SIGINT, after saving. Before the first step, the
            process exits instead (`interrupts.StopRequests`).
          UserError: A loss or gradient is not finite, a checkpoint cannot be read or
            written, or the run had checkpoints that are gone.
          Unavailable: A checkpoint may be readable later.
        """
        with interrupts.StopRequests() as stop_requests:
            run = self._run
            platform = run.mesh.devices.flat[0].platform
            for line in run.describe_kernels("cuda" if platform == "gpu" else platform):
                processes.say(line)
            shapes = run.state_shapes()
            state = self._checkpoints.restore(shapes, processes.say)
            if state is None:
                if processes.on_main(lambda: workdir.had_checkpoint(self.folder)):
                    error = UserError(
                        f"{self.folder} had checkpoints, and now there is none; put "
                        "them back, or give another --workdir to start from step 0"
                    )
                    error.everywhere = True
                    raise error
                processes.say("initialising the parameters")
                initial = sharding.initialise(
                    run.init, shapes, jax.random.key(run.seed)
                )
                state = begin(initial)
            step = int(state.step)
            if processes.is_main():
                if step:
                    workdir.note_checkpoint(self.folder)
                earlier = self._checkpoints.metadata(step).time if step else {}
                first_start = workdir.first_start(self.folder)
                self._ledger.continue_from(earlier, first_start)
            with (
                sharding.use(run.mesh),
                reporting.Reporter(
                    self.folder, run.total_steps, step, silent=not processes.is_main()
                ) as reporter,
            ):
                state = loop.train(
                    run,
                    state,
                    self._checkpoints,
                    self._best,
                    reporter,
                    self._ledger,
                    self.folder,
                    stop_requests,
                    self.heartbeat,
                )
            if self._best:
                # The result is the best state. The run itself resumes from its last.
                state = self._best.restore(shapes, processes.say) or state
                self._best.close()
            self._checkpoints.close()
            return state


@contextlib.contextmanager
def open_session(
    run: Run,
    folder: str,
    config: Any,
    metadata: metadata_lib.Metadata,
    ledger: goodput.Ledger,
) -> Iterator[Session]:
    """Claim a workdir for a run, and open its checkpoints.

    Args:
      run: Run to train.
      folder: Workdir, created if needed.
      config: Config of the run with all fields filled in; saved in the folder.
      metadata: Metadata of each checkpoint.
      ledger: Account from `prepare`.

    Raises:
      UserError: The folder cannot be written, is in use, or holds another run.
    """
    with (
        watchdog.watch(run.config.hang_seconds) as heartbeat,
        workdir.claim(folder, config, processes.say) as path,
    ):
        checkpoints = checkpoint.Checkpoints(
            path / "checkpoints", run.config.keep_checkpoints, metadata
        )
        best = None
        if run.best:
            best = checkpoint.Checkpoints(path / "best", 1, metadata)
        yield Session(run, path, checkpoints, best, ledger, heartbeat)
