"""The loop: the same for pretraining and for fine-tuning.

Order of things at a step, and the reason a run that is killed at any moment continues
to the same end: step, log, evaluate, save. What is logged of a step is on disk before
its checkpoint begins, and a restart drops what was logged after its checkpoint.
"""

import collections
import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax import config as config_lib
from bert_jax.errors import Interrupted
from bert_jax.objectives import terms as terms_lib
from bert_jax.training import checkpoint, flops, reporting, sharding
from bert_jax.training import step as step_lib

# Steps that may be on their way to the devices while the next batch is made.
_STEPS_AHEAD = 2

Batches = Iterator[dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class StageData:
    """The batches of a stage; rows of this process only.

    Attributes:
      batches: (start, stop) to the batches of these steps, counted from 0 at the
        beginning of the stage.
      held_out: to batches for evaluation, or None for no evaluation.
    """

    batches: Callable[[int, int], Batches]
    held_out: Callable[[], Batches] | None


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stretch of the run with one shape of batch.

    Attributes:
      name: for people.
      steps: how many.
      batch_size: sequences in a batch, over all processes.
      micro_batches: pieces that a batch goes through in.
      flops: operations to train on one sequence.
      open: from the rows of a batch that this process makes to the data. Called when
        the turn of the stage comes, so that no two stages are in memory at once.
    """

    name: str
    steps: int
    batch_size: int
    micro_batches: int
    flops: float
    open: Callable[[np.ndarray], StageData]


@dataclasses.dataclass(frozen=True)
class Run:
    """What is trained, how, and on what.

    Attributes:
      objective: see `bert_jax.objectives`.
      optimizer: of all stages together.
      schedule: of the learning rate, for the reports.
      stages: one after the other.
      seed: of dropout.
      config: how often to log, evaluate and save.
      mesh: of all stages.
    """

    objective: Any
    optimizer: optax.GradientTransformation
    schedule: Callable[[jax.Array], jax.Array]
    stages: tuple[Stage, ...]
    seed: int
    config: config_lib.RunConfig
    mesh: Mesh

    @property
    def total_steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def init(self, key: jax.Array) -> step_lib.TrainState:
        """The state before the first step, boxed with the names of dimensions."""
        return step_lib.init_state(self.objective, self.optimizer, key)


def train(
    run: Run,
    state: step_lib.TrainState,
    checkpoints: checkpoint.Checkpoints,
    reporter: reporting.Reporter,
) -> step_lib.TrainState:
    """Run from the step of `state` to the end.

    Args:
      run: what to do.
      state: initial or restored, in its shards; donated.
      checkpoints: where to save.
      reporter: where to log.

    Returns:
      The state after the last step, which is saved.

    Raises:
      Interrupted: on SIGTERM or SIGINT, after saving.
    """
    done = int(state.step)
    begin = 0
    with _stop_requests() as stop_requested, sharding.use(run.mesh):
        for stage in run.stages:
            end = begin + stage.steps
            if done < end:
                state = _train_stage(
                    run, stage, begin, state, checkpoints, reporter, stop_requested
                )
                done = end
            begin = end
    checkpoints.wait()
    return state


def _train_stage(
    run: Run,
    stage: Stage,
    begin: int,
    state: step_lib.TrainState,
    checkpoints: checkpoint.Checkpoints,
    reporter: reporting.Reporter,
    stop_requested: threading.Event,
) -> step_lib.TrainState:
    done, end = int(state.step), begin + stage.steps
    reporter.advance(done, f"{stage.name}: opening data")
    rows = sharding.local_rows(run.mesh, stage.batch_size)
    data = stage.open(rows)
    batches = data.batches(done - begin, stage.steps)
    run_step = None
    eval_step = jax.jit(step_lib.make_eval_step(run.objective))
    window = _Window(run, stage)
    in_flight: collections.deque[jax.Array] = collections.deque()
    reporter.advance(done, f"{stage.name}: compiling")
    while done < end:
        with window.waiting():
            batch = next(batches)
        batch = sharding.to_devices(run.mesh, batch, rows, stage.batch_size)
        if run_step is None:
            run_step = _compile_step(run, stage, state, batch)
            window.restart()
        state, marker = run_step(state, batch)
        done += 1
        window.steps += 1
        in_flight.append(marker)
        if len(in_flight) > _STEPS_AHEAD:
            reporter.advance(int(in_flight.popleft()), stage.name)

        is_last, stopping = done == end, stop_requested.is_set()
        if done == 1 or is_last or done % run.config.log_every == 0:
            reporter.write(done, "train", window.close(done, state.terms))
            zeros = jax.tree.map(jnp.zeros_like, state.terms)
            state = dataclasses.replace(state, terms=zeros)
        if data.held_out and (is_last or _is_due(done, run.config.eval_every)):
            reporter.advance(done, f"{stage.name}: evaluating")
            found = terms_lib.zeros(run.objective.metrics)
            for batch in data.held_out():
                batch = sharding.to_devices(run.mesh, batch, rows, stage.batch_size)
                found = eval_step(state.params, batch, found)
            reporter.write(done, "eval", _ratios(run.objective, found))
            window.restart()
            in_flight.clear()  # evaluation has waited for them
        if is_last or stopping or _is_due(done, run.config.checkpoint_every):
            checkpoints.save(done, state)
        if stopping and done < run.total_steps:
            checkpoints.wait()
            raise Interrupted(f"saved at step {done} of {run.total_steps}")
    reporter.advance(done, stage.name)
    return state


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _compile_step(
    run: Run, stage: Stage, state: step_lib.TrainState, batch: step_lib.Batch
):
    """The compiled step, and an output that is not donated to the next, to wait for."""
    train_step = step_lib.make_train_step(
        run.objective, run.optimizer, seed=run.seed, micro_batches=stage.micro_batches
    )

    def step_and_marker(state, batch):
        state = train_step(state, batch)
        return state, state.step + 0

    shardings = sharding.shardings_of(state)
    jitted = jax.jit(
        step_and_marker,
        in_shardings=(shardings, sharding.batch_sharding(run.mesh)),
        out_shardings=(shardings, sharding.replicated(run.mesh)),
        donate_argnums=0,
    )
    return jitted.lower(state, batch).compile()


def _ratios(objective: Any, found: terms_lib.Terms) -> dict[str, float]:
    found = jax.device_get(found)
    values = {name: terms_lib.ratio(term) for name, term in sorted(found.items())}
    return {"loss": sum(values[name] for name in objective.losses), **values}


class _Window:
    """The time since the last report, and the steps in it."""

    def __init__(self, run: Run, stage: Stage):
        self._run = run
        self._stage = stage
        kind = run.mesh.devices.flat[0].device_kind
        self._peak = run.mesh.size * flops.peak_flops(kind)
        self.restart()

    def restart(self) -> None:
        """Begin anew: what was done between steps is not part of their time."""
        self._start = time.perf_counter()
        self._waited = 0.0
        self.steps = 0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside as waiting for data."""
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    def close(self, step: int, found: terms_lib.Terms) -> dict[str, float]:
        """Values for the report at `step`; begins the next window.

        `found` may reach further back than this window, to before a restart.
        """
        values = _ratios(self._run.objective, found)
        seconds = time.perf_counter() - self._start
        sequences = self.steps * self._stage.batch_size
        positions = found["padding_fraction"].count / found["grad_norm"].count
        tokens = self.steps * float(positions) * (1.0 - values["padding_fraction"])
        values["learning_rate"] = float(self._run.schedule(jnp.asarray(step - 1)))
        values["sequences_per_sec"] = sequences / seconds
        values["tokens_per_sec"] = tokens / seconds
        values["data_wait_fraction"] = self._waited / seconds
        if self._peak:
            values["mfu"] = sequences * self._stage.flops / seconds / self._peak
        self.restart()
        return values


@contextlib.contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set. A second one acts as it did before."""
    event = threading.Event()
    before: dict[int, Any] = {}

    def handle(number, frame):
        del frame
        reporting.say("stopping: will save after this step")
        event.set()
        signal.signal(number, before[number])

    # Handlers belong to the main thread; from elsewhere a run cannot be asked to stop.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, handle)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
