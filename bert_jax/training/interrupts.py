"""Requests to stop: SIGTERM from a machine's owner, SIGINT from a keyboard.

Python runs its handlers of signals between two of its own instructions, and one of them
may be a compilation, which takes minutes for a large model. So a thread waits for
requests that come before the first step of a start, when nothing can be lost, and ends
the process at once. From the first step on, requests are for the loop, which saves.
"""

import os
import signal
import sys
import threading
from typing import Any

from bert_jax import terminal
from bert_jax.errors import EXIT_CONTINUE
from bert_jax.training import processes

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequests:
    """A context inside which SIGTERM and SIGINT are requests to stop.

    Until `wait_for_saves` is called, a request ends this process at once, with the exit
    status of a run to continue. Of many processes, those that got no signal lose one
    that they wait for: they fail as when a host dies, and whatever launched them starts
    all again. After the call, a request sets what `is_set` returns, and nothing else.

    More SIGTERMs change nothing: the machine's owner sends several, and the save is
    under way. A second SIGINT acts as it did before: somebody at a keyboard means it.

    In a notebook or at a prompt, there is more to lose than a run, and no request ends
    the process. Signals belong to the main thread; in any other, this has no effect.
    """

    def __init__(self):
        self._is_set = False
        self._watcher: _Watcher | None = None
        self._before: dict[int, Any] = {}

    def is_set(self) -> bool:
        """Whether this process was asked to stop."""
        return self._is_set

    def wait_for_saves(self) -> None:
        """Let the loop answer requests from now on: there is something to lose."""
        if self._watcher:
            self._watcher.end()
            self._watcher = None

    def __enter__(self) -> "StopRequests":
        if threading.current_thread() is threading.main_thread():
            if not hasattr(sys, "ps1"):  # the prompt
                self._watcher = _Watcher()
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, error, *_) -> None:
        self.wait_for_saves()
        # A process that ends because it was asked to needs no reminder on its way out:
        # it would change the exit status.
        leaving = error is not None and self._is_set
        for number, handler in self._before.items():
            ignored = leaving and number == signal.SIGTERM
            signal.signal(number, signal.SIG_IGN if ignored else handler)

    def _handle(self, number, _):
        if not self._is_set:
            self._is_set = True
            if not self._watcher:
                terminal.say("stopping: will save after the steps that are under way")
        if number == signal.SIGINT:
            signal.signal(number, self._before[number])


class _Watcher:
    """A thread that ends the process when there is a request.

    Whatever Python is doing, the system's handler writes the number of a signal into a
    pipe, which the thread reads. It has to get Python's lock: compilations release it.
    """

    def __init__(self):
        self._output, self._input = os.pipe()
        os.set_blocking(self._input, False)
        self._before = signal.set_wakeup_fd(self._input, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread once it has read what came before."""
        signal.set_wakeup_fd(self._before)
        os.write(self._input, b"\0")
        self._thread.join()
        os.close(self._input)
        os.close(self._output)

    def _watch(self) -> None:
        while number := os.read(self._output, 1)[0]:
            if number in _SIGNALS:
                _leave()


def _leave() -> None:
    try:
        terminal.say("stopped; the same command continues")
        sys.stdout.flush()
        processes.leave(EXIT_CONTINUE, KeyboardInterrupt())
    finally:
        os._exit(EXIT_CONTINUE)
