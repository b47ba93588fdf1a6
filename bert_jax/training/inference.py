"""Inference on any mesh: rows in, outputs out, in batches of few shapes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from bert_jax.objectives import BatchShapes
from bert_jax.training import sharding


class Computation(Protocol):
    """Interface of a function of parameters and rows, such as a task's objective.

    It is hashable, so that each computation is compiled once.
    """

    def batch_shapes(self, batch_size: int, length: int) -> BatchShapes:
        """Return the shapes of the arrays that `outputs` reads, and maybe of more."""

    def init(self, key: jax.Array) -> Any:
        """Return initial parameters, boxed with the names of their dimensions."""

    def outputs(self, params: Any, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return arrays with a row for each row of the batch."""


class Engine:
    """Compiled `outputs` of a computation, for rows sorted into buckets by length.

    Attributes:
      params: Parameters of the computation, on the mesh; may be replaced.
      lengths: Lengths that batches may have, ascending.
    """

    def __init__(
        self,
        computation: Computation,
        params: Any,
        mesh: jax.sharding.Mesh,
        lengths: Sequence[int],
    ):
        """Prepare to compile; each batch shape is compiled at its first use.

        The last of `lengths` must hold every row.
        """
        self.params, self._mesh, self.lengths = params, mesh, lengths
        self._compute = jax.jit(
            computation.outputs,
            out_shardings=sharding.replicated(mesh),
            compiler_options=sharding.compiler_options(mesh),
        )
        short, long = computation.batch_shapes(1, 2), computation.batch_shapes(1, 3)
        # Whether the last dimension of an array is the length, by name.
        self._has_length = {n: short[n].shape != long[n].shape for n in short}

    def bucket(self, length: int) -> int:
        """Return the smallest length of batches that holds a row.

        `outputs` traces the computation for each new length of rows.
        """
        return self.lengths[np.searchsorted(self.lengths, length)]

    def outputs(
        self,
        rows: Mapping[str, np.ndarray],
        batch_size: int,
        after_batch: Callable[[], None] = lambda: None,
    ) -> dict[str, np.ndarray]:
        """Return the outputs of all rows, in the order of the rows.

        The rows include `attention_mask` [R, ..., L]. Outputs that depend on the length
        have length L; padding that no batch contained is zeros. A batch has at most
        `batch_size` rows, over all devices. `after_batch` is called after each.
        """
        whole = {
            name: jax.ShapeDtypeStruct((batch_size, *values.shape[1:]), values.dtype)
            for name, values in self._inputs(rows).items()
        }
        with sharding.use(self._mesh):
            shapes = self._compute.eval_shape(self.params, whole)
        count = len(rows["attention_mask"])
        results = {
            name: np.zeros((count, *shape.shape[1:]), shape.dtype)
            for name, shape in shapes.items()
        }
        for indices, outputs in self.batches(rows, batch_size):
            for name, values in outputs.items():
                results[name][indices] = _fit(values, results[name].shape[1:])
            after_batch()
        return results

    def batches(
        self, rows: Mapping[str, np.ndarray], batch_size: int
    ) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yield the row indices and the outputs of each batch, shortest rows first."""
        inputs = self._inputs(rows)
        buckets = np.searchsorted(self.lengths, row_lengths(rows["attention_mask"]))
        order = np.argsort(buckets, kind="stable")
        # A batch of all rows has their number rounded up to a power of two, so that few
        # sizes are compiled.
        parts = sharding.num_batch_shards(self._mesh)
        rounded = 1 << max(len(order) - 1, 0).bit_length()
        size = min(batch_size, -(-rounded // parts) * parts)
        local = sharding.local_rows(self._mesh, size)
        for start in range(0, len(order), size):
            indices = order[start : start + size]
            length = self.lengths[buckets[indices[-1]]]
            # The last row is repeated to fill up the last batch.
            filled = np.pad(indices, (0, size - len(indices)), mode="edge")[local]
            batch = {name: values[filled] for name, values in inputs.items()}
            for name, values in batch.items():
                if self._has_length[name]:
                    batch[name] = _fit(values, (*values.shape[1:-1], length))
            on_devices = sharding.to_devices(self._mesh, batch, size)
            with sharding.use(self._mesh):
                outputs = jax.device_get(self._compute(self.params, on_devices))
            yield indices, {name: x[: len(indices)] for name, x in outputs.items()}

    def _inputs(self, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: rows[name] for name in self._has_length if name in rows}


def row_lengths(attention_mask: np.ndarray) -> np.ndarray:
    """Return the end of the last token in each row of a mask [R, ..., L]."""
    ends = np.arange(1, attention_mask.shape[-1] + 1, dtype=np.int32)
    axes = tuple(range(1, attention_mask.ndim))
    return np.max(attention_mask * ends, axis=axes, initial=0)


def _fit(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Truncate or pad rows [R, ...] to a shape [R, *shape]."""
    values = values[(slice(None), *map(slice, shape))]
    missing = np.subtract(shape, values.shape[1:])
    return np.pad(values, [(0, 0), *((0, n) for n in missing)])
