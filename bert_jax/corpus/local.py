"""Build splits with processes of this machine.

The processes are ours and not those of a pool of the standard library: they end when
the one that started them ends, however it does, and when one of them is killed, the
build says so.
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

from bert_jax.corpus import sources, splits, unfinished
from bert_jax.errors import Interrupted, Unavailable, UserError


def run_locally(
    job: unfinished.Job, todo: Sequence[tuple[int, sources.Split]], *, workers: int = 0
) -> Generator[tuple[int, splits.SplitResult], None, None]:
    """Build splits, each in one of several processes; a single one needs no other.

    Args:
      job: What the splits have in common.
      todo: Splits to build, with their numbers.
      workers: Number of processes; 0 for one on each core.

    Yields:
      Number and result of each split, in the order in which they are done.

    Raises:
      UserError: A process was killed or cannot be started, or a split met a mistake of
        the user's.
      Interrupted: A process was asked to stop.
    """
    workers = min(workers or os.cpu_count() or 1, len(todo))
    if workers <= 1:
        for index, split in todo:
            yield index, unfinished.build_and_keep(job, index, split)
        return
    waiting = collections.deque(todo)
    with contextlib.ExitStack() as stack:
        # All of them start before the first is waited for.
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
    """A process that builds one split after another; a context that ends it."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        # A terminal sends Ctrl-C to all processes; the first one sees to the others.
        # The tracker would unblock the signal if it started with the process.
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
        """Send the job, or then a numbered split."""
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._death() from error

    def result(self) -> tuple[int, splits.SplitResult]:
        """Number and result of the split that was sent last."""
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
            return Interrupted("a worker process was asked to stop")
        if status < 0:
            name = signal.strsignal(-status)
            how = f"was killed by signal {-status} ({name}); memory may have run out"
        else:
            how = f"ended with status {status}"
        return UserError(
            f"a worker process {how}; the same command continues, and with fewer "
            "--workers it needs less memory"
        )


def _serve(connection: multiprocessing.connection.Connection) -> None:
    """What a worker does: build the splits that it is sent until there are no more."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # A process has one core; the tokenizer's own threads would only compete for it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with contextlib.suppress(EOFError, OSError):
        job = connection.recv()
        while True:
            index, split = connection.recv()
            connection.send(_answer(job, index, split))


def _answer(
    job: unfinished.Job, index: int, split: sources.Split
) -> tuple[int, splits.SplitResult] | Exception:
    try:
        return index, unfinished.build_and_keep(job, index, split)
    except (UserError, Unavailable) as error:
        return error
    except Exception:
        # As text: not every exception survives the way.
        return RuntimeError(f"split {index} failed:\n{traceback.format_exc()}")


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, killed perhaps."""
    multiprocessing.parent_process().join()
    os._exit(1)
