"""Saving of the state of a run, with checks and accounting."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.training import checkpoint, goodput, processes, programs, workdir
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import step as step_lib
from bert_jax.training.run_description import Phase, Run


@dataclasses.dataclass(frozen=True)
class Saver:
    """Writer of a run's checkpoints, into a workdir that the run has claimed."""

    run: Run
    folder: storage.Path  # workdir, absolute or a URL
    checkpoints: checkpoint.Checkpoints  # checkpoints to resume from
    # Checkpoint of the state that evaluates best; None: not saved.
    best_checkpoints: checkpoint.Checkpoints | None
    # Metadata of each checkpoint, except for `encoder` and `time`.
    metadata: metadata_lib.Metadata
    ledger: goodput.Ledger  # account of wall time, saved with each checkpoint
    # Function from `watchdog.watch`, to call whenever there is progress.
    heartbeat: Callable[[], None]

    @functools.cached_property
    def _is_finite(self) -> Callable[[Any], jax.Array]:
        return programs.make_finite_check(self.run.mesh)

    def compile(self, state: step_lib.TrainState) -> None:
        """Compile the programs of a save, so that the first one starts at once."""
        self._is_finite((state.params, state.opt_state))
        self.checkpoints.compile(state)
        self.heartbeat()

    def save(self, step: int, state: step_lib.TrainState, phase: Phase) -> None:
        """Start to write a checkpoint, after the previous one is complete.

        The first one is waited for. From then on the workdir says that it had one, and
        a start after a kill does not need the checkpoint that the run began with.

        Raises:
          UserError: The state is not finite, or the disk is full.
        """
        with self.ledger.counting("checkpoint"):
            self._check_is_finite(step, state)
            self.wait()
            self._begin(self.checkpoints, step, state, phase)
        if not processes.call_on_main(lambda: workdir.had_checkpoint(self.folder)):
            self.wait()

    def save_best(self, step: int, state: step_lib.TrainState, phase: Phase) -> None:
        """Write the state that evaluates best so far, and delete the previous one.

        A start that was killed may have left the state of this step or a later one.
        It goes first, because Orbax takes the highest step for the newest.

        Raises:
          UserError: The state is not finite, or the disk is full.
        """
        with self.ledger.counting("checkpoint"):
            self.heartbeat()
            self._check_is_finite(step, state)
            self.best_checkpoints.delete_from(step)
            self._begin(self.best_checkpoints, step, state, phase)
            self.best_checkpoints.wait()
            self.heartbeat()

    def _begin(
        self,
        checkpoints: checkpoint.Checkpoints,
        step: int,
        state: step_lib.TrainState,
        phase: Phase,
    ) -> None:
        """Begin to save a state, with the encoder of its phase and the time so far."""
        encoder, time = phase.objective.encoder, self.ledger.entry()
        metadata = dataclasses.replace(self.metadata, encoder=encoder, time=time)
        checkpoints.save(step, state, metadata)

    def _check_is_finite(self, step: int, state: step_lib.TrainState) -> None:
        # Gradients of skipped steps are dropped, but an update may still overflow.
        if not self._is_finite((state.params, state.opt_state)):
            raise self.error_with_last_checkpoint(
                f"step {step}: the parameters are not finite and were not saved"
            )

    def wait(self) -> None:
        """Wait for the last checkpoint to be complete."""
        with self.ledger.counting("checkpoint"):
            self.heartbeat()
            self.checkpoints.wait()
            if processes.is_main() and self.checkpoints.newest() is not None:
                workdir.note_checkpoint(self.folder)

    def error_with_last_checkpoint(self, what: str) -> UserError:
        """Build an error that all processes raise, with the newest checkpoint."""
        self.checkpoints.wait()
        newest = self.checkpoints.describe_newest()
        return UserError(f"{what}; {newest}", in_all_processes=True)
