"""Requests to stop: SIGTERM of a preempted machine, SIGINT from a keyboard.

Python runs signal handlers between two bytecode instructions, and one of them may be a
compilation of minutes. So before the first step of a phase, when there is nothing to
save, a thread waits for signals and exits at once. From that step on, the loop saves
and exits.
"""

import os
import signal
import sys
import threading
from typing import Any

from bert_jax import terminal
from bert_jax.errors import EXIT_RESUMABLE
from bert_jax.training import processes

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequests:
    """Context in which SIGTERM and SIGINT are requests to stop.

    At first, and after `exit_on_request`, a request ends this process at once, with the
    exit status of a run to resume. Processes without a signal fail as when a host dies,
    and the launcher restarts all. After `save_on_request`, a request only sets
    `is_set`.

    More SIGTERMs change nothing, since the save is in progress. A second SIGINT has its
    default effect.

    In a notebook or at a prompt, no request ends the process. Signals belong to the
    main thread; in any other thread, this context has no effect.
    """

    def __init__(self):
        self._is_set = False
        self._watcher: _Watcher | None = None
        self._before: dict[int, Any] = {}

    def is_set(self) -> bool:
        """Return whether this process was asked to stop."""
        return self._is_set

    def save_on_request(self) -> None:
        """Let the loop handle requests from now on: it saves and stops."""
        if self._watcher:
            self._watcher.end()
            self._watcher = None

    def exit_on_request(self) -> None:
        """End the process at a request from now on, or now if there was one.

        The caller must have saved everything.
        """
        is_main_thread = threading.current_thread() is threading.main_thread()
        has_prompt = hasattr(sys, "ps1")
        if self._watcher is None and is_main_thread and not has_prompt:
            self._watcher = _Watcher()
            if self._is_set:
                _exit()

    def __enter__(self) -> "StopRequests":
        self.exit_on_request()
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, error, *_) -> None:
        self.save_on_request()
        # Another SIGTERM during the exit would change the exit status. Only programs of
        # bert_jax end now, and have this handler (`run/exit_status.py`).
        ends = error is not None and self._is_set
        for number, handler in self._before.items():
            is_program = handler is signal.default_int_handler
            ignored = ends and number == signal.SIGTERM and is_program
            signal.signal(number, signal.SIG_IGN if ignored else handler)

    def _handle(self, number, _):
        if not self._is_set:
            self._is_set = True
            if not self._watcher:
                terminal.say("stopping: will save after the steps in flight")
        if number == signal.SIGINT:
            signal.signal(number, self._before[number])


class _Watcher:
    """Thread that ends the process when there is a request.

    The C-level signal handler writes the signal number into a pipe, which the thread
    reads. It needs the GIL, which compilations release.
    """

    def __init__(self):
        self._output, self._input = os.pipe()
        os.set_blocking(self._input, False)
        self._before = signal.set_wakeup_fd(self._input, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread after it has read earlier signals."""
        signal.set_wakeup_fd(self._before)
        os.write(self._input, b"\0")
        self._thread.join()
        os.close(self._input)
        os.close(self._output)

    def _watch(self) -> None:
        while number := os.read(self._output, 1)[0]:
            if number in _SIGNALS:
                _exit()


def _exit() -> None:
    try:
        terminal.say("stopped; the same command continues")
        sys.stdout.flush()
        processes.exit_process(EXIT_RESUMABLE, KeyboardInterrupt())
    finally:
        os._exit(EXIT_RESUMABLE)
