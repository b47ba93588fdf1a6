"""Checksums of the arrays of a checkpoint.

The file format itself does not detect most flipped bits in array values (docs/log.md,
2026-11-21).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model import parameters, randomness


@functools.partial(jax.jit, static_argnums=1)
def compute(tree: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """Compute the checksums of the leaves of a tree: uint32 [leaves]."""
    return jax.lax.with_sharding_constraint(jnp.stack(_by_leaf(tree)), sharding)


def compute_one_by_one(tree: Any) -> jax.Array:
    """Compute the same as `compute`, for arrays on one device, with less memory.

    A single program for all arrays may need as much memory again as they do.
    """
    return jnp.stack([_by_leaf([leaf])[0] for leaf in jax.tree.leaves(tree)])


@jax.jit
def _by_leaf(tree: Any) -> list[jax.Array]:
    """Compute a uint32 for each leaf from all of its bits, whatever its sharding.

    It is the sum of the bits, read as a uint32, times an odd factor for each index. The
    sum is modulo 2**32, so its order does not matter.
    """

    def checksum(x):
        if x.dtype.itemsize != 4:
            raise TypeError(f"checksums need a type of 4 bytes, got {x.dtype}")
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
        index = randomness.flat_index(x.shape, range(x.ndim))
        factor = index * jnp.uint32(0x9E3779B9) | jnp.uint32(1)
        return jnp.sum(bits * factor, dtype=jnp.uint32)

    return [checksum(x) for x in jax.tree.leaves(tree)]


def verify(tree: Any, stored: dict[str, int]) -> None:
    """Check that arrays have the stored checksums, given by path.

    Raises:
      ValueError: The checksum of an array differs.
    """
    values = jax.device_get(_by_leaf(tree))
    for path, checksum in zip(parameters.paths(tree), values, strict=True):
        if checksum != stored[path]:
            raise ValueError(f"the checksum of {path} does not match")
