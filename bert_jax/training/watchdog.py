"""Ends a process in which nothing happens any more.

A pod hangs when one of its hosts does: the others wait in a collective that nobody
ends. Python's own watchdog thread prints the stacks of all threads, which say where,
and exits with status 1, so that whatever launched the run starts it again. It runs
without the interpreter's lock, and so works whatever the process is stuck in.
"""

import contextlib
import faulthandler
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def watch(seconds: int) -> Iterator[Callable[[], None]]:
    """Inside, exit with all stacks if `seconds` pass without a sign of life.

    Args:
      seconds: 0 for never. The longest silences of a healthy run are opening the data
        of a stage, compilation, and the wait for a save.

    Yields:
      A function that is the sign of life.
    """

    def feed():
        if seconds:
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)

    feed()
    try:
        yield feed
    finally:
        faulthandler.cancel_dump_traceback_later()
