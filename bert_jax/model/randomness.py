"""Random bits as a pure function of (seed, purpose, step, row, place, position).

Each row of a batch has its own 32-bit key, made from the run's seed, the purpose, the
step and the row's index in the whole batch. So what is drawn for a row does not depend
on how the batch is spread over devices or cut into micro-batches, and gradient
accumulation equals the big batch with dropout on.

Places have names, such as "embeddings". A model that has two parts of one kind folds a
name of its own into the keys of each part, and they draw apart.

The bits come from an integer hash (`_mix`: the two-multiplication mixer with constants
found by Wellons, "Prospecting for hash functions", 2018). JAX's own generators would
cost a tenth of a training step on a processor (docs/log.md), and the fast one makes
other bits when the mesh changes, as its documentation says.
"""

import zlib

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, UInt32

_GOLDEN = 0x9E3779B9


def row_keys(
    seed: int | UInt32[Array, ""],
    purpose: str,
    step: Int[Array, ""],
    rows: Int[Array, " B"],
) -> UInt32[Array, " B"]:
    """Keys of the rows of a batch.

    Args:
      seed: Seed of the run.
      purpose: What the keys are for: purposes draw independently.
      step: Number of the step.
      rows: Index of each row in the batch over all devices and micro-batches.
    """
    if isinstance(seed, int):
        seed = jnp.uint32(seed % 2**32)
    key = _mix(seed + jnp.uint32(_GOLDEN))
    key = _fold(key, _number(purpose))
    return _fold(_fold(key, step), rows)


def fold_in(
    keys: UInt32[Array, " B"] | None, place: str | int | Int[Array, ""]
) -> UInt32[Array, " B"] | None:
    """Keys for one place in the model.

    Args:
      keys: Keys of the rows; None for no randomness, which stays so.
      place: Name of the place, or index of one of several that are alike.
    """
    if keys is None:
        return None
    return _fold(keys, _number(place) if isinstance(place, str) else place)


def bits(keys: UInt32[Array, " B"], shape: tuple[int, ...]) -> UInt32[Array, "B ..."]:
    """Random words.

    Args:
      keys: Keys of the rows at one place.
      shape: Shape of the array of one row, of fewer than 2**32 words.
    """
    index = jnp.zeros((), jnp.uint32)
    full = (*keys.shape, *shape)
    for dim in range(1, len(full)):
        index = index * jnp.uint32(full[dim])
        index = index + lax.broadcasted_iota(jnp.uint32, full, dim)
    return _mix(advance(keys.reshape(-1, *[1] * len(shape)), index))


def advance(
    counters: UInt32[Array, "..."], index: UInt32[Array, "..."]
) -> UInt32[Array, "..."]:
    """Counters of the words that come `index` later; a key is the first of its row."""
    return index * jnp.uint32(_GOLDEN) + counters


def _number(name: str) -> int:
    """A 32-bit number that stands for a name."""
    return zlib.crc32(name.encode("utf-8"))


def _fold(keys: UInt32[Array, "..."], number) -> UInt32[Array, "..."]:
    return _mix(keys + (jnp.uint32(number) + jnp.uint32(1)) * jnp.uint32(_GOLDEN))


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijection of 32-bit words in which each bit depends on every other."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
