"""Layer norm and RMS norm."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax import config as config_lib


class Norm(nn.Module):
    """The encoder's norm over the last dimension, computed in float32.

    Parameters are `scale`, and `bias` unless the config leaves it out.
    """

    config: config_lib.EncoderConfig

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Normalise `x`, of any float type, to the encoder's type."""
        c = self.config
        scale, bias = norm_parameters(self, x.shape[-1])
        return normalise(x, scale, bias, c).astype(c.dtype)


def norm_parameters(
    module: nn.Module, size: int
) -> tuple[Float[Array, " D"], Float[Array, " D"] | None]:
    """Declare scale and bias in a module that has the encoder's config."""
    c = module.config
    ones = nn.with_logical_partitioning(nn.initializers.ones, ("hidden",))
    zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("hidden",))
    scale = module.param("scale", ones, (size,))
    has_bias = c.norm == "layer" and c.norm_bias
    return scale, module.param("bias", zeros, (size,)) if has_bias else None


def normalise(
    x: Float[Array, "*rows D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"] | None,
    config: config_lib.EncoderConfig,
) -> Float[Array, "*rows D"]:
    """Apply layer norm (Ba et al. 2016) or RMS norm (Zhang and Sennrich 2019).

    Returns float32. The variance is the mean of squared differences; a difference of
    means would lose all digits where the mean is large.
    """
    x = x.astype(jnp.float32)
    if config.norm == "layer":
        x = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    y = x * jax.lax.rsqrt(variance + config.layer_norm_epsilon) * scale
    return y if bias is None else y + bias
