"""Batches of labelled examples that fit in memory, for fine-tuning."""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from bert_jax.data import counter, order, pipeline


class Examples:
    """Batches from arrays with one row for each example.

    Training: example *i* of the run is row `permute(i % rows)` of epoch `i // rows`, so
    that each row comes once an epoch and batch *s* is a pure function of (arrays, seed,
    *s*). Held out: the rows in their order, once; the last batch is filled up with rows
    of weight 0.
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        *,
        batch_size: int,
        seed: int,
        held_out: bool = False,
        rows: np.ndarray | None = None,
    ):
        """Hold the arrays.

        Args:
          arrays: Arrays with a row for each example; one of them is called `weights`.
          batch_size: Rows of a batch over all processes.
          seed: Seed for the order.
          held_out: Whether the examples are for evaluation.
          rows: Which rows of each batch to make; all by default.
        """
        self._arrays = {name: tf.constant(values) for name, values in arrays.items()}
        self._order = order.Order(
            count=len(arrays["weights"]),
            batch_size=batch_size,
            rows=np.arange(batch_size) if rows is None else rows,
            key=None if held_out else counter.stream(seed),
            once=held_out,
        )
        self.num_batches = self._order.num_batches
        self._pipeline = pipeline.Pipeline(self._make)

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """The batch of a step."""
        return self._pipeline.batch(step)

    def batches(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of steps `start` to `stop - 1`, made ahead on several cores."""
        return self._pipeline.batches(start, stop)

    def row_names(self, step: int) -> list[str]:
        """What the rows of a batch are, for people."""
        items = self._order.items(tf.constant(step, tf.int64))
        return [f"example {i}" for i in items.index.numpy()]

    def _make(self, step: tf.Tensor) -> dict[str, tf.Tensor]:
        items = self._order.items(step)
        batch = {
            name: tf.gather(values, items.index)
            for name, values in self._arrays.items()
        }
        batch["weights"] *= tf.cast(items.is_real, tf.float32)
        return batch
