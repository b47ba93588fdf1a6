"""A checksum for each array of a checkpoint.

The files' own format does not notice most of the bits that a disk may flip in the
values (docs/log.md, 2026-11-21).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model import parameters


@functools.partial(jax.jit, static_argnums=1)
def stacked(tree: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """Checksums of the leaves in JAX's order: uint32 [leaves], laid out as asked."""
    return jax.lax.with_sharding_constraint(jnp.stack(_of_each(tree)), sharding)


def one_by_one(tree: Any) -> jax.Array:
    """The same as `stacked`, of arrays on one device, with less memory.

    One program for all arrays may hold as much again as they are.
    """
    return jnp.stack([_of_each([leaf])[0] for leaf in jax.tree.leaves(tree)])


@jax.jit
def _of_each(tree: Any) -> list[jax.Array]:
    """Uint32 for each leaf: changes with any of its bits, and not with its sharding.

    An odd factor for each index, and a sum modulo 2**32, which has no order.
    """

    def checksum(x):
        if x.dtype.itemsize != 4:
            raise TypeError(f"checksums are for types of 4 bytes, not {x.dtype}")
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
        index = jnp.zeros((), jnp.uint32)
        for dim in range(x.ndim):
            index = index * jnp.uint32(x.shape[dim])
            index = index + jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim)
        factor = index * jnp.uint32(0x9E3779B9) | jnp.uint32(1)
        return jnp.sum(bits * factor, dtype=jnp.uint32)

    return [checksum(x) for x in jax.tree.leaves(tree)]


def verify(tree: Any, stored: dict[str, int]) -> None:
    """Compare what was read with the checksums of what was saved.

    Args:
      tree: Arrays that were read.
      stored: Checksums by path.

    Raises:
      ValueError: An array has other values.
    """
    values = jax.device_get(_of_each(tree))
    for path, checksum in zip(parameters.paths(tree), values, strict=True):
        if checksum != stored[path]:
            raise ValueError(f"{path} is not what was saved (checksum)")
