"""Rows of many lengths in batches of few shapes: each shape is compiled once."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

BATCH_SIZE = 32
_SHORTEST = 16


@dataclasses.dataclass(frozen=True)
class Batch:
    """Which rows go through the model at once, and in which shape.

    Attributes:
      indices: Their indices.
      size: Rows of the batch; those beyond the indices repeat the last one.
      length: Tokens in a row of the batch.
    """

    indices: np.ndarray
    size: int
    length: int


def lengths(positions: int) -> list[int]:
    """The lengths of batches: the model's positions, and halves down to about 16.

    Between two of them there is their middle.
    """
    sizes = [positions]
    while sizes[0] >= 2 * _SHORTEST:
        half = -(-sizes[0] // 2)
        sizes = [half, (half + sizes[0]) // 2, *sizes]
    return sizes


def plan(
    attention_mask: np.ndarray, sizes: Sequence[int], batch_size: int
) -> Iterator[Batch]:
    """Deal rows to batches, from the shortest up.

    Args:
      attention_mask: bool [rows, ..., L].
      sizes: Lengths to choose from, ascending.
      batch_size: Rows in a batch, at most; the last one has a power of two.
    """
    used = attention_mask.any(axis=tuple(range(1, attention_mask.ndim - 1)))
    ends = np.where(used, np.arange(1, used.shape[1] + 1), 0).max(axis=1, initial=0)
    order = np.argsort(ends, kind="stable")
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        longest = ends[indices[-1]]
        size = min(batch_size, 1 << (len(indices) - 1).bit_length())
        yield Batch(indices, size, next(n for n in sizes if n >= longest))


def cut(rows: Mapping[str, np.ndarray], batch: Batch, axes: Mapping[str, int | None]):
    """The arrays of a batch.

    Args:
      rows: Arrays of all rows.
      batch: Which of them.
      axes: Dimension of each array that is the length; None if none is.
    """
    spare = np.full(batch.size - len(batch.indices), batch.indices[-1])
    indices = np.concatenate([batch.indices, spare])
    return {
        name: fit(values[indices], axes[name], batch.length)
        for name, values in rows.items()
    }


def fit(values: np.ndarray, axis: int | None, length: int) -> np.ndarray:
    """An array cut, or filled up with zeros, to a length along one dimension."""
    if axis is None or values.shape[axis] == length:
        return values
    if values.shape[axis] > length:
        return values[(slice(None),) * axis + (slice(length),)]
    missing = [(0, 0)] * values.ndim
    missing[axis] = (0, length - values.shape[axis])
    return np.pad(values, missing)


def length_axes(short: Mapping, long: Mapping) -> dict[str, int | None]:
    """The dimension of each array that differs between shapes of two lengths."""
    axes = {}
    for name in short:
        sizes = zip(short[name].shape, long[name].shape, strict=True)
        axes[name] = next((i for i, (a, b) in enumerate(sizes) if a != b), None)
    return axes
