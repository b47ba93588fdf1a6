"""Build a corpus: plan the splits, have a runner build them, and finish.

What is done is kept in the folder that is built (`corpus/unfinished.py`), so that a
build which was cut off continues there, with the same runner or another.
`corpus/local.py` is the runner with local processes, `corpus/beam.py` the one for a
cluster.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Generator, Sequence

from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import (
    local,
    records,
    shard_writer,
    shards,
    sources,
    splits,
    unfinished,
)
from bert_jax.errors import UserError

# What callers of `build` need beside it.
Settings = splits.Settings
is_held_out = splits.is_held_out

# From a job and numbered splits to their numbered results, in any order. A runner calls
# `unfinished.build_and_keep` for each, where input and output can be reached. It is
# closed when the build ends, complete or not.
Runner = Callable[
    [unfinished.Job, Sequence[tuple[int, sources.Split]]],
    Generator[tuple[int, splits.SplitResult], None, None],
]

# Is called with (splits done, splits in all, result) for each split.
OnSplit = Callable[[int, int, splits.SplitResult], None]


class _NothingToTrainOnError(UserError):
    """There is no document for training."""


def build(
    source: sources.Source,
    settings: Settings,
    tokenizer: tokenizer_lib.Tokenizer,
    output: str | os.PathLike,
    *,
    runner: Runner | None = None,
    workers: int = 0,
    on_split: OnSplit | None = None,
) -> shards.Corpus:
    """Build a corpus, or continue a build that was cut off.

    Args:
      source: What to read.
      settings: What to make of it.
      tokenizer: Tokenizer for the text; a copy goes into the corpus.
      output: Folder to write; new, empty, or holding the same build.
      runner: What builds the splits; None for processes of this machine.
      workers: Number of these processes; 0 for one on each core.
      on_split: Function to call with the number of splits that are done, the number of
        all splits, and the result of the one that was just built.

    Returns:
      The complete corpus.

    Raises:
      UserError: The input is not there, the folder holds something else or cannot be
        written, another build is running on it, or there is nothing to train on.
    """
    folder = storage.path(output)
    planned = sources.plan(source)
    identity = unfinished.Identity(
        source,
        settings.held_out,
        settings.language,
        tokenizer.fingerprint,
        sources.fingerprint(source, planned),
    )
    storage.check(folder)
    if _is_complete(folder, identity):
        return shards.open_corpus(folder)
    job = unfinished.Job(source, settings, tokenizer, os.fspath(output))
    runner = runner or functools.partial(local.run_locally, workers=workers)
    try:
        with unfinished.claimed(folder):
            # Another build may have ended between the question and the claim.
            if not _is_complete(folder, identity):
                results = _build_splits(job, identity, planned, runner, on_split)
                _finish(folder, tokenizer, identity, results)
    except _NothingToTrainOnError:
        # Nothing may stand in the way of the corrected command.
        storage.remove_folder(folder)
        raise
    # Not before: network file systems keep a folder with an open file, the lock.
    storage.remove_folder(folder / unfinished.FOLDER)
    return shards.open_corpus(folder)


def _build_splits(
    job: unfinished.Job,
    identity: unfinished.Identity,
    planned: list[sources.Split],
    runner: Runner,
    on_split: OnSplit | None,
) -> list[splits.SplitResult]:
    """Have all splits built that are not, and give the results of all, in order."""
    results = unfinished.begin(storage.path(job.output), identity, len(planned))
    todo = [(i, split) for i, split in enumerate(planned) if i not in results]
    with contextlib.closing(runner(job, todo)) as built:
        for index, result in built:
            results[index] = result
            if on_split:
                on_split(len(results), len(planned), result)
    return [results[i] for i in range(len(planned))]


def _is_complete(folder: storage.Path, identity: unfinished.Identity) -> bool:
    """Whether the corpus is there already.

    Raises:
      UserError: Another one is.
    """
    with storage.writing(folder):  # or a folder on the way cannot be entered
        if not (folder / shards.MANIFEST).exists():
            return False
    settings = shards.open_corpus(folder).settings
    try:
        complete = records.from_values(unfinished.Identity, settings)
    except ValueError as error:
        raise UserError(f"{folder / shards.MANIFEST}: settings: {error}") from error
    unfinished.check_same(folder, complete, identity)
    return True


def _finish(
    folder: storage.Path,
    tokenizer: tokenizer_lib.Tokenizer,
    identity: unfinished.Identity,
    results: list[splits.SplitResult],
) -> None:
    """Make the shards a corpus, if they hold anything to train on."""
    if not any(result.train.documents for result in results):
        lines = [line for result in results for line in result.problems]
        why = f" ({lines[0]})" if lines else ""
        raise _NothingToTrainOnError(f"no document for training in the input{why}")
    listed: dict[str, list[shards.Shard]] = {name: [] for name in shards.SPLITS}
    with storage.writing(folder, shard_writer.CONTINUES):
        for result in results:
            for name, shard in zip(
                shards.SPLITS, (result.train, result.held_out), strict=True
            ):
                if shard.documents:
                    listed[name].append(shard)
                else:
                    (folder / shard.file).unlink(missing_ok=True)
        problems = shards.Problems(
            sum(result.problem_count for result in results),
            [line for result in results for line in result.problems][:100],
        )
        tokenizer.save(folder / shards.TOKENIZER)
        for left in folder.glob("*.tmp"):  # of a process that was killed
            left.unlink()
        settings = dataclasses.asdict(identity)
        shards.write_manifest(folder, tokenizer, listed, settings, problems)
