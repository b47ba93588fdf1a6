"""State of a build, kept in its folder until the corpus is complete.

`unfinished/settings.json` describes the build, `unfinished/split-N.json` has the result
of a split that is done, and `unfinished/lock` keeps other builds out. A build
that was interrupted continues from there, with the same runner or another.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax import storage, terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shard_writer, shards, sources, splits
from bert_jax.errors import UserError

FOLDER = "unfinished"
_READERS = 16  # threads that read results, because a store is slow to answer


@dataclasses.dataclass(frozen=True)
class Identity:
    """Everything that determines the corpus. A build continues only if it is the same.

    Attributes:
      source: Source of the text.
      held_out: See `splits.Settings`.
      language: See `splits.Settings`.
      tokenizer: Fingerprint of the tokenizer.
      input: Fingerprint of the input (`sources.fingerprint`).
    """

    source: sources.Source
    held_out: float
    language: str
    tokenizer: str
    input: str


@dataclasses.dataclass(frozen=True)
class Job:
    """Arguments that all splits of a build have in common."""

    source: sources.Source
    settings: splits.Settings
    tokenizer: tokenizer_lib.Tokenizer
    output: str


@contextlib.contextmanager
def claimed(folder: storage.Path) -> Iterator[None]:
    """Claim a folder for a build, and keep other builds out."""
    with storage.writing(folder):
        storage.make_folder(folder)
        if not _settings_path(folder).exists():
            names = {path.name for path in folder.glob("*")}
            if shards.MANIFEST not in names and names - {FOLDER}:
                raise UserError(
                    f"{folder} is not empty and holds no corpus; give a new folder"
                )
        storage.make_folder(folder / FOLDER)
    busy = f"another build is running on {folder}; wait for it or give another folder"
    with storage.locked(folder / FOLDER / "lock", busy):
        yield


def begin(
    folder: storage.Path, identity: Identity, count: int
) -> dict[int, splits.SplitResult]:
    """Begin a build, or continue it.

    Args:
      folder: Folder of the corpus, claimed.
      identity: Identity of the build.
      count: Number of splits.

    Returns:
      Results of the splits that are done, by number. Splits with damaged files are left
      out, with a warning.
    """
    path = _settings_path(folder)
    if path.exists():
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise storage.failure(error)(
                f"cannot read {path}: {error}; delete {folder} and build again"
            ) from error
        check_same(folder, settings, identity)
    else:
        with storage.writing(path):
            storage.write_text(path, json.dumps(dataclasses.asdict(identity)))
    names = {path.name for path in (folder / FOLDER).glob("split-*.json")}
    indices = [i for i in range(count) if _result_path(folder, i).name in names]
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        results = pool.map(lambda index: _kept_result(folder, index), indices)
        kept = dict(zip(indices, results, strict=True))
    return {index: result for index, result in kept.items() if result}


def check_same(
    folder: storage.Path, settings: dict[str, Any], identity: Identity
) -> None:
    """Check that a folder holds the corpus that is being built.

    The location of the input does not matter: it may have been moved or copied.

    Args:
      folder: Folder of the corpus.
      settings: Settings found in the folder.
      identity: Identity of the build.

    Raises:
      UserError: The two differ.
    """
    expected = dataclasses.asdict(identity)
    expected["source"]["pattern"] = settings["source"]["pattern"]
    if names := [n for n in expected if settings.get(n) != expected[n]]:
        raise UserError(
            f"{folder} holds another corpus (different {', '.join(names)}); "
            "give a new folder or delete it"
        )


def build_and_keep(job: Job, index: int, split: sources.Split) -> splits.SplitResult:
    """Build a split, and keep its result in the folder of the build."""
    result = splits.build_split(
        index, split, job.source, job.settings, job.tokenizer, job.output
    )
    path = _result_path(storage.path(job.output), index)
    with storage.writing(path, shard_writer.CONTINUES):
        storage.write_text(path, json.dumps(dataclasses.asdict(result)))
    return result


def is_begun(job: Job) -> bool:
    """Return whether this machine finds a build in the output folder."""
    return _settings_path(storage.path(job.output)).exists()


def is_kept(job: Job, index: int) -> bool:
    """Return whether the result of a split is kept."""
    return _result_path(storage.path(job.output), index).exists()


def read_kept(
    job: Job, indices: Sequence[int]
) -> Iterator[tuple[int, splits.SplitResult]]:
    """Yield the numbers and results of splits that are done, in the given order."""
    folder = storage.path(job.output)
    paths = [_result_path(folder, index) for index in indices]
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        yield from zip(indices, pool.map(_read_result, paths), strict=True)


def _kept_result(folder: storage.Path, index: int) -> splits.SplitResult | None:
    """Return the result of a split; None if it or a shard is damaged."""
    path = _result_path(folder, index)
    try:
        result = _read_result(path)
        for shard in (result.train, result.held_out):
            if shard.documents:  # empty shards go when the corpus is completed
                shards.check_file(folder, shard)
    except UserError as error:
        terminal.say(f"warning: {error}; building split {index} again")
        path.unlink()
        return None
    return result


def _read_result(path: storage.Path) -> splits.SplitResult:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        for split in shards.SPLITS:
            values[split] = shards.Shard(**values[split])
        return splits.SplitResult(**values)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise storage.failure(error)(f"cannot read {path}: {error}") from error


def _settings_path(folder: storage.Path) -> storage.Path:
    return folder / FOLDER / "settings.json"


def _result_path(folder: storage.Path, index: int) -> storage.Path:
    return folder / FOLDER / f"split-{index}.json"
