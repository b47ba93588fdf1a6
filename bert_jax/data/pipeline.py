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


def batches(
    make: Callable[[tf.Tensor], dict[str, tf.Tensor]], start: int, stop: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield `make(step)` for each step in turn, made ahead in parallel.

    Args:
      make: from int64 [] to a batch, in graph operations, a pure function.
      start: first step.
      stop: one past the last.
    """
    dataset = tf.data.Dataset.range(start, stop)
    dataset = dataset.map(make, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    dataset = dataset.prefetch(_BATCHES_AHEAD)
    return dataset.as_numpy_iterator()
