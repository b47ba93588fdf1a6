"""Build a corpus: plan its splits, let a runner build them, and complete it.

The state of the build is kept in its folder (`corpus/build_state.py`), so that a build
that was interrupted continues, with the same runner or another. `corpus/local.py` is
the runner that uses processes of this machine, `corpus/beam.py` the one for a cluster.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Generator, Sequence

from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import (
    build_state,
    local,
    records,
    shard_writer,
    shards,
    sources,
    splits,
)
from bert_jax.errors import UserError

# For callers of `build`.
Settings = splits.Settings

# A runner calls `build_state.build_and_keep` for each of the numbered splits, in any
# order and on any machine that reaches input and output. It yields the numbers and
# results, and is closed when the build ends, completed or not.
Runner = Callable[
    [build_state.Job, Sequence[tuple[int, sources.Split]]],
    Generator[tuple[int, splits.SplitResult], None, None],
]

# Called with the number of splits that are done, of all splits, and a new result.
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
    """Build a corpus, or continue a build that was interrupted.

    Args:
      source: Source of the text.
      settings: How to treat the text.
      tokenizer: Tokenizer for the text; the corpus gets a copy.
      output: Folder to write. It is new, empty, or holds the same build.
      runner: Runner for the splits; None for processes of this machine.
      workers: Number of these processes; 0 for one per core.
      on_split: Function to call after each split.

    Returns:
      The complete corpus.

    Raises:
      UserError: The input does not exist or has no document to train on, the folder
        holds something else or cannot be written, or another build is running on it.
      Unavailable: A store does not answer now.
    """
    folder = storage.path(output)
    planned = sources.plan(source)
    identity = build_state.Identity(
        source,
        settings.held_out,
        settings.language,
        tokenizer.fingerprint,
        sources.fingerprint(source, planned),
    )
    storage.check(folder)
    if _is_complete(folder, identity):
        return shards.open_corpus(folder)
    job = build_state.Job(source, settings, tokenizer, os.fspath(output))
    runner = runner or functools.partial(local.run_locally, workers=workers)
    try:
        with build_state.claimed(folder):
            # Another build may have completed it just before the claim.
            if not _is_complete(folder, identity):
                results = _build_splits(job, identity, planned, runner, on_split)
                _finish(folder, tokenizer, identity, results)
    except _NothingToTrainOnError:
        # Nothing is worth keeping, and the corrected command needs the folder.
        storage.remove_folder(folder)
        raise
    # The lock is closed by now: network file systems keep folders with open files.
    storage.remove_folder(folder / build_state.FOLDER)
    return shards.open_corpus(folder)


def _build_splits(
    job: build_state.Job,
    identity: build_state.Identity,
    planned: list[sources.Split],
    runner: Runner,
    on_split: OnSplit | None,
) -> list[splits.SplitResult]:
    """Build the splits that are not done, and return all results in order."""
    results = build_state.begin(storage.path(job.output), identity, len(planned))
    todo = [(i, split) for i, split in enumerate(planned) if i not in results]
    with contextlib.closing(runner(job, todo)) as built:
        for index, result in built:
            results[index] = result
            if on_split:
                on_split(len(results), len(planned), result)
    return [results[i] for i in range(len(planned))]


def _is_complete(folder: storage.Path, identity: build_state.Identity) -> bool:
    """Whether the folder holds the complete corpus.

    Raises:
      UserError: It holds another corpus, or a damaged one.
    """
    with storage.writing(folder):  # one of its parents may not be accessible
        if not (folder / shards.MANIFEST).exists():
            return False
    settings = shards.open_corpus(folder).settings
    try:
        complete = records.from_values(build_state.Identity, settings)
    except ValueError as error:
        raise UserError(
            f"{folder / shards.MANIFEST} is damaged (settings: {error}); give a new "
            "folder"
        ) from error
    build_state.check_same(folder, complete, identity)
    return True


def _finish(
    folder: storage.Path,
    tokenizer: tokenizer_lib.Tokenizer,
    identity: build_state.Identity,
    results: list[splits.SplitResult],
) -> None:
    """Complete the corpus from its shards."""
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
        for left in folder.glob("*.tmp"):  # by processes that were killed
            left.unlink()
        settings = dataclasses.asdict(identity)
        shards.write_manifest(folder, tokenizer, listed, settings, problems)
