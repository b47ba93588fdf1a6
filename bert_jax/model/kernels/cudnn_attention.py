"""Attention by cuDNN's fused kernel, on NVIDIA GPUs.

Like the TPU kernel it stores no [L, L] array. JAX's interface to it has no usable
dropout: the seed is a constant of the compiled program, so that each step would draw
the same mask. It therefore serves models without dropout of attention probabilities,
and all evaluation and prediction.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.model.attention_pattern import AttentionPattern


def attend(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B L H K"],
    value: Float[Array, "B L H K"],
    pattern: AttentionPattern,
    *,
    implementation: str = "cudnn",
) -> Float[Array, "B L H K"]:
    """Return softmax(Q K^T / sqrt(K)) V of each head.

    Blocks of padding and of later keys are skipped. Documents of packed rows become a
    mask [B, 1, L, L], which all heads share.

    Args:
      query: Queries.
      key: Keys.
      value: Values.
      pattern: Which keys each query sees; without a window.
      implementation: "xla" computes the same on any platform, for tests.
    """
    # cuDNN's softmax of no key is not finite: rows of padding see their first position,
    # and queries without a key are zeroed below.
    lengths = jnp.maximum(jnp.sum(pattern.is_token, axis=1, dtype=jnp.int32), 1)
    documents, same = pattern.documents, None
    if documents is not None:
        same = (documents[:, :, None] == documents[:, None, :])[:, None]
    context = jax.nn.dot_product_attention(
        query,
        key,
        value,
        mask=same,
        is_causal=pattern.causal,
        key_value_seq_lengths=lengths,
        implementation=implementation,
    )
    sees_key = jnp.any(pattern.mask(), axis=2)[:, :, None, None]  # [B, L or 1, 1, 1]
    return jnp.where(sees_key, context, 0)
