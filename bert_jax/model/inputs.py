"""The arrays that an encoder reads."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped


class Inputs(NamedTuple):
    """Rows of tokens, the same for all objectives and tasks."""

    # Below `config.vocab_size`. L is at most `config.max_position_embeddings`.
    input_ids: Int[Array, "B L"]
    # True at tokens, False at the padding after them.
    attention_mask: Bool[Array, "B L"]
    segment_ids: Int[Array, "B L"] | None = None  # 0 or 1; None: all 0
    # Position of each token in its text; None: 0, 1, 2 and so on.
    positions: Int[Array, "B L"] | None = None
    # Document of each token of a packed row: tokens attend to their own document only.
    # None: each row is one document.
    documents: Int[Array, "B L"] | None = None

    @classmethod
    def of(cls, batch: Mapping[str, jax.Array]) -> "Inputs":
        """Select the arrays of a batch that an encoder reads."""
        return cls(**{name: batch[name] for name in cls._fields if name in batch})


def at_positions(
    x: Shaped[Array, "#B L *rest"], positions: Int[Array, "B P"] | None
) -> Shaped[Array, "B P *rest"]:
    """Gather some positions of each row; None: return all."""
    if positions is None:
        return x
    index = jnp.expand_dims(positions, range(2, x.ndim))
    return jnp.take_along_axis(x, index, axis=1)
