"""Held-out evaluation: the terms of all batches of the split, added up."""

import collections
from collections.abc import Callable

import jax

from bert_jax.objectives import terms as terms_lib
from bert_jax.training import programs
from bert_jax.training import step as step_lib
from bert_jax.training.run import Batches, Run

# Batches that may be on their way to the devices while the next one is made.
_BATCHES_AHEAD = 2


class Evaluator:
    """Evaluates parameters, and stops in the middle if a process is asked to."""

    def __init__(
        self,
        run: Run,
        signals: Callable[[], jax.Array],
        heartbeat: Callable[[], None],
    ):
        """Prepare the program.

        Args:
          run: What is trained.
          signals: Function to what this process sends with each batch; see
            `programs.HostSignals`.
          heartbeat: Function from `watchdog.watch`.
        """
        self._step = programs.eval_step(run)
        self._compiled: dict[tuple[int, ...], jax.stages.Compiled] = {}
        self._zeros = programs.zero_terms(run.objective.metrics, run.mesh)
        self._signals = signals
        self._seed = programs.seed_array(run)
        self._heartbeat = heartbeat

    def compile(self, params, shapes: dict[str, jax.ShapeDtypeStruct]) -> None:
        """Compile the program for batches of one shape, if that is not done.

        Args:
          params: Parameters of the model.
          shapes: What a batch looks like, with shardings.
        """
        shape = shapes["input_ids"].shape
        if shape not in self._compiled:
            lowered = self._step.lower(
                params, shapes, 0, self._zeros(), self._signals(), self._seed
            )
            self._compiled[shape] = lowered.compile()
            self._heartbeat()

    def evaluate(
        self, params, batches: Batches, to_devices: Callable[..., step_lib.Batch]
    ) -> terms_lib.Terms | None:
        """Sums and counts over batches; None if a process was asked to stop.

        Args:
          params: Parameters of the model.
          batches: Rows of this process.
          to_devices: Function from these to a batch on the devices.
        """
        terms = self._zeros()
        waiting: collections.deque[jax.Array] = collections.deque()
        for index, batch in enumerate(batches):
            batch = to_devices(batch)
            # A run that ended before its last evaluation has compiled nothing.
            self.compile(params, batch)
            add_batch = self._compiled[batch["input_ids"].shape]
            terms, signals = add_batch(
                params, batch, index, terms, self._signals(), self._seed
            )
            waiting.append(signals)
            if len(waiting) > _BATCHES_AHEAD:
                signals = jax.device_get(waiting.popleft())
                self._heartbeat()
                if programs.stop_requested(signals):
                    return None
        return jax.device_get(terms)
