"""Embeddings of tokens, positions and segments (BERT paper, 3)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, linear, norms, products
from bert_jax.model.inputs import Inputs
from bert_jax.model.kernels import per_device


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
        x = _look_up(self.token, inputs.input_ids, "vocab")
        if c.positions == "absolute":
            if inputs.positions is None:
                x = x + self.position[: x.shape[1]]
            else:
                x = x + _look_up(self.position, inputs.positions, "position")
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
        segments = nn.with_logical_constraint(self.segment, ("segment", "hidden"))
        x = products.linear(rows, segments, jnp.dtype("float32"))  # [B L, E]
        return x.reshape(*segment_ids.shape, -1)


def _look_up(
    table: Float[Array, "rows E"], indices: Int[Array, "B L"], dimension: str
) -> Float[Array, "B L E"]:
    """Return rows of a table.

    If `fsdp` splits the columns, they are first all-gathered into one copy for each
    part of the batch. Then each device sums the gradients of its own part only. With a
    single copy, the compiler may gather the gradients of the whole batch on each device
    (docs/log.md, 2026-11-30). `dimension` names the dimension of the rows.
    """
    table = nn.with_logical_constraint(table, (dimension, "hidden"))
    parts = per_device.num_shards("batch")
    if (
        per_device.num_shards("embed") == 1
        # If `tensor` splits the rows, too, XLA aborts on the copies (jax 0.10.2).
        or per_device.num_shards(dimension) > 1
        or len(indices) % parts  # such as the single row of an initialisation
    ):
        return table[indices]
    copies = jnp.broadcast_to(table, (parts, *table.shape))
    copies = nn.with_logical_constraint(copies, ("batch", dimension, "hidden"))
    pieces = indices.reshape(parts, -1)  # [parts, B L / parts]
    rows = jax.vmap(lambda copy, piece: copy[piece])(copies, pieces)  # [parts, ..., E]
    return rows.reshape(*indices.shape, -1)


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
