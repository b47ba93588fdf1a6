"""Where the time of a run goes, over all its starts."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

# Every second of a run is in one of these. "step" is what is left of the loop when the
# others are taken out; "lost" is everything after the checkpoint that a start continues
# from: steps that are done again, and the time until the machine was back.
BUCKETS = (
    "init",
    "compile",
    "step",
    "data_wait",
    "evaluation",
    "checkpoint",
    "profile",
    "lost",
)


class Ledger:
    """Seconds by bucket. Goes with each checkpoint, so that a continuation adds to it.

    The time of imports, before there is a ledger, counts as lost in a continuation, and
    not at all in the first start.
    """

    def __init__(self, started: float):
        """Begin in "init".

        Args:
          started: seconds since 1970 of the beginning of this start.
        """
        self._started = started
        self._seconds = dict.fromkeys(BUCKETS, 0.0)
        self._bucket = "init"
        self._since = time.time()
        self._seconds["init"] = max(self._since - started, 0.0)

    def continue_from(self, entry: dict[str, Any] | None, first_start: float) -> None:
        """Take over from the start before.

        Args:
          entry: `entry()` that was saved with the checkpoint; None if there is none,
            and all that was done is lost.
          first_start: of the run, seconds since 1970.
        """
        entry = entry or {"unix_time": first_start, "seconds": {}}
        for bucket, seconds in entry["seconds"].items():
            self._seconds[bucket] += seconds
        self._seconds["lost"] += max(self._started - entry["unix_time"], 0.0)

    def entry(self) -> dict[str, Any]:
        """What is saved with a checkpoint."""
        self._settle()
        return {"unix_time": self._since, "seconds": dict(self._seconds)}

    @contextlib.contextmanager
    def counting(self, bucket: str) -> Iterator[None]:
        """Time inside goes to this bucket, and to no other."""
        outer = self._bucket
        self.switch(bucket)
        try:
            yield
        finally:
            self.switch(outer)

    def switch(self, bucket: str) -> None:
        """Time from now on goes to this bucket."""
        self._settle()
        self._bucket = bucket

    def fractions(self) -> dict[str, float]:
        """Shares of all time so far, for reports; `goodput` is the share of steps."""
        self._settle()
        total = max(sum(self._seconds.values()), 1e-9)
        shares = {name: seconds / total for name, seconds in self._seconds.items()}
        return {
            "goodput": shares["step"],
            **{f"time_fraction_{name}": share for name, share in shares.items()},
        }

    def describe(self) -> str:
        """One line for people."""
        self._settle()
        total = max(sum(self._seconds.values()), 1e-9)
        shares = sorted(self._seconds.items(), key=lambda item: -item[1])
        parts = [
            f"{name.replace('_', ' ')} {seconds / total:.1%}"
            for name, seconds in shares
            if seconds / total >= 0.001
        ]
        return f"{total:.0f} s in all: {', '.join(parts)}"

    def _settle(self) -> None:
        now = time.time()
        self._seconds[self._bucket] += now - self._since
        self._since = now
