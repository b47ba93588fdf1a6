"""Batches of labelled examples that fit in memory, for fine-tuning."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_jax.data import order, pipeline, random_bits

# Largest number of successive batches whose rows are sorted by length together.
_WINDOW = 64


class LabelledBatches(pipeline.Pipeline):
    """Batches from arrays with one row for each example.

    In training, example *i* of the run is row `permute(i % rows)` of epoch `i // rows`.
    So each row comes once per epoch, and batch *s* is a pure function of (arrays, seed,
    *s*). Held-out rows keep their order and come once; the last batch is filled up with
    rows of weight 0.

    With several sizes, a batch is trimmed to the smallest size that holds its rows, and
    rows of similar length share a batch. In training, the rows of a window of batches
    are sorted by length and cut into batches, which are shuffled. All batches of a
    window are of one epoch: in two epochs a row comes twice, and sorting would mostly
    put both into one batch. A batch with rows of two epochs is a window of its own.
    Held-out rows are all sorted.

    Attributes:
      num_batches: Number of batches in an epoch.
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        *,
        batch_size: int,
        seed: int,
        steps: int = 0,
        held_out: bool = False,
        rows: np.ndarray | None = None,
        sizes: np.ndarray | None = None,
        shapes: Sequence[dict[str, tuple[int, ...]]] = (),
    ):
        """Hold the arrays.

        Args:
          arrays: Arrays with a row for each example, `weights` among them.
          batch_size: Rows of a batch over all processes.
          seed: Seed for the order.
          steps: Number of batches in training. The last window ends with the last one.
          held_out: Whether the examples are for evaluation.
          rows: Rows of each batch to make; all by default.
          sizes: int [rows]; the smallest size that holds each row, as an index of
            `shapes`.
          shapes: For each size, ascending, the shape of a row of each array. By
            default, there is one size, that of the arrays.
        """
        if sizes is None:
            sizes = np.zeros(len(arrays["weights"]), np.int64)
            shapes = [{name: values.shape[1:] for name, values in arrays.items()}]
        self._has_windows = len(shapes) > 1 and not held_out
        if held_out:
            by_size = np.argsort(sizes, kind="stable")
            arrays = {name: values[by_size] for name, values in arrays.items()}
            sizes = sizes[by_size]
        self._arrays = {name: tf.constant(values) for name, values in arrays.items()}
        self._sizes = tf.constant(sizes)
        self._shapes = {
            name: tf.constant([shape[name] for shape in shapes], tf.int32)
            for name in arrays
        }
        rows = np.arange(batch_size) if rows is None else rows
        self._rows = tf.constant(rows, tf.int32)
        self._batch_size = batch_size
        self._steps = steps
        self._key = random_bits.key(seed)
        self._order = order.Order(
            count=len(sizes), key=None if held_out else self._key, once=held_out
        )
        self.num_batches = self._order.num_batches(batch_size)
        super().__init__(self._make)

    def row_names(self, step: int) -> list[str]:
        """Name the rows of a training batch, for messages."""
        items, _ = self._select(tf.constant(step, tf.int64))
        return [f"training row {i}" for i in items.index.numpy()]

    def _make(self, step: tf.Tensor) -> dict[str, tf.Tensor]:
        items, size = self._select(step)
        batch = {
            name: _trim(tf.gather(values, items.index), self._shapes[name][size])
            for name, values in self._arrays.items()
        }
        batch["weights"] *= tf.cast(items.is_real, tf.float32)
        return batch

    def _select(self, step: tf.Tensor) -> tuple[order.Selection, tf.Tensor]:
        """Return a batch's rows for this process, and the index of its size.

        A batch that has no window is a window of its own.
        """
        first, last = self._window(step) if self._has_windows else (step, step)
        positions = tf.range(first * self._batch_size, (last + 1) * self._batch_size)
        everything = self._order.at(positions)
        by_size = tf.argsort(tf.gather(self._sizes, everything.index), stable=True)
        keys = random_bits.fold_in(self._key, first, tf.range(last + 1 - first))
        shuffled = tf.argsort(tf.bitcast(keys, tf.int64), stable=True)
        begin = shuffled[step - first] * self._batch_size
        chosen = tf.gather(by_size, begin + self._rows)
        longest = by_size[begin + self._batch_size - 1]
        items = order.Selection(*(tf.gather(x, chosen) for x in everything))
        return items, self._sizes[everything.index[longest]]

    def _window(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the first and the last batch of the window of a batch."""
        size, count = self._batch_size, self._order.count
        epoch = step * size // count
        begin = -(-epoch * count // size)  # first batch of this epoch alone
        end = (epoch + 1) * count // size  # first batch with rows of the next epoch
        first = step - (step - begin) % _WINDOW
        last = tf.minimum(tf.minimum(first + _WINDOW, end), self._steps) - 1
        has_two_epochs = step >= end
        return tf.where(has_two_epochs, step, first), tf.maximum(last, step)


def _trim(values: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    size = tf.concat([tf.shape(values)[:1], shape], axis=0)
    return tf.slice(values, tf.zeros_like(size), size)
