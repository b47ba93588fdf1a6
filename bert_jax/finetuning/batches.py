"""Batches of a task's rows, in a few lengths."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax import tasks
from bert_jax.training import inference
from bert_jax.training.run_description import HeldOut, PhaseData


def lengths(
    config: config_lib.FinetuneConfig, task: tasks.Task
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lengths that batches of a task may have.

    Candidates are multiples of 8 up to 128, then multiples of 128, which the TPU's
    attention kernel needs, and `task.length`. Of these, up to `config.lengths` are
    chosen that minimise the padding of training rows. So training batches do not
    depend on held-out rows, which may change when a run resumes.

    Returns:
      Lengths of training batches, ascending, which held-out batches have, too, and the
      length of longer held-out batches, if there are any.
    """
    length = config.task.length
    multiples = (*range(8, 128, 8), *range(128, length, 128))
    candidates = [*(n for n in multiples if n < length), length]
    used = inference.row_lengths(task.train["attention_mask"])
    last = np.searchsorted(candidates, used.max())
    chosen = least_padding(used, candidates[: last + 1], config.lengths)
    held_out = [
        inference.row_lengths(rows["attention_mask"]).max()
        for rows in task.held_out.values()
    ]
    longest = candidates[np.searchsorted(candidates, max(held_out))]
    return chosen, (longest,) if longest > chosen[-1] else ()


def least_padding(
    used: np.ndarray, candidates: Sequence[int], count: int
) -> tuple[int, ...]:
    """Choose up to `count` candidates, the longest one included, that pad rows least.

    Args:
      used: int [rows]; the number of tokens in each row.
      candidates: Lengths, ascending. The last one holds every row.
      count: Largest number of lengths.
    """
    lengths = np.array(candidates)
    rows = np.searchsorted(np.sort(used), lengths, side="right")
    # padded[j]: tokens, padding included, of all rows that lengths[j] holds, for the
    # best choice that ends with lengths[j]. First, the choice is lengths[j] alone.
    padded, chosen = lengths * rows, [[n] for n in candidates]
    is_later = np.triu(np.ones((len(lengths), len(lengths)), bool), 1)
    for _ in range(count - 1):
        # extended[i, j]: the same if lengths[j] extends the best choice that ends with
        # lengths[i].
        extended = padded[:, None] + lengths * (rows - rows[:, None])
        extended = np.where(is_later, extended, padded)
        before = extended.argmin(axis=0)
        chosen = [
            [*chosen[i], n] if extended[i, j] < padded[j] else chosen[j]
            for j, (i, n) in enumerate(zip(before, candidates, strict=True))
        ]
        padded = extended.min(axis=0)
    return tuple(chosen[-1])


def open_data(
    config: config_lib.FinetuneConfig,
    task: tasks.Task,
    objective: tasks.TaskObjective,
    engine: inference.Engine,
    steps: int,
    rows: np.ndarray,
) -> PhaseData:
    """Return the batches of a run of `steps` for training and evaluation.

    The engine computes the outputs of the objective, and has the lengths of batches.
    This process makes the `rows` of each batch, int [rows], ascending. The score of the
    task that selects the best parameters, if there is one, is part of each evaluation.
    """
    # Imports TensorFlow.
    from bert_jax.data.labelled_batches import LabelledBatches

    all_shapes = [objective.batch_shapes(config.batch_size, n) for n in engine.lengths]

    def batches_of(arrays: tasks.Arrays, **options: Any) -> LabelledBatches:
        """Return batches of rows, truncated to the lengths that they need."""
        used = inference.row_lengths(arrays["attention_mask"])
        sizes = np.searchsorted(engine.lengths, used)
        # Rows are sorted if there are several lengths. Longer held-out rows must not
        # decide whether training rows are.
        needed = all_shapes[: sizes.max() + 1]
        shapes = [{n: shapes[n].shape[1:] for n in arrays} for shapes in needed]
        arrays = {
            name: values[(slice(None), *map(slice, shapes[-1][name]))]
            for name, values in arrays.items()
        }
        return LabelledBatches(
            arrays,
            batch_size=config.batch_size,
            seed=config.seed,
            rows=rows,
            sizes=sizes,
            shapes=shapes,
            **options,
        )

    training = batches_of(task.train, steps=steps)
    evaluation = batches_of(task.held_out["eval"], held_out=True)

    def scores(params: Any, after_batch: Callable[[], None]) -> dict[str, float]:
        engine.params = params
        rows_at_once = config.batch_size // config.micro_batches
        outputs = engine.outputs(task.held_out["eval"], rows_at_once, after_batch)
        values = task.scores("eval", task.decode("eval", outputs))
        return {config.keep_best: values[config.keep_best]}

    # The objective already reports the accuracy.
    needs_scores = config.keep_best in set(task.metrics) - {"accuracy"}
    return PhaseData(
        training.batches,
        [HeldOut(lambda: evaluation.batches(0, evaluation.num_batches))],
        training.row_names,
        scores=scores if needs_scores else None,
    )
