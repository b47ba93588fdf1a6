"""One layer of the encoder."""

import functools

import flax.linen as nn
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import attention, dropout, randomness
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.feed_forward import FeedForward
from bert_jax.model.inputs import at_positions
from bert_jax.model.kernels import residual
from bert_jax.model.kernels.residual import AddAndNormalise


class Block(nn.Module):
    """Self-attention and a feed-forward network, each with a residual connection.

    Post-norm blocks (Vaswani et al. 2017; BERT) normalise each sum:
        x = norm(x + dropout(attention(x)))
        x = norm(x + dropout(feed_forward(x)))
    Pre-norm blocks (ModernBERT) normalise each input, and leave the sum as it is:
        x = x + dropout(attention(norm(x)))
        x = x + dropout(feed_forward(norm(x)))
    """

    config: config_lib.EncoderConfig
    # Whether a pre-norm block normalises the input of attention.
    has_attention_norm: bool = True
    attention_class: type[nn.Module] = attention.SelfAttention

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        pattern: AttentionPattern,
        dropout_keys: UInt32[Array, " B"] | None,
        *,
        read_at: Int[Array, "B P"] | None = None,
        return_probabilities: bool = False,
    ) -> tuple[Float[Array, "B P D"], Float[Array, "B H P L"] | None]:
        """Apply the block to the hidden states of the layer below.

        `read_at` are the positions to compute; None: all, and P is L. `dropout_keys`
        are the keys of this layer. Other arguments are as in `SelfAttention`.
        """
        c = self.config

        def keys_of(place):
            keys = randomness.fold_in(dropout_keys, place)
            return dropout.keys_at(keys, read_at, c.hidden_size)

        attend = functools.partial(
            self.attention_class(c, name="attention"),
            pattern=pattern,
            dropout_keys=randomness.fold_in(dropout_keys, "attention_probabilities"),
            query_positions=read_at,
            return_probabilities=return_probabilities,
        )
        feed_forward = FeedForward(c)
        nn.share_scope(self, feed_forward)  # parameter paths have no "feed_forward"

        # Attention and feed-forward network return a product and its bias, which the
        # residual connection adds in one pass. It returns a copy for each consumer, so
        # that its backward pass sums their gradients.
        if c.norm_placement == "post":
            *output, probabilities = attend(x)
            x = at_positions(x, read_at)  # [B, P, D]
            x, shortcut = AddAndNormalise(c, name="attention_layer_norm")(
                x, *output, keys_of("attention_output"), consumers=2
            )
            (x,) = AddAndNormalise(c, name="output_layer_norm")(
                shortcut, *feed_forward(x), keys_of("feed_forward_output")
            )
        else:
            normalised = x
            if self.has_attention_norm:
                x, normalised = AddAndNormalise(
                    c, keeps_sum=True, name="attention_norm"
                )(x)
            *output, probabilities = attend(normalised)
            x = at_positions(x, read_at)  # [B, P, D]
            x, normalised = AddAndNormalise(
                c, keeps_sum=True, name="feed_forward_norm"
            )(x, *output, keys_of("attention_output"))
            output = feed_forward(normalised)
            x = residual.add(c, x, *output, keys_of("feed_forward_output"))
        return x, probabilities
