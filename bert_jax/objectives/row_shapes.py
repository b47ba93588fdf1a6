"""Arrays and metrics that the rows of all pretraining objectives share.

`data/batches.py` documents the arrays.
"""

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.objectives import Batch, metric_sums

_Config = (
    config_lib.MaskedLmConfig
    | config_lib.CausalLmConfig
    | config_lib.ReplacedTokensConfig
    | config_lib.PermutationLmConfig
)


def shapes(
    config: _Config, batch_size: int, length: int
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes and types of the tokens and of the boundaries of examples."""
    tokens = batch_size, length
    arrays = {
        "input_ids": jax.ShapeDtypeStruct(tokens, jnp.int32),
        "attention_mask": jax.ShapeDtypeStruct(tokens, jnp.bool_),
    }
    more: list[str] = []
    if config.segments not in config_lib.SINGLE_SEGMENTS:
        more.append("segment_ids")
    if config.examples_per_row > 1:
        more += ["positions", "documents"]
    return arrays | {name: jax.ShapeDtypeStruct(tokens, jnp.int32) for name in more}


def of_predictions(
    name: str, batch_size: int, count: int
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes and types of the arrays of predicted tokens.

    Args:
      name: Prefix of the names, such as "mlm".
      batch_size: Number of rows.
      count: Largest number of predictions in a row.
    """
    types = {"positions": jnp.int32, "labels": jnp.int32, "weights": jnp.float32}
    return {
        f"{name}_{part}": jax.ShapeDtypeStruct((batch_size, count), dtype)
        for part, dtype in types.items()
    }


def metrics(config: _Config) -> tuple[str, ...]:
    """Return the names of the metrics of rows."""
    packed = ("examples_per_row",) if config.examples_per_row > 1 else ()
    return ("padding_fraction", *packed)


def terms_of(batch: Batch) -> metric_sums.Terms:
    """Return the share of padding and, for packed rows, the examples in a row."""
    measured = {
        "padding_fraction": metric_sums.padding_fraction(batch["attention_mask"])
    }
    if "documents" in batch:
        examples = 1.0 + jnp.max(batch["documents"], axis=1)
        rows = jnp.float32(examples.size)
        measured["examples_per_row"] = metric_sums.Term(jnp.sum(examples), rows)
    return measured
