"""Dropout, residual connection and norm.

`AddAndNormalise` chooses between the TPU kernel and the plain path, which defines the
result.
"""

import functools

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, norms, products
from bert_jax.model.kernels import decisions, tpu_residual


class AddAndNormalise(nn.Module):
    """The norm of a residual connection: norm(x + dropout(product + bias))."""

    config: config_lib.EncoderConfig
    keeps_sum: bool = False  # whether to return the sum, too, for pre-norm blocks

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        product: Float[Array, "B L D"] | None = None,
        bias: Float[Array, " D"] | None = None,
        dropout_keys: UInt32[Array, "B ..."] | None = None,
        *,
        consumers: int = 1,
    ) -> tuple[Float[Array, "B L D"], ...]:
        """Return the sum, if it is kept, and the norm, once for each consumer.

        Each consumer of the norm takes its own copy, so that the backward kernel can
        sum their gradients. With `keeps_sum`, there is one consumer.

        Args:
          x: Input of the residual connection.
          product: Float32 product that is added to it; None for the norm of x.
          bias: Bias of the product; None: no bias.
          dropout_keys: A key for each row or each position; None for no dropout.
          consumers: Number of copies.
        """
        c = self.config
        scale, offset = norms.norm_parameters(self, x.shape[-1])
        arrays = x, product, bias, scale, offset, dropout_keys
        plain = functools.partial(_plain, c, self.keeps_sum, consumers)
        is_per_position = dropout_keys is not None and dropout_keys.ndim > 1
        decision = decisions.residual(c, "tpu", *x.shape[:2])
        if is_per_position or decision.implementation == decisions.PLAIN:
            return plain(*arrays)
        kernel = functools.partial(_tpu, c, self.keeps_sum, consumers)
        return lax.platform_dependent(*arrays, tpu=kernel, default=plain)


def add(
    config: config_lib.EncoderConfig,
    x: Float[Array, "B L D"],
    product: Float[Array, "B L D"],
    bias: Float[Array, " D"] | None,
    dropout_keys: UInt32[Array, "B ..."] | None,
) -> Float[Array, "B L D"]:
    """Return x + dropout(product + bias), with arguments as in `AddAndNormalise`."""
    total = _sum(config, x, product, bias, dropout_keys)
    return total.astype(config.dtype)


def _sum(config, x, product, bias, dropout_keys):
    y = products.add_bias(product, bias).astype(config.dtype).astype(jnp.float32)
    return x.astype(jnp.float32) + dropout.dropout(y, config.dropout_rate, dropout_keys)


def _plain(config, keeps_sum, consumers, x, product, bias, scale, offset, keys):
    total = x
    if product is not None:
        total = _sum(config, x, product, bias, keys)
    if keeps_sum:
        total = total.astype(config.dtype)
    normalised = norms.normalise(total, scale, offset, config).astype(config.dtype)
    return (total,) * keeps_sum + (normalised,) * consumers


def _tpu(config, keeps_sum, consumers, x, product, bias, scale, offset, keys):
    options = tpu_residual.Options(
        rate=0.0 if keys is None else config.dropout_rate,
        epsilon=config.layer_norm_epsilon,
        is_centered=config.norm == "layer",
        keeps_sum=keeps_sum,
        consumers=consumers,
    )
    zeros = jnp.zeros(x.shape[-1:])
    bias, offset = (zeros if vector is None else vector for vector in (bias, offset))
    keys = jnp.zeros(x.shape[0], jnp.uint32) if keys is None else keys
    return tpu_residual.add_and_normalise(
        x, product, bias, scale, offset, keys, options
    )
