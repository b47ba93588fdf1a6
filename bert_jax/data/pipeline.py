"""From a function of the step to a stream of batches.

range -> map -> prefetch. The state of the pipeline is the step, so that a run resumes
at any step at no cost.
"""

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

# Batches are made by the processor; an accelerator belongs to JAX.
tf.config.set_visible_devices([], "GPU")

_BATCHES_AHEAD = 4
# One core makes 100,000 sequences a second; more calls at a time than cores do no harm.
_PARALLEL_CALLS = 8


class Pipeline:
    """Batches made by a pure function of the step."""

    def __init__(self, make: Callable[[tf.Tensor], dict[str, tf.Tensor]]):
        """Compile the function to a graph, once for all streams.

        Args:
          make: from int64 [] to a batch, in graph operations.
        """
        # Without autograph: rewriting Python that is operations already takes seconds.
        graph = tf.function(make, autograph=False)
        self._make = graph.get_concrete_function(tf.TensorSpec([], tf.int64))

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """The batch of a step."""
        return next(self.batches(step, step + 1))

    def batches(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of steps `start` to `stop - 1`, made ahead on several cores."""
        dataset = tf.data.Dataset.range(start, stop)
        dataset = dataset.map(
            self._make, num_parallel_calls=_PARALLEL_CALLS, deterministic=True
        )
        options = tf.data.Options()
        # Whoever drops a stream waits for the thread that tunes it, and that one may
        # miss the call to end and sleep on, a minute in a long run: TensorFlow marks
        # the cancellation after it wakes those who look for the mark
        # (`CancellationManager`, `Model::OptimizeLoop`).
        options.autotune.enabled = False
        dataset = dataset.prefetch(_BATCHES_AHEAD).with_options(options)
        return dataset.as_numpy_iterator()
