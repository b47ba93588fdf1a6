"""XLNet's encoder: relative attention, two streams, and [CLS] after the last token.

XLNet puts [CLS] last. Here rows have it first, as for every other encoder, but with the
position after the last token. Only distances matter, so the results are the same.

Source: Yang et al. 2019; zihangdai/xlnet, modeling.py.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, embeddings, encoder, randomness
from bert_jax.model.inputs import Inputs, at_positions
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


class XLNetEncoder(encoder.Encoder):
    """XLNet without heads, for rows with [CLS] first.

    Dropout follows the last layer. With targets, the second stream follows the tokens
    in one array: hidden state L + p has the position `targets.positions[:, p]`.

    Differs from the paper: there is no memory of earlier segments (Dai et al. 2019).
    """

    attention_class = RelativeAttention

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
          ValueError: `read_at` is given, and all states or probabilities are wanted.
        """
        c, length = self.config, inputs.input_ids.shape[1]
        x = self.embeddings(inputs, randomness.fold_in(dropout_keys, "embeddings"))
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
            {True: self._pattern(inputs, True, targets)},
            dropout_keys,
            read_at,
            return_hidden_states,
            return_attention,
        )
        keys = randomness.fold_in(dropout_keys, "output")
        keys = dropout.keys_at(keys, read_at, c.hidden_size)
        x = dropout.dropout(encoded.hidden, c.dropout_rate, keys)
        if targets is not None and read_at is None:
            x = x[:, length:]
        return encoder.Encoded(x, encoded.hidden_states, encoded.attention)

    def _pattern(
        self, inputs: Inputs, is_global: bool, targets: Targets | None = None
    ) -> RelativePattern:
        """Describe tokens and targets for attention, with [CLS] at the end."""
        end = jnp.sum(inputs.attention_mask, axis=1) - 1  # [B]
        column = jnp.arange(inputs.input_ids.shape[1])
        positions = jnp.where(column == 0, end[:, None], column - 1)  # [B, L]
        segment_ids = inputs.segment_ids
        if segment_ids is None:
            segment_ids = jnp.zeros_like(inputs.input_ids)
        segment_ids = segment_ids.at[:, 0].set(_CLS_SEGMENT)
        ranks = None
        if targets is not None:

            def with_targets(values, offset=0):  # [B, L + P]
                at_targets = at_positions(values, targets.positions)
                return jnp.concatenate([values, at_targets + offset], axis=1)

            positions, segment_ids = with_targets(positions), with_targets(segment_ids)
            # Just below the rank of the token there, which a target must not see.
            ranks = with_targets(targets.ranks, -1)
        size = self.config.hidden_size
        frequencies = 1e4 ** -(jnp.arange(0, size, 2, dtype=jnp.float32) / size)
        angles = positions[:, :, None] * frequencies  # [B, vectors, D / 2]
        return RelativePattern(
            is_token=inputs.attention_mask,
            sines=jnp.sin(angles),
            cosines=jnp.cos(angles),
            segment_ids=segment_ids,
            ranks=ranks,
        )
