"""State of a build, kept in its folder until the corpus is complete.

`unfinished/settings.json` describes the build, `unfinished/split-N.json` has the result
of a split that is done, and `unfinished/lock` keeps other builds out. A build
that was interrupted continues from there, with the same runner or another.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import unicodedata
from collections.abc import Iterator
from typing import Any

from bert_jax import io_errors, storage, terminal
from bert_jax.corpus import document_files, shards, sources, splits
from bert_jax.errors import UserError

FOLDER = "unfinished"


def identity(job: splits.Job, planned: list[sources.InputSplit]) -> dict[str, Any]:
    """Return source, settings, tokenizer and hash of the input, as JSON values.

    A build continues only if all of them are equal. The input may have moved.
    """
    return {
        "source": dataclasses.asdict(job.source),
        **dataclasses.asdict(job.settings),
        "tokenizer": job.tokenizer.fingerprint,
        "input": sources.fingerprint(job.source, planned),
    }


def versions() -> dict[str, str]:
    """Return the versions of everything that turns text into sentences and tokens."""
    libraries = ("sentencepiece", "sentencex", "tokenizers")
    found = {name: importlib.metadata.version(name) for name in libraries}
    found["Unicode"] = unicodedata.unidata_version
    return found | {"sentence splitter of bert_jax": splits.VERSION}


def check_versions(where: storage.Path | str, begun: dict[str, str]) -> None:
    """Raise a `UserError` if this process would tokenise differently."""
    here = versions()
    begun = dict.fromkeys(here, "unknown") | begun  # older builds lack some
    if names := [name for name in begun if begun[name] != here.get(name)]:
        expected = ", ".join(f"{name} {begun[name]}" for name in names)
        actual = ", ".join(f"{name} {here.get(name)}" for name in names)
        raise UserError(
            f"the build in {where} was begun with {expected}, but this process has "
            f"{actual}; use the same versions, or delete the folder to begin again"
        )


@contextlib.contextmanager
def claimed(folder: storage.Path) -> Iterator[None]:
    """Context that claims a folder for a build, and keeps other builds out."""
    with storage.writing(folder):
        storage.make_folder(folder)
        is_new = not settings_path(folder).exists()
        if is_new and not storage.is_empty(folder, besides=FOLDER):
            raise UserError(f"{folder} is not empty; give a new folder")
        storage.make_folder(folder / FOLDER)
    busy = f"another build is running on {folder}; wait for it or give another folder"
    with storage.locked(folder / FOLDER / "lock", busy):
        yield


def start_or_resume(
    folder: storage.Path, identity: dict[str, Any], count: int
) -> dict[int, splits.SplitResult]:
    """Begin a build, or continue it.

    Results of finished splits are returned by number. Splits with damaged files are
    built again, with a warning.
    """
    path = settings_path(folder)
    if path.exists():
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise io_errors.wrap_error(
                error, f"cannot read {path}: {error}; delete {folder} and build again"
            ) from error
        check_same(folder, settings, identity)
        check_versions(folder, settings.get("versions", {}))
    else:
        with storage.writing(path):
            storage.write_text(path, json.dumps(identity | {"versions": versions()}))
    names = {path.name for path in (folder / FOLDER).glob("split-*.json")}
    indices = [i for i in range(count) if result_path(folder, i).name in names]
    read = functools.partial(_checked_result, folder)
    results = zip(indices, storage.map_in_threads(read, indices), strict=True)
    return {index: result for index, result in results if result}


def check_same(
    folder: storage.Path, settings: dict[str, Any], identity: dict[str, Any]
) -> None:
    """Raise a `UserError` if a folder holds another corpus than the one being built.

    The location of the input does not matter: it may have been moved or copied.
    """
    pattern = settings["source"]["pattern"]
    expected = identity | {"source": identity["source"] | {"pattern": pattern}}
    if names := [n for n in expected if settings.get(n) != expected[n]]:
        raise UserError(
            f"{folder} holds another corpus (different {', '.join(names)}); "
            "give a new folder or delete it"
        )


def build_and_save(
    job: splits.Job, index: int, split: sources.InputSplit
) -> splits.SplitResult:
    """Build a split, and keep its result in the folder of the build."""
    result = splits.build_split(job, index, split)
    path = result_path(storage.path(job.output), index)
    with storage.writing(path, shards.RESUME_HINT):
        storage.write_text(path, json.dumps(dataclasses.asdict(result)))
    return result


def _checked_result(folder: storage.Path, index: int) -> splits.SplitResult | None:
    """Return the result of a split; None if it or a shard is damaged."""
    try:
        result = read_result(folder, index)
        for shard in (result.train, result.held_out):
            if shard.documents:  # empty shards go when the corpus is completed
                shards.check_file(folder, shard)
    except UserError as error:
        terminal.say(f"warning: {error}; building split {index} again")
        result_path(folder, index).unlink()
        return None
    return result


def read_result(folder: storage.Path, index: int) -> splits.SplitResult:
    """Read the result of a split that is done."""
    path = result_path(folder, index)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        train, held_out = (shards.Shard(**values[name]) for name in shards.SPLITS)
        problems = document_files.Problems(**values["problems"])
        return splits.SplitResult(train, held_out, problems)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise io_errors.wrap_error(error, f"cannot read {path}: {error}") from error


def settings_path(folder: storage.Path) -> storage.Path:
    """Return the path of the description of a build."""
    return folder / FOLDER / "settings.json"


def result_path(folder: storage.Path, index: int) -> storage.Path:
    """Return the path of the result of a split. It exists if the split is done."""
    return folder / FOLDER / f"split-{index}.json"
