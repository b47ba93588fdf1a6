"""Overlapping pieces of long rows, for local attention by a kernel for short rows.

A piece has the positions whose attention it computes, and on both sides a margin that
holds their windows.
"""

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from bert_jax.model.kernels import block_sizes


def _margin(window: int) -> int:
    """Return the number of positions in the margin on each side of a piece."""
    half = block_sizes.QUERY_CHUNK // 2
    return -(-window // half) * half


def cut(x: Shaped[Array, "B L *C"], window: int) -> Shaped[Array, "B_N S *C"]:
    """Cut each row into N pieces of S positions. Margins outside of a row are zeros.

    L is a multiple of 128.
    """
    rows, length, *columns = x.shape
    size = block_sizes.piece_size(length)
    # TPUs would pad [..., H, K] in memory.
    x = x.reshape(rows, length // size, size, -1)  # [B, N, size, C]
    margin = _margin(window)
    zeros = jnp.zeros_like(x[:, :1, :margin])
    left = jnp.concatenate([zeros, x[:, :-1, -margin:]], axis=1)
    right = jnp.concatenate([x[:, 1:, :margin], zeros], axis=1)
    pieces = jnp.concatenate([left, x, right], axis=2)  # [B, N, S, C]
    return pieces.reshape(-1, size + 2 * margin, *columns)


def join(
    pieces: Shaped[Array, "B_N S *C"], rows: int, window: int
) -> Shaped[Array, "B L *C"]:
    """Join pieces into rows, without their margins."""
    margin = _margin(window)
    x = pieces.reshape(*pieces.shape[:2], -1)[:, margin:-margin]  # [B N, size, C]
    return x.reshape(rows, -1, *pieces.shape[2:])
