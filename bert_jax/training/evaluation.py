"""Held-out evaluation: sums of losses and metrics over all held-out batches."""

import collections
from collections.abc import Callable

import jax
import numpy as np

from bert_jax.objectives import BatchShapes, metric_sums
from bert_jax.training import processes, programs, sharding
from bert_jax.training.run_description import Batches, Phase, PhaseData, Run

# Batches that may be in flight while the next one is made.
_BATCHES_AHEAD = 2


class Stopped(Exception):
    """A process was asked to stop."""


class Evaluator:
    """Compiled evaluation of a phase. It stops early if a process was asked to stop."""

    def __init__(
        self,
        run: Run,
        phase: Phase,
        signals: Callable[[], jax.Array],
        heartbeat: Callable[[], None],
    ):
        """Prepare the evaluation step.

        `signals` returns the `programs.HostSignals` that this process sends with each
        batch, on the devices.
        """
        self._run, self._phase = run, phase
        self._loss_weights = phase.objective.loss_weights
        self._compiled: dict[tuple[int, ...], jax.stages.Compiled] = {}
        self._zeros = programs.make_zero_sums(phase.objective.metrics, run.mesh)
        self._signals = signals
        self._seed = programs.seed_array(run)
        self._heartbeat = heartbeat
        self._replicate = jax.jit(
            lambda signals: signals, out_shardings=sharding.replicated(run.mesh)
        )

    def compile(self, params, shapes: BatchShapes) -> None:
        """Compile the program for batches of one shape, once, in all processes."""
        shape = shapes["input_ids"].shape
        if shape not in self._compiled:
            lowered = programs.lower_eval_step(self._run, self._phase, params, shapes)
            self._compiled[shape] = lowered.compile()
            self._zeros()  # compiles at its first call
            self._heartbeat()
            processes.wait_for_all()

    def evaluate(self, params, data: PhaseData) -> dict[str, float]:
        """Return the metrics to report.

        For several `HeldOut`s, these are the weighted means, and the metrics of each
        with the prefix "NAME/".

        Raises:
          Stopped: In all processes, if one of them was asked to stop.
        """
        sums_by_set = [
            self._sum_metrics(params, part.batches()) for part in data.held_out
        ]
        mean_sums = sums_by_set[0]
        if len(sums_by_set) > 1:
            weights = [part.weight for part in data.held_out]
            # On the host, in float64.
            mean_sums = jax.tree.map(
                lambda *values: np.dot(weights, np.array(values, np.float64)),
                *sums_by_set,
            )
        values = {**metric_sums.report(self._loss_weights, mean_sums), **data.baselines}
        if len(sums_by_set) > 1:
            for part, sums in zip(data.held_out, sums_by_set, strict=True):
                own = metric_sums.report(self._loss_weights, sums) | part.baselines
                values |= {f"{part.name}/{name}": x for name, x in own.items()}
        if data.scores:
            values |= data.scores(
                params, lambda: self._raise_if_stopped(self._replicate(self._signals()))
            )
        return values

    def _raise_if_stopped(self, signals: jax.Array) -> None:
        """Report progress, or raise `Stopped` if a process was asked to stop."""
        self._heartbeat()
        if programs.HostSignals(*jax.device_get(signals).T).stop_requested.any():
            raise Stopped

    def _sum_metrics(self, params, batches: Batches) -> metric_sums.MetricSums:
        """Sum up metrics over batches."""
        sums = self._zeros()
        waiting: collections.deque[jax.Array] = collections.deque()
        for index, batch in enumerate(batches):
            batch = sharding.to_devices(self._run.mesh, batch, self._phase.batch_size)
            # Compiled already, unless this start begins with an evaluation.
            self.compile(params, batch)
            add_batch = self._compiled[batch["input_ids"].shape]
            sums, signals = add_batch(
                params, batch, np.int32(index), sums, self._signals(), self._seed
            )
            waiting.append(signals)
            if len(waiting) > _BATCHES_AHEAD:
                self._raise_if_stopped(waiting.popleft())
        return jax.device_get(sums)
