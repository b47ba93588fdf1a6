"""How each part of a layer ends: added to its input, and normalised."""

import functools

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, layers, products, residual_kernel


class AddAndNormalise(nn.Module):
    """The layer norm of x + dropout(y) (Vaswani et al. 2017, 3.1 and 5.4).

    On TPUs by a kernel, where shapes allow it; both ways draw the same dropout.

    Attributes:
      config: Shape of the encoder.
      readers: Number of those who read the result. Each is given it, so that the kernel
        adds up what comes back from them.
    """

    config: config_lib.EncoderConfig
    readers: int = 1

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        y: products.Biased,
        dropout_keys: UInt32[Array, "B ..."] | None,
    ) -> tuple[Float[Array, "B L D"], ...]:
        """What is handed on, to each of the readers.

        Args:
          x: Input of the part.
          y: What the part made of it.
          dropout_keys: A key for each row, or for each position; None for no dropout.
        """
        c = self.config
        scale, bias = layers.scale_and_bias(self, x.shape[-1])
        arrays = x, y, scale, bias, dropout_keys
        plain = functools.partial(_plain, c, self.readers)
        if not residual_kernel.suits(x.shape, dropout_keys):
            return plain(*arrays)
        kernel = functools.partial(_by_kernel, c, self.readers, interpret=False)
        return lax.platform_dependent(*arrays, tpu=kernel, default=plain)


def _plain(config, readers, x, y, scale, bias, dropout_keys):
    y = y.total().astype(config.dtype)
    y = dropout.dropout(y, config.dropout_rate, dropout_keys)
    total = x.astype(jnp.float32) + y.astype(jnp.float32)
    normalised = layers.normalise(total, scale, bias, config.layer_norm_epsilon)
    return (normalised.astype(config.dtype),) * readers


def _by_kernel(config, readers, x, y, scale, bias, dropout_keys, *, interpret):
    return residual_kernel.add_and_normalise(
        x,
        y,
        scale,
        bias,
        dropout_keys,
        rate=config.dropout_rate,
        epsilon=config.layer_norm_epsilon,
        readers=readers,
        interpret=interpret,
    )
