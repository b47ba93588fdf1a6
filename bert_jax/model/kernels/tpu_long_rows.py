"""Attention of long rows on TPUs, by the splash attention that comes with JAX.

Keys are taken in blocks, with a running softmax, so that no array has L x L values.
Blocks that no query of a block sees, because of a window or the order, are skipped.
There is no dropout.

Source: jax.experimental.pallas.ops.tpu.splash_attention.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jaxtyping import Array, Float

from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.kernels import per_device

# Positions of a block; the first that divides the length is taken. Small blocks skip
# more of what is outside a window.
_BLOCKS = (1024, 512, 256, 128)
_BLOCKS_OF_WINDOWS = (256, 128)
# Segment of keys that no query sees.
_NO_SEGMENT = -1
_ROWS = ("batch", "heads", "length", None)
_IDS = ("batch", "length")


class _Options(NamedTuple):
    causal: bool
    window: int | None
    interpret: bool


def attend(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B L H K"],
    value: Float[Array, "B L H K"],
    pattern: AttentionPattern,
    *,
    interpret: bool = False,
) -> Float[Array, "B L H K"]:
    """Return softmax(Q K^T / sqrt(K)) V of each head, and zeros for padding.

    Args:
      query: Queries; L is a multiple of 128.
      key: Keys.
      value: Values.
      pattern: Rules for which keys each query sees.
      interpret: Whether to interpret the kernel, on any backend.
    """
    segments = pattern.documents
    if segments is None:
        segments = jnp.zeros(pattern.is_token.shape, jnp.int32)
    of_keys = jnp.where(pattern.is_token, segments, _NO_SEGMENT)
    query = (query * query.shape[-1] ** -0.5).astype(query.dtype)
    (context,) = per_device.apply(
        _run,
        _Options(pattern.causal, pattern.window, interpret),
        (_ROWS, _ROWS, _ROWS, _IDS, _IDS),
        (_ROWS,),
        *(x.swapaxes(1, 2) for x in (query, key, value)),  # [B, H, L, K]
        segments,
        of_keys,
    )
    # A query of a token sees its own key. Others may see none, where the kernel's
    # result is not zero.
    is_token = pattern.is_token[:, :, None, None]
    return jnp.where(is_token, context.swapaxes(1, 2), 0)


def _run(options, query, key, value, segments, of_keys):
    _, heads, length, _ = query.shape
    skips = options.window is not None and length > _BLOCKS[0]
    sizes = _BLOCKS_OF_WINDOWS if skips else _BLOCKS
    block = next(size for size in sizes if length % size == 0)
    shape = length, length
    if options.window is not None:
        after = 0 if options.causal else options.window
        mask = splash.LocalMask(shape, (options.window, after), 0)
    else:
        mask = (splash.CausalMask if options.causal else splash.FullMask)(shape)
    kernel = splash.make_splash_mha(
        splash.MultiHeadMask([mask] * heads),
        block_sizes=splash.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            # One backward kernel computes scores once, but writes gradients of queries
            # for each block of keys, also for those that it skips.
            use_fused_bwd_kernel=not skips,
            block_q_dq=block if skips else None,
            block_kv_dq=block if skips else None,
        ),
        head_shards=1,
        q_seq_shards=1,
        interpret=options.interpret,
    )
    ids = splash.SegmentIds(segments, of_keys)
    return (jax.vmap(kernel)(query, key, value, ids),)
