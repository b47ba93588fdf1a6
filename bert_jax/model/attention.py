"""Multi-head self-attention (Vaswani et al. 2017, 3.2; BERT paper, 3)."""

import flax.linen as nn
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.inputs import at_positions
from bert_jax.model.kernels import attention as kernels
from bert_jax.model.linear import Linear, attention_output


class SelfAttention(nn.Module):
    """Projections to queries, keys and values, attention, and the output projection."""

    config: config_lib.EncoderConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        pattern: AttentionPattern,
        dropout_keys: UInt32[Array, " B"] | None,
        *,
        query_positions: Int[Array, "B P"] | None = None,
        return_probabilities: bool = False,
    ) -> tuple[
        Float[Array, "B P D"], Float[Array, " D"] | None, Float[Array, "B H P L"] | None
    ]:
        """Compute the attention of some or all positions.

        Args:
          x: Hidden states of all positions.
          pattern: Rules for which positions each query sees, and rotations.
          dropout_keys: Keys of the rows for dropout of the probabilities, or None.
          query_positions: Positions of the queries; None: all, and P is L.
          return_probabilities: Whether to return the probabilities.

        Returns:
          A float32 product and a bias, whose sum is the output; and the probabilities
          before dropout, float32, or None.
        """
        c = self.config

        def project(source, name, num_heads):
            heads = ("heads", num_heads), ("head", c.head_size)
            linear = Linear(c, heads, has_bias=c.linear_bias, name=name)
            return linear.product_and_bias(source)

        queries = at_positions(x, query_positions)  # [B, P, D]
        query, query_bias = project(queries, "query", c.num_heads)  # [B, P, H, K]
        key, key_bias = project(x, "key", c.key_value_heads)  # [B, L, G, K]
        value, value_bias = project(x, "value", c.key_value_heads)
        projections, biases = (query, key, value), (query_bias, key_bias, value_bias)
        arguments = c, projections, biases, pattern
        context = kernels.attend(*arguments, dropout_keys, query_positions)
        output = attention_output(c, c.linear_bias)
        product, bias = output.product_and_bias(context)  # [B, P, D]
        if not return_probabilities:
            return product, bias, None
        return product, bias, kernels.probabilities(*arguments, query_positions)
