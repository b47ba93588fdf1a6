"""Build splits with processes of this machine.

The pools of the standard library would not do: their processes outlive a parent that is
killed, and a second Ctrl-C leaves the parent waiting for them.
"""

import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import threading
import traceback
from collections.abc import Generator, Sequence
from typing import Any

from bert_jax.corpus import build_state, sources, splits
from bert_jax.errors import Interrupted, Unavailable, UserError


def run_locally(
    job: build_state.Job, todo: Sequence[tuple[int, sources.Split]], *, workers: int = 0
) -> Generator[tuple[int, splits.SplitResult], None, None]:
    """Build splits in worker processes; with one worker, in this process.

    Args:
      job: What all splits have in common.
      todo: Splits to build, with their numbers.
      workers: Number of processes; 0 for one per core.

    Yields:
      Number and result of each split, as they are done.

    Raises:
      UserError: A worker was killed or cannot be started, or a split cannot be built.
      Unavailable: A store does not answer now.
      Interrupted: A worker received SIGTERM.
    """
    workers = min(workers or os.cpu_count() or 1, len(todo))
    if workers <= 1:
        for index, split in todo:
            yield index, build_state.build_and_keep(job, index, split)
        return
    waiting = collections.deque(todo)
    with contextlib.ExitStack() as stack:
        # Start all workers before waiting for the first.
        started = [stack.enter_context(_Worker()) for _ in range(workers)]
        for worker in started:
            worker.send(job)
        busy = {}
        while waiting or busy:
            for worker in started:
                if waiting and worker.connection not in busy:
                    worker.send(waiting.popleft())
                    busy[worker.connection] = worker
            for connection in multiprocessing.connection.wait(list(busy)):
                yield busy.pop(connection).result()


class _Worker:
    """A process that builds one split after another, and ends with its context."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        # A terminal sends Ctrl-C to all processes; only this one reacts to it. (If the
        # tracker started with the first worker, it would unblock the signal.)
        multiprocessing.resource_tracker.ensure_running()
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        except OSError as error:
            raise UserError(
                f"cannot start a worker process: {error.strerror or error}; give fewer "
                "--workers"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
            theirs.close()

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()

    def send(self, message: Any) -> None:
        """Send the job, and after it one numbered split at a time."""
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._death() from error

    def result(self) -> tuple[int, splits.SplitResult]:
        """Receive the number and the result of the split that was sent last."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._death() from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _death(self) -> Exception:
        self._process.join()
        status = self._process.exitcode
        if status in (-signal.SIGTERM, -signal.SIGINT):
            return Interrupted("a worker process was stopped")
        if status < 0:
            name = signal.strsignal(-status)
            how = f"was killed by signal {-status} ({name}); memory may have run out"
        else:
            how = f"ended with status {status}"
        return UserError(
            f"a worker process {how}; the same command continues, and fewer --workers "
            "need less memory"
        )


def _serve(connection: multiprocessing.connection.Connection) -> None:
    """Build the splits that the parent sends, in a worker process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Each worker has one core; threads of the tokenizer would only compete for it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with contextlib.suppress(EOFError, OSError):
        job = connection.recv()
        while True:
            index, split = connection.recv()
            connection.send(_answer(job, index, split))


def _answer(
    job: build_state.Job, index: int, split: sources.Split
) -> tuple[int, splits.SplitResult] | Exception:
    try:
        return index, build_state.build_and_keep(job, index, split)
    except (UserError, Unavailable) as error:
        return error
    except Exception:
        # As text, because not every exception can be sent.
        return RuntimeError(f"split {index} failed:\n{traceback.format_exc()}")


def _end_with_parent() -> None:
    """End this process when its parent is gone, even if the parent was killed."""
    multiprocessing.parent_process().join()
    os._exit(1)
