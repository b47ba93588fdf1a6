"""JSON files of other projects."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError


def read(path: pathlib.Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
      UserError: The file is missing, or holds no JSON object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} has no {path.name}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be used: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no JSON object")
    return values


def read_if_there(path: pathlib.Path) -> dict[str, Any]:
    """Return the object in a JSON file, or {} if the file is missing."""
    return read(path) if path.exists() else {}


def value(path: pathlib.Path, values: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a required value of an object, and check its type.

    Raises:
      UserError: The value is missing, or of another type.
    """
    given = values.get(name)
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if kind is float and is_number:
        return float(given)
    if type(given) is not kind:
        raise UserError(
            f"{path}: {name} must be of type {kind.__name__}, got {given!r}"
            if name in values
            else f"{path} has no {name}"
        )
    return given


def choice(
    path: pathlib.Path, values: Mapping[str, Any], name: str, choices: Mapping[str, str]
) -> str:
    """Return what a required value of an object means, one of a few strings.

    Raises:
      UserError: The value is missing, or unknown.
    """
    given = value(path, values, name, str)
    if given not in choices:
        raise UserError(
            f"{path}: {name} is {given!r}; bert_jax supports "
            f"{', '.join(map(repr, choices))}"
        )
    return choices[given]


def check_constants(
    path: pathlib.Path, values: Mapping[str, Any], constants: Mapping[str, Any]
) -> None:
    """Check that an object has no other values than the given ones, if it has any.

    Raises:
      UserError: A value differs.
    """
    for name, value in constants.items():
        if values.get(name, value) != value:
            raise UserError(
                f"{path}: {name} is {values[name]!r}; bert_jax supports {value!r} only"
            )


def write(path: pathlib.Path, values: dict[str, Any]) -> None:
    """Write an object as indented JSON."""
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")
