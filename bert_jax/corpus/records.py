"""Frozen dataclasses as JSON files.

Reading checks every field, so that a file that was damaged or edited is noticed when it
is read, and not where its values are used.
"""

import dataclasses
import json
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def to_json(record: Any, indent: int | None = None) -> str:
    """A record as JSON text."""
    return json.dumps(dataclasses.asdict(record), indent=indent)


def from_json(cls: type[T], text: str) -> T:
    """The inverse of `to_json`.

    Raises:
      ValueError: The text is not JSON, or its values are not those of the record.
    """
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}" if text else "empty file") from error
    return from_values(cls, values)


def from_values(cls: type[T], values: Any) -> T:
    """A record from the values of JSON: dicts, lists and scalars.

    Missing fields take their default, if they have one. Unknown fields are ignored.

    Raises:
      ValueError: A field is missing or has the wrong type, or a number is negative.
    """
    return _convert(cls, values, "")


def _convert(expected: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(expected):
        return _convert_record(expected, value, where)
    if isinstance(expected, types.UnionType):  # with None
        (expected,) = set(typing.get_args(expected)) - {types.NoneType}
        return None if value is None else _convert(expected, value, where)
    container = typing.get_origin(expected)
    if container in (list, tuple):
        if not isinstance(value, list):
            raise ValueError(f"{where} is not a list")
        item = typing.get_args(expected)[0]
        items = (_convert(item, v, f"{where}[{i}]") for i, v in enumerate(value))
        return container(items)
    if expected is float and type(value) is int:
        value = float(value)
    if type(value) is not expected:
        raise ValueError(f"{where} is {_shortened(value)}, not {expected.__name__}")
    if expected in (int, float) and not value >= 0:
        raise ValueError(f"{where} is {value}")
    return value


def _convert_record(cls: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where or 'the text'} is not a JSON object")
    prefix = f"{where}." if where else ""
    kinds = typing.get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        name = prefix + field.name
        if field.name in value:
            values[field.name] = _convert(kinds[field.name], value[field.name], name)
        elif field.default is dataclasses.MISSING:
            raise ValueError(f"{name} is missing")
    return cls(**values)


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
