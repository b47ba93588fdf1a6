"""Rotary positions and local layers in `config.json`."""

from typing import Any

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop.json_files import JsonFile

# Kinds of layers in `layer_types`, and keys of `rope_parameters` where both exist.
GLOBAL, LOCAL = "full_attention", "sliding_attention"


def read_base(
    file: JsonFile, default: float, kind: str = "", older_name: str = "rope_theta"
) -> float:
    """Return the base of the rotary wavelengths.

    `kind` is `GLOBAL` or `LOCAL`, if these layers have a base each. `older_name` is the
    name of the base before `rope_parameters`.

    Raises:
      UserError: The base changes with the length of a row.
    """
    parameters = _dict_or_empty(file, "rope_parameters")
    scaling = _dict_or_empty(file, "rope_scaling")
    if kind:
        if parameters and not parameters.keys() & {GLOBAL, LOCAL}:
            raise UserError(
                f"{file.path}: rope_parameters must have the keys {GLOBAL} and "
                f"{LOCAL}, got {parameters!r}"
            )
        parameters = _dict_or_empty(file._replace(values=parameters), kind)
    for each in (parameters, scaling):
        rope_type = each.get("rope_type", each.get("type", "default"))
        if rope_type != "default":
            raise UserError(
                f"{file.path}: rope_type is {rope_type!r}; bert_jax supports 'default' "
                "only"
            )
    # `rope_scaling` has precedence, and replaces `rope_parameters` without kinds.
    given = parameters | scaling if kind else scaling or parameters
    if "rope_theta" in given:
        return file._replace(values=given).value("rope_theta", float)
    return file.value(older_name, float, default)


def _dict_or_empty(file: JsonFile, name: str) -> dict[str, Any]:
    """Return a dict in a file; {} if it is missing or null."""
    return file.value(name, dict) if file.values.get(name) else {}


def check_head_size(file: JsonFile) -> None:
    """Check that the heads together are as wide as the hidden states."""
    if file.values.get("head_dim") is None:
        return
    size, count = file.value("head_dim", int), file.values["num_attention_heads"]
    if size * count != file.values["hidden_size"]:
        raise UserError(
            f"{file.path}: head_dim is {size}; bert_jax supports hidden_size / "
            "num_attention_heads only"
        )


def read_local_layers(
    file: JsonFile,
    default: tuple[int, int],
    window: int,
    older_name: str = "rope_theta",
) -> dict[str, Any]:
    """Return the fields of local layers; none if all layers are global.

    `default` is the period of global layers and the index of the first one, `window`
    the default width to each side. `older_name` is as in `read_base`.
    """
    every, first = _read_period(file, default)
    if every == 1:
        return {}
    return {
        "global_layer_every": every,
        "first_global_layer": first,
        "attention_window": file.value("sliding_window", int, window),
        "local_rotary_base": read_base(file, 10_000.0, LOCAL, older_name),
    }


def _read_period(file: JsonFile, default: tuple[int, int]) -> tuple[int, int]:
    """Return the period of global layers, and the index of the first one."""
    count, kinds = file.values["num_hidden_layers"], file.values.get("layer_types")
    if kinds is None:
        return default
    if isinstance(kinds, list) and len(kinds) == count:
        for every in range(1, count + 2):
            for first in range(every):
                if kinds == _layer_types(count, every, first):
                    return every, first
    raise UserError(
        f"{file.path}: layer_types is {kinds!r}; bert_jax supports "
        f"{GLOBAL} in every K-th of {count} layers and {LOCAL} in the others only"
    )


def _layer_types(count: int, every: int, first: int) -> list[str]:
    return [GLOBAL if i % every == first else LOCAL for i in range(count)]


def write_layers(encoder: config_lib.EncoderConfig) -> dict[str, Any]:
    """Return the values for the kinds of layers, and the bases of each kind."""
    bases = {
        GLOBAL: encoder.rotary_base,
        LOCAL: encoder.local_rotary_base or encoder.rotary_base,
    }
    return {
        "layer_types": _layer_types(
            encoder.num_layers, encoder.global_layer_every, encoder.first_global_layer
        ),
        "rope_parameters": {kind: write_base(base) for kind, base in bases.items()},
    }


def write_base(base: float) -> dict[str, Any]:
    """Return a base as `transformers` writes it."""
    return {"rope_theta": base, "rope_type": "default"}
