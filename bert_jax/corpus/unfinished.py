"""What a build keeps in its folder until the corpus is complete.

`unfinished/settings.json` says which corpus it will be, `unfinished/split-N.json` what
came of each split that is done. A build that was cut off continues from there, with the
same runner or another.
"""

import concurrent.futures
import dataclasses
import json
import os
from collections.abc import Iterator, Sequence

from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards, sources, splits

FOLDER = "unfinished"
_READERS = 16  # threads that read results


@dataclasses.dataclass(frozen=True)
class Job:
    """What all splits of a build have in common."""

    source: sources.Source
    settings: splits.Settings
    tokenizer: tokenizer_lib.Tokenizer
    output: str


def build_and_keep(job: Job, index: int, split: sources.Split) -> splits.SplitResult:
    """`build_split`, and keep the result for `build` to find."""
    result = splits.build_split(
        index, split, job.source, job.settings, job.tokenizer, job.output
    )
    text = json.dumps(dataclasses.asdict(result))
    storage.write_text(result_path(storage.path(job.output), index), text)
    return result


def is_begun(job: Job) -> bool:
    """Whether the output, as this machine sees it, is a build under way."""
    return settings_path(storage.path(job.output)).exists()


def is_kept(job: Job, index: int) -> bool:
    """Whether `build_and_keep` is done with a split."""
    return result_path(storage.path(job.output), index).exists()


def read_kept(
    output: str | os.PathLike, indices: Sequence[int]
) -> Iterator[tuple[int, splits.SplitResult]]:
    """Numbers and results of splits that are done, in the order of `indices`."""

    def read(index):
        values = json.loads(result_path(folder, index).read_text(encoding="utf-8"))
        for name in shards.SPLITS:
            values[name] = shards.Shard(**values[name])
        return splits.SplitResult(**values)

    folder = storage.path(output)
    # Threads, for a store takes its time to answer.
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        yield from zip(indices, pool.map(read, indices), strict=True)


def settings_path(folder: storage.Path) -> storage.Path:
    """File that says which corpus is being built."""
    return folder / FOLDER / "settings.json"


def result_path(folder: storage.Path, index: int) -> storage.Path:
    """File with the result of a split."""
    return folder / FOLDER / f"split-{index}.json"
