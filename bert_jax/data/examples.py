"""Batches of labelled examples that fit in memory, for fine-tuning."""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from bert_jax.data import counter, pipeline


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
          arrays: first dimension: examples; one of them is called `weights`.
          batch_size: rows of a batch over all processes.
          seed: of the order.
          held_out: for evaluation.
          rows: which rows of each batch to make; all by default.
        """
        self._arrays = {name: tf.constant(values) for name, values in arrays.items()}
        self._count = len(arrays["weights"])
        self._batch_size = batch_size
        self._held_out = held_out
        self._rows = tf.constant(
            np.arange(batch_size) if rows is None else rows, tf.int64
        )
        self._key = counter.stream(seed)
        self.num_batches = -(-self._count // batch_size)
        self._pipeline = pipeline.Pipeline(self._make)

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """The batch of a step."""
        return self._pipeline.batch(step)

    def batches(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of steps `start` to `stop - 1`, made ahead on several cores."""
        return self._pipeline.batches(start, stop)

    def row_names(self, step: int) -> list[str]:
        """What the rows of a batch are, for people."""
        return [
            f"example {i}" for i in self._indices(tf.constant(step, tf.int64)).numpy()
        ]

    def _indices(self, step: tf.Tensor) -> tf.Tensor:
        """Which examples the rows of a training batch are."""
        position = step * self._batch_size + self._rows
        order = counter.word(self._key, position // self._count)
        return counter.permute(position % self._count, self._count, order)

    def _make(self, step: tf.Tensor) -> dict[str, tf.Tensor]:
        position = step * self._batch_size + self._rows
        if self._held_out:
            index = tf.minimum(position, self._count - 1)
        else:
            index = self._indices(step)
        batch = {
            name: tf.gather(values, index) for name, values in self._arrays.items()
        }
        if self._held_out:
            batch["weights"] *= tf.cast(position < self._count, tf.float32)
        return batch
