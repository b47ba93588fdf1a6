"""Migrations of configs that earlier versions saved.

The `config.json` of a workdir and the metadata of a checkpoint hold configs in the form
of the version that wrote them. Their readers pass them through `upgrade` first. To
rename or remove a field, add an entry to `_MIGRATIONS`.
"""

import copy
from typing import Any

from bert_jax.errors import UserError


def _migrate_attention(value: Any) -> tuple[dict[str, Any], str]:
    # "kernel" demanded the TPU kernel, which "auto" uses where it applies.
    return {"kernels": "off" if value == "plain" else "auto"}, ""


def _migrate_memory_length(value: Any) -> tuple[dict[str, Any], str]:
    # Memory was used in pretraining only, and had no parameters.
    return {}, "the memory of XLNet" if value else ""


def _migrate_masking_rate(value: Any) -> tuple[dict[str, Any], str]:
    # A list had a rate for each phase. Phases have `masking_rate` now.
    rates = value if isinstance(value, list) and value else [value]
    return {"rate": rates[-1]}, "a list of masking rates" if len(rates) > 1 else ""


# By the path of a field that was removed or changed, in the config of a run: a function
# from the saved value to the fields that replace it in its group, and the feature that
# a continued run would lack ("" if none).
_MIGRATIONS = {
    "encoder.attention": _migrate_attention,
    "objective.memory_length": _migrate_memory_length,
    "objective.masking.rate": _migrate_masking_rate,
}


def upgrade(values: Any, *, for_resume: bool = False) -> Any:
    """Return a saved config with the fields of earlier versions replaced.

    Args:
      values: Config of a run, or some of its groups, as read from JSON. Other values
        are returned unchanged, for the caller to refuse.
      for_resume: Whether the run is to be continued. Predictions and fine-tuning need
        the encoder only, and removed features of pretraining do not matter.

    Raises:
      UserError: The run cannot be continued, because this version lacks a feature.
    """
    values = copy.deepcopy(values)
    for path, migrate in _MIGRATIONS.items():
        *groups, name = path.split(".")
        fields = values
        for group in groups:
            fields = fields.get(group) if isinstance(fields, dict) else None
        if not isinstance(fields, dict) or name not in fields:
            continue
        value = fields.pop(name)
        replacement, lost = migrate(value)
        if for_resume and lost:
            raise UserError(
                f"{path}={value!r}: {lost} was removed from bert_jax; continue with "
                "the version that began the run, or give a new --workdir and "
                "init_from=CHECKPOINT to begin with its parameters"
            )
        fields.update(replacement)
    return values
