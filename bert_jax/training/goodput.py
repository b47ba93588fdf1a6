"""Account of the wall time of a run, over all its starts."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

# Each second of a run counts in one bucket.
BUCKETS = (
    "init",
    "compile",
    "step",  # the loop without other buckets
    "data_wait",
    "evaluation",
    "checkpoint",
    "profile",
    # Time between a checkpoint and the start that resumes from it: steps to repeat, and
    # the wait for a machine.
    "lost",
)


class Ledger:
    """Seconds by bucket, saved with each checkpoint so that a resumed run adds to them.

    The time of imports, before there is a ledger, counts as lost when a run resumes,
    and not at all in the first start. Within one start, times come from a monotonic
    clock.
    """

    def __init__(self):
        """Start in the bucket "init"."""
        self._started = time.time()
        self._seconds = dict.fromkeys(BUCKETS, 0.0)
        self._bucket = "init"
        self._since = time.monotonic()

    def add_earlier_starts(
        self, entry: dict[str, Any], first_start: float, *, is_done: bool = False
    ) -> None:
        """Add the time of the previous starts.

        `entry` was saved with the checkpoint. Without a checkpoint it is {}, and all
        time since `first_start`, in seconds since 1970, is lost. No time is lost if the
        run has no steps left.
        """
        entry = entry or {"unix_time": first_start, "seconds": {}}
        for bucket in BUCKETS:
            self._seconds[bucket] += entry["seconds"].get(bucket, 0.0)
        if not is_done:
            self._seconds["lost"] += max(self._started - entry["unix_time"], 0.0)

    def entry(self) -> dict[str, Any]:
        """Return the account as JSON values, to be saved with a checkpoint."""
        self._settle()
        return {"unix_time": time.time(), "seconds": dict(self._seconds)}

    @contextlib.contextmanager
    def counting(self, bucket: str) -> Iterator[None]:
        """Count the time inside the context for this bucket only."""
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

    def seconds(self, bucket: str) -> float:
        """Return the time in a bucket so far."""
        self._settle()
        return self._seconds[bucket]

    def fractions(self) -> dict[str, float]:
        """Return the share of each bucket, and `goodput`, the share of steps."""
        shares = self._shares()
        fractions = {f"time_fraction_{name}": share for name, share in shares.items()}
        return {"goodput": shares["step"], **fractions}

    def describe(self) -> str:
        """Format the shares as one line."""
        shares = sorted(self._shares().items(), key=lambda item: -item[1])
        parts = [
            f"{name.replace('_', ' ')} {share:.1%}"
            for name, share in shares
            if share >= 0.001
        ]
        total = sum(self._seconds.values())
        return f"{total:.0f} s in all: {', '.join(parts)}"

    def _shares(self) -> dict[str, float]:
        self._settle()
        total = max(sum(self._seconds.values()), 1e-9)
        return {name: seconds / total for name, seconds in self._seconds.items()}

    def _settle(self) -> None:
        now = time.monotonic()
        self._seconds[self._bucket] += now - self._since
        self._since = now
