"""Saving of the state of a run, with checks and accounting."""

from collections.abc import Callable

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.training import checkpoint, goodput, processes, programs, workdir
from bert_jax.training import step as step_lib
from bert_jax.training.run import Phase, Run


class Saver:
    """Writer of the checkpoints of a run."""

    def __init__(
        self,
        run: Run,
        checkpoints: checkpoint.Checkpoints,
        best: checkpoint.Checkpoints | None,
        ledger: goodput.Ledger,
        folder: storage.Path,
        heartbeat: Callable[[], None],
    ):
        """Prepare the program that checks that parameters are finite.

        Args:
          run: Run that is trained.
          checkpoints: Checkpoints to save to.
          best: Checkpoints for the state that evaluates best; None: not saved.
          ledger: Account of wall time, saved with each checkpoint.
          folder: Workdir.
          heartbeat: Function from `watchdog.watch`.
        """
        self._is_finite = programs.is_finite(run.mesh)
        self._checkpoints = checkpoints
        self._best = best
        self._ledger = ledger
        self._folder = folder
        self._heartbeat = heartbeat

    def compile(self, state: step_lib.TrainState) -> None:
        """Compile the programs of a save, so that the first one starts at once."""
        self._is_finite((state.params, state.opt_state))
        self._checkpoints.compile(state)
        self._heartbeat()

    def save(self, step: int, state: step_lib.TrainState, phase: Phase) -> None:
        """Start to write a checkpoint, after the previous one is complete.

        Raises:
          UserError: The state is not finite, or the disk is full.
        """
        with self._ledger.counting("checkpoint"):
            # Gradients of skipped steps are dropped, but an update may still overflow.
            if not self._is_finite((state.params, state.opt_state)):
                raise self.refusal(
                    f"step {step}: the parameters are not finite and were not saved"
                )
            self._complete()
            self._checkpoints.save(
                step, state, phase.objective.encoder, self._ledger.entry()
            )

    def save_best(self, step: int, state: step_lib.TrainState, phase: Phase) -> None:
        """Write the state that evaluates best so far, and delete the previous one.

        A run that was stopped between this save and its next checkpoint repeats the
        evaluation, but not the save.

        Raises:
          UserError: The disk is full.
        """
        newest = processes.on_main(self._best.newest)
        if newest is None or newest < step:
            with self._ledger.counting("checkpoint"):
                self._heartbeat()
                self._best.save(
                    step, state, phase.objective.encoder, self._ledger.entry()
                )
                self._best.wait()
                self._heartbeat()

    def wait(self) -> None:
        """Wait for the last checkpoint to be complete."""
        with self._ledger.counting("checkpoint"):
            self._complete()

    def _complete(self) -> None:
        self._heartbeat()
        self._checkpoints.wait()
        if processes.is_main() and self._checkpoints.newest() is not None:
            workdir.note_checkpoint(self._folder)

    def refusal(self, what: str) -> UserError:
        """Build an error that all processes raise, with the last good checkpoint."""
        self._checkpoints.wait()
        newest = self._checkpoints.newest()
        last = (
            "there is no checkpoint"
            if newest is None
            else f"the last good checkpoint is {newest}"
        )
        error = UserError(f"{what}; {last}")
        error.everywhere = True
        return error
