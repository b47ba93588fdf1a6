"""Compiled programs of a run: the training step and the evaluation step.

Each takes signals of the hosts along with its batch and returns them, so that they
reach all processes with the step itself. Nothing else has to be sent between hosts.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bert_jax.objectives import Batch, metric_sums
from bert_jax.objectives.metric_sums import MetricSums
from bert_jax.training import sharding
from bert_jax.training import step as step_lib
from bert_jax.training.run_description import Phase, Run


class HostSignals(NamedTuple):
    """Values that a process sends to all others with a step.

    Received signals are arrays [devices], with the values of each device's process.
    """

    stop_requested: float | np.ndarray  # 1.0 if the process was asked to stop
    # Time since the last step, without waiting for devices.
    host_seconds: float | np.ndarray

    def to_devices(self, mesh: Mesh) -> jax.Array:
        """Return the signals of each device's process: float32 [devices, 2]."""
        return sharding.from_each_process(mesh, np.array(self, np.float32))


@flax.struct.dataclass
class StepReport:
    """Report of a step to all processes."""

    loss: jax.Array
    grad_norm: jax.Array  # before clipping
    learning_rate: jax.Array
    skipped: jax.Array  # number of steps skipped so far
    signals: jax.Array  # float32 [devices, 2], from `HostSignals.to_devices`


def lower_train_step(
    run: Run, phase: Phase, state: step_lib.TrainState, batch: Batch
) -> jax.stages.Lowered:
    """Lower the training step, to (state, `StepReport`).

    Its arguments are (state, batch, signals, seed, constants). The state is donated.
    The seed is an argument, from `seed_array`, so that runs that differ in their seed
    share a compiled program. State and batch are arrays, or shapes with shardings.
    """
    sum_over_replicas, dtype = None, run.config.mesh.gradient_sum
    # The compiler would all-reduce in float32, for each micro-batch and each use of a
    # shared layer.
    if phase.micro_batches > 1 or dtype != "float32" or _sums_shared_layers(run, phase):
        sum_over_replicas = functools.partial(
            sharding.sum_over_replicas, mesh=run.mesh, dtype=dtype
        )

    def step_and_report(state, batch, signals, seed, constants):
        rate = run.schedule(state.step - state.skipped)
        state, result = step_lib.train_step(
            phase.objective,
            run.optimizer,
            state,
            batch,
            seed=seed,
            micro_batches=phase.micro_batches,
            is_frozen=run.is_frozen,
            sum_over_replicas=sum_over_replicas,
            constants=constants,
        )
        # A copy, because the state is donated to the next step.
        skipped = state.skipped + 0
        return state, StepReport(result.loss, result.grad_norm, rate, skipped, signals)

    jitted = jax.jit(
        step_and_report,
        out_shardings=(sharding.shardings_of(state), sharding.replicated(run.mesh)),
        donate_argnums=0,
        compiler_options=sharding.compiler_options(run.mesh),
    )
    others = *_signals_and_seed(run), run.constant_shapes()
    with sharding.use(run.mesh):
        return jitted.lower(state, batch, *others)


def _sums_shared_layers(run: Run, phase: Phase) -> bool:
    """Return whether a replica sums the gradients of a shared layer itself."""
    trained = [each for name, each in run.encoders.items() if name != "teacher"]
    return (
        any(encoder.num_layer_groups for encoder in trained)
        and phase.objective.rows_are_independent
        # Between large slices, the compiler's own all-reduces send less.
        and sharding.num_slices(run.mesh.devices.flat) == 1
    )


def seed_array(run: Run) -> jax.Array:
    """Return the seed of a run as an argument of its programs: uint32 []."""
    seed = np.uint32(run.config.seed % 2**32)
    replicated = sharding.replicated(run.mesh)
    return jax.make_array_from_callback((), replicated, lambda _: np.array(seed))


def make_zero_sums(names: Sequence[str], mesh: Mesh) -> Callable[[], MetricSums]:
    """Return the compiled function that returns metrics with sums and counts of 0."""
    return jax.jit(
        lambda: metric_sums.zeros(names), out_shardings=sharding.replicated(mesh)
    )


def lower_eval_step(
    run: Run, phase: Phase, params: Any, batch: Batch
) -> jax.stages.Lowered:
    """Lower the evaluation step, which runs in the phase's micro-batches.

    It maps (params, batch, index of the batch, sums, signals, seed) to `sums`
    plus the sums of the batch, and the signals. Params, which include the
    constants of the run, and batch are arrays or shapes with shardings.
    """

    def step_and_signals(params, batch, index, total: MetricSums, signals, seed):
        total = step_lib.eval_step(
            phase.objective,
            params,
            batch,
            index,
            total,
            seed=seed,
            micro_batches=phase.micro_batches,
        )
        return total, signals

    replicated = sharding.replicated(run.mesh)
    jitted = jax.jit(
        step_and_signals,
        out_shardings=replicated,
        compiler_options=sharding.compiler_options(run.mesh),
    )
    index = jax.ShapeDtypeStruct((), jnp.int32)
    sums = jax.eval_shape(make_zero_sums(phase.objective.metrics, run.mesh))
    with sharding.use(run.mesh):
        return jitted.lower(params, batch, index, sums, *_signals_and_seed(run))


def _signals_and_seed(run: Run) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Return the shapes of the arguments that all programs of a run share."""
    shape = run.mesh.size, len(HostSignals._fields)
    per_device = sharding.device_sharding(run.mesh)
    replicated = sharding.replicated(run.mesh)
    return (
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=per_device),
        jax.ShapeDtypeStruct((), jnp.uint32, sharding=replicated),
    )


def make_finite_check(mesh: Mesh) -> Callable[[Any], jax.Array]:
    """Return the compiled function that checks that a tree is finite."""

    def all_finite(tree):
        leaves = jax.tree.leaves(tree)
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves]))

    return jax.jit(all_finite, out_shardings=sharding.replicated(mesh))
