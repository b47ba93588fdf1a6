"""Embeddings of tokens, positions and segments (BERT paper, 3)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, linear, norms, products
from bert_jax.model.inputs import Inputs


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, normalised.

    The config decides which tables exist: positions if they are absolute, segments if
    `type_vocab_size` is not 0. With one segment type, all tokens share its embedding.
    """

    config: config_lib.EncoderConfig

    def setup(self):
        c = self.config
        self.token = table(self, "token_embedding", "vocab", c.padded_vocab_size)
        if c.positions == "absolute":
            self.position = table(
                self, "position_embedding", "position", c.max_position_embeddings
            )
        if c.type_vocab_size:
            self.segment = table(
                self, "segment_embedding", "segment", c.type_vocab_size
            )
        if c.embedding_norm:
            self.layer_norm = norms.Norm(c)

    def __call__(
        self, inputs: Inputs, dropout_keys: UInt32[Array, " B"] | None
    ) -> Float[Array, "B L E"]:
        """Embed tokens at their positions."""
        c = self.config
        # Gather the columns, which `fsdp` splits, before the lookup. Rows stay split
        # over `tensor`.
        tokens = nn.with_logical_constraint(self.token, ("vocab", "hidden"))
        x = tokens[inputs.input_ids]
        if c.positions == "absolute":
            if inputs.positions is None:
                x = x + self.position[: x.shape[1]]
            else:
                positions = nn.with_logical_constraint(
                    self.position, ("position", "hidden")
                )
                x = x + positions[inputs.positions]
        if c.type_vocab_size >= 2 and inputs.segment_ids is not None:
            x = x + self._segments(inputs.segment_ids)
        elif c.type_vocab_size:
            x = x + self.segment[0]
        if c.embedding_norm:
            x = self.layer_norm(x)
        return dropout.dropout(x.astype(c.dtype), c.dropout_rate, dropout_keys)

    def _segments(self, segment_ids):
        # With so few rows a product is cheaper than a lookup, and so is its gradient.
        one_hot = jax.nn.one_hot(segment_ids, len(self.segment))  # [B, L, S]
        rows = one_hot.reshape(-1, len(self.segment))  # [B L, S]
        x = products.linear(rows, self.segment, jnp.dtype("float32"))  # [B L, E]
        return x.reshape(*segment_ids.shape, -1)


def table(
    module: nn.Module, name: str, dimension: str, size: int, columns: int = 0
) -> Float[Array, "rows E"]:
    """Declare a table of embeddings in a module that has the encoder's config.

    `dimension` is the name of the dimension of its rows, and `size` their number. By
    default there are as many columns as the embeddings of tokens have.
    """
    c = module.config
    init = linear.initializer(c.initializer_range, (dimension, "embed"))
    return module.param(name, init, (size, columns or c.embedding_columns))
