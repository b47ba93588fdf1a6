"""Requests to stop: SIGTERM from a machine's owner, SIGINT from a keyboard."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from bert_jax import terminal


@contextlib.contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set.

    More SIGTERMs change nothing: the machine's owner sends several, and the save is
    under way. A second SIGINT acts as it did before: somebody at a keyboard means it.
    """
    event = threading.Event()
    before: dict[int, Any] = {}
    leaving = False

    def handle(number, frame):
        del frame
        if not event.is_set():
            event.set()
            terminal.say("stopping: will save after the steps that are under way")
        if number == signal.SIGINT:
            signal.signal(number, before[number])

    # Handlers belong to the main thread; from elsewhere a run cannot be asked to stop.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, handle)
    try:
        yield event
    except BaseException:
        leaving = event.is_set()
        raise
    finally:
        for number, handler in before.items():
            # A process that ends because it was asked to needs no reminder on its way
            # out: it would change the exit status.
            ignored = leaving and number == signal.SIGTERM
            signal.signal(number, signal.SIG_IGN if ignored else handler)
