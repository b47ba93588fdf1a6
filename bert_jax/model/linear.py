"""Linear layers, and the initial values of kernels and tables."""

import math

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax import config as config_lib
from bert_jax.model import products


class Linear(nn.Module):
    """A product with a kernel, and a bias, in the encoder's type."""

    config: config_lib.EncoderConfig
    outputs: tuple[tuple[str, int], ...]  # names and sizes of the new dimensions
    # Names of the input's trailing dimensions, which are contracted.
    inputs: tuple[str, ...] = ("embed",)
    has_bias: bool = True
    is_scaled: bool = False  # whether `depth_scaled_init` applies to the kernel

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the product plus the bias."""
        return products.add_bias(*self.product_and_bias(x)).astype(self.config.dtype)

    def product_and_bias(
        self, x: Float[Array, "..."], *, may_round: bool = True
    ) -> tuple[Float[Array, "..."], Float[Array, "..."] | None]:
        """Return the product, in float32, and the bias, which the caller adds.

        For callers that fuse adding the bias with their next operation. `may_round`
        is whether they round the sum to the encoder's type (`products.einsum_float32`).
        """
        split = x.ndim - len(self.inputs)
        rows, contracted = x.shape[:split], x.shape[split:]
        kernel, bias = self.kernel_and_bias(contracted)
        sizes = kernel.shape[len(contracted) :]
        y = products.linear(
            x.reshape(math.prod(rows), math.prod(contracted)),
            kernel.reshape(math.prod(contracted), math.prod(sizes)),
            jnp.dtype(self.config.dtype),
            may_round=may_round,
        )
        return y.reshape(*rows, *sizes), bias

    @nn.compact
    def kernel_and_bias(
        self, contracted: tuple[int, ...]
    ) -> tuple[Float[Array, "..."], Float[Array, "..."] | None]:
        """Return the parameters; `contracted` has the sizes of the inputs."""
        c = self.config
        stddev = c.initializer_range
        if self.is_scaled and c.depth_scaled_init:
            stddev /= (2 * c.num_layers) ** 0.5
        names = tuple(name for name, _ in self.outputs)
        sizes = tuple(size for _, size in self.outputs)
        kernel_init = initializer(stddev, (*self.inputs, *names))
        kernel = self.param("kernel", kernel_init, (*contracted, *sizes))
        if not self.has_bias:
            return kernel, None
        bias_init = nn.with_logical_partitioning(nn.initializers.zeros, names)
        return kernel, self.param("bias", bias_init, sizes)


def initializer(stddev: float, names: tuple[str, ...]) -> nn.initializers.Initializer:
    """Return a normal distribution truncated at two standard deviations, as in BERT.

    The values are boxed with the names of their dimensions.
    """
    init = nn.initializers.truncated_normal(stddev)
    return nn.with_logical_partitioning(init, names)


def attention_output(config: config_lib.EncoderConfig, has_bias: bool) -> Linear:
    """Return the layer from the heads of attention to hidden states."""
    return Linear(
        config,
        (("embed", config.hidden_size),),
        ("heads", "head"),
        has_bias,
        is_scaled=True,
        name="output",
    )
