"""From the rows of a task to batches of a few lengths, and from batches to outputs."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import tasks
from bert_jax.training import sharding
from bert_jax.training.run import PhaseData, Run

# No batch is shorter: a processor or a TPU gains little more.
_SHORTEST = 16


def lengths(config: config_lib.FinetuneConfig, task: tasks.Task) -> tuple[int, ...]:
    """The lengths that batches of a task may have, ascending, and that it needs."""
    halved = [math.ceil(task.length / 2**i / 8) * 8 for i in range(1, config.lengths)]
    shorter = {n for n in halved if _SHORTEST <= n < task.length}
    masks = [rows["attention_mask"] for rows in (task.train, *task.held_out.values())]
    longest = max(int(np.nonzero(mask)[-1].max()) + 1 for mask in masks)
    ascending = sorted({*shorter, task.length})
    return tuple(ascending[: np.searchsorted(ascending, longest) + 1])


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
        lambda: evaluation.batches(0, evaluation.num_batches),
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
