"""The encoder: embeddings, a stack of layers, and the pooler.

Source: BERT paper, 3; google-research/bert, modeling.py.
"""

import dataclasses
import operator

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen import spmd
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import cls_last, dropout, embeddings, layers, randomness
from bert_jax.model.encoder_layer import EncoderLayer
from bert_jax.model.inputs import Inputs


@dataclasses.dataclass(frozen=True)
class Encoded:
    """What the encoder makes of a batch.

    Attributes:
      hidden: Vectors of the last layer, of all positions or of those asked for.
      hidden_states: Those of the embeddings and of each layer; None if not requested.
      attention: Attention probabilities of each layer, float32, before dropout, without
        those of memory; None if not requested.
    """

    hidden: Float[Array, "B P D"]
    hidden_states: Float[Array, "states B L D"] | None = None
    attention: Float[Array, "N B H L L"] | None = None


class Encoder(nn.Module):
    """The encoder without heads: BERT, and by its config ALBERT, ELECTRA and XLNet.

    Parameters of the layers are stacked: each has a leading dimension `N`, or `G` where
    groups of layers share them. Whether the compiler sees one layer in a loop or all of
    them one after the other (`config.scan_layers`) changes neither parameters nor
    results.

    Embeddings of fewer columns are projected (Lan et al. 2019, ALBERT, 3.1), behind
    their layer norm and dropout as in google-research/albert and electra.

    With `config.positions="relative"` this is XLNet (Yang et al. 2019), which may have
    a second stream of vectors (`inputs.target_positions`), and drops out what comes of
    the last layer. Rows come with [CLS] first all the same; see `cls_last.py`.

    It may have memory, too: hidden states of the text before the row. In the original
    they are what the step before computed of the row before, so that the batches of a
    run depend on one another. Here they are computed in the same step, of the tokens
    (`inputs.memory_ids`), without dropout, and by the parameters of this step: a batch
    needs no other, and memory reaches back M tokens in all, not M in each layer.

    Attributes:
      config: Shape of the encoder.
      shared_embeddings: Embeddings of another encoder to be used here, too; None: its
        own.
    """

    config: config_lib.EncoderConfig
    shared_embeddings: embeddings.Embeddings | None = None

    def setup(self):
        c = self.config
        if not c.vocab_size:
            raise ValueError("vocab_size is 0; fill in that of the tokenizer")
        self.embeddings = self.shared_embeddings or embeddings.Embeddings(c)
        if c.embedding_columns != c.hidden_size:
            self.embedding_projection = layers.Linear(
                ("embed",), (("hidden", c.hidden_size),), c.dtype, c.initializer_range
            )
        self.layers = self.param("layers", _init_layers, c)
        self.pooler = layers.Linear(
            ("embed",), (("hidden", c.hidden_size),), c.dtype, c.initializer_range
        )

    def __call__(
        self,
        inputs: Inputs,
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
        read_at: Int[Array, "B P"] | None = None,
        target_embedding: Float[Array, " D"] | None = None,
        return_hidden_states: bool = False,
        return_attention: bool = False,
    ) -> Encoded:
        """Encode a batch.

        Args:
          inputs: Rows of tokens.
          dropout_keys: A key for each row, from `randomness.row_keys`; None for no
            dropout.
          read_at: Positions whose vectors are wanted; None: all, and P is L. The last
            layer computes queries and the feed-forward part at these only, with the
            masks of dropout that they would have among all.
          target_embedding: What the second stream begins with, where there is one. Then
            its vectors are those that are wanted, and hidden states are those of the
            tokens and behind them those of the second stream.
          return_hidden_states: Whether to return those of all layers.
          return_attention: Whether to return attention probabilities.

        Raises:
          ValueError: All states or probabilities are wanted, and `read_at` is given.
        """
        if read_at is not None and (return_hidden_states or return_attention):
            raise ValueError("read_at leaves out what is to be returned")
        c, given = self.config, inputs
        if c.is_relative:
            inputs = cls_last.moved(given)
            read_at = None if read_at is None else cls_last.places(given, read_at)
        memory = self._remembered(inputs)
        first = self._embedded(inputs, dropout_keys, target_embedding)
        returns_all = return_hidden_states or return_attention
        if target_embedding is not None and not returns_all:
            read_at = jnp.broadcast_to(
                jnp.arange(inputs.input_ids.shape[1], first.shape[1]),
                inputs.target_positions.shape,
            )
        x, states, probabilities = self._through_layers(
            first,
            self.layers,
            inputs,
            memory=memory,
            keys=randomness.fold_in(dropout_keys, "layers"),
            read_at=read_at,
            return_hidden_states=return_hidden_states,
            return_attention=return_attention,
        )
        if return_hidden_states:
            states = jnp.concatenate([first[None], states])
        if not c.is_relative:
            return Encoded(x, states, probabilities)
        keys = randomness.fold_in(dropout_keys, "output")
        if read_at is not None:
            keys = dropout.of_parts(keys, read_at, c.hidden_size)
        x = dropout.dropout(x, c.dropout_rate, keys)
        if target_embedding is not None and returns_all:
            x = x[:, inputs.input_ids.shape[1] :]
        elif read_at is None:
            x = cls_last.back(given, x, 1)
        if return_hidden_states:
            states = cls_last.back(given, states, 2, batch_axis=1)
        if return_attention:
            for axis in (3, 4):
                probabilities = cls_last.back(given, probabilities, axis, batch_axis=1)
        return Encoded(x, states, probabilities)

    def _remembered(self, inputs):
        """Hidden states below each layer of what is before the rows; or None.

        In a loop the last layer is computed, too, and not read.
        """
        ids = inputs.memory_ids
        if ids is None:
            return None
        rows = Inputs(ids, inputs.memory_mask, segment_ids=jnp.zeros_like(ids))
        first = jax.lax.stop_gradient(self._embedded(rows, None, None))
        _, states, _ = self._through_layers(
            first,
            jax.lax.stop_gradient(self.layers),
            rows,
            return_hidden_states=True,
        )
        return jnp.concatenate([first[None], states[:-1]])

    def _embedded(self, inputs, dropout_keys, target_embedding):
        """Hidden states below the layers: of tokens, and of a second stream."""
        c = self.config
        x = self.embeddings(inputs, randomness.fold_in(dropout_keys, "embeddings"))
        if c.embedding_columns != c.hidden_size:
            x = self.embedding_projection(x)
        if target_embedding is not None:
            shape = *inputs.target_positions.shape, c.hidden_size
            targets = dropout.dropout(
                jnp.broadcast_to(target_embedding.astype(c.dtype), shape),
                c.dropout_rate,
                randomness.fold_in(dropout_keys, "targets"),
            )
            x = jnp.concatenate([x, targets], axis=1)
        return nn.with_logical_constraint(x, ("batch", "length", "hidden"))

    def _through_layers(
        self,
        x,
        stacked,
        inputs,
        *,
        memory=None,
        keys=None,
        read_at=None,
        return_hidden_states=False,
        return_attention=False,
    ):
        """What comes of all layers; and states and probabilities of each, or None.

        Args:
          x: Hidden states below the layers.
          stacked: Parameters of the layers.
          inputs: Rows of tokens.
          memory: [N, B, M, D]; see `_remembered`.
          keys: Keys for dropout.
          read_at: See `__call__`, as what follows.
          return_hidden_states: See `read_at`.
          return_attention: See `read_at`.
        """
        c = self.config
        layer = EncoderLayer(c, parent=None)

        def apply_layer(x, parameters, index, memory, read_at=None):
            x, probabilities = layer.apply(
                {"params": parameters},
                x,
                inputs,
                randomness.fold_in(keys, index),
                memory=memory,
                read_at=read_at,
                return_probabilities=return_attention,
            )
            x = nn.with_logical_constraint(x, ("batch", "length", "hidden"))
            return x, (x if return_hidden_states else None, probabilities)

        if c.remat == "layer":
            apply_layer = jax.checkpoint(apply_layer, prevent_cse=not c.scan_layers)
        if c.scan_layers:
            # What each layer has of its own, in groups that share parameters.
            own = jax.tree.map(
                lambda x: x.reshape(c.num_distinct_layers, -1, *x.shape[1:]),
                (jnp.arange(c.num_layers), memory),
            )

            def apply_group(x, group):
                parameters, own = group
                return jax.lax.scan(
                    lambda x, own: apply_layer(x, parameters, *own), x, own
                )

            x, extras = jax.lax.scan(apply_group, x, (stacked, own))
            states, probabilities = jax.tree.map(
                lambda x: jax.lax.collapse(x, 0, 2), extras
            )
            if read_at is not None:  # in a loop all layers are alike
                x = jnp.take_along_axis(x, read_at[..., None], axis=1)
        else:
            extras, distinct = [], _unstack(stacked)
            for i in range(c.num_layers):
                parameters = distinct[i * len(distinct) // c.num_layers]
                own = i, None if memory is None else memory[i]
                is_last = i == c.num_layers - 1
                x, extra = apply_layer(
                    x, parameters, *own, read_at if is_last else None
                )
                extras.append(extra)
            states, probabilities = jax.tree.map(lambda *x: jnp.stack(x), *extras)
        return x, states, probabilities

    def pooled_positions(self, inputs: Inputs) -> Int[Array, "B 1"]:
        """The position of each row whose vector is pooled: that of [CLS].

        With `config.causal` that of the last token: it alone has seen all others.
        """
        if self.config.causal:
            return jnp.sum(inputs.attention_mask, axis=1, keepdims=True) - 1
        return jnp.zeros((inputs.input_ids.shape[0], 1), jnp.int32)

    def pool(self, hidden: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """A vector for each sequence, from that at its `pooled_positions`."""
        return jnp.tanh(self.pooler(hidden))

    def token_embedding(self) -> Float[Array, "V E"]:
        """The table of the tokens, for heads that are tied to it."""
        return self.embeddings.token


@jax.custom_vjp
def _unstack(stacked):
    """The parameters of each layer.

    Their gradients are stacked. JAX's own derivative would pad each with the zeros of
    all other layers, and add them up.
    """
    count = len(jax.tree.leaves(stacked)[0])
    return [jax.tree.map(operator.itemgetter(i), stacked) for i in range(count)]


def _unstack_forward(stacked):
    return _unstack(stacked), None


def _unstack_backward(_, gradients):
    return (jax.tree.map(lambda *x: jnp.stack(x), *gradients),)


_unstack.defvjp(_unstack_forward, _unstack_backward)


def _init_layers(key: jax.Array, config: config_lib.EncoderConfig):
    """Parameters of all layers that have their own, drawn one by one and stacked."""
    layer = EncoderLayer(config, parent=None)
    x = jnp.zeros((1, 1, config.hidden_size), config.dtype)
    ids = jnp.zeros((1, 1), jnp.int32)

    def init_one(key):
        return layer.init(key, x, Inputs(ids, ids == 0, ids), None)["params"]

    stacked = jax.vmap(init_one)(jax.random.split(key, config.num_distinct_layers))
    return jax.tree.map(
        lambda box: box.replace(names=("layers", *box.names)),
        stacked,
        is_leaf=lambda leaf: isinstance(leaf, spmd.LogicallyPartitioned),
    )
