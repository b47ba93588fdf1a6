"""Saved tokenizers: folders on disk, and the JSON text that checkpoints carry.

A saved tokenizer is its settings and the bytes of its model. What reads one is given
`make`, which makes a tokenizer of both and refuses what is damaged.
"""

import base64
import json
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

from bert_jax import storage
from bert_jax.errors import UserError

# Of two files, the first is one line: the model is both, one after the other.
MODEL_FILES = {
    "wordpiece": ("vocab.txt",),
    "sentencepiece": ("spm.model",),
    "byte_bpe": ("vocab.json", "merges.txt"),
}
# What every saved tokenizer has, and what only some have.
SETTINGS = ("kind", "lower_case", "strip_accents", "fingerprint")
OPTIONAL_SETTINGS = ("longest_word", "add_prefix_space")
_SETTINGS_FILE = "tokenizer.json"
_CONFIG_FILE = "tokenizer_config.json"  # of Hugging Face
_NAMES = (_SETTINGS_FILE, *(name for names in MODEL_FILES.values() for name in names))
_TEMPORARY = re.compile(rf"({'|'.join(map(re.escape, _NAMES))})\.[0-9a-f]+\.tmp")

Settings = dict[str, Any]
T = TypeVar("T")


def check_kind(kind: object) -> None:
    """Check that there is such a kind.

    Raises:
      UserError: There is none.
    """
    if kind not in tuple(MODEL_FILES):
        known = " or ".join(map(repr, MODEL_FILES))
        raise UserError(f"kind is {kind!r}, not {known}")


def to_text(settings: Settings, model: bytes) -> str:
    """One JSON text for both."""
    encoded = base64.b64encode(model).decode("ascii")
    return json.dumps(settings | {"model": encoded})


def from_text(text: str, make: Callable[[Settings, bytes], T]) -> T:
    """What `make` makes of such a text.

    Raises:
      UserError: The text is damaged.
    """
    try:
        values = _json_object(text)
        model = base64.b64decode(values.get("model"), validate=True)
        return make(values, model)
    except (ValueError, TypeError, UserError) as error:
        raise UserError(f"the saved tokenizer is damaged: {error}") from error


def write(folder: str | os.PathLike, settings: Settings, model: bytes) -> None:
    """Write a folder; create it if needed.

    The settings come first: a folder that has them, but not all of the model, is known
    to be left over from a save that was interrupted (`is_unfinished`).

    Raises:
      UserError: The folder cannot be written.
      Unavailable: A store does not answer now.
    """
    folder = storage.path(folder)
    text = json.dumps(settings, indent=2) + "\n"
    with storage.writing(folder):
        storage.make_folder(folder)
        storage.write_text(folder / _SETTINGS_FILE, text)
        names = MODEL_FILES[settings["kind"]]
        for name, content in zip(names, _contents(names, model), strict=True):
            storage.write_bytes(folder / name, content)
        for left in folder.glob("*.tmp"):  # by processes that were killed
            if _TEMPORARY.fullmatch(left.name):
                left.unlink()


def read(folder: str | os.PathLike, make: Callable[[Settings, bytes], T]) -> T:
    """What `make` makes of a folder.

    Raises:
      UserError: The folder holds no tokenizer, or a damaged one.
      Unavailable: A store does not answer now.
    """
    folder = storage.path(folder)
    storage.check(folder)
    hint = "run.train_tokenizer makes one"
    try:
        text = (folder / _SETTINGS_FILE).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(
            f"no tokenizer in {folder}: {_SETTINGS_FILE} is missing; {hint}"
        ) from error
    except (OSError, ValueError) as error:
        raise storage.failure(error)(
            f"the tokenizer in {folder} cannot be read: {error}; {hint}"
        ) from error
    try:
        settings = _json_object(text)
        kind = settings.get("kind")
        check_kind(kind)
        model = b"".join((folder / name).read_bytes() for name in MODEL_FILES[kind])
        return make(settings, model)
    except (OSError, ValueError, TypeError, UserError) as error:
        raise storage.failure(error)(
            f"the tokenizer in {folder} is damaged: {error}; {hint}"
        ) from error


def is_unfinished(folder: storage.Path) -> bool:
    """Whether a folder is empty, or holds only what an interrupted `save` left."""
    names = {path.name for path in folder.glob("*")}
    names -= {name for name in names if _TEMPORARY.fullmatch(name)}
    if _SETTINGS_FILE not in names:
        return not names
    try:
        text = (folder / _SETTINGS_FILE).read_text(encoding="utf-8")
        settings = _json_object(text)
        check_kind(settings.get("kind"))
    except (OSError, ValueError, UserError):
        return False
    # Other projects use the names of the files, too.
    is_ours = settings.keys() - set(OPTIONAL_SETTINGS) == set(SETTINGS)
    return is_ours and names < {_SETTINGS_FILE, *MODEL_FILES[settings["kind"]]}


def is_published_bpe(folder: storage.Path) -> bool:
    """Whether a folder has a `vocab.json` and a `merges.txt`, and no settings of ours.

    `tokenizer.json` may be there as Hugging Face's; that one has a "model".
    """
    if not all((folder / name).exists() for name in MODEL_FILES["byte_bpe"]):
        return False
    try:
        text = (folder / _SETTINGS_FILE).read_text(encoding="utf-8")
        return "model" in _json_object(text)
    except FileNotFoundError:
        return True
    except ValueError:
        return False  # damaged settings of ours, as it seems


def read_published_bpe(folder: storage.Path) -> tuple[bytes, bytes, bool]:
    """What such a folder has: `vocab.json`, `merges.txt`, and `add_prefix_space`.

    The setting is that of `tokenizer_config.json`, else RoBERTa's, which is false.

    Raises:
      UserError: A file is damaged.
      OSError: A file cannot be read.
    """
    vocabulary, merges = (
        (folder / name).read_bytes() for name in MODEL_FILES["byte_bpe"]
    )
    try:
        text = (folder / _CONFIG_FILE).read_text(encoding="utf-8")
        add_prefix_space = _json_object(text).get("add_prefix_space") or False
    except FileNotFoundError:
        add_prefix_space = False
    except ValueError as error:
        raise UserError(f"{_CONFIG_FILE} is damaged: {error}") from error
    return vocabulary, merges, add_prefix_space


def _contents(names: tuple[str, ...], model: bytes) -> tuple[bytes, ...]:
    if len(names) == 1:
        return (model,)
    first, end, second = model.partition(b"\n")
    return first + end, second


def _json_object(text: str) -> dict:
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    return values
