"""Throughput of training since the last report, and since the process started."""

import numpy as np

from bert_jax.objectives import metric_sums
from bert_jax.training import goodput, hardware
from bert_jax.training.run_description import Phase, Run

# Shorter remaining times are not announced.
_SHORT_MINUTES = 1.0
# Steps to measure before the remaining time is estimated.
_ENOUGH_STEPS = 10


class ThroughputMeter:
    """Measurement of the time and steps since the last report, with totals.

    The time comes from the run's account, without evaluations, saves and profiles.
    """

    def __init__(self, run: Run, ledger: goodput.Ledger):
        self._run, self._ledger = run, ledger
        devices = list(run.mesh.devices.flat)
        # 0 where the peak is not known.
        self._peak = len(devices) * hardware.peak_flops(devices[0].device_kind)
        self._process_of_device = np.array([d.process_index for d in devices])
        # Seconds, seconds of waiting for data, and FLOPs of all steps.
        self._totals = np.zeros(3)

    def begin_phase(self, phase: Phase) -> None:
        """Begin to count steps of a phase."""
        self._phase = phase
        self._step_flops = {n: self._run.flops(phase, n) for n in phase.lengths}
        self._has_described = False
        # Number and start of the steps after the first one, which is slow.
        self._later_steps, self._later_start = -1, 0.0
        self._restart()

    def _restart(self) -> None:
        self._start = self._seconds()
        self._steps = 0
        self._flops = 0.0
        self._host_seconds = np.zeros(len(self._process_of_device))

    def _seconds(self) -> np.ndarray:
        """Return the seconds of all steps so far, and those of waiting for data."""
        waited = self._ledger.seconds("data_wait")
        return np.array([self._ledger.seconds("step") + waited, waited])

    def count(self, length: int, host_seconds: np.ndarray) -> None:
        """Count a completed step, with the host seconds of each device's process."""
        self._steps += 1
        self._flops += self._step_flops[length]
        self._host_seconds += host_seconds
        self._later_steps += 1
        if not self._later_steps:
            self._later_start = self._seconds()[0]

    def describe_remaining_time(self, steps_left: int) -> str:
        """Describe the remaining time of a phase once it is known; else return ""."""
        if self._has_described or self._later_steps < _ENOUGH_STEPS:
            return ""
        self._has_described = True
        seconds = self._seconds()[0] - self._later_start
        minutes = steps_left * seconds / self._later_steps / 60
        if minutes < _SHORT_MINUTES:
            return ""
        rest = f"{minutes / 60:.1f} h" if minutes > 120 else f"{minutes:.0f} min"
        return (
            f"about {rest} for the remaining {steps_left:,} steps, without evaluations"
        )

    def close(self, sums: metric_sums.MetricSums) -> dict[str, float]:
        """Return the metrics of the window, and start the next one.

        `sums` may include steps of an earlier start.
        """
        values = {}
        seconds, waited = map(float, self._seconds() - self._start)
        sequences = self._steps * self._phase.batch_size
        finite_steps = float(sums["grad_norm"].count)
        if finite_steps:
            positions = float(sums["padding_fraction"].count) / finite_steps
            padding = metric_sums.ratio(sums["padding_fraction"])
            tokens = self._steps * positions * (1.0 - padding)
            values["tokens_per_sec"] = tokens / seconds
        values["sequences_per_sec"] = sequences / seconds
        measured = seconds, waited, self._flops
        self._totals += measured
        values |= self._shares(*measured)
        values |= self._host_spread()
        self._restart()
        return values

    def shares(self) -> dict[str, float]:
        """Return the shares of all steps of this start; {} if there were none."""
        return self._shares(*map(float, self._totals)) if self._totals[0] else {}

    def _shares(self, seconds: float, waited: float, flops: float) -> dict[str, float]:
        shares = {"data_wait_fraction": waited / seconds}
        if self._peak:
            shares["mfu"] = flops / seconds / self._peak
        return shares

    def _host_spread(self) -> dict[str, float]:
        """Return mean and maximum over processes of the host time per step.

        All processes take equally long for a step, because each waits for the slowest.
        The slowest process has the largest host time.
        """
        processes = np.unique(self._process_of_device)
        if len(processes) == 1:
            return {}
        per_step = self._host_seconds / self._steps
        means = [per_step[self._process_of_device == p].mean() for p in processes]
        return {
            "host_seconds_mean": float(np.mean(means)),
            "host_seconds_max": float(np.max(means)),
            "slowest_process": int(processes[np.argmax(means)]),
        }
