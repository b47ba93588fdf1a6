"""The training loop of pretraining and fine-tuning, for one process and for many.

Logging, evaluation and saving follow a step, in this order. The report of a step is on
disk before the checkpoint to resume from begins. A restart drops reports of later
steps. So a run that is killed at any moment resumes with the same result.

Steps are dispatched ahead of their results. The report of a step is read a few steps
later (`_read_reports`), so that nothing waits for it. All processes do the same things
at the same step. What one process knows, such as a request to stop, reaches all with
the step itself (`programs.HostSignals`).
"""

import collections
import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from bert_jax.errors import Interrupted
from bert_jax.objectives import Batch, metric_sums
from bert_jax.training import (
    evaluation,
    interrupts,
    metrics_file,
    plateau,
    processes,
    programs,
    reporting,
    saving,
    sharding,
    throughput,
)
from bert_jax.training import step as step_lib
from bert_jax.training.run_description import Phase, PhaseData

# Steps that may be in flight while the next batch is made.
_STEPS_AHEAD = 2


class _InFlight(NamedTuple):
    """A step in flight; `sums` are the metrics to log, if any."""

    step: int
    length: int
    report: programs.StepReport
    sums: metric_sums.MetricSums | None


class Loop:
    """Mutable state of the training loop."""

    def __init__(
        self,
        saver: saving.Saver,
        state: step_lib.TrainState,
        constants: dict[str, Any],
        reporter: reporting.Reporter,
        stop_requests: interrupts.StopRequests,
    ):
        self._state = state
        self._constants = constants
        self._saver = saver
        self._reporter = reporter
        self._stop_requests = stop_requests
        self._run = saver.run
        self._config = saver.run.config.loop
        self._ledger = saver.ledger
        self._throughput = throughput.ThroughputMeter(saver.run, saver.ledger)
        self._is_profiling = False
        self._done = int(state.step)
        self._skipped = int(state.skipped)
        self._stopping = False
        self._in_flight: collections.deque[_InFlight] = collections.deque()
        self._seed = programs.seed_array(saver.run)
        names = (*saver.run.objective.metrics, "grad_norm")
        self._zero_sums = programs.make_zero_sums(names, saver.run.mesh)

    def train(self) -> step_lib.TrainState:
        """Train the remaining steps, and return the last state, which is saved.

        Raises:
          Interrupted: A process was asked to stop; the state is saved.
          UserError: A loss or gradient is not finite, or a save failed.
        """
        end = 0
        for phase in self._run.phases:
            begin, end = end, end + phase.steps
            self._train_phase(phase, begin, end)
        self._saver.wait()
        goodput = {"goodput": self._ledger.fractions()["goodput"]}
        shares = (goodput | self._throughput.shares()).items()
        parts = [f"{name} {share:.1%}" for name, share in shares]
        processes.say(f"{self._ledger.describe()}; {', '.join(parts)}")
        return self._state

    # ---- a phase

    def _train_phase(self, phase: Phase, begin: int, end: int) -> None:
        """Train the remaining steps of a phase, which ends when `end` are done."""
        self._phase, self._begin, self._end = phase, begin, end
        is_evaluation_missing = (
            begin < self._done <= end and self._is_evaluation_missing()
        )
        if self._done >= end and not is_evaluation_missing:
            return
        # The phase before is saved; opening and compiling this one takes minutes.
        self._saver.wait()
        self._stop_requests.exit_on_request()
        self._ledger.switch("init")
        self._throughput.begin_phase(phase)
        self._evaluator = evaluation.Evaluator(
            self._run, phase, self._signals, self._saver.heartbeat
        )
        self._open_data()
        if is_evaluation_missing:
            self._evaluate()
            self._stop_if_asked()
        if self._done < end:
            self._train_steps()

    def _train_steps(self) -> None:
        steps = self._compile()
        self._stop_requests.save_on_request()
        ready = time.perf_counter()
        for length, batch in self._batches():
            self._begin_profile()
            signals = self._signals(time.perf_counter() - ready)
            with jax.profiler.StepTraceAnnotation("train", step_num=self._done + 1):
                self._state, report = steps[length](
                    self._state, batch, signals, self._seed, self._constants
                )
            self._done += 1
            sums = self._sums_to_log()
            self._in_flight.append(_InFlight(self._done, length, report, sums))
            self._read_reports(_STEPS_AHEAD)

            evaluates = self._data.held_out and self._is_due(self._config.eval_every)
            saves = self._is_due(self._config.checkpoint_every)
            if evaluates or saves or self._stopping or self._ends_profile():
                self._read_reports(0)
                self._end_profile()
                if evaluates and not self._stopping:
                    self._evaluate()
                if saves or self._stopping:
                    self._save()
            self._stop_if_asked()
            ready = time.perf_counter()

    def _open_data(self) -> None:
        """Open the data of the phase, for the rows that this process makes.

        Raises:
          UserError: In all processes, if the data of one of them is damaged.
        """
        label = f"{self._phase.name}: opening data"
        self._reporter.advance(self._done, label)
        processes.say(label)
        self._data: PhaseData | None = None  # frees the memory of the previous phase
        rows = sharding.local_rows(self._run.mesh, self._phase.batch_size)
        with processes.raise_in_all():
            self._data = self._phase.open_data(rows)
        self._saver.heartbeat()

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        """Yield length and batch of each step of the phase, on the devices."""
        steps = self._end - self._begin
        batches = self._data.batches(self._done - self._begin, steps)
        while self._done < self._end:
            with self._ledger.counting("data_wait"):
                batch = next(batches)
            size = self._phase.batch_size
            on_devices = sharding.to_devices(self._run.mesh, batch, size)
            yield batch["input_ids"].shape[-1], on_devices

    def _compile(self) -> dict[int, Any]:
        """Compile the step for each length, and the programs of evaluations and saves.

        A preempted machine has half a minute to save. A request to stop after the first
        step would have to wait for a compilation that is under way. Only the program
        that scores a task is compiled in the first evaluation.
        """
        label = f"{self._phase.name}: compiling"
        self._reporter.advance(self._done, label)
        processes.say(label)
        steps = {}
        with self._ledger.counting("compile"):
            for length in self._phase.lengths + self._phase.held_out_lengths:
                shapes = self._run.batch_shapes(self._phase, length)
                if length in self._phase.lengths:
                    steps[length] = programs.lower_train_step(
                        self._run, self._phase, self._state, shapes
                    ).compile()
                    self._saver.heartbeat()
                if self._data.held_out:
                    self._evaluator.compile(self._all_params(), shapes)
            processes.wait_for_all()
            self._saver.compile(self._state)
            processes.wait_for_all()
        self._ledger.switch("step")
        return steps

    def _signals(self, host_seconds: float = 0.0) -> jax.Array:
        stop = float(self._stop_requests.is_set())
        return programs.HostSignals(stop, host_seconds).to_devices(self._run.mesh)

    # ---- reports

    def _sums_to_log(self) -> metric_sums.MetricSums | None:
        """Return the metrics since the last report if one is due, and reset them."""
        if self._done != 1 and not self._is_due(self._config.log_every):
            return None
        sums = self._state.metric_sums
        self._state = dataclasses.replace(self._state, metric_sums=self._zero_sums())
        return sums

    def _read_reports(self, limit: int) -> None:
        """Read reports of steps until only `limit` steps are in flight."""
        while len(self._in_flight) > limit:
            step, length, report, sums = self._in_flight.popleft()
            report = jax.device_get(report)
            self._saver.heartbeat()
            self._reporter.advance(step, self._phase.name)
            signals = programs.HostSignals(*report.signals.T)
            self._throughput.count(length, signals.host_seconds)
            self._stopping |= bool(signals.stop_requested.any())
            if report.skipped > self._skipped:
                self._skipped = int(report.skipped)
                self._handle_not_finite(step, report)
            if sums is not None:
                self._log(step, report, jax.device_get(sums))

    def _log(
        self, step: int, report: programs.StepReport, sums: metric_sums.MetricSums
    ) -> None:
        values = {}
        # If all steps were skipped, there are no losses and metrics.
        if sums["grad_norm"].count:
            values |= metric_sums.report(self._phase.objective.loss_weights, sums)
        if line := self._throughput.describe_remaining_time(self._end - step):
            processes.say(f"{self._phase.name}: {line}")
        values |= self._throughput.close(sums)
        values["learning_rate"] = float(report.learning_rate)
        values["skipped_steps"] = self._skipped
        values |= self._ledger.fractions()
        self._reporter.write(step, "train", values)

    def _handle_not_finite(self, step: int, report: programs.StepReport) -> None:
        """Report the batch, and continue if `max_skipped_steps` allows it."""
        rows = self._data.row_names(step - 1 - self._begin)
        what = reporting.write_not_finite(self._saver.folder, step, report, rows)
        limit = self._config.max_skipped_steps
        if self._skipped <= limit:
            processes.say(f"{what}; skipped ({self._skipped} of {limit} allowed)")
            return
        raise self._saver.error_with_last_checkpoint(
            f"{what}; loop.max_skipped_steps={limit} is exceeded; a lower learning "
            "rate or a longer warmup may help"
        )

    # ---- evaluate, save, stop

    def _is_due(self, every: int) -> bool:
        """Return whether the newest step ends the phase or is a multiple of `every`."""
        at_multiple = every > 0 and self._done % every == 0
        return self._done == self._end or at_multiple

    def _is_evaluation_missing(self) -> bool:
        """Return whether the newest checkpoint still has to be evaluated."""
        return self._is_due(self._config.eval_every) and not processes.call_on_main(
            lambda: self._done in self._reporter.records("eval")
        )

    def _all_params(self) -> dict[str, Any]:
        return {**self._state.params, **self._constants}

    def _evaluate(self) -> None:
        """Evaluate on held-out data, if any, and report; stop at a stop request."""
        if not self._data.held_out:
            return
        self._reporter.advance(self._done, f"{self._phase.name}: evaluating")
        with self._ledger.counting("evaluation"):
            try:
                values = self._evaluator.evaluate(self._all_params(), self._data)
            except evaluation.Stopped:
                self._stopping = True
                return
            # Before the report, without which a restart evaluates again.
            name = self._run.best_metric
            is_best = name and self._is_best(values[name])
            if is_best:
                self._saver.save_best(self._done, self._state, self._phase)
            self._reporter.write(self._done, "eval", values)
            earlier = self._reporter.records("eval")
        total = self._run.total_steps
        if line := plateau.describe(self._done, total, values, earlier):
            processes.say(line)
        if is_best:
            processes.say(f"best {name} so far: {values[name]:.4g}")

    def _is_best(self, value: float) -> bool:
        """Return whether this evaluation is better than all earlier ones."""
        name = self._run.best_metric
        sign = -1.0 if name.endswith("loss") else 1.0

        def quality(x: float) -> float:
            # An undefined correlation is worse than any other.
            return -math.inf if math.isnan(x) else sign * x

        def is_best() -> bool:
            # Rounded as in records, or an equal value might count as better.
            now = quality(metrics_file.rounded(value))
            records = self._reporter.records("eval").values()
            return all(now > quality(record[name]) for record in records)

        return processes.call_on_main(is_best)

    def _save(self) -> None:
        """Save the state, after all reports have reached an object store."""
        with self._ledger.counting("checkpoint"):
            self._reporter.flush()
            self._saver.save(self._done, self._state, self._phase)

    def _stop_if_asked(self) -> None:
        """Raise `Interrupted` if a stop was requested, unless the run is complete."""
        if not self._stopping:
            return
        self._saver.wait()
        total = self._run.total_steps
        if self._done < total or (
            self._data.held_out and self._is_evaluation_missing()
        ):
            raise Interrupted(f"saved at step {self._done} of {total}")

    # ---- profile

    def _begin_profile(self) -> None:
        if self._done + 1 != self._config.profile_step:
            return
        self._read_reports(0)
        folder = self._saver.folder / "profile"
        if jax.process_count() > 1:  # files are named after the host, not the process
            folder = folder / f"process_{jax.process_index()}"
        with self._ledger.counting("profile"):
            jax.profiler.start_trace(str(folder))
        self._is_profiling = True

    def _ends_profile(self) -> bool:
        first, count = self._config.profile_step, self._config.profile_steps
        is_last = self._done >= first + count - 1
        return self._is_profiling and (
            is_last or self._stopping or self._done == self._end
        )

    def _end_profile(self) -> None:
        if self._ends_profile():
            with self._ledger.counting("profile"):
                jax.profiler.stop_trace()
            self._is_profiling = False
            processes.say(f"profile in {self._saver.folder / 'profile'}")
