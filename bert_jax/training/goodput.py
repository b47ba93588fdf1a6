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
    not at all in the first start. Within a start, time is that of a clock that nobody
    sets.
    """

    def __init__(self):
        """Begin in "init"."""
        self._started = time.time()
        self._seconds = dict.fromkeys(BUCKETS, 0.0)
        self._bucket = "init"
        self._since = time.monotonic()

    def continue_from(self, entry: dict[str, Any], first_start: float) -> None:
        """Take over from the start before.

        Args:
          entry: `entry()` that was saved with the checkpoint; {} if there is none, and
            all that was done is lost.
          first_start: First start of the run, in seconds since 1970.
        """
        entry = entry or {"unix_time": first_start, "seconds": {}}
        for bucket in BUCKETS:
            self._seconds[bucket] += entry["seconds"].get(bucket, 0.0)
        self._seconds["lost"] += max(self._started - entry["unix_time"], 0.0)

    def entry(self) -> dict[str, Any]:
        """What is saved with a checkpoint, in JSON's types."""
        self._settle()
        return {"unix_time": time.time(), "seconds": dict(self._seconds)}

    @contextlib.contextmanager
    def counting(self, bucket: str) -> Iterator[None]:
        """Count the time inside for this bucket, and for no other."""
        outer = self._bucket
        self.switch(bucket)
        try:
            yield
        finally:
            self.switch(outer)

    def switch(self, bucket: str) -> None:
        """Count the time from now on for this bucket."""
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
        now = time.monotonic()
        self._seconds[self._bucket] += now - self._since
        self._since = now
