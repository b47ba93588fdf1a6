"""What Orbax reports beside its errors is left out, and nothing else."""

import asyncio
import gc
import logging
import sys
import threading
import warnings

import pytest
from absl import logging as absl_logging

from bert_jax.training import orbax_reports


async def fails():
    raise ValueError("leftover")


async def fails_when_dropped():
    try:
        await asyncio.sleep(0)
    except GeneratorExit:
        raise ValueError("leftover") from None


async def a_read_that_fails():
    task = asyncio.ensure_future(fails())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task.done()


class TooLate:
    def __del__(self):
        raise RuntimeError("Event loop is closed")


class Ours:
    def __del__(self):
        raise ValueError("ours")


@pytest.fixture
def reported(monkeypatch):
    """What goes through the three ways of Orbax's leftovers."""
    messages = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda problem: messages.append(str(problem.exc_value))
    )
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(str(record.exc_info[1]))
    logger = logging.getLogger("asyncio")
    monkeypatch.setattr(logger, "handlers", [handler])
    return messages


def leave_behind():
    asyncio.run(a_read_that_fails())
    fails()
    dropped = fails_when_dropped()
    dropped.send(None)
    del dropped
    TooLate()
    Ours()
    gc.collect()


def test_leftovers_of_reads_are_left_out_while_one_is_under_way(reported):
    never_awaited = "coroutine 'fails' was never awaited"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        gc.collect()  # what other tests left behind
        with orbax_reports.of_reads():
            leave_behind()
        assert reported == ["ours"]
        assert never_awaited not in [str(w.message) for w in warned]
        reported.clear()
        leave_behind()
    assert sorted(reported) == ["Event loop is closed", "leftover", "leftover", "ours"]
    assert never_awaited in [str(w.message) for w in warned]


class StillReads(threading.Thread):
    """A thread that holds a future of a loop, as those of a failed read do."""

    def __init__(self, loop, go):
        super().__init__()
        self._held = [loop.create_future()]
        self._go = go

    def run(self):
        self._go.wait()
        TooLate()
        self._held.clear()


def test_reads_that_were_dropped_report_before_the_context_ends(reported):
    loop, go = asyncio.new_event_loop(), threading.Event()
    with orbax_reports.of_reads():
        reader = StillReads(loop, go)
        reader.start()
        loop.close()
        threading.Timer(0.05, go.set).start()
        orbax_reports.end_of_reads()
    reader.join()
    assert reported == []


def is_logged(path, error):
    about = {"pathname": path, "exc_info": (type(error), error, None)}
    return bool(absl_logging.get_absl_logger().filter(logging.makeLogRecord(about)))


FULL = ValueError("OUT_OF_RANGE: Failed writing: No space left on device")
RAISED = "orbax/checkpoint/_src/futures/future.py"
NOT_RAISED = "orbax/checkpoint/_src/path/storage_backend.py"


def test_only_what_the_call_raises_too_is_not_logged():
    with orbax_reports.of_writes():
        assert not is_logged(RAISED, FULL)
        assert is_logged(NOT_RAISED, FULL)
        assert is_logged(RAISED, ValueError("a mistake in a program"))
    assert is_logged(RAISED, FULL)


class Writer(threading.Thread):
    """A thread as Orbax has them: `join` raises what ended it."""

    def __init__(self, go):
        super().__init__()
        self.logged = []
        self._go = go

    def run(self):
        self._go.wait()
        self.logged.append(is_logged(RAISED, FULL))

    def join(self, timeout=None):
        super().join(timeout)
        raise FULL


def test_threads_of_a_failed_write_end_first():
    go = threading.Event()
    with pytest.raises(OSError, match="disk"), orbax_reports.of_writes():
        writer = Writer(go)
        writer.start()
        threading.Timer(0.05, go.set).start()
        raise OSError("disk")
    assert not writer.is_alive()
    assert writer.logged == [False]
