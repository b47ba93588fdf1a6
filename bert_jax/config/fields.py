"""Declaration of the fields of configs, and functions that take any config.

A config is a tree of frozen dataclasses. This module knows none of them by name. It
converts configs to `ml_collections.ConfigDict`s for recipes and the command line, to
plain dicts for JSON, and back; it checks limits and compares configs.

A field may be a bool, an int, a float, a str, another dataclass, a tuple of one of
these, or a union of dataclasses. The dataclasses of a union have a field `kind`, which
tells their dicts apart.
"""

import dataclasses
import functools
import json
import math
import operator
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import ml_collections

from bert_jax.errors import UserError

T = TypeVar("T")

# Integers become int32 on devices, so a larger one is a mistake.
_INT_LIMIT = 2**31
_BOUNDS = {
    "at_least": operator.ge,
    "more_than": operator.gt,
    "at_most": operator.le,
    "less_than": operator.lt,
}


def field(
    default: Any,
    *,
    choices: tuple[str, ...] = (),
    free: bool = False,
    regularisation: bool = False,
    adaptable: bool = False,
    **bounds: float,
) -> Any:
    """Declare a field of a config.

    A field that is declared without this function has no limits, except that numbers
    are finite and integers fit 32 bits.

    The fields of a model's config have three roles. `free` fields say how the model is
    computed, and `regularisation` fields how it is initialised and regularised; all
    other fields are its architecture. A model that begins with the parameters of a
    checkpoint has the checkpoint's architecture (`architecture`).

    Args:
      default: Default value.
      choices: All values of a str.
      free: Whether the field may differ between a run and its continuation, because it
        affects only how results are computed or reported, or is a path to something
        that has a fingerprint.
      regularisation: Whether the field is about initial values or dropout.
      adaptable: Whether pretraining may change this field of a checkpoint's
        architecture, such as the number of rows of a table.
      **bounds: `at_least`, `more_than`, `at_most` and `less_than`.
    """
    assert bounds.keys() <= _BOUNDS.keys()
    metadata = {
        "choices": choices,
        "bounds": bounds,
        "free": free,
        "regularisation": regularisation,
        "adaptable": adaptable,
    }
    return dataclasses.field(default=default, metadata=metadata)


def leaves(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each field of a config, from `to_dict` or JSON."""
    if isinstance(values, dict):
        for name, value in values.items():
            yield from leaves(value, f"{path}.{name}".lstrip("."))
    elif isinstance(values, list) and any(isinstance(item, dict) for item in values):
        for i, item in enumerate(values):
            yield from leaves(item, f"{path}[{i}]")
    else:
        yield path, values


# ---- to and from ml_collections and JSON


def to_configdict(config: Any) -> ml_collections.ConfigDict:
    """Return a mutable, typed copy for recipes and the command line."""
    return dataclasses.asdict(
        config, dict_factory=lambda fields: ml_collections.ConfigDict(dict(fields))
    )


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a config to plain dicts, lists and scalars, as in `config.json`."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(cls: type[T], values: Any) -> T:
    """Rebuild a config from a recipe or the output of `to_dict`, and check it.

    A missing field gets its default, so configs that were saved before a field existed
    stay readable.

    Raises:
      UserError: A field is unknown, of the wrong type, or out of range.
    """
    config = _rebuild(cls, values, "")
    check(config)
    return config


def _rebuild(expected: Any, value: Any, where: str) -> Any:
    if isinstance(expected, types.UnionType):
        expected = _union_member(typing.get_args(expected), value, where)
    if dataclasses.is_dataclass(expected):
        return _rebuild_dataclass(expected, value, where)
    if typing.get_origin(expected) is tuple:
        if not isinstance(value, (list, tuple)):
            raise UserError(f"config field {where}={value!r}: expected a list")
        (item_type, _) = typing.get_args(expected)
        if item_type in (int, float) and any(isinstance(item, str) for item in value):
            given = ",".join(map(str, value))
            raise UserError(
                f"config field {where}={given!r}: expected numbers with commas between "
                "them, such as 3,1"
            )
        return tuple(
            _rebuild(item_type, item, f"{where}[{i}]") for i, item in enumerate(value)
        )
    if expected is float and (type(value) is int or isinstance(value, float)):
        return float(value)  # np.float64 is a float, too
    if type(value) is not expected:
        raise UserError(f"config field {where}={value!r}: expected {expected.__name__}")
    return value


def _rebuild_dataclass(cls: type, value: Any, where: str) -> Any:
    if isinstance(value, ml_collections.ConfigDict):
        value = value.to_dict()
    if not isinstance(value, dict):
        name = f"config field {where}=" if where else "config "
        raise UserError(f"{name}{value!r}: expected a group of fields")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    prefix = f"{where}." if where else ""
    if "kind" in fields and value.get("kind", cls.kind) != cls.kind:
        what = f"{where} is" if where else "this is a config for"
        raise UserError(f"{what} {value['kind']!r}, not {cls.kind!r}")
    for name in sorted(map(str, value.keys() - fields.keys())):
        known = ", ".join(sorted(fields))
        raise UserError(f"unknown config field {prefix}{name}; known here: {known}")
    return cls(**{n: _rebuild(fields[n].type, v, prefix + n) for n, v in value.items()})


def _union_member(classes: tuple[type, ...], value: Any, where: str) -> type:
    """Return the dataclass of a union that a dict belongs to."""
    by_kind = {cls.kind: cls for cls in classes}
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in by_kind:
        known = " or ".join(map(repr, by_kind))
        raise UserError(f"{where}.kind={kind!r} must be {known}")
    return by_kind[kind]


# ---- limits


def check(config: Any, where: str = "") -> None:
    """Check everything that can be checked without data and devices.

    The limits of each field come first. Then each dataclass that has a method
    `check(where)` is asked, with the path of its fields for messages, such as
    "encoder.".

    Raises:
      UserError: Names the field, its value, and a value that would work.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        _check_value(f"{where}{field.name}", value, field.metadata)
    if hasattr(config, "check"):
        config.check(where)


def _check_value(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    choices, bounds = limits.get("choices"), limits.get("bounds", {})
    if dataclasses.is_dataclass(value):
        check(value, f"{name}.")
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            _check_value(f"{name}[{i}]", item, limits)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name}={value} must be a finite number")
    elif type(value) is int and not -_INT_LIMIT <= value < _INT_LIMIT:
        raise UserError(
            f"{name}={value} must be from {-_INT_LIMIT} to {_INT_LIMIT - 1}"
        )
    elif choices and value not in choices:
        known = ", ".join(map(repr, choices))
        raise UserError(f"{name}={value!r} must be one of {known}")
    elif not all(_BOUNDS[bound](value, limit) for bound, limit in bounds.items()):
        wanted = (
            f"{bound.replace('_', ' ')} {limit}" for bound, limit in bounds.items()
        )
        raise UserError(f"{name}={value} must be {' and '.join(wanted)}")


def require(
    config: Any, where: str, requirements: Iterable[tuple[str, Any, str]]
) -> None:
    """Check fields that depend on each other.

    A requirement is the path of a field, its only possible value, and the path of the
    field that requires this value. `where` is the path of the config, for messages.

    Raises:
      UserError: A field has another value.
    """
    for path, wanted, reason in requirements:
        value, cause = (operator.attrgetter(p)(config) for p in (path, reason))
        if value != wanted:
            raise UserError(
                f"{where}{path}={value} does not go with {where}{reason}={cause}; set "
                f"{where}{path}={wanted!r}"
            )


# ---- a run and its continuation


def differences(old: Any, new: Any, *, free: bool) -> list[str]:
    """Return the fields that differ between two configs, as lines for a message.

    With `free`, these are the fields that may change between a run and its
    continuation; without, all other fields.
    """
    before, after = dict(_fields_by_path(old, "")), dict(_fields_by_path(new, ""))
    return [
        f"{name}: was {value!r}, is now {after[name][0]!r}"
        for name, (value, is_free) in before.items()
        if name in after and after[name][0] != value and is_free == free
    ]


def _fields_by_path(
    value: Any, path: str, is_free: bool = False
) -> Iterator[tuple[str, tuple[Any, bool]]]:
    """Yield the path of each field in a config, its value, and whether it is free."""
    if dataclasses.is_dataclass(value):
        prefix = f"{path}." if path else ""
        for field in dataclasses.fields(value):
            child = getattr(value, field.name)
            yield from _fields_by_path(
                child, prefix + field.name, field.metadata.get("free")
            )
    elif isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
        yield f"number of {path}", (len(value), False)
        for i, item in enumerate(value):
            yield from _fields_by_path(item, f"{path}[{i}]")
    else:
        yield path, (value, bool(is_free))


def architecture(config: Any) -> list[dataclasses.Field]:
    """Return the fields of a model's config that define its architecture."""
    return [
        field
        for field in dataclasses.fields(config)
        if not (field.metadata.get("free") or field.metadata.get("regularisation"))
    ]


def fill_in(config: T, path: str, value: Any, reason: str) -> T:
    """Return a config with a value in place of an open field.

    A field is open if its value counts as false: 0 or "". A path is, for example,
    "encoder.vocab_size". The message gives the reason why no other value is possible.

    Raises:
      UserError: The field has another value.
    """
    names = path.split(".")
    nodes = [functools.reduce(getattr, names[:i], config) for i in range(len(names))]
    given = getattr(nodes[-1], names[-1])
    if given and given != value:
        raise UserError(f"{path}={given}, but {reason}")
    for node, name in zip(reversed(nodes), reversed(names), strict=True):
        value = dataclasses.replace(node, **{name: value})
    return value
