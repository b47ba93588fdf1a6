"""Rows with [CLS] behind their last token, as XLNet has them.

Rows come with [CLS] first, whatever the encoder. Where only distances count, an encoder
moves it, and gives back what it computes in the order in which tokens came. So tasks
and heads need not know.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.inputs import Inputs

# Segment of [CLS], which is of neither text (zihangdai/xlnet, data_utils.py).
_SEGMENT = 2


def moved(inputs: Inputs) -> Inputs:
    """The same rows with [CLS] behind the last token, and in a segment of its own.

    Raises:
      ValueError: Rows are packed.
    """
    if inputs.positions is not None or inputs.documents is not None:
        raise ValueError("rows of several documents have no [CLS] to be moved")
    length = inputs.input_ids.shape[1]
    last = _last(inputs)
    column = jnp.arange(length)[None]
    # Of padding, its own column.
    source = jnp.where(column < last, column + 1, jnp.where(column == last, 0, column))

    def move(values):
        return None if values is None else jnp.take_along_axis(values, source, axis=1)

    segment_ids = inputs.segment_ids
    if segment_ids is None:
        segment_ids = jnp.zeros_like(inputs.input_ids)
    targets = inputs.target_positions
    return inputs._replace(
        input_ids=move(inputs.input_ids),
        segment_ids=move(segment_ids.at[:, 0].set(_SEGMENT)),
        ranks=move(inputs.ranks),
        target_positions=None if targets is None else places(inputs, targets),
    )


def places(inputs: Inputs, positions: Int[Array, "#B P"]) -> Int[Array, "B P"]:
    """Where what was at some positions is now.

    Args:
      inputs: Rows before [CLS] was moved.
      positions: Positions in them.
    """
    last = _last(inputs)
    place = jnp.where(positions == 0, last, positions - 1)
    return jnp.where(positions <= last, place, positions)


def _last(inputs: Inputs) -> Int[Array, "B 1"]:
    """The position of the last token of each row; -1 where there is none."""
    return jnp.sum(inputs.attention_mask, axis=1, keepdims=True) - 1


def back(
    inputs: Inputs, values: Float[Array, "..."], axis: int, *, batch_axis: int = 0
) -> Float[Array, "..."]:
    """Values of positions in the order in which tokens came.

    Args:
      inputs: Rows before [CLS] was moved.
      values: Of the rows as they are now.
      axis: Dimension of the positions; what is behind the tokens there stays.
      batch_axis: Dimension of the rows.
    """
    size, length = inputs.input_ids.shape
    order = places(inputs, jnp.arange(length)[None])
    behind = jnp.arange(length, values.shape[axis])[None]
    behind = jnp.broadcast_to(behind, (size, behind.shape[1]))
    shape = [1] * values.ndim
    shape[batch_axis], shape[axis] = size, values.shape[axis]
    order = jnp.concatenate([order, behind], axis=1).reshape(shape)
    return jnp.take_along_axis(values, order, axis=axis)
