"""The feed-forward network of a block."""

import functools

import flax.linen as nn
from jaxtyping import Array, Float

from bert_jax import config as config_lib
from bert_jax.model import activations
from bert_jax.model.linear import Linear


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, or three if it is gated.

    plain: output(activation(intermediate(x))) (Vaswani et al. 2017, 3.3);
    gated: output(activation(gate(x)) * intermediate(x)) (Shazeer 2020).
    """

    config: config_lib.EncoderConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L D"]
    ) -> tuple[Float[Array, "B L D"], Float[Array, " D"] | None]:
        """Return a float32 product and a bias, whose sum is the output."""
        c = self.config
        linear = functools.partial(Linear, c, has_bias=c.linear_bias)
        expand = functools.partial(linear, (("mlp", c.intermediate_size),))  # D to F
        # One dimension for all rows: between products of three dimensions, a TPU would
        # copy the activation's input and output to another layout, in float32.
        rows = x.reshape(-1, c.hidden_size)  # [B L, D]
        y = expand(name="intermediate")(rows)  # [B L, F]
        if c.feed_forward == "plain":
            y = activations.activate(y, c.activation)
        else:
            y = activations.activate(expand(name="gate")(rows), c.activation) * y
        contract = linear(
            (("embed", c.hidden_size),), ("mlp",), is_scaled=True, name="output"
        )
        product, bias = contract.product_and_bias(y)
        return product.reshape(x.shape), bias
