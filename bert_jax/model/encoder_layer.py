"""One layer of the encoder.

Source: BERT paper, 3; google-research/bert, modeling.py.
"""

import functools

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import (
    attention,
    dropout,
    layers,
    randomness,
    relative_attention,
    residual,
)
from bert_jax.model.inputs import Inputs


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each added to its input and then normalised."""

    config: config_lib.EncoderConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B rows D"],
        inputs: Inputs,
        dropout_keys: UInt32[Array, " B"] | None,
        *,
        memory: Float[Array, "B M D"] | None = None,
        read_at: Int[Array, "B P"] | None = None,
        return_probabilities: bool = False,
    ) -> tuple[Float[Array, "B P D"], Float[Array, "B H P L"] | None]:
        """One layer: hidden states, and attention probabilities on request.

        Args:
          x: Hidden states of the layer below: of the tokens, and behind them of a
            second stream if there is one.
          inputs: Rows of tokens.
          dropout_keys: Keys for dropout; None for no dropout.
          memory: Hidden states of the layer below of `inputs.memory_ids`.
          read_at: Positions whose hidden states are wanted; None: all, and P is L.
          return_probabilities: Whether to return those, too.
        """
        c = self.config
        queries = x
        if read_at is not None:
            queries = jnp.take_along_axis(x, read_at[..., None], axis=1)

        def add_and_normalise(x, y, place, name, readers):
            keys = randomness.fold_in(dropout_keys, place)
            if read_at is not None:
                keys = dropout.of_parts(keys, read_at, c.hidden_size)
            return residual.AddAndNormalise(c, readers, name=name)(x, y, keys)

        if c.is_relative:
            attend = functools.partial(
                relative_attention.RelativeAttention(
                    c, adds_bias=False, name="attention"
                ),
                memory=memory,
            )
        else:
            attend = attention.SelfAttention(c, adds_bias=False, name="attention")
        y, probabilities = attend(
            queries,
            x,
            inputs,
            randomness.fold_in(dropout_keys, "attention_probabilities"),
            read_at=read_at,
            return_probabilities=return_probabilities,
        )
        x, residual_x = add_and_normalise(
            queries, y, "attention_output", "attention_layer_norm", 2
        )
        # Rows of all sequences in one dimension: between products of three, a TPU would
        # copy what the activation reads and writes into another layout, in float32.
        y = layers.Linear(
            ("embed",),
            (("mlp", c.intermediate_size),),
            c.dtype,
            c.initializer_range,
            name="intermediate",
        )(x.reshape(-1, c.hidden_size))
        y = layers.Linear(
            ("mlp",),
            (("embed", c.hidden_size),),
            c.dtype,
            c.initializer_range,
            adds_bias=False,
            name="output",
        )(layers.activate(y, c.activation))
        y = y._replace(vectors=y.vectors.reshape(x.shape))
        (x,) = add_and_normalise(
            residual_x, y, "feed_forward_output", "output_layer_norm", 1
        )
        return x, probabilities
