"""The state of a build, which its folder holds until the corpus is complete.

`unfinished/settings.json` says what is being built, `unfinished/split-N.json` has the
result of a split that is done, and `unfinished/lock` keeps other builds out. A build
that was interrupted continues from there, with the same runner or another.
"""

import concurrent.futures
import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence

from bert_jax import storage, terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import records, shard_writer, shards, sources, splits
from bert_jax.errors import UserError

FOLDER = "unfinished"
_READERS = 16  # threads that read results


@dataclasses.dataclass(frozen=True)
class Identity:
    """What determines the corpus. A build continues only if it is the same.

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
    """What all splits of a build have in common."""

    source: sources.Source
    settings: splits.Settings
    tokenizer: tokenizer_lib.Tokenizer
    output: str


@contextlib.contextmanager
def claimed(folder: storage.Path) -> Iterator[None]:
    """Claim a folder for a build, and keep other builds out.

    Raises:
      UserError: The folder holds something else or cannot be written, or another build
        is running on it.
    """
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
      folder: Folder of the corpus. It has to be claimed.
      identity: What is being built.
      count: Number of splits.

    Returns:
      Results of the splits that are done, by number. A split whose files are damaged is
      not among them; a warning reports it.

    Raises:
      UserError: The folder holds the state of another build, or a damaged one, or
        cannot be written.
    """
    path = _settings_path(folder)
    if path.exists():
        with _reading(path, f"delete {folder} and build the corpus again"):
            begun = records.from_json(Identity, path.read_text(encoding="utf-8"))
        check_same(folder, begun, identity)
    else:
        with storage.writing(path):
            storage.write_text(path, records.to_json(identity))
    names = (path.name for path in (folder / FOLDER).glob("split-*.json"))
    numbers = (re.fullmatch(r"split-(\d+)\.json", name) for name in names)
    indices = sorted(i for n in numbers if n and (i := int(n[1])) < count)
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        results = pool.map(lambda index: _kept_result(folder, index), indices)
        kept = dict(zip(indices, results, strict=True))
    return {index: result for index, result in kept.items() if result}


def check_same(folder: storage.Path, begun: Identity, identity: Identity) -> None:
    """Check that a folder holds the corpus that is being built.

    The location of the input does not matter: it may have been moved or copied.

    Args:
      folder: Folder of the corpus.
      begun: What the folder holds.
      identity: What is being built.

    Raises:
      UserError: The two differ.
    """
    source = dataclasses.replace(begun.source, pattern=identity.source.pattern)
    begun = dataclasses.replace(begun, source=source)
    if begun != identity:
        fields = [field.name for field in dataclasses.fields(Identity)]
        names = [n for n in fields if getattr(begun, n) != getattr(identity, n)]
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
        storage.write_text(path, records.to_json(result))
    return result


def is_begun(job: Job) -> bool:
    """Whether this machine finds a build in the output folder."""
    return _settings_path(storage.path(job.output)).exists()


def is_kept(job: Job, index: int) -> bool:
    """Whether the result of a split is kept."""
    return _result_path(storage.path(job.output), index).exists()


def read_kept(
    output: str | os.PathLike, indices: Sequence[int]
) -> Iterator[tuple[int, splits.SplitResult]]:
    """Read the results of splits that are done.

    Args:
      output: Folder of the build.
      indices: Numbers of the splits.

    Yields:
      Number and result of each split, in the order of `indices`.

    Raises:
      UserError: A result is damaged.
      Unavailable: A store does not answer now.
    """
    folder = storage.path(output)

    def read(index):
        path = _result_path(folder, index)
        with _reading(path, "delete it, and the same command builds its split again"):
            return _read_result(path)

    # Threads, because a store is slow to answer.
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        yield from zip(indices, pool.map(read, indices), strict=True)


def _kept_result(folder: storage.Path, index: int) -> splits.SplitResult | None:
    """The result of a split; None if it or a shard is damaged and has to be rebuilt."""
    path = _result_path(folder, index)
    try:
        with _reading(path, ""):
            result = _read_result(path)
        for shard in (result.train, result.held_out):
            if shard.documents:  # empty ones go when the corpus is completed
                shards.check_file(folder, shard)
    except UserError as error:
        terminal.say(f"warning: {error}; building split {index} again")
        path.unlink()
        return None
    return result


def _read_result(path: storage.Path) -> splits.SplitResult:
    return records.from_json(splits.SplitResult, path.read_text(encoding="utf-8"))


@contextlib.contextmanager
def _reading(path: storage.Path, hint: str) -> Iterator[None]:
    """Turn a failure to read a record into an error of one line."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        line = f"{path} is damaged ({reason})" + (f"; {hint}" if hint else "")
        raise storage.failure(error)(line) from error


def _settings_path(folder: storage.Path) -> storage.Path:
    return folder / FOLDER / "settings.json"


def _result_path(folder: storage.Path, index: int) -> storage.Path:
    return folder / FOLDER / f"split-{index}.json"
