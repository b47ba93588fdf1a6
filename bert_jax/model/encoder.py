"""The encoder: embeddings, a stack of post-layer-norm layers, and the pooler.

Source: BERT paper, 3; google-research/bert, modeling.py.
"""

import dataclasses
import operator

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen import spmd
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import attention, dropout, layers

# Places that draw dropout masks, outside the layers and in each.
_EMBEDDING_PLACE, _FIRST_LAYER_PLACE = 0, 16
_PROBABILITY_PLACE, _ATTENTION_PLACE, _FEED_FORWARD_PLACE = range(3)


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, normalised."""

    config: config_lib.EncoderConfig

    def setup(self):
        c = self.config
        self.token = self._table("token", "vocab", c.padded_vocab_size)
        self.position = self._table("position", "position", c.max_position_embeddings)
        self.segment = self._table("segment", "segment", c.type_vocab_size)
        self.layer_norm = layers.LayerNorm(c.layer_norm_epsilon, c.dtype)

    def _table(self, name: str, dim: str, size: int):
        init = nn.with_logical_partitioning(
            layers.initializer(self.config.initializer_range), (dim, "embed")
        )
        return self.param(f"{name}_embedding", init, (size, self.config.hidden_size))

    def __call__(
        self,
        input_ids: Int[Array, "B L"],
        segment_ids: Int[Array, "B L"],
        dropout_keys: UInt32[Array, " B"] | None,
    ) -> Float[Array, "B L D"]:
        """Vectors for tokens at their places."""
        # Whole rows of the table, so that a lookup needs no other part of the mesh.
        token = nn.with_logical_constraint(self.token, ("vocab", "hidden"))
        x = token[input_ids]
        x = x + self.position[: input_ids.shape[1]]
        # There are few segment types: a product is cheaper than a lookup, and so is
        # its gradient.
        one_hot = jax.nn.one_hot(segment_ids, self.config.type_vocab_size)
        x = x + one_hot @ self.segment
        x = self.layer_norm(x)
        return dropout.dropout(x, self.config.dropout_rate, dropout_keys)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each added to its input and then normalised."""

    config: config_lib.EncoderConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        attention_mask: Bool[Array, "B L"],
        dropout_keys: UInt32[Array, " B"] | None,
    ) -> Float[Array, "B L D"]:
        """One layer."""
        c = self.config

        def add_and_normalise(x, y, place, name):
            y = dropout.dropout(y, c.dropout_rate, dropout.fold_in(dropout_keys, place))
            total = x.astype(jnp.float32) + y.astype(jnp.float32)
            return layers.LayerNorm(c.layer_norm_epsilon, c.dtype, name=name)(total)

        y = attention.SelfAttention(c, name="attention")(
            x, attention_mask, dropout.fold_in(dropout_keys, _PROBABILITY_PLACE)
        )
        x = add_and_normalise(x, y, _ATTENTION_PLACE, "attention_layer_norm")
        y = layers.Linear(
            ("embed",),
            (("mlp", c.intermediate_size),),
            c.dtype,
            c.initializer_range,
            name="intermediate",
        )(x)
        y = layers.Linear(
            ("mlp",),
            (("embed", c.hidden_size),),
            c.dtype,
            c.initializer_range,
            name="output",
        )(layers.activate(y, c.activation))
        return add_and_normalise(x, y, _FEED_FORWARD_PLACE, "output_layer_norm")


@dataclasses.dataclass(frozen=True)
class Encoded:
    """What the encoder makes of a batch.

    Attributes:
      hidden: vectors of all positions, of the last layer.
      pooled: a vector for the whole sequence, made from that of [CLS].
    """

    hidden: Float[Array, "B L D"]
    pooled: Float[Array, "B D"]


class Encoder(nn.Module):
    """BERT without heads.

    Parameters of the layers are stacked: each has a leading dimension `N`. Whether the
    compiler sees one layer in a loop or all of them one after the other
    (`config.scan_layers`) changes neither parameters nor results.
    """

    config: config_lib.EncoderConfig

    def setup(self):
        c = self.config
        if not c.vocab_size:
            raise ValueError("vocab_size is 0; fill in that of the tokenizer")
        self.embeddings = Embeddings(c)
        self.layers = self.param("layers", _init_layers, c)
        self.pooler = layers.Linear(
            ("embed",), (("hidden", c.hidden_size),), c.dtype, c.initializer_range
        )

    def __call__(
        self,
        input_ids: Int[Array, "B L"],
        segment_ids: Int[Array, "B L"],
        attention_mask: Bool[Array, "B L"],
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> Encoded:
        """Encode a batch.

        Args:
          input_ids: tokens, below `config.vocab_size`.
          segment_ids: 0 or 1.
          attention_mask: which positions are not padding.
          dropout_keys: see `dropout.example_keys`; None for no dropout.
        """
        c = self.config
        x = self.embeddings(
            input_ids, segment_ids, dropout.fold_in(dropout_keys, _EMBEDDING_PLACE)
        )
        layer = EncoderLayer(c, parent=None)

        def apply_layer(x, parameters, index):
            keys = dropout.fold_in(dropout_keys, _FIRST_LAYER_PLACE + index)
            x = layer.apply({"params": parameters}, x, attention_mask, keys)
            return nn.with_logical_constraint(x, ("batch", "length", "hidden"))

        if c.remat == "layer":
            apply_layer = jax.checkpoint(apply_layer, prevent_cse=not c.scan_layers)
        x = nn.with_logical_constraint(x, ("batch", "length", "hidden"))
        if c.scan_layers:
            x, _ = jax.lax.scan(
                lambda x, layer: (apply_layer(x, *layer), None),
                x,
                (self.layers, jnp.arange(c.num_layers)),
            )
        else:
            for i in range(c.num_layers):
                parameters = jax.tree.map(operator.itemgetter(i), self.layers)
                x = apply_layer(x, parameters, i)
        return Encoded(x, jnp.tanh(self.pooler(x[:, 0])))

    def token_embedding(self) -> Float[Array, "V D"]:
        """The table of the tokens, for heads that are tied to it."""
        return self.embeddings.token


def _init_layers(key: jax.Array, config: config_lib.EncoderConfig):
    """Parameters of all layers, drawn one by one and stacked."""
    layer = EncoderLayer(config, parent=None)
    x = jnp.zeros((1, 1, config.hidden_size), config.dtype)
    mask = jnp.ones((1, 1), bool)

    def init_one(key):
        return layer.init(key, x, mask, None)["params"]

    stacked = jax.vmap(init_one)(jax.random.split(key, config.num_layers))
    return jax.tree.map(
        lambda box: box.replace(names=("layers", *box.names)),
        stacked,
        is_leaf=lambda leaf: isinstance(leaf, spmd.LogicallyPartitioned),
    )
