"""What a build keeps in its folder until the corpus is complete.

`unfinished/settings.json` says which corpus it will be, `unfinished/split-N.json` has
the result of each split that is done, and `unfinished/lock` keeps other builds out. A
build that was cut off continues from there, with the same runner or another.
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
    """What decides which corpus a build makes; it continues only with the same.

    Attributes:
      source: What is read.
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
      UserError: The folder holds something else, another build is running on it, or it
        cannot be written.
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
    """Begin a build, or continue one.

    Args:
      folder: Folder of the corpus, claimed.
      identity: What the corpus will be.
      count: Number of splits.

    Returns:
      Numbers and results of the splits that are done. One whose files were damaged
      since is not among them, and a warning says so.

    Raises:
      UserError: Another corpus was begun there, or the folder cannot be written.
    """
    path = _settings_path(folder)
    if path.exists():
        with _reading(path, f"delete {folder} to build the corpus anew"):
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
    """Check that a folder holds what is to be built.

    Where the input lies does not matter: it may have been moved or copied.

    Raises:
      UserError: It holds something else.
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
    """`build_split`, and keep the result for `begin` and `read_kept` to find."""
    result = splits.build_split(
        index, split, job.source, job.settings, job.tokenizer, job.output
    )
    path = _result_path(storage.path(job.output), index)
    with storage.writing(path, shard_writer.CONTINUES):
        storage.write_text(path, records.to_json(result))
    return result


def is_begun(job: Job) -> bool:
    """Whether the output, as this machine sees it, is a build under way."""
    return _settings_path(storage.path(job.output)).exists()


def is_kept(job: Job, index: int) -> bool:
    """Whether `build_and_keep` is done with a split."""
    return _result_path(storage.path(job.output), index).exists()


def read_kept(
    output: str | os.PathLike, indices: Sequence[int]
) -> Iterator[tuple[int, splits.SplitResult]]:
    """Numbers and results of splits that are done, in the order of `indices`.

    Raises:
      UserError: A result is damaged.
    """
    folder = storage.path(output)

    def read(index):
        path = _result_path(folder, index)
        with _reading(path, "delete it, and the same command builds its split again"):
            return _read_result(path)

    # Threads, for a store takes its time to answer.
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        yield from zip(indices, pool.map(read, indices), strict=True)


def _kept_result(folder: storage.Path, index: int) -> splits.SplitResult | None:
    """Result of a split; if it or a shard is damaged, None, to build both again."""
    path = _result_path(folder, index)
    try:
        with _reading(path, ""):
            result = _read_result(path)
        for shard in (result.train, result.held_out):
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
    """Turn what keeps a record from being read into one line."""
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
