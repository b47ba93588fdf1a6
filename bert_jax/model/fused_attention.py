"""Self-attention by cuDNN's fused kernel, on NVIDIA GPUs.

JAX ships it. It keeps no [L, L] array in memory, like our kernel for TPUs
(`attention_kernel.py`), but has no dropout that could be used: its seed is a constant
of the compiled program, so that each step would have the same mask. So it serves models
without dropout of attention probabilities, and all evaluations and predictions.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# What cuDNN's documentation asks for ("Fused Flash Attention", Ampere and newer).
_LEAST_CAPABILITY = (8, 0)
_MAX_HEAD_SIZE = 128
_HEAD_SIZE_MULTIPLE = 8


def suits(head_size: int, dtype: jnp.dtype, rate: float) -> bool:
    """Whether the kernel computes what is asked for.

    Args:
      head_size: Columns of a head.
      dtype: Type of queries, keys and values.
      rate: Rate of dropout of the probabilities; 0 for none.
    """
    return (
        rate == 0
        and dtype == jnp.bfloat16
        and head_size <= _MAX_HEAD_SIZE
        and head_size % _HEAD_SIZE_MULTIPLE == 0
    )


def is_available() -> bool:
    """Whether the devices have it: it cannot even be traced for others."""
    device = jax.devices()[0]
    if device.platform != "gpu" or "cuda" not in device.client.platform_version:
        return False
    major, minor = map(int, device.compute_capability.split("."))
    return (major, minor) >= _LEAST_CAPABILITY


def attend(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B L H K"],
    value: Float[Array, "B L H K"],
    mask: Bool[Array, "B L"],
    documents: Int[Array, "B L"] | None,
    *,
    causal: bool,
    implementation: str = "cudnn",
) -> Float[Array, "B L H K"]:
    """softmax(Q K^T / sqrt(K)) V of each head.

    Padding and order cost nothing: blocks of them are left out. Documents of packed
    rows become an array [B, 1, L, L], which all heads share.

    Args:
      query: Query of each position.
      key: Key of each.
      value: Value of each.
      mask: Which positions are not padding, which stands at the end of a row.
      documents: Document of each position; None: all are of one.
      causal: Whether a position attends only to itself and those before it.
      implementation: "xla" computes the same anywhere, for tests.
    """
    # A row of padding alone attends to its first position: of none at all, the
    # softmax, which nobody reads, would not be finite.
    lengths = jnp.maximum(jnp.sum(mask, axis=1, dtype=jnp.int32), 1)
    same = None
    if documents is not None:
        same = (documents[:, :, None] == documents[:, None, :])[:, None]
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        mask=same,
        is_causal=causal,
        key_value_seq_lengths=lengths,
        implementation=implementation,
    )
