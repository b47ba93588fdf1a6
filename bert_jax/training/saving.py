"""Saving the state of a run: what is checked, noted and counted around a checkpoint."""

from collections.abc import Callable

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.training import checkpoint, goodput, processes, programs, workdir
from bert_jax.training import step as step_lib
from bert_jax.training.run import Phase, Run


class Saver:
    """Saves states that are worth saving."""

    def __init__(
        self,
        run: Run,
        checkpoints: checkpoint.Checkpoints,
        best: checkpoint.Checkpoints | None,
        ledger: goodput.Ledger,
        folder: storage.Path,
        heartbeat: Callable[[], None],
    ):
        """Prepare the program that looks for numbers that are not finite.

        Args:
          run: What is trained.
          checkpoints: Where to save.
          best: Where to save what evaluates best; None: nowhere.
          ledger: Account of where the time goes; saved with each checkpoint.
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
        """Compile what a save needs, so that the first one starts at once."""
        self._is_finite((state.params, state.opt_state))
        self._checkpoints.compile(state)
        self._heartbeat()

    def save(self, step: int, state: step_lib.TrainState, phase: Phase) -> None:
        """Begin to write a checkpoint of a phase, after the one before is complete.

        Raises:
          UserError: The state is not finite, or the disk is full.
        """
        with self._ledger.counting("checkpoint"):
            # Skipped steps keep their gradients out; an update may still overflow.
            if not self._is_finite((state.params, state.opt_state)):
                raise self.refusal(
                    f"step {step}: the parameters are not finite, and not saved"
                )
            self._complete()
            self._checkpoints.save(
                step, state, phase.objective.encoder, self._ledger.entry()
            )

    def save_best(self, step: int, state: step_lib.TrainState, phase: Phase) -> None:
        """Write the state that evaluates best so far, in place of the one before.

        A run that was stopped between this and its next checkpoint comes here again,
        and finds it done.

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
        """Return when the last checkpoint is complete."""
        with self._ledger.counting("checkpoint"):
            self._complete()

    def _complete(self) -> None:
        self._heartbeat()
        self._checkpoints.wait()
        if processes.is_main() and self._checkpoints.newest() is not None:
            workdir.note_checkpoint(self._folder)

    def refusal(self, what: str) -> UserError:
        """An error that all processes raise in the same call; it says what is safe."""
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
