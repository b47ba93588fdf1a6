"""A session of training: one start of a run, from the folder to the last checkpoint.

Pretraining and fine-tuning are the same session: prepare what says what the run is,
claim the folder, restore or begin, train, conclude.
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
    """Read inside what says what the run is: files that only one process may lack.

    Nothing inside may wait for other processes.

    Yields:
      The account of where the time goes, which begins here.

    Raises:
      UserError: In all processes, if any raised one.
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
        """Run to the end, from the newest checkpoint if there is one.

        Args:
          begin: Function from the initial state to the one to begin with. It is not
            called in a continuation.

        Returns:
          The state after the last step, which is saved; or, if the best state is kept,
          that one.

        Raises:
          Interrupted: On SIGTERM or SIGINT, after saving. Before the first step, the
            process ends instead (`interrupts.StopRequests`).
          UserError: A loss or gradient is not finite, a checkpoint cannot be read or
            written, or those that there were are gone.
          Unavailable: A checkpoint may be readable later.
        """
        with interrupts.StopRequests() as stop_requests:
            return self._train(begin, stop_requests)

    def _train(
        self,
        begin: Callable[[step_lib.TrainState], step_lib.TrainState],
        stop_requests: interrupts.StopRequests,
    ) -> step_lib.TrainState:
        run = self._run
        platform = run.mesh.devices.flat[0].platform
        for line in run.describe_kernels("cuda" if platform == "gpu" else platform):
            processes.say(line)
        shapes = run.state_shapes()
        state = self._checkpoints.restore(shapes, processes.say)
        if state is None:
            self._check_new()
            processes.say("initialising the parameters")
            initial = sharding.initialise(run.init, shapes, jax.random.key(run.seed))
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
            # What it was saved for; the run itself ends with its last step.
            state = self._best.restore(shapes, processes.say) or state
            self._best.close()
        self._checkpoints.close()
        return state

    def _check_new(self) -> None:
        if processes.on_main(lambda: workdir.had_checkpoint(self.folder)):
            error = UserError(
                f"{self.folder} had checkpoints, and now there is none; bring them "
                "back, or give another --workdir to start from step 0"
            )
            error.everywhere = True
            raise error


@contextlib.contextmanager
def open_session(
    run: Run,
    folder: str,
    config: Any,
    metadata: metadata_lib.Metadata,
    ledger: goodput.Ledger,
) -> Iterator[Session]:
    """Claim a folder for a run, or for the continuation of one.

    Args:
      run: What is trained.
      folder: Workdir, made if it is not there.
      config: Config of the run with nothing left open; saved in the folder.
      metadata: What each checkpoint says of itself.
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
