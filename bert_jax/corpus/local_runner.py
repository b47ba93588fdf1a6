"""Runner that builds splits with local processes."""

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.resource_tracker
import os
import pickle
import queue
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool

from bert_jax import storage
from bert_jax.corpus import build_state, sources, splits
from bert_jax.errors import UserError

_job: splits.Job | None = None  # in a worker process


def run(
    job: splits.Job, todo: Sequence[tuple[int, sources.InputSplit]], *, workers: int = 0
) -> Generator[tuple[int, splits.SplitResult], None, None]:
    """Build numbered splits in worker processes, or in this one if there is one worker.

    Yields:
      Number and result of each split, as soon as it is done.

    Raises:
      UserError: A worker was killed, or a split cannot be built.
    """
    workers = min(workers or len(os.sched_getaffinity(0)), len(todo))
    if workers <= 1:
        for index, split in todo:
            yield index, build_state.build_and_save(job, index, split)
        return
    # A terminal sends Ctrl-C to all processes; only the parent handles it. Starting the
    # tracker unblocks the signal, so it is started first.
    multiprocessing.resource_tracker.ensure_running()
    finished: queue.SimpleQueue[concurrent.futures.Future | None] = queue.SimpleQueue()
    futures, processes = {}, []
    with (
        _stored(job) as job_file,
        _recorded_signals(lambda: finished.put(None)) as received,
    ):
        pool = concurrent.futures.ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), _start_worker, (job_file,)
        )
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for index, split in todo:
                try:
                    future = pool.submit(_build, index, split)
                except Exception as error:
                    # A worker was killed. If the pool closes its queue while another
                    # worker starts, this may be an OSError or a ValueError.
                    if pool._broken:
                        raise BrokenProcessPool from error
                    raise
                futures[future] = index
                future.add_done_callback(finished.put)
            processes = list(pool._processes.values())
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            while futures:
                future = finished.get()
                if received:
                    raise KeyboardInterrupt
                yield futures.pop(future), future.result()
        except BrokenProcessPool as error:
            if received:  # sent to all processes
                raise KeyboardInterrupt from error
            raise UserError(
                "a worker process was killed (out of memory?); run the same command "
                "again to continue, with fewer --workers"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            # The pool would wait until all workers have finished their splits. Python
            # 3.14 has `kill_workers` for this.
            for process in processes:
                process.kill()
            pool.shutdown(cancel_futures=True)
    if received:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _stored(job: splits.Job) -> Iterator[str]:
    """Context with the path of a file that holds a job, for workers to read.

    If the job were an argument of the workers, its tokenizer would fill the pipe to a
    worker that starts. Python 3.11 waits forever if that worker is killed before it
    reads.
    """
    with tempfile.NamedTemporaryFile() as file:
        with storage.writing(file.name):
            pickle.dump(job, file)
            file.flush()
        yield file.name


@contextlib.contextmanager
def _recorded_signals(wake: Callable[[], None]) -> Iterator[list[int]]:
    """Collect signals that would raise KeyboardInterrupt, and call `wake` at each.

    An exception between two instructions of the pool can leave its locks and threads in
    disorder. Signals belong to the main thread; in any other, this has no effect.
    """
    received: list[int] = []

    def handle(number, _):
        received.append(number)
        wake()

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is signal.default_int_handler:
                before[number] = signal.signal(number, handle)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start_worker(job_file: str) -> None:
    global _job
    with open(job_file, "rb") as stream:
        _job = pickle.load(stream)
    # Each worker has one core; the tokenizer's threads would only compete for it.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is gone, even if the parent was killed."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _build(index: int, split: sources.InputSplit) -> splits.SplitResult:
    return build_state.build_and_save(_job, index, split)
