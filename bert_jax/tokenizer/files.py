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

MODEL_FILES = {"wordpiece": "vocab.txt", "sentencepiece": "spm.model"}
# What every saved tokenizer has, and what only some have.
SETTINGS = ("kind", "lower_case", "strip_accents", "fingerprint")
OPTIONAL_SETTINGS = ("longest_word",)
_SETTINGS_FILE = "tokenizer.json"
_TEMPORARY = re.compile(r"(tokenizer\.json|vocab\.txt|spm\.model)\.[0-9a-f]+\.tmp")

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

    The settings come first: a folder that has them, but no model, is known to be left
    over from a save that was interrupted (`is_unfinished`).

    Raises:
      UserError: The folder cannot be written.
      Unavailable: A store does not answer now.
    """
    folder = storage.path(folder)
    text = json.dumps(settings, indent=2) + "\n"
    with storage.writing(folder):
        storage.make_folder(folder)
        storage.write_text(folder / _SETTINGS_FILE, text)
        storage.write_bytes(folder / MODEL_FILES[settings["kind"]], model)
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
        model = (folder / MODEL_FILES[kind]).read_bytes()
        return make(settings, model)
    except (OSError, ValueError, TypeError, UserError) as error:
        raise storage.failure(error)(
            f"the tokenizer in {folder} is damaged: {error}; {hint}"
        ) from error


def is_unfinished(folder: storage.Path) -> bool:
    """Whether a folder is empty, or holds only what an interrupted `save` left."""
    names = {path.name for path in folder.glob("*")}
    names -= {name for name in names if _TEMPORARY.fullmatch(name)}
    if names != {_SETTINGS_FILE}:
        return not names
    try:
        text = (folder / _SETTINGS_FILE).read_text(encoding="utf-8")
        # Other projects use the file name, too.
        return _json_object(text).keys() - set(OPTIONAL_SETTINGS) == set(SETTINGS)
    except (OSError, ValueError):
        return False


def _json_object(text: str) -> dict:
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    return values
