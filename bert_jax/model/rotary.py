"""Rotary position embeddings (Su et al. 2021, RoFormer, 3.2)."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bert_jax.model.inputs import at_positions


class Rotations(NamedTuple):
    """Cosines and sines of the angles by which each position rotates, in float32."""

    cosine: Float[Array, "#B L half_K"]
    sine: Float[Array, "#B L half_K"]

    def at(self, positions: Int[Array, "B P"] | None) -> "Rotations":
        """Return the rotations at some positions of each row; None: at all."""
        return Rotations(*(at_positions(x, positions) for x in self))


def rotations(positions: Int[Array, "#B L"], head_size: int, base: float) -> Rotations:
    """Return the rotations of positions p by angles p * base ** (-2 i / K) in column i.

    Args:
      positions: Position of each token in its text.
      head_size: Columns of a head, K.
      base: Base of the wavelengths.
    """
    exponents = np.arange(0, head_size, 2) / head_size
    # Powers are rounded to float32 before they are inverted, as in `transformers`: one
    # unit in the last place is 5e-4 radians at position 8,192.
    frequencies = 1 / np.float32(base**exponents)
    angles = positions[..., None].astype(jnp.float32) * frequencies  # [B, L, K / 2]
    return Rotations(jnp.cos(angles), jnp.sin(angles))


def rotate(x: Float[Array, "B L H K"], by: Rotations) -> Float[Array, "B L H K"]:
    """Rotate each pair of columns (i, i + K / 2) of each head by its angle.

    `transformers` and GPT-NeoX pair the halves of a head; the paper pairs neighbouring
    columns.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cosine, sine = by.cosine[:, :, None], by.sine[:, :, None]  # [B, L, 1, K / 2]
    rotated = first * cosine - second * sine, second * cosine + first * sine
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
