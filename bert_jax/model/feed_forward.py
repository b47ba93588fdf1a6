"""The feed-forward network of a block.

`FeedForward` chooses between the TPU kernel and the plain path, which defines the
result.
"""

import functools

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from bert_jax import config as config_lib
from bert_jax.model import activations, products
from bert_jax.model.kernels import decisions, tpu_feed_forward
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
        contract = linear(
            (("embed", c.hidden_size),), ("mlp",), is_scaled=True, name="output"
        )
        is_gated = c.feed_forward == "gated"
        parameters = [
            expand(name=name).kernel_and_bias((c.hidden_size,))
            for name in ("gate", "intermediate")[not is_gated :]
        ]
        parameters.append(contract.kernel_and_bias((c.intermediate_size,)))
        kernels, biases = zip(*parameters, strict=True)
        plain = functools.partial(_plain, c, biases[:-1])
        decision = decisions.feed_forward(c, "tpu", x.shape[0])
        if not is_gated or decision.implementation == decisions.PLAIN:
            return plain(x, *kernels), biases[-1]
        kernel = functools.partial(_tpu, c.activation)
        return lax.platform_dependent(x, *kernels, tpu=kernel, default=plain), None


def _plain(config, biases, x, *kernels):
    *expanding, contracting = kernels
    dtype = jnp.dtype(config.dtype)
    linear = functools.partial(products.linear, dtype=dtype, may_round=True)
    # One dimension for all rows: between products of three dimensions, a TPU would
    # copy the activation's input and output to another layout, in float32.
    rows = x.reshape(-1, config.hidden_size)  # [B L, D]
    expanded = [
        products.add_bias(linear(rows, kernel), bias).astype(dtype)
        for kernel, bias in zip(expanding, biases, strict=True)
    ]  # each [B L, F]
    y = activations.activate(expanded[0], config.activation)
    if config.feed_forward == "gated":
        y = y * expanded[1]
    return linear(y, contracting).reshape(x.shape)


def _tpu(activation, x, *kernels):
    product = tpu_feed_forward.gated_feed_forward(x, *kernels, activation)
    return product.astype(jnp.float32)
