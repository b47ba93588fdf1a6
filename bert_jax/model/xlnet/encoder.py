"""XLNet's encoder: relative attention, two streams, and [CLS] after the last token.

XLNet puts [CLS] last; rows come with [CLS] first, as for every other encoder. The
encoder moves it, and returns its results in the order in which tokens came, so that
tasks and heads need not know.

Source: Yang et al. 2019; zihangdai/xlnet, modeling.py.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, embeddings, encoder, randomness
from bert_jax.model.block import Block
from bert_jax.model.inputs import Inputs
from bert_jax.model.xlnet.attention import RelativeAttention, RelativePattern

# Segment of [CLS], which belongs to neither text (zihangdai/xlnet, data_utils.py).
_CLS_SEGMENT = 2


class Targets(NamedTuple):
    """A second stream of vectors, which know their position but not the token there.

    Each target sees tokens of a lower rank than the token at its position (Yang et al.
    2019, 2.3).
    """

    ranks: Int[Array, "B L"]  # of each token in the order of prediction
    positions: Int[Array, "B P"]  # of the second stream
    embedding: Float[Array, " D"]  # vector that every target begins with


class XLNetBlock(Block):
    """A post-norm block with relative attention."""

    attention_class = RelativeAttention


class XLNetEncoder(encoder.Encoder):
    """XLNet without heads, for rows with [CLS] first.

    Dropout follows the last layer. With targets, the second stream follows the tokens
    in one array: row L + p of the hidden states is at `targets.positions[:, p]`.

    Differs from the paper: there is no memory of earlier segments (Dai et al. 2019).
    """

    block_class = XLNetBlock

    @staticmethod
    def make_embeddings(config: config_lib.EncoderConfig) -> embeddings.Embeddings:
        """Return embeddings of tokens alone, without segments and norm."""
        return embeddings.Embeddings(
            dataclasses.replace(config, type_vocab_size=0, embedding_norm=False)
        )

    def __call__(
        self,
        inputs: Inputs,
        *,
        targets: Targets | None = None,
        dropout_keys: UInt32[Array, " B"] | None = None,
        read_at: Int[Array, "B P"] | None = None,
        return_hidden_states: bool = False,
        return_attention: bool = False,
    ) -> encoder.Encoded:
        """Encode a batch.

        Arguments and results are as in `Encoder`. With targets, `hidden` has the second
        stream only, `read_at` must be None, and `hidden_states` have the tokens,
        followed by the second stream.

        Raises:
          ValueError: Rows are packed; or `read_at` is given, and all states or
            probabilities are wanted.
        """
        if inputs.positions is not None or inputs.documents is not None:
            raise ValueError("packed rows have no single [CLS] to move")
        c, length = self.config, inputs.input_ids.shape[1]
        order = _ClsLast(inputs.attention_mask)
        moved = inputs._replace(input_ids=order.move(inputs.input_ids))
        x = self.embeddings(moved, randomness.fold_in(dropout_keys, "embeddings"))
        if read_at is not None:
            read_at = order.positions(read_at)
        if targets is not None:
            shape = *targets.positions.shape, c.hidden_size
            second_stream = dropout.dropout(
                jnp.broadcast_to(targets.embedding.astype(c.dtype), shape),
                c.dropout_rate,
                randomness.fold_in(dropout_keys, "targets"),
            )
            x = jnp.concatenate([x, second_stream], axis=1)  # [B, L + P, D]
            if not (return_hidden_states or return_attention):
                read_at = jnp.broadcast_to(
                    jnp.arange(length, x.shape[1]), targets.positions.shape
                )
        encoded = self._apply_blocks(
            x,
            {True: _relative_pattern(inputs, targets, order)},
            {True: None},
            dropout_keys,
            read_at,
            return_hidden_states,
            return_attention,
        )
        keys = randomness.fold_in(dropout_keys, "output")
        if read_at is not None:
            keys = dropout.keys_at(keys, read_at, c.hidden_size)
        x = dropout.dropout(encoded.hidden, c.dropout_rate, keys)
        if read_at is None:
            x = order.restore(x, 1) if targets is None else x[:, length:]
        states, probabilities = encoded.hidden_states, encoded.attention
        if return_hidden_states:
            states = order.restore(states, 2, batch_axis=1)
        if return_attention:
            for axis in (3, 4):
                probabilities = order.restore(probabilities, axis, batch_axis=1)
        return encoder.Encoded(x, states, probabilities)

    def _pattern(self, inputs: Inputs, is_global: bool) -> RelativePattern:
        return _relative_pattern(inputs, None, _ClsLast(inputs.attention_mask))


class _ClsLast:
    """Order of the tokens of rows with [CLS] moved after the last token."""

    def __init__(self, is_token: Bool[Array, "B L"]):
        self._last = jnp.sum(is_token, axis=1, keepdims=True) - 1  # [B, 1]
        column = jnp.arange(is_token.shape[1])[None]
        # The column that each column is filled from; padding stays.
        self._source = jnp.where(
            column < self._last,
            column + 1,
            jnp.where(column == self._last, 0, column),
        )  # [B, L]

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

        `axis` is the dimension of positions; entries after the tokens stay.
        """
        order = self.positions(jnp.arange(values.shape[axis])[None])
        shape = [1] * values.ndim
        shape[batch_axis], shape[axis] = order.shape
        return jnp.take_along_axis(values, order.reshape(shape), axis=axis)


def _relative_pattern(
    inputs: Inputs, targets: Targets | None, order: _ClsLast
) -> RelativePattern:
    """Describe the rows of hidden states for attention, with [CLS] last."""
    shape = inputs.input_ids.shape
    positions = jnp.broadcast_to(jnp.arange(shape[1]), shape)  # [B, L]
    segment_ids = inputs.segment_ids
    if segment_ids is None:
        segment_ids = jnp.zeros_like(inputs.input_ids)
    segment_ids = order.move(segment_ids.at[:, 0].set(_CLS_SEGMENT))
    ranks = None
    if targets is not None:
        ranks = order.move(targets.ranks)
        at = order.positions(targets.positions)  # [B, P]

        def with_targets(of_tokens, of_targets):  # [B, L + P]
            return jnp.concatenate([of_tokens, of_targets], axis=1)

        positions = with_targets(positions, at)
        segment_ids = with_targets(
            segment_ids, jnp.take_along_axis(segment_ids, at, axis=1)
        )
        # Just below the rank of the token there, which a target must not see.
        ranks = with_targets(ranks, jnp.take_along_axis(ranks, at, axis=1) - 1)
    return RelativePattern(
        is_token=inputs.attention_mask,
        positions=positions,
        segment_ids=segment_ids,
        ranks=ranks,
    )
