"""Overlapping pieces of long rows, for local attention by a kernel for short rows.

A piece has the positions whose attention it computes, and on both sides as many as
their windows reach.
"""

import jax.numpy as jnp
from jaxtyping import Array, Shaped

# Most positions that a piece computes.
_MOST = 1024
# Lengths of pieces are multiples of this.
_BLOCK = 128


def _margin(window: int) -> int:
    """Return the positions on each side of a piece."""
    return -(-window // (_BLOCK // 2)) * (_BLOCK // 2)


def cut(x: Shaped[Array, "B L *C"], window: int) -> Shaped[Array, "B_N S *C"]:
    """Cut each row into N pieces of S positions. Outside of the row are zeros.

    L is a multiple of 128.
    """
    rows, length, *columns = x.shape
    size = max(s for s in range(_BLOCK, _MOST + 1, _BLOCK) if length % s == 0)
    # TPUs would pad [..., H, K] in memory.
    x = x.reshape(rows, length // size, size, -1)  # [B, N, size, C]
    sides = _margin(window)
    zeros = jnp.zeros_like(x[:, :1, :sides])
    left = jnp.concatenate([zeros, x[:, :-1, -sides:]], axis=1)
    right = jnp.concatenate([x[:, 1:, :sides], zeros], axis=1)
    pieces = jnp.concatenate([left, x, right], axis=2)  # [B, N, S, C]
    return pieces.reshape(-1, size + 2 * sides, *columns)


def join(
    pieces: Shaped[Array, "B_N S *C"], rows: int, window: int
) -> Shaped[Array, "B L *C"]:
    """Put the rows together again, without the sides of their pieces."""
    sides = _margin(window)
    x = pieces.reshape(*pieces.shape[:2], -1)[:, sides:-sides]  # [B N, size, C]
    return x.reshape(rows, -1, *pieces.shape[2:])
