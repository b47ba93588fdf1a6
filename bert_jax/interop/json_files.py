"""JSON files of other projects."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.errors import UserError

GOOGLE_CONFIG = "bert_config.json"  # config of google-research/bert
ALBERT_CONFIG = "albert_config.json"  # config of google-research/albert


def read(path: pathlib.Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
      UserError: The file is missing, or does not hold a JSON object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} has no {path.name}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be used: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} does not hold a JSON object")
    return values


def read_or_empty(path: pathlib.Path) -> dict[str, Any]:
    """Return the object in a JSON file, or {} if the file is missing."""
    return read(path) if path.exists() else {}


class JsonFile(NamedTuple):
    """A JSON file and its values."""

    path: pathlib.Path
    values: Mapping[str, Any]

    def value(self, name: str, kind: type, default: Any = None) -> Any:
        """Return a value, and check its type. Without a default, it is required.

        Raises:
          UserError: The value is missing, or of another type.
        """
        given = self.values.get(name, default)
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if kind is float and is_number:
            return float(given)
        if type(given) is not kind:
            raise UserError(
                f"{self.path}: {name} must be of type {kind.__name__}, got {given!r}"
                if name in self.values
                else f"{self.path} has no {name}"
            )
        return given

    def choice(
        self, name: str, choices: Mapping[str, str], default: str | None = None
    ) -> str:
        """Return the entry of `choices` for a value, which must be one of its keys.

        Raises:
          UserError: The value is missing, or unknown.
        """
        given = self.value(name, str, default)
        if given not in choices:
            raise UserError(
                f"{self.path}: {name} is {given!r}; bert_jax supports "
                f"{', '.join(map(repr, choices))}"
            )
        return choices[given]

    def require(self, name: str, expected: Any, default: Any) -> None:
        """Check that a value is the only one that bert_jax supports."""
        if (given := self.values.get(name, default)) != expected:
            raise UserError(
                f"{self.path}: {name} is {given!r}; bert_jax supports {expected!r} only"
            )

    def check_constants(self, constants: Mapping[str, Any]) -> None:
        """Check that values that are present equal the constants."""
        for name, expected in constants.items():
            self.require(name, expected, default=expected)


def write(path: pathlib.Path, values: Any) -> None:
    """Write a value as indented JSON."""
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")
