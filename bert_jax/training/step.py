"""Training and evaluation steps, as pure functions."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from bert_jax.model import parameters, randomness
from bert_jax.objectives import Batch, Objective, metric_sums
from bert_jax.objectives.metric_sums import MetricSum, MetricSums


@flax.struct.dataclass
class TrainState:
    """State that a step changes and a checkpoint holds."""

    step: jax.Array  # number of completed steps, int32
    params: Any
    opt_state: Any
    # Sums and counts of metrics since the last report. They are part of the state so
    # that a run that stops between two reports resumes exactly.
    metric_sums: MetricSums
    # Number of steps that were skipped because their loss or gradient was not finite,
    # int32.
    skipped: jax.Array


class LossAndNorm(NamedTuple):
    """Loss of a batch and norm of its gradient before clipping: float32 scalars."""

    loss: jax.Array
    grad_norm: jax.Array


def init_state(
    objective: Objective, optimizer: optax.GradientTransformation, key: jax.Array
) -> TrainState:
    """Return the initial state, boxed with the names of dimensions."""
    params = objective.init(key)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        metric_sums=metric_sums.zeros((*objective.metrics, "grad_norm")),
        skipped=jnp.zeros((), jnp.int32),
    )


def train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    batch: Batch,
    *,
    seed: int | jax.Array,
    micro_batches: int = 1,
    is_frozen: Callable[[str], bool] | None = None,
    sum_over_replicas: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> tuple[TrainState, LossAndNorm]:
    """Return the state after a step on a batch, and the loss.

    A step whose loss or gradient is not finite is skipped: it changes only the counts
    of steps and of skipped steps.

    Args:
      objective: Training objective.
      optimizer: Optimizer, applied to the gradient of the whole batch.
      state: State before the step.
      batch: Batch of the step.
      seed: Seed for dropout, an integer; masks are addressed by (seed, step, row of the
        batch).
      micro_batches: Number of pieces of the batch over which gradients are accumulated.
        Losses are divided by the counts of the whole batch, so the result does not
        depend on it.
      is_frozen: Predicate of the paths of parameters without gradients; None for none.
      sum_over_replicas: Transformation of the gradient function that all-reduces over
        replicas (`sharding.sum_over_replicas`); None: left to the compiler.
      constants: Parameters without gradients that the objective also reads, such as a
        teacher's; None for none.
    """

    def loss_of(params, batch, keys, counts, constants):
        if is_frozen:
            params = parameters.map_with_path(
                lambda path, x: jax.lax.stop_gradient(x) if is_frozen(path) else x,
                params,
            )
        batch_sums = objective.sums({**params, **constants}, batch, **keys)
        means = {
            name: metric_sums.mean(batch_sums[name].sum, counts[name])
            for name in objective.loss_weights
        }
        return metric_sums.total(objective.loss_weights, means), batch_sums

    def differentiate(params, batch, keys, shared):
        gradient = jax.value_and_grad(loss_of, has_aux=True)
        return _accumulate(
            lambda *rows: gradient(params, *rows, *shared), (batch, keys), micro_batches
        )

    if sum_over_replicas:
        differentiate = sum_over_replicas(differentiate)
    rows = jnp.arange(len(jax.tree.leaves(batch)[0]))
    keys = {
        f"{purpose}_keys": randomness.row_keys(seed, purpose, state.step, rows)
        for purpose in ("dropout", "sampling")
    }
    shared = objective.counts(batch), constants or {}
    (loss, batch_sums), grads = differentiate(state.params, batch, keys, shared)
    result = LossAndNorm(loss, optax.tree.norm(grads))
    batch_sums["grad_norm"] = MetricSum(result.grad_norm, jnp.ones(()))
    is_finite = jnp.isfinite(result.loss) & jnp.isfinite(result.grad_norm)

    def update(params, opt_state, sums):
        updates, opt_state = optimizer.update(grads, opt_state, params)
        sums = jax.tree.map(jnp.add, sums, batch_sums)
        return optax.apply_updates(params, updates), opt_state, sums

    params, opt_state, sums = _if_finite(
        is_finite, update, state.params, state.opt_state, state.metric_sums
    )
    state = TrainState(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        metric_sums=sums,
        skipped=state.skipped + ~is_finite,
    )
    return state, result


def eval_step(
    objective: Objective,
    params: Any,
    batch: Batch,
    index: jax.Array,
    total: MetricSums,
    *,
    seed: int | jax.Array,
    micro_batches: int,
) -> MetricSums:
    """Return `total` plus the metrics of a batch, without dropout.

    Random numbers of the objective are addressed by (seed, `index` of the batch, row of
    the batch): the same in each evaluation. Micro-batches are evaluated in turn.
    """
    rows = jnp.arange(len(jax.tree.leaves(batch)[0]))
    keys = randomness.row_keys(seed, "evaluation", index, rows)

    def sums(batch, keys):
        return objective.sums(params, batch, dropout_keys=None, sampling_keys=keys)

    return jax.tree.map(jnp.add, total, _accumulate(sums, (batch, keys), micro_batches))


def _if_finite(is_finite: jax.Array, update: Callable[..., Any], *old: Any) -> Any:
    """Apply an update to its arguments if `is_finite`, or else return them unchanged.

    On a TPU a select is free, and a conditional copies its outputs. On a CPU a
    conditional is free, and a select takes a tenth of a step of a small model
    (docs/log.md, 2026-11-21). GPUs get the select, untimed.
    """

    def select(*old):
        return jax.tree.map(functools.partial(jnp.where, is_finite), update(*old), old)

    def branch(*old):
        return jax.lax.cond(is_finite, update, lambda *old: old, *old)

    return jax.lax.platform_dependent(*old, cpu=branch, default=select)


def _accumulate(function: Callable[..., Any], rows: Any, micro_batches: int) -> Any:
    """Return the sum of a function over micro-batches, computed one after another.

    `function` maps some of the rows, trees of arrays [B, ...], to a tree of sums over
    them.
    """
    if micro_batches == 1:
        return function(*rows)
    pieces = jax.tree.map(lambda x: _split(x, micro_batches), rows)

    def accumulate(total, piece):
        return jax.tree.map(jnp.add, total, function(*piece)), None

    first = jax.tree.map(lambda x: x[0], pieces)
    shapes = jax.eval_shape(function, *first)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(accumulate, zeros, pieces)[0]


def _split(x: jax.Array, pieces: int) -> jax.Array:
    """Reshape [B, ...] to [pieces, B / pieces, ...].

    Row i goes to piece i % pieces, so that each piece has rows of every device, and no
    row moves between devices.
    """
    return x.reshape(-1, pieces, *x.shape[1:]).swapaxes(0, 1)  # [pieces, B/pieces, ...]
