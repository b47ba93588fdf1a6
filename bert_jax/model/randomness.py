"""Random bits as a pure function of (seed, purpose, step, row, place, position).

Each row of a batch has its own 32-bit key, derived from the run's seed, the purpose,
the step and the row's index in the whole batch. Random bits of a row therefore do not
depend on devices or micro-batches, and gradient accumulation equals the large batch
with dropout on.

Places have names, such as "embeddings". A model with two parts of one kind folds
another name into the keys of each, so that they draw independently.

The bits come from an integer hash (`_mix`: two multiplications, with constants found
by Wellons, "Prospecting for hash functions", 2018). On a CPU, JAX's generators would
add a tenth (threefry) or a fifth (rbg) to a training step (docs/log.md), and the bits
of rbg depend on the mesh, as its documentation says.
"""

import zlib
from collections.abc import Iterable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Integer, UInt32

_GOLDEN = 0x9E3779B9


def row_keys(
    seed: int | Integer[Array, ""],
    purpose: str,
    step: Int[Array, ""],
    rows: Int[Array, " B"],
) -> UInt32[Array, " B"]:
    """Return the keys of the rows of a batch.

    Args:
      seed: Seed of the run.
      purpose: Name of their use; purposes draw independently.
      step: Number of the step.
      rows: Index of each row in the batch over all devices and micro-batches.
    """
    if isinstance(seed, int):
        seed = jnp.uint32(seed % 2**32)
    key = _mix(jnp.asarray(seed).astype(jnp.uint32) + jnp.uint32(_GOLDEN))
    key = _fold(key, _number(purpose))
    return _fold(_fold(key, step), rows)


def fold_in(
    keys: UInt32[Array, " B"] | None, place: str | int | Int[Array, ""]
) -> UInt32[Array, " B"] | None:
    """Derive the keys of one place in the model.

    Args:
      keys: Keys of the rows; None for no randomness, which stays None.
      place: Name of the place, or its index among several of one name.
    """
    if keys is None:
        return None
    return _fold(keys, _number(place) if isinstance(place, str) else place)


def bits(keys: UInt32[Array, " B"], shape: tuple[int, ...]) -> UInt32[Array, "B ..."]:
    """Return random words [B, *shape], fewer than 2**32 of them for each row."""
    full = (*keys.shape, *shape)
    index = flat_index(full, range(1, len(full)))
    return _mix(advance(keys.reshape(-1, *[1] * len(shape)), index))


def flat_index(shape: tuple[int, ...], dims: Iterable[int]) -> UInt32[Array, "..."]:
    """Return the flat index of each entry over some dimensions, modulo 2**32."""
    index = jnp.zeros((), jnp.uint32)
    for dim in dims:
        index = index * jnp.uint32(shape[dim])
        index = index + lax.broadcasted_iota(jnp.uint32, shape, dim)
    return index


def advance(
    counters: UInt32[Array, "..."], index: UInt32[Array, "..."]
) -> UInt32[Array, "..."]:
    """Return the counters `index` words later; a key is its row's first counter."""
    return index * jnp.uint32(_GOLDEN) + counters


def _number(name: str) -> int:
    """Hash a name to 32 bits."""
    return zlib.crc32(name.encode("utf-8"))


def _fold(keys: UInt32[Array, "..."], number) -> UInt32[Array, "..."]:
    return _mix(keys + (jnp.uint32(number) + jnp.uint32(1)) * jnp.uint32(_GOLDEN))


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Hash 32-bit words by a bijection; each bit depends on every other."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
