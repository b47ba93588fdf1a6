"""Watchdog that ends a process without progress.

A pod hangs when one of its hosts does: the others wait in a collective. `faulthandler`
prints the stacks of all threads and exits with status 1, so that the launcher restarts
the run. It works without the GIL, whatever the process is stuck in.
"""

import contextlib
import faulthandler
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def watch(seconds: int) -> Iterator[Callable[[], None]]:
    """Print all stacks and exit if a block makes no progress for too long.

    Args:
      seconds: Seconds without a heartbeat; 0: never exit. The longest silences of a
        healthy run are opening the data of a phase, compilation, and the wait for a
        save.

    Yields:
      The heartbeat: a function to call whenever there is progress.
    """

    def heartbeat():
        if seconds:
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)

    heartbeat()
    try:
        yield heartbeat
    finally:
        faulthandler.cancel_dump_traceback_later()
