"""Layers between the encoder and a classifier."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bert_jax import config as config_lib
from bert_jax.model import activations, norms
from bert_jax.model.linear import Linear


class Pooler(nn.Module):
    """A dense layer with an activation, and a norm, as `config.pooler` has them."""

    config: config_lib.EncoderConfig

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Apply the layers to some vectors."""
        c, pooler = self.config, self.config.pooler
        if pooler.activation:
            columns = (("hidden", c.hidden_size),)
            dense = Linear(c, columns, has_bias=pooler.bias, is_scaled=True)
            nn.share_scope(self, dense)
            x = activations.activate(dense(x), pooler.activation)
        return norms.Norm(c, name="layer_norm")(x) if pooler.norm else x


def mean(x: Float[Array, "B L D"], is_token: Bool[Array, "B L"]) -> Float[Array, "B D"]:
    """Return the mean over the tokens of each row; 0 in a row without tokens."""
    weights = is_token[..., None].astype(jnp.float32)
    total = jnp.sum(x.astype(jnp.float32) * weights, axis=1)
    return (total / jnp.maximum(jnp.sum(weights, axis=1), 1)).astype(x.dtype)
