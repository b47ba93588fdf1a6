"""Keeps Orbax from reporting at length what we report in one line.

Its threads and coroutines report an error apart from raising it, some of them after the
call that failed. What is changed here for the whole process, a filter of logs and the
hook for errors that nobody can catch, is changed only while a call is under way.
"""

import asyncio
import contextlib
import gc
import inspect
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator

from absl import logging as absl_logging

from bert_jax import storage

# Where threads log an error that the call raises, too.
_RAISED_FROM = ("future.py", "async_checkpointer.py", "checkpoint_manager.py")
# Threads that cannot read or write end at once, or when their request times out.
_END_SECONDS = 30


@contextlib.contextmanager
def of_reads() -> Iterator[None]:
    """Leave out what follows the error of a read.

    When one of many reads fails, the others are dropped. What they have to say comes
    when they are destroyed, by dozens: from asyncio's logger, as a warning, and through
    the hook for errors that nobody can catch. There are no coroutines of ours. Metadata
    that cannot be read are None, with a logged warning for each part.

    After an error, `end_of_reads` has to be called inside the context, when the
    exception is gone.
    """
    asyncio_logger = logging.getLogger("asyncio")
    level, hook = asyncio_logger.level, sys.unraisablehook

    def unraisable(problem):
        closed = str(problem.exc_value) == "Event loop is closed"
        if not closed and not inspect.iscoroutine(problem.object):
            hook(problem)

    with _filtered(_is_no_missing_metadata), warnings.catch_warnings():
        never_awaited = "coroutine .* was never awaited"
        warnings.filterwarnings("ignore", never_awaited, category=RuntimeWarning)
        asyncio_logger.setLevel(logging.CRITICAL)
        sys.unraisablehook = unraisable
        try:
            yield
        finally:
            asyncio_logger.setLevel(level)
            sys.unraisablehook = hook


def end_of_reads() -> None:
    """Wait for the reads that were dropped when another failed, and collect them.

    Threads still work on them, and report when they find the event loop closed. Until
    then they hold a future of that loop, of which nobody else knows.
    """
    deadline = time.monotonic() + _END_SECONDS
    gc.collect()
    while any(map(_is_left_behind, gc.get_objects())):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
        gc.collect()


def _is_left_behind(x: object) -> bool:
    # Not isinstance, which would make lazy objects load what they stand for.
    if not issubclass(type(x), asyncio.Future):
        return False
    return not x.done() and x.get_loop().is_closed()


@contextlib.contextmanager
def of_writes() -> Iterator[None]:
    """Leave out what threads log when the disk is full or cannot be written.

    If the call fails, its threads end before the context does.
    """
    before = set(threading.enumerate())
    with _filtered(_is_no_disk_error):
        try:
            yield
        except Exception:
            deadline = time.monotonic() + _END_SECONDS
            for thread in set(threading.enumerate()) - before:
                if not thread.daemon:
                    # Orbax's own `join` raises what ended the thread.
                    remaining = max(deadline - time.monotonic(), 0)
                    threading.Thread.join(thread, remaining)
            raise


@contextlib.contextmanager
def _filtered(is_news: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    logger = absl_logging.get_absl_logger()
    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)


def _is_no_missing_metadata(record: logging.LogRecord) -> bool:
    is_layout = os.path.basename(record.pathname) == "orbax_layout.py"
    return not (is_layout and str(record.msg).startswith("Failed to get metadata"))


def _is_no_disk_error(record: logging.LogRecord) -> bool:
    if not record.exc_info or os.path.basename(record.pathname) not in _RAISED_FROM:
        return True
    error = record.exc_info[1]
    return error is None or not storage.disk_error(error)
