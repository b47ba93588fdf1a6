"""Metadata of a checkpoint, stored as JSON."""

import dataclasses
import importlib.metadata
from typing import Any

from bert_jax import config as config_lib
from bert_jax.config import migrations
from bert_jax.errors import UserError
from bert_jax.tokenizer import Tokenizer

_PACKAGES = ("bert_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def _versions() -> dict[str, str]:
    """Return the installed version of each of `_PACKAGES`, or "unknown"."""
    installed = {}
    for name in _PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = "unknown"
    return installed


@dataclasses.dataclass(frozen=True)
class Metadata:
    """Metadata of a checkpoint."""

    # Config of the run, from `config_lib.to_dict`, with all fields filled in. For a
    # published checkpoint, the fields that are known.
    config: dict[str, Any]
    # Encoder config of the phase that saved it, which fine-tuning builds.
    encoder: config_lib.EncoderConfig
    tokenizer: Tokenizer
    versions: dict[str, str] = dataclasses.field(default_factory=_versions)
    # Time spent so far, from `goodput.Ledger.entry`; {}: unknown.
    time: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Settings of the fine-tuning task, from `tasks.Task.settings`; {}: none.
    task: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the metadata in JSON's types."""
        encoder = config_lib.to_dict(self.encoder)
        return vars(self) | {"encoder": encoder, "tokenizer": self.tokenizer.dumps()}


def from_json(values: Any) -> Metadata:
    """Parse the result of `Metadata.to_json`.

    Raises:
      UserError: The values are not the metadata of a bert_jax checkpoint.
    """
    names = [field.name for field in dataclasses.fields(Metadata)]
    if not isinstance(values, dict) or not {*names} <= {"task", *values}:
        raise UserError("this is not a bert_jax checkpoint")
    values = {"task": {}, **values}  # older versions did not save it
    values = {name: values[name] for name in names}
    encoder = migrations.upgrade({"encoder": values["encoder"]})["encoder"]
    values["encoder"] = config_lib.from_dict(config_lib.EncoderConfig, encoder)
    values["config"] = migrations.upgrade(values["config"])
    values["tokenizer"] = Tokenizer.loads(values["tokenizer"])
    return Metadata(**values)
