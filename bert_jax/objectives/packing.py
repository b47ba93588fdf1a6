"""What packed rows add to a batch and to its terms, whatever is predicted."""

import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.objectives import Batch, terms

_Config = config_lib.MaskedLmConfig | config_lib.CausalLmConfig


def shapes(
    config: _Config, batch_size: int, length: int
) -> dict[str, tuple[tuple[int, ...], type]]:
    """Shapes and types of what says where the examples of packed rows are."""
    if config.examples_per_row == 1:
        return {}
    tokens = (batch_size, length), jnp.int32
    return {"positions": tokens, "documents": tokens}


def metrics(config: _Config) -> tuple[str, ...]:
    """Names of what is measured of the rows."""
    packed = ("examples_per_row",) if config.examples_per_row > 1 else ()
    return ("padding_fraction", *packed)


def terms_of(batch: Batch) -> terms.Terms:
    """The share of padding and, of packed rows, the examples in a row."""
    measured = {"padding_fraction": terms.padding_fraction(batch["attention_mask"])}
    if "documents" in batch:
        examples = 1.0 + jnp.max(batch["documents"], axis=1)
        rows = jnp.float32(examples.size)
        measured["examples_per_row"] = terms.Term(jnp.sum(examples), rows)
    return measured
