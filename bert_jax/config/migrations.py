"""Migrations of saved configs: fields of earlier versions in today's form.

The `config.json` of a workdir and the metadata of a checkpoint hold configs as the
version that wrote them had them. Whoever reads one passes it through `upgrade` first.
To rename or remove a field of a config, add an entry to `_MIGRATIONS`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class _Migration:
    """What became of a field.

    Attributes:
      path: Path of the field in the config of a run, such as "encoder.attention".
      replace: Function from the saved value to the fields that replace it in its group.
      lost: Function from the saved value to what a continuation would lack, for the
        message; "" if a run can go on without loss.
    """

    path: str
    replace: Callable[[Any], dict[str, Any]]
    lost: Callable[[Any], str] = lambda value: ""


def _last(rates: Any) -> Any:
    """Return the last of a list of masking rates, or a single rate as it is."""
    return rates[-1] if isinstance(rates, list) and rates else rates


_MIGRATIONS = (
    # "kernel" demanded the TPU kernel, which "auto" takes where it applies.
    _Migration(
        "encoder.attention",
        replace=lambda value: {"kernels": "off" if value == "plain" else "auto"},
    ),
    # Memory was used in pretraining only. The encoder has no parameters for it.
    _Migration(
        "objective.memory_length",
        replace=lambda length: {},
        lost=lambda length: "the memory of XLNet" if length else "",
    ),
    # Lists of rates are gone; each phase may have a rate of its own.
    _Migration(
        "objective.masking.rate",
        replace=lambda rate: {"rate": _last(rate)},
        lost=lambda rate: (
            "" if rate in (_last(rate), [_last(rate)]) else "a list of masking rates"
        ),
    ),
)


def upgrade(values: Any, *, to_continue: bool = False) -> Any:
    """Return a saved config with the fields of earlier versions replaced.

    Args:
      values: Config of a run, or some of its groups, as read from JSON. What is no such
        config is returned as it is, for the caller to refuse.
      to_continue: Whether the config is that of a run to be continued. A checkpoint
        that is queried or fine-tuned needs its encoder only, and what an earlier
        version did in pretraining does not matter.

    Raises:
      UserError: The run cannot be continued, because this version lacks something.
    """
    for migration in _MIGRATIONS:
        *groups, name = migration.path.split(".")
        values = _replaced(values, groups, name, migration, to_continue)
    return values


def _replaced(
    values: Any, groups: list[str], name: str, migration: _Migration, to_continue: bool
) -> Any:
    """Apply one migration to a group of fields, or to a group inside of it."""
    if not isinstance(values, dict):
        return values
    if groups:
        group, *inner = groups
        if group not in values:
            return values
        new = _replaced(values[group], inner, name, migration, to_continue)
        return values | {group: new}
    if name not in values:
        return values
    value = values[name]
    if to_continue and (lost := migration.lost(value)):
        raise UserError(
            f"{migration.path}={value!r}: {lost} was removed from bert_jax; continue "
            "with the version that began the run, or give a new --workdir and "
            "init_from=CHECKPOINT to begin with its parameters"
        )
    others = {key: kept for key, kept in values.items() if key != name}
    return others | migration.replace(value)
