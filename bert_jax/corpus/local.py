"""Build splits with processes of this machine."""

import collections
import concurrent.futures
import multiprocessing
import os
from collections.abc import Iterator, Sequence

from bert_jax.corpus import sources, splits, unfinished


def run_locally(
    job: unfinished.Job, todo: Sequence[tuple[int, sources.Split]], *, workers: int = 0
) -> Iterator[tuple[int, splits.SplitResult]]:
    """Build splits with some processes, and a bounded number of splits under way.

    Args:
      job: what they have in common.
      todo: the splits and their numbers.
      workers: processes; 0 for one on each core.

    Yields:
      Number and result of each split, as they come.
    """
    workers = workers or os.cpu_count() or 1
    if min(workers, len(todo)) <= 1:
        for index, split in todo:
            yield index, unfinished.build_and_keep(job, index, split)
        return
    # Each process has one core; the tokenizer's own threads would only compete.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        queue = collections.deque(todo)
        running: dict[concurrent.futures.Future, int] = {}
        while queue or running:
            while queue and len(running) < 2 * workers:
                index, split = queue.popleft()
                running[pool.submit(unfinished.build_and_keep, job, index, split)] = (
                    index
                )
            ended, _ = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in ended:
                yield running.pop(future), future.result()
