"""Rotations of queries and keys inside the TPU's attention kernel.

A register of 128 columns holds one head or several. Rotated columns are cosine * column
+ sine * partner. The partner of column i of a head is i + K / 2 or i - K / 2, and the
sines of the first half are negative (`rotary.rotate`).
"""

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from bert_jax.model import rotary
from bert_jax.model.kernels.block_sizes import LANES


def factors(
    rotations: rotary.Rotations, head_size: int
) -> Float[Array, "R 2 L columns"]:
    """Return the cosines and the signed sines of the 128 columns of a register."""
    cosine, sine = rotations  # [R, L, K / 2]
    halves = [cosine, cosine], [-sine, sine]
    return jnp.stack(
        [jnp.concatenate(pair * (LANES // head_size), axis=-1) for pair in halves],
        axis=1,
    )


def rotate(head_size, rotations, source, target):
    """Write `source`, [1, L, columns], rotated by [1, 2, L, 128], to `target`."""
    cosine, sine = rotations[0, 0], rotations[0, 1]
    for start in range(0, source.shape[2], LANES):
        columns = slice(start, start + LANES)
        x = source[0, :, columns].astype(jnp.float32)
        target[0, :, columns] = rotated(head_size, x, cosine, sine).astype(target.dtype)


def rotated(head_size, x, cosine, sine):
    """Return a window [N, 128] rotated; the negative sine inverts the rotation."""
    half = head_size // 2
    column = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    is_first = column % head_size < half
    partner = jnp.where(
        is_first, pltpu.roll(x, LANES - half, 1), pltpu.roll(x, half, 1)
    )
    return x * cosine + partner * sine
