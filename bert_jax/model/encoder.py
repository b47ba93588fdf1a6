"""The encoder: embeddings, a stack of blocks, a final norm, and the pooler.

Source: BERT paper, 3; google-research/bert, modeling.py.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import embeddings, layer_stack, norms, pooler, randomness, rotary
from bert_jax.model.attention import SelfAttention
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.block import Block
from bert_jax.model.inputs import Inputs
from bert_jax.model.linear import Linear


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Encoded:
    """Output of an encoder; None for what was not requested."""

    # Hidden states after the last layer, at all positions or at `read_at`.
    hidden: Float[Array, "B P D"]
    # Hidden states of the embeddings and of each layer.
    hidden_states: Float[Array, "states B L D"] | None = None
    # Attention probabilities of each layer, float32, before dropout.
    attention: Float[Array, "N B H L L"] | None = None


class Encoder(nn.Module):
    """The encoder without heads.

    The config selects the parts; the encoders of XLNet and DeBERTa are subclasses
    (`heads.make_encoder` chooses). Embeddings with fewer columns than hidden states are
    projected (Lan et al. 2019, ALBERT, 3.1), after their norm and dropout, as in
    google-research/albert and google-research/electra.
    """

    config: config_lib.EncoderConfig
    shared_embeddings: nn.Module | None = None  # of another encoder; None: its own

    make_embeddings = embeddings.Embeddings
    attention_class = SelfAttention

    def setup(self):
        c = self.config
        if not c.vocab_size:
            raise ValueError("vocab_size is 0; set it to the tokenizer's size")
        self.embeddings = self.shared_embeddings or self.make_embeddings(c)
        if c.embedding_columns != c.hidden_size:
            self.embedding_projection = Linear(c, (("hidden", c.hidden_size),))
        self.layers = self.param("layers", layer_stack.init, self._init_block, c)
        if c.norm_placement == "pre":
            self.final_norm = norms.Norm(c)
        self.pooler = pooler.Pooler(c)

    def __call__(
        self,
        inputs: Inputs,
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
        read_at: Int[Array, "B P"] | None = None,
        return_hidden_states: bool = False,
        return_attention: bool = False,
    ) -> Encoded:
        """Encode a batch.

        Args:
          inputs: Rows of tokens.
          dropout_keys: A key for each row, from `randomness.row_keys`; None for no
            dropout.
          read_at: Positions whose hidden states are wanted; None: all, and P is L. The
            last layer computes queries and feed-forward network only there, with the
            dropout masks of the full row.
          return_hidden_states: Whether to return the hidden states of all layers. A
            final norm is applied to the last ones only.
          return_attention: Whether to return attention probabilities.

        Raises:
          ValueError: `read_at` is given, and all states or probabilities are wanted.
        """
        c = self.config
        x = self.embeddings(inputs, randomness.fold_in(dropout_keys, "embeddings"))
        if c.embedding_columns != c.hidden_size:
            x = self.embedding_projection(x)
        encoded = self._apply_blocks(
            x,
            {g: self._pattern(inputs, is_global=g) for g in (True, False)},
            dropout_keys,
            read_at,
            return_hidden_states,
            return_attention,
        )
        if c.norm_placement == "post":
            return encoded
        hidden, states = self.final_norm(encoded.hidden), encoded.hidden_states
        if return_hidden_states:
            states = jnp.concatenate([states[:-1], hidden[None]])
        return Encoded(hidden, states, encoded.attention)

    def _apply_blocks(
        self,
        x: Float[Array, "B L D"],
        patterns: dict[bool, AttentionPattern],
        dropout_keys,
        read_at,
        return_hidden_states,
        return_attention,
    ) -> Encoded:
        """Apply all blocks to embeddings, with other arguments as in `__call__`.

        `patterns` has an entry for global (True) and local (False) layers.
        """
        if read_at is not None and (return_hidden_states or return_attention):
            raise ValueError(
                "return_hidden_states and return_attention need read_at=None"
            )
        if self.is_initializing():  # `setup` has made all parameters
            return Encoded(x)
        c = self.config
        keys = randomness.fold_in(dropout_keys, "layers")

        def apply_block(x, parameters, kind, index, read_at):
            block = Block(c, kind.has_attention_norm, self.attention_class, parent=None)
            x, probabilities = block.apply(
                {"params": parameters},
                x,
                patterns[kind.is_global],
                randomness.fold_in(keys, index),
                read_at=read_at,
                return_probabilities=return_attention,
            )
            x = nn.with_logical_constraint(x, ("batch", "length", "hidden"))
            return x, (x if return_hidden_states else None, probabilities)

        first = nn.with_logical_constraint(x, ("batch", "length", "hidden"))
        x, (states, probabilities) = layer_stack.apply(
            c, apply_block, self.layers, first, read_at
        )
        if return_hidden_states:
            states = jnp.concatenate([first[None], states])  # [N + 1, B, L, D]
        return Encoded(x, states, probabilities)

    def _pattern(self, inputs: Inputs, is_global: bool) -> AttentionPattern:
        c, rotations = self.config, None
        if c.positions == "rotary":
            positions = inputs.positions
            if positions is None:
                positions = jnp.arange(inputs.input_ids.shape[1])[None]  # [1, L]
            base = c.rotary_base if is_global else c.local_rotary_base or c.rotary_base
            rotations = rotary.rotations(positions, c.head_size, base)
        return AttentionPattern(
            inputs.attention_mask,
            inputs.documents,
            causal=c.causal,
            window=None if is_global else c.attention_window,
            rotations=rotations,
        )

    def _init_block(self, key: jax.Array) -> Any:
        c = self.config
        ids = jnp.zeros((1, 1), jnp.int32)
        inputs = Inputs(ids, ids == 0, ids)
        return _initial_values(
            Block(c, attention_class=self.attention_class, parent=None),
            key,
            jnp.zeros((1, 1, c.hidden_size), c.dtype),
            self._pattern(inputs, True),
            None,
        )

    def pooled_positions(self, inputs: Inputs) -> Int[Array, "B 1"]:
        """Return the position of the pooled token of each row: the first, [CLS].

        In a causal encoder it is the last token, which alone has seen all others.
        """
        if self.config.causal:
            return jnp.sum(inputs.attention_mask, axis=1, keepdims=True) - 1
        return jnp.zeros((inputs.input_ids.shape[0], 1), jnp.int32)

    def pooled(
        self, inputs: Inputs, dropout_keys: UInt32[Array, " B"] | None
    ) -> Float[Array, "B D"]:
        """Encode a batch, and return one vector for each row, for a classifier."""
        pooling = self.config.pooler.pooling
        if pooling == "cls":
            at = self.pooled_positions(inputs)
            encoded = self(inputs, dropout_keys=dropout_keys, read_at=at)
            return self.pooler(encoded.hidden[:, 0])
        hidden = self(inputs, dropout_keys=dropout_keys).hidden
        if pooling == "late_mean":
            return pooler.mean(self.pooler(hidden), inputs.attention_mask)
        return self.pooler(pooler.mean(hidden, inputs.attention_mask))


@functools.partial(jax.jit, static_argnums=0)
def _initial_values(block: nn.Module, key: jax.Array, *inputs: Any) -> Any:
    """Initialise a block.

    Flax repeats this, for shapes only, whenever the encoder is applied. `jax.jit`
    caches the trace, which would take as long as tracing a layer.
    """
    return block.init(key, *inputs)["params"]
