"""What a knob is: a field of a frozen dataclass with a default and its limits.

A config is a tree of such dataclasses. This module knows none of them by name. It turns
configs into `ml_collections.ConfigDict`s for recipes and the command line, into plain
dicts for JSON, and both back; it checks limits and compares two configs.

A field may be a bool, an int, a float, a str, another dataclass, a tuple of one of
these, or one of several dataclasses. Dataclasses that stand for one another have a
field `kind`, which says which of them a dict is.
"""

import dataclasses
import math
import types
import typing
from typing import Any, TypeVar

import ml_collections

from bert_jax.errors import UserError

T = TypeVar("T")

# Integers become int32 on devices; beyond that something is a slip of the finger.
_INT_LIMIT = 2**31


@dataclasses.dataclass(frozen=True)
class Limits:
    """Which values a knob takes; None: no such limit."""

    at_least: float | None
    more_than: float | None
    at_most: float | None
    less_than: float | None
    choices: tuple[str, ...]


def knob(
    default: Any,
    *,
    at_least: float | None = None,
    more_than: float | None = None,
    at_most: float | None = None,
    less_than: float | None = None,
    choices: tuple[str, ...] = (),
    free: bool = False,
    regularisation: bool = False,
    adaptable: bool = False,
) -> Any:
    """Declare a field of a config.

    A field with a plain default has no limits, except that numbers are finite and
    integers fit 32 bits.

    In the config of a model, a field says one of three things. `free` fields say how
    the model is computed; `regularisation` fields how it is initialised and
    regularised; all others say what its architecture is. A model that begins with the
    parameters of a checkpoint has the checkpoint's architecture (`architecture`).

    Args:
      default: Value of the field where nobody sets it.
      at_least: Smallest value.
      more_than: Bound that all values exceed.
      at_most: Largest value.
      less_than: Bound that no value reaches.
      choices: All values of a str.
      free: Whether the field may differ between a run and its continuation: it is about
        how the run is computed and watched, not about what it learns.
      regularisation: Whether the field is about initial values or dropout.
      adaptable: Whether parameters of a checkpoint can be adapted to another value of
        this field of the architecture, such as the rows of a table.
    """
    limits = Limits(at_least, more_than, at_most, less_than, choices)
    metadata = {
        "limits": limits,
        "free": free,
        "regularisation": regularisation,
        "adaptable": adaptable,
    }
    return dataclasses.field(default=default, metadata=metadata)


# ---- to and from ml_collections and JSON


def to_configdict(config: Any) -> ml_collections.ConfigDict:
    """A mutable, typed copy for recipes and the command line."""
    return ml_collections.ConfigDict(_convert(config, ml_collections.ConfigDict))


def from_configdict(cls: type[T], cfg: ml_collections.ConfigDict) -> T:
    """The frozen and checked form of a recipe.

    Raises:
      UserError: A field is unknown, missing, of the wrong type, or cannot work.
    """
    config = _rebuild(cls, cfg.to_dict(), "", complete=True)
    check(config)
    return config


def to_dict(config: Any) -> dict[str, Any]:
    """Plain dicts, lists and scalars; what `config.json` holds."""
    return _convert(config, dict)


def from_dict(cls: type[T], values: Any) -> T:
    """Rebuild a config from what `to_dict` made, and check it.

    A field that is missing has its default: what was saved before a field existed stays
    readable.

    Raises:
      UserError: A field is unknown, of the wrong type, or cannot work.
    """
    config = _rebuild(cls, values, "", complete=False)
    check(config)
    return config


def _convert(value: Any, mapping: type) -> Any:
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return mapping(
            {f.name: _convert(getattr(value, f.name), mapping) for f in fields}
        )
    if isinstance(value, tuple):
        items = [_convert(item, mapping) for item in value]
        return items if mapping is dict else tuple(items)
    return value


def _rebuild(expected: Any, value: Any, where: str, *, complete: bool) -> Any:
    if isinstance(expected, types.UnionType):
        expected = _member(typing.get_args(expected), value, where)
    if dataclasses.is_dataclass(expected):
        return _rebuild_dataclass(expected, value, where, complete=complete)
    if typing.get_origin(expected) is tuple:
        if not isinstance(value, (list, tuple)):
            raise UserError(f"config field {where}={value!r}: expected a list")
        (item_type, _) = typing.get_args(expected)
        return tuple(
            _rebuild(item_type, item, f"{where}[{i}]", complete=complete)
            for i, item in enumerate(value)
        )
    if expected is float and type(value) is int:
        return float(value)
    if type(value) is not expected:
        raise UserError(f"config field {where}={value!r}: expected {expected.__name__}")
    return value


def _rebuild_dataclass(cls: type, value: Any, where: str, *, complete: bool) -> Any:
    if isinstance(value, ml_collections.ConfigDict):
        value = value.to_dict()
    if not isinstance(value, dict):
        name = f"config field {where}=" if where else "config "
        raise UserError(f"{name}{value!r}: expected a group of fields")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    prefix = f"{where}." if where else ""
    if "kind" in fields and value.get("kind", kind_of(cls)) != kind_of(cls):
        what = f"{where} is" if where else "this is a config for"
        raise UserError(f"{what} {value['kind']!r}, not {kind_of(cls)!r}")
    for name in sorted(map(str, value.keys() - fields.keys())):
        known = ", ".join(sorted(fields))
        raise UserError(f"unknown config field {prefix}{name}; known here: {known}")
    for name in fields.keys() - value.keys() if complete else ():
        raise UserError(f"config field {prefix}{name} is missing")
    return cls(
        **{
            name: _rebuild(
                fields[name].type, value[name], prefix + name, complete=complete
            )
            for name in value
        }
    )


def kind_of(cls: type) -> str:
    """The `kind` of a dataclass that has one."""
    (field,) = (f for f in dataclasses.fields(cls) if f.name == "kind")
    return field.default


def _member(classes: tuple[type, ...], value: Any, where: str) -> type:
    """The dataclass of a union that a dict is of."""
    by_kind = {kind_of(cls): cls for cls in classes}
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in by_kind:
        known = " or ".join(map(repr, by_kind))
        raise UserError(f"{where}.kind={kind!r} must be {known}")
    return by_kind[kind]


# ---- limits


def check(config: Any, where: str = "") -> None:
    """Check all that can be checked without data and devices.

    First each field has its own limits; then each dataclass that has a method
    `check(where)` is asked, with the path of its fields for messages, such as
    "encoder.".

    Raises:
      UserError: Names the field, its value, and what would be right.
    """
    for field in dataclasses.fields(config):
        limits = field.metadata.get("limits")
        _check_value(f"{where}{field.name}", getattr(config, field.name), limits)
    if hasattr(config, "check"):
        config.check(where)


def _check_value(name: str, value: Any, limits: Limits | None) -> None:
    if dataclasses.is_dataclass(value):
        check(value, f"{name}.")
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            _check_value(f"{name}[{i}]", item, limits)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{name}={value} must be a finite number")
    elif type(value) is int and not -_INT_LIMIT <= value < _INT_LIMIT:
        raise UserError(f"{name}={value} must be less than {_INT_LIMIT}")
    elif limits:
        _check_limits(name, value, limits)


def _check_limits(name: str, value: Any, limits: Limits) -> None:
    if limits.choices and value not in limits.choices:
        known = ", ".join(map(repr, limits.choices))
        raise UserError(f"{name}={value!r} must be one of {known}")
    wanted = []
    is_inside = True
    for words, bound, holds in (
        ("at least", limits.at_least, lambda bound: value >= bound),
        ("more than", limits.more_than, lambda bound: value > bound),
        ("at most", limits.at_most, lambda bound: value <= bound),
        ("less than", limits.less_than, lambda bound: value < bound),
    ):
        if bound is not None:
            wanted.append(f"{words} {bound}")
            is_inside &= holds(bound)
    if not is_inside:
        raise UserError(f"{name}={value} must be {' and '.join(wanted)}")


# ---- a run and its continuation


def differences(old: Any, new: Any, *, free: bool, where: str = "") -> list[str]:
    """Fields that differ between two configs of one type, as lines for a message.

    Args:
      old: What the workdir holds.
      new: What is asked for now.
      free: Whether to list the fields that may change between a run and its
        continuation, or those that may not.
      where: Path of the two inside a larger config, for the lines.
    """
    if type(old) is not type(new) or (isinstance(old, tuple) and len(old) != len(new)):
        return [] if free else [f"{where}: was {old!r}, is now {new!r}"]
    if isinstance(old, tuple):
        pairs = [
            (a, b, f"{where}[{i}]", False)
            for i, (a, b) in enumerate(zip(old, new, strict=True))
        ]
    else:
        prefix = f"{where}." if where else ""
        pairs = [
            (
                getattr(old, f.name),
                getattr(new, f.name),
                prefix + f.name,
                f.metadata.get("free", False),
            )
            for f in dataclasses.fields(old)
        ]
    lines = []
    for a, b, name, is_free in pairs:
        if _holds_configs(a):
            lines += differences(a, b, free=free, where=name)
        elif a != b and is_free == free:
            lines.append(f"{name}: was {a!r}, is now {b!r}")
    return lines


def architecture(config: Any) -> list[dataclasses.Field]:
    """Return the fields of a model's config that say what its architecture is."""
    return [
        field
        for field in dataclasses.fields(config)
        if not (field.metadata.get("free") or field.metadata.get("regularisation"))
    ]


def _holds_configs(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(dataclasses.is_dataclass(item) for item in value)
    return dataclasses.is_dataclass(value)


def filled_in(config: T, path: str, value: Any, reason: str) -> T:
    """A config in which a field that was left open has the value at hand.

    A field is left open by a value that counts as false: 0 or "".

    Args:
      config: Config with the field.
      path: Path of the field, such as "encoder.vocab_size".
      value: Value at hand.
      reason: Why no other value is possible, for the message.

    Raises:
      UserError: The field has another value.
    """
    *parents, name = path.split(".")
    nodes = [config]
    for parent in parents:
        nodes.append(getattr(nodes[-1], parent))
    given = getattr(nodes[-1], name)
    if given and given != value:
        raise UserError(f"{path}={given}, but {reason}")
    new = dataclasses.replace(nodes.pop(), **{name: value})
    for node, field in zip(reversed(nodes), reversed(parents), strict=True):
        new = dataclasses.replace(node, **{field: new})
    return new
