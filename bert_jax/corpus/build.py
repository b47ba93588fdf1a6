"""Build a corpus: plan the splits, have a runner build them, and finish.

What is done is kept in the folder that is built (`corpus/unfinished.py`), so that a
build which was cut off continues there, with the same runner or another.
`corpus/local.py` is the runner with local processes, `corpus/beam.py` the one for a
cluster.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Generator, Sequence

from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import local, shards, sources, splits, unfinished
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


def build(
    source: sources.Source,
    settings: Settings,
    tokenizer: tokenizer_lib.Tokenizer,
    output: str | os.PathLike,
    *,
    runner: Runner | None = None,
    workers: int = 0,
    on_split: Callable[[int, int, splits.SplitResult], None] | None = None,
) -> shards.Corpus:
    """Build a corpus, or continue a build that was cut off.

    Args:
      source: what to read.
      settings: what to make of it.
      tokenizer: from text to ids; a copy goes into the corpus.
      output: folder to write; new, empty, or holding the same build.
      runner: has the splits built; None for `run_locally`.
      workers: local processes; 0 for one on each core.
      on_split: is called with (splits done, splits in all, result) for each split.

    Returns:
      The finished corpus.

    Raises:
      UserError: the input is not there, or the folder holds something else.
    """
    folder = storage.path(output)
    planned = sources.plan(source)
    identity = _identity(planned, source, settings, tokenizer)
    done = _continue(folder, identity)
    if done is not None:
        runner = runner or functools.partial(local.run_locally, workers=workers)
        job = unfinished.Job(source, settings, tokenizer, os.fspath(output))
        todo = [(i, split) for i, split in enumerate(planned) if i not in done]
        results = done
        with contextlib.closing(runner(job, todo)) as built:
            for index, result in built:
                results[index] = result
                if on_split:
                    on_split(len(results), len(planned), result)
        _finish(folder, tokenizer, identity, [results[i] for i in range(len(planned))])
    return shards.open_corpus(folder)


def _identity(
    planned: list[sources.Split],
    source: sources.Source,
    settings: Settings,
    tokenizer: tokenizer_lib.Tokenizer,
) -> dict:
    """All that decides what the corpus will be; what a continued build must match."""
    listing = json.dumps([[dataclasses.astuple(p) for p in split] for split in planned])
    return {
        "source": dataclasses.asdict(source),
        **dataclasses.asdict(settings),
        "tokenizer": tokenizer.fingerprint,
        "input": hashlib.sha256(listing.encode()).hexdigest()[:16],
    }


def _continue(
    folder: storage.Path, identity: dict
) -> dict[int, splits.SplitResult] | None:
    """Results of splits already built; None if the corpus is complete."""
    state = unfinished.settings_path(folder)
    storage.check(folder)
    try:
        storage.make_folder(folder)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    if (folder / shards.MANIFEST).exists():
        found = shards.open_corpus(folder).settings
    elif state.exists():
        found = json.loads(state.read_text(encoding="utf-8"))
    elif any(folder.glob("*")):
        raise UserError(f"{folder} is not empty and holds no corpus; give a new folder")
    else:
        found = None
    if found not in (None, identity):
        differing = [k for k in identity if found.get(k) != identity[k]]
        raise UserError(
            f"{folder} holds another corpus (different {', '.join(differing)}); "
            "give a new folder or delete it"
        )
    if (folder / shards.MANIFEST).exists():
        return None
    storage.make_folder(folder / unfinished.FOLDER)
    try:
        storage.write_text(state, json.dumps(identity))
    except OSError as error:
        raise _cannot_write(folder, error) from error
    names = [path.name for path in (folder / unfinished.FOLDER).glob("split-*.json")]
    done = [int(n.removeprefix("split-").removesuffix(".json")) for n in names]
    return dict(unfinished.read_kept(folder, done))


def _cannot_write(folder: storage.Path, error: OSError) -> UserError:
    return UserError(f"cannot write to {folder}: {error.strerror or error}")


def _finish(
    folder: storage.Path,
    tokenizer: tokenizer_lib.Tokenizer,
    identity: dict,
    results: list[splits.SplitResult],
) -> None:
    if not any(result.train.documents for result in results):
        lines = [line for result in results for line in result.problems]
        why = f" ({lines[0]})" if lines else ""
        # Leave nothing that would stand in the way of the corrected command.
        storage.remove_folder(folder)
        raise UserError(f"no document for training in the input{why}")
    found = {
        name: [shard for r in results if (shard := getattr(r, name)).documents]
        for name in shards.SPLITS
    }
    for result in results:
        for name in shards.SPLITS:
            if not getattr(result, name).documents:
                (folder / getattr(result, name).file).unlink(missing_ok=True)
    problems = {
        "count": sum(result.problem_count for result in results),
        "first": [line for result in results for line in result.problems][:100],
    }
    tokenizer.save(folder / shards.TOKENIZER)
    for left in folder.glob("*.tmp"):  # of a process that was killed
        left.unlink()
    shards.write_manifest(folder, tokenizer, found, identity, problems)
    storage.remove_folder(folder / unfinished.FOLDER)
