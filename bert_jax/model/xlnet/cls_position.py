"""The move of [CLS] from the beginning of a row to behind its last token.

XLNet puts [CLS] last; rows come with [CLS] first, as for every other encoder. XLNet's
encoder moves it, and returns its results in the order in which tokens came, so that
tasks and heads need not know.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.model.inputs import Inputs

# Segment of [CLS], which belongs to neither text (zihangdai/xlnet, data_utils.py).
_SEGMENT = 2


class ClsLast:
    """Order of the tokens of rows once [CLS] is behind the last of them."""

    def __init__(self, is_token: Bool[Array, "B L"]):
        self._last = jnp.sum(is_token, axis=1, keepdims=True) - 1  # [B, 1]
        column = jnp.arange(is_token.shape[1])[None]
        # The column that each column is filled from; padding stays.
        self._source = jnp.where(
            column < self._last,
            column + 1,
            jnp.where(column == self._last, 0, column),
        )

    def move(self, values: Int[Array, "B L"]) -> Int[Array, "B L"]:
        """Reorder values of tokens."""
        return jnp.take_along_axis(values, self._source, axis=1)

    def positions(self, positions: Int[Array, "#B P"]) -> Int[Array, "B P"]:
        """Map positions in the original row to positions in the reordered row."""
        moved = jnp.where(positions == 0, self._last, positions - 1)
        return jnp.where(positions <= self._last, moved, positions)

    def restore(
        self, values: Float[Array, "..."], axis: int, *, batch_axis: int = 0
    ) -> Float[Array, "..."]:
        """Bring values of reordered rows back into the original order.

        Args:
          values: Values of each position.
          axis: Dimension of the positions. Entries behind the tokens stay.
          batch_axis: Dimension of the rows.
        """
        size, length = self._source.shape
        order = self.positions(jnp.arange(length)[None])
        behind = jnp.arange(length, values.shape[axis])[None]
        behind = jnp.broadcast_to(behind, (size, behind.shape[1]))
        shape = [1] * values.ndim
        shape[batch_axis], shape[axis] = size, values.shape[axis]
        order = jnp.concatenate([order, behind], axis=1).reshape(shape)
        return jnp.take_along_axis(values, order, axis=axis)


def segment_ids(inputs: Inputs) -> Int[Array, "B L"]:
    """Return the segments of the original row, with [CLS] in one of its own."""
    segments = inputs.segment_ids
    if segments is None:
        segments = jnp.zeros_like(inputs.input_ids)
    return segments.at[:, 0].set(_SEGMENT)
