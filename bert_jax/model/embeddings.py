"""Embeddings of tokens, positions and segments (BERT paper, 3)."""

import flax.linen as nn
import jax
from jaxtyping import Array, Float, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, layers
from bert_jax.model.inputs import Inputs


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, normalised.

    Embeddings may have fewer columns than hidden states; `Encoder` projects them.
    An encoder of fewer than two segment types takes all tokens for the first type, or
    has no embedding of segments. One of relative positions has embeddings of tokens
    only, which are not normalised (google-research's XLNet, modeling.py).
    """

    config: config_lib.EncoderConfig

    def setup(self):
        c = self.config
        self.token = self._table("token", "vocab", c.padded_vocab_size)
        if c.is_relative:
            return
        self.position = self._table("position", "position", c.max_position_embeddings)
        if c.type_vocab_size:
            self.segment = self._table("segment", "segment", c.type_vocab_size)
        self.layer_norm = layers.LayerNorm(c.layer_norm_epsilon, c.dtype)

    def _table(self, name: str, dim: str, size: int):
        init = nn.with_logical_partitioning(
            layers.initializer(self.config.initializer_range), (dim, "embed")
        )
        shape = size, self.config.embedding_columns
        return self.param(f"{name}_embedding", init, shape)

    def __call__(
        self, inputs: Inputs, dropout_keys: UInt32[Array, " B"] | None
    ) -> Float[Array, "B L E"]:
        """Vectors for tokens at their positions."""
        # Whole rows of the table, so that a lookup needs no other part of the mesh.
        token = nn.with_logical_constraint(self.token, ("vocab", "hidden"))
        x = token[inputs.input_ids]
        if not self.config.is_relative:
            x = self.layer_norm(self._add_positions_and_segments(x, inputs))
        x = x.astype(self.config.dtype)
        return dropout.dropout(x, self.config.dropout_rate, dropout_keys)

    def _add_positions_and_segments(self, x, inputs):
        if inputs.positions is None:
            x = x + self.position[: x.shape[1]]
        else:
            x = x + self.position[inputs.positions]
        types = self.config.type_vocab_size
        if types >= 2 and inputs.segment_ids is not None:
            # There are few segment types: a product is cheaper than a lookup, and so is
            # its gradient.
            x = x + jax.nn.one_hot(inputs.segment_ids, types) @ self.segment
        elif types:
            x = x + self.segment[0]
        return x
