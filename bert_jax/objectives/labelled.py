"""Batches of rows with labels, as fine-tuning has them."""

from typing import Any

import jax
import jax.numpy as jnp


def batch_shapes(
    tokens: tuple[int, ...], **labels: tuple[tuple[int, ...], Any]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of a batch.

    Args:
      tokens: Shape of the tokens; its first number is that of the rows.
      labels: Shape and type of each array of labels.

    Returns:
      Those of input_ids, segment_ids, attention_mask and the labels; and of weights,
      which say what each row counts, 0 for one that only fills the batch.
    """
    shapes = {
        "input_ids": (tokens, jnp.int32),
        "segment_ids": (tokens, jnp.int32),
        "attention_mask": (tokens, jnp.bool_),
        **labels,
        "weights": (tokens[:1], jnp.float32),
    }
    return {name: jax.ShapeDtypeStruct(*shape) for name, shape in shapes.items()}
