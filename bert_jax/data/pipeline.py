"""A stream of batches from a function of the step, with tf.data.

The stages are range, map and prefetch. The state of the pipeline is the step, so a run
resumes at any step without making earlier batches.
"""

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

# Batches are made on the CPU; an accelerator belongs to JAX.
tf.config.set_visible_devices([], "GPU")

_BATCHES_AHEAD = 4
# One core makes 100,000 sequences a second. More calls than cores do no harm.
_PARALLEL_CALLS = 8


class Pipeline:
    """Batches made by a pure function of the step."""

    def __init__(self, make: Callable[[tf.Tensor], dict[str, tf.Tensor]]):
        """Compile the function to a graph, once for all streams."""
        # Without autograph, which takes seconds to rewrite code that needs no rewrite.
        graph = tf.function(make, autograph=False)
        self._graph = graph.get_concrete_function(tf.TensorSpec([], tf.int64))

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """Return the batch of a step, counted from 0 where the phase begins."""
        batch = self._graph(tf.constant(step, tf.int64))
        return {name: values.numpy() for name, values in batch.items()}

    def batches(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """Return the batches of steps `start` to `stop - 1`, prefetched."""
        dataset = tf.data.Dataset.range(start, stop)
        dataset = dataset.map(
            self._graph, num_parallel_calls=_PARALLEL_CALLS, deterministic=True
        )
        options = tf.data.Options()
        # Closing a stream waits for the autotuning thread, which may miss the request
        # to end and sleep for up to a minute: TensorFlow marks the cancellation only
        # after it wakes the threads that look for it (`CancellationManager`,
        # `Model::OptimizeLoop`).
        options.autotune.enabled = False
        dataset = dataset.prefetch(_BATCHES_AHEAD).with_options(options)
        return dataset.as_numpy_iterator()
