"""From the rows of a task to batches of a few lengths, and from batches to outputs."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import tasks
from bert_jax.training import sharding
from bert_jax.training.run import HeldOut, PhaseData, Run


def lengths(config: config_lib.FinetuneConfig, task: tasks.Task) -> tuple[int, ...]:
    """The lengths that batches of a task may have, ascending.

    Up to 128 they are multiples of 8, and above that of 128, which a TPU's attention
    kernel needs; `task.length` may be one of them, too. Of these, `config.lengths` are
    chosen with which the rows to train on are padded least, and fewer if more would
    save nothing. One more follows if held-out rows are longer, so that such rows, which
    may change when a run continues, change no batch to train on.
    """
    multiples = (*range(8, 128, 8), *range(128, task.length, 128))
    candidates = [*(n for n in multiples if n < task.length), task.length]
    used = _used(task.train["attention_mask"])
    last = np.searchsorted(candidates, used.max())
    chosen = least_padding(used, candidates[: last + 1], config.lengths)
    held_out = [_used(rows["attention_mask"]).max() for rows in task.held_out.values()]
    longest = candidates[np.searchsorted(candidates, max(held_out))]
    return (*chosen, longest) if longest > chosen[-1] else chosen


def least_padding(
    used: np.ndarray, candidates: Sequence[int], count: int
) -> tuple[int, ...]:
    """Up to `count` of the candidates, the longest one among them.

    Args:
      used: int [rows]; the number of tokens in each row.
      candidates: Lengths, ascending, the last one at least that of every row.
      count: How many to choose, at most.

    Returns:
      Ascending lengths for which the sum over rows of the smallest that holds the row
      is least.
    """
    lengths = np.array(candidates)
    rows = np.searchsorted(np.sort(used), lengths, side="right")
    # Of each length: positions if it is the last, for the rows that it holds.
    positions, chosen = lengths * rows, [[n] for n in candidates]
    is_later = np.triu(np.ones((len(lengths), len(lengths)), bool), 1)
    for _ in range(count - 1):
        # [i, j]: length j for what the best choice that ends with length i leaves.
        left = positions[:, None] + lengths * (rows - rows[:, None])
        left = np.where(is_later, left, positions)
        before = left.argmin(axis=0)
        chosen = [
            [*chosen[i], n] if left[i, j] < positions[j] else chosen[j]
            for j, (i, n) in enumerate(zip(before, candidates, strict=True))
        ]
        positions = left.min(axis=0)
    return tuple(chosen[-1])


def _used(mask: np.ndarray) -> np.ndarray:
    """Where the last token of each row of a mask [rows, ..., L] ends."""
    ends = np.arange(1, mask.shape[-1] + 1, dtype=np.int32)
    return np.max(mask * ends, axis=tuple(range(1, mask.ndim)))


def open_data(
    config: config_lib.FinetuneConfig,
    task: tasks.Task,
    objective: tasks.TaskObjective,
    steps: int,
    rows: np.ndarray,
) -> PhaseData:
    """The batches of a run, to train on and to evaluate on.

    Args:
      config: Config of the run.
      task: What is trained.
      objective: Objective of the task.
      steps: Steps of the run.
      rows: Ascending int [rows]; the rows of each batch to make.
    """
    examples_of = functools.partial(_examples, config, task, objective)
    training = examples_of(task.train, rows, steps=steps)
    evaluation = examples_of(task.held_out["eval"], rows, held_out=True)
    return PhaseData(
        training.batches,
        [HeldOut(lambda: evaluation.batches(0, evaluation.num_batches))],
        training.row_names,
    )


def predict(
    config: config_lib.FinetuneConfig,
    run: Run,
    params: Any,
    task: tasks.Task,
    heartbeat: Callable[[], None],
) -> dict[str, tasks.Arrays]:
    """What the model says of each row of each held-out set of a task, on the host."""
    (phase,) = run.phases
    outputs_of = jax.jit(
        run.objective.outputs, out_shardings=sharding.replicated(run.mesh)
    )
    owned = sharding.local_rows(run.mesh, phase.batch_size)
    full = jax.eval_shape(
        run.objective.outputs, params, run.batch_shapes(phase, task.length)
    )

    def outputs_for(rows: tasks.Arrays) -> tasks.Arrays:
        made = _examples(config, task, run.objective, rows, owned, held_out=True)
        parts = []
        for batch in made.batches(0, made.num_batches):
            batch = sharding.to_devices(run.mesh, batch, owned, phase.batch_size)
            outputs = jax.device_get(outputs_of(params, batch))
            parts.append({n: _padded(x, full[n].shape) for n, x in outputs.items()})
            heartbeat()
        return {
            name: _in_order([part[name] for part in parts], made.index) for name in full
        }

    with sharding.use(run.mesh):
        return {name: outputs_for(rows) for name, rows in task.held_out.items()}


def _padded(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Outputs of a short batch with zeros up to the shape of those of a long one."""
    return np.pad(
        values, [(0, n - m) for n, m in zip(shape, values.shape, strict=True)]
    )


def _in_order(parts: list[np.ndarray], index: np.ndarray) -> np.ndarray:
    """Rows of batches, the last one filled up, where `index` says they belong."""
    rows = np.concatenate(parts)[: len(index)]
    ordered = np.empty_like(rows)
    ordered[index] = rows
    return ordered


def _examples(
    config: config_lib.FinetuneConfig,
    task: tasks.Task,
    objective: tasks.TaskObjective,
    arrays: tasks.Arrays,
    rows: np.ndarray,
    **options: Any,
):
    """Batches of rows of a task, of the lengths that it needs."""
    from bert_jax.data import examples  # imports TensorFlow

    all_lengths = lengths(config, task)

    def row_shapes(length: int) -> dict[str, tuple[int, ...]]:
        shapes = objective.batch_shapes(config.batch_size, length)
        return {name: shapes[name].shape[1:] for name in arrays}

    longest = row_shapes(all_lengths[-1])
    arrays = {
        name: values[(slice(None), *map(slice, longest[name]))]
        for name, values in arrays.items()
    }
    return examples.Examples(
        arrays,
        batch_size=config.batch_size,
        seed=config.seed,
        rows=rows,
        lengths=all_lengths,
        shapes=[row_shapes(n) for n in all_lengths],
        **options,
    )
