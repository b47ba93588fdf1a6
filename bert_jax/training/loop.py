"""The loop: the same for pretraining and for fine-tuning, for one process and for many.

Order of things at a step, and the reason a run that is killed at any moment continues
to the same end: step, log, evaluate, save. What is logged of a step is on disk before
its checkpoint begins, and a restart drops what was logged after its checkpoint.

Steps are sent to the devices ahead of their results; what a step has to say is read a
few steps later (`_observe`), so that nothing waits for it. All processes do the same
things at the same step: what only one of them knows, such as that it was asked to stop,
goes through the step and comes back to all (`Signals`, `Pulse`).
"""

import collections
import contextlib
import dataclasses
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax import config as config_lib
from bert_jax import storage, terminal
from bert_jax.errors import Interrupted, UserError
from bert_jax.objectives import terms as terms_lib
from bert_jax.training import (
    checkpoint,
    flops,
    goodput,
    processes,
    reporting,
    sharding,
    workdir,
)
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
      row_names: of the batch of a step, what each row was made from, for people.
    """

    batches: Callable[[int, int], Batches]
    held_out: Callable[[], Batches] | None
    row_names: Callable[[int], Sequence[str]]


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
      shard_optimizer: whether copies of the model share the optimizer's state.
    """

    objective: Any
    optimizer: optax.GradientTransformation
    schedule: Callable[[jax.Array], jax.Array]
    stages: tuple[Stage, ...]
    seed: int
    config: config_lib.RunConfig
    mesh: Mesh
    shard_optimizer: bool

    @property
    def total_steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def init(self, key: jax.Array) -> step_lib.TrainState:
        """The state before the first step, boxed with the names of dimensions."""
        return step_lib.init_state(self.objective, self.optimizer, key)

    def state_shapes(self) -> step_lib.TrainState:
        """The state as `jax.ShapeDtypeStruct`s with shardings."""
        shapes = sharding.state_shapes(self.init, self.mesh)
        if self.shard_optimizer:
            opt_state = sharding.split_over_data(shapes.opt_state)
            shapes = dataclasses.replace(shapes, opt_state=opt_state)
        return shapes


def use_compilation_cache(config: config_lib.RunConfig) -> None:
    """Keep compiled programs where the config says; call it before any compilation."""
    if config.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", config.compilation_cache)


class Signals(NamedTuple):
    """What a process tells all others with a step.

    Attributes:
      stop: 1.0 if it was asked to stop.
      host_seconds: between two steps, in which it did not wait for devices.
    """

    stop: float
    host_seconds: float

    def to_devices(self, mesh: Mesh) -> jax.Array:
        """Float32 [devices, 2], a row of its process for each device."""
        return sharding.from_each_process(mesh, np.array(self, np.float32))


@flax.struct.dataclass
class Pulse:
    """What a step tells all processes.

    Attributes:
      outcome: loss and norm of the gradient.
      learning_rate: of its update.
      skipped: steps so far that were not finite.
      signals: float32 [devices, 2], from `Signals.to_devices`.
    """

    outcome: step_lib.Outcome
    learning_rate: jax.Array
    skipped: jax.Array
    signals: jax.Array


def lower_step(
    run: Run, stage: Stage, state: step_lib.TrainState, batch: step_lib.Batch
) -> jax.stages.Lowered:
    """The step, ready to compile: (state, batch, signals) to (state, `Pulse`).

    The state is donated.

    Args:
      run: what is trained.
      stage: which stretch of it.
      state: arrays, or shapes with shardings.
      batch: likewise.
    """
    train_step = step_lib.make_train_step(
        run.objective, run.optimizer, seed=run.seed, micro_batches=stage.micro_batches
    )

    def step_and_pulse(state, batch, signals):
        rate = run.schedule(state.step - state.skipped)
        state, outcome = train_step(state, batch)
        # A copy of what is in the state, too, because that is donated to the next step.
        return state, Pulse(outcome, rate, state.skipped + 0, signals)

    shardings = sharding.shardings_of(state)
    jitted = jax.jit(
        step_and_pulse,
        in_shardings=(
            shardings,
            sharding.batch_sharding(run.mesh),
            sharding.device_sharding(run.mesh),
        ),
        out_shardings=(shardings, sharding.replicated(run.mesh)),
        donate_argnums=0,
    )
    signals = jax.ShapeDtypeStruct((run.mesh.size, len(Signals._fields)), jnp.float32)
    with sharding.use(run.mesh):
        return jitted.lower(state, batch, signals)


def train(
    run: Run,
    state: step_lib.TrainState,
    checkpoints: checkpoint.Checkpoints,
    ledger: goodput.Ledger,
    folder: storage.Path,
    alive: Callable[[], None],
) -> step_lib.TrainState:
    """Run from the step of `state` to the end.

    Args:
      run: what to do.
      state: initial or restored, in its shards; donated.
      checkpoints: where to save, and where the state came from, if it was restored.
      ledger: where the time goes.
      folder: the workdir.
      alive: the sign of life of `watchdog.watch`.

    Returns:
      The state after the last step, which is saved.

    Raises:
      Interrupted: on SIGTERM or SIGINT, after saving.
      UserError: a loss or gradient is not finite, a checkpoint cannot be written, or
        those that there were are gone.
    """
    step = int(state.step)
    if not step and processes.on_main(lambda: workdir.had_checkpoint(folder)):
        error = UserError(
            f"{folder} had checkpoints, and now there is none; bring them back, or "
            "give another --workdir to start from step 0"
        )
        error.everywhere = True
        raise error
    if processes.is_main():
        if step:
            workdir.note_checkpoint(folder)
        earlier = checkpoints.metadata(step)["time"] if step else None
        ledger.continue_from(earlier, workdir.first_start(folder))
    with (
        _stop_requests() as stop_requested,
        sharding.use(run.mesh),
        reporting.Reporter(
            folder, run.total_steps, step, silent=not processes.is_main()
        ) as reporter,
    ):
        loop = _Loop(
            run, state, checkpoints, reporter, ledger, folder, stop_requested, alive
        )
        begin = 0
        for stage in run.stages:
            loop.train_stage(stage, begin)
            begin += stage.steps
        loop.wait_for_checkpoint()
        shares = {"goodput": ledger.fractions()["goodput"], **loop.totals.shares()}
        told = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        reporter.say(f"{ledger.describe()}; {told}")
    return loop.state


class _Sent(NamedTuple):
    """A step on its way: its number, its pulse, and the terms to report, if any."""

    step: int
    pulse: Pulse
    terms: terms_lib.Terms | None


class _Loop:
    """What changes while a run goes on."""

    def __init__(
        self,
        run: Run,
        state: step_lib.TrainState,
        checkpoints: checkpoint.Checkpoints,
        reporter: reporting.Reporter,
        ledger: goodput.Ledger,
        folder: storage.Path,
        stop_requested: threading.Event,
        alive: Callable[[], None],
    ):
        self.state = state
        self._run = run
        self._checkpoints = checkpoints
        self._reporter = reporter
        self._ledger = ledger
        self._folder = folder
        self._stop_requested = stop_requested
        self._alive = alive
        self._done = int(state.step)
        self._skipped = int(state.skipped)
        self._stopping = False
        self._in_flight: collections.deque[_Sent] = collections.deque()
        self._profiling = False
        self.totals = _Totals(run.mesh)
        everywhere = sharding.replicated(run.mesh)
        names = (*run.objective.metrics, "grad_norm")
        self._zero_terms = jax.jit(
            lambda: terms_lib.zeros(names), out_shardings=everywhere
        )
        self._eval_step = jax.jit(
            _make_eval_step(run.objective), out_shardings=everywhere
        )
        self._is_finite = jax.jit(_is_finite, out_shardings=everywhere)

    # ---- a stage

    def train_stage(self, stage: Stage, begin: int) -> None:
        """Do what is left of the stage that starts after `begin` steps."""
        end = begin + stage.steps
        owes_evaluation = begin < self._done <= end and self._owes_evaluation(end)
        if self._done >= end and not owes_evaluation:
            return
        self._stage, self._begin = stage, begin
        self._window = _Window(self._run, stage, self.totals)
        self._ledger.switch("init")
        self._reporter.advance(self._done, f"{stage.name}: opening data")
        self._rows = sharding.local_rows(self._run.mesh, stage.batch_size)
        self._data = None  # the stage before gives back its memory first
        with processes.together():
            self._data = stage.open(self._rows)
        self._alive()
        if owes_evaluation:
            self._evaluate()
            self._stop_if_asked(end)
        if self._done < end:
            self._train_to(end)

    def _train_to(self, end: int) -> None:
        run_step = None
        ready = time.perf_counter()
        for batch in self._batches(end):
            if run_step is None:
                run_step = self._compile(batch)
                ready = time.perf_counter()
            self._begin_profile()
            signals = self._signals(time.perf_counter() - ready)
            with jax.profiler.StepTraceAnnotation("train", step_num=self._done + 1):
                self.state, pulse = run_step(self.state, batch, signals)
            self._done += 1
            self._in_flight.append(_Sent(self._done, pulse, self._terms_to_report(end)))
            self._observe(_STEPS_AHEAD)

            evaluates = self._data.held_out and self._evaluates_at(self._done, end)
            saves = self._is_due(self._done, end, self._run.config.checkpoint_every)
            if evaluates or saves or self._stopping or self._ends_profile(end):
                self._observe(0)
                self._end_profile(end)
                if evaluates and not self._stopping:
                    self._evaluate()
                if saves or self._stopping:
                    self._save()
                self._window.restart()
            self._stop_if_asked(end)
            ready = time.perf_counter()

    def _batches(self, end: int) -> Iterator[step_lib.Batch]:
        """The batches of the steps to `end`, on the devices."""
        batches = self._data.batches(self._done - self._begin, end - self._begin)
        while self._done < end:
            with self._window.waiting(), self._ledger.counting("data_wait"):
                batch = next(batches)
            yield self._to_devices(batch)

    def _to_devices(self, batch: dict[str, np.ndarray]) -> step_lib.Batch:
        return sharding.to_devices(
            self._run.mesh, batch, self._rows, self._stage.batch_size
        )

    def _compile(self, batch: step_lib.Batch):
        self._reporter.advance(self._done, f"{self._stage.name}: compiling")
        with self._ledger.counting("compile"):
            compiled = lower_step(self._run, self._stage, self.state, batch).compile()
            self._alive()
            self._compile_the_rest(batch)
        self._ledger.switch("step")
        self._window.restart()
        return compiled

    def _compile_the_rest(self, batch: step_lib.Batch) -> None:
        """Do once, for nothing, what evaluations and saves will do.

        A request to stop leaves a machine half a minute, and waits for a compilation
        that is under way.
        """
        if self._data.held_out:
            zeros = self._zero_metrics()
            self._eval_step(self.state.params, batch, zeros, self._signals(0.0))
            self._alive()
        self._is_finite((self.state.params, self.state.opt_state))
        self._checkpoints.compile(self.state)
        self._alive()

    def _signals(self, host_seconds: float) -> jax.Array:
        stop = float(self._stop_requested.is_set())
        return Signals(stop, host_seconds).to_devices(self._run.mesh)

    # ---- what comes back from a step

    def _terms_to_report(self, end: int) -> terms_lib.Terms | None:
        """The terms up to here, if it is time; the state begins anew."""
        if self._done != 1 and not self._is_due(
            self._done, end, self._run.config.log_every
        ):
            return None
        found = self.state.terms
        self.state = dataclasses.replace(self.state, terms=self._zero_terms())
        return found

    def _observe(self, limit: int) -> None:
        """Read what steps have to say, until `limit` of them are on their way."""
        while len(self._in_flight) > limit:
            sent = self._in_flight.popleft()
            pulse = jax.device_get(sent.pulse)
            self._alive()
            self._reporter.advance(sent.step, self._stage.name)
            self._window.count(pulse.signals)
            self._heed(pulse.signals)
            if pulse.skipped > self._skipped:
                self._skipped = int(pulse.skipped)
                self._handle_not_finite(sent.step, pulse.outcome)
            if sent.terms is not None:
                values = self._window.close(jax.device_get(sent.terms))
                values["learning_rate"] = float(pulse.learning_rate)
                values["skipped_steps"] = self._skipped
                values |= self._ledger.fractions()
                self._reporter.write(sent.step, "train", values)

    def _heed(self, signals: np.ndarray) -> None:
        self._stopping |= bool(
            np.asarray(signals)[:, Signals._fields.index("stop")].any()
        )

    def _handle_not_finite(self, step: int, outcome: step_lib.Outcome) -> None:
        """Say which batch it was, and go on if that is allowed.

        Raises:
          UserError: it is not.
        """
        names = self._data.row_names(step - 1 - self._begin)
        file = f"not_finite_step_{step}_process_{jax.process_index()}.json"
        found = {name: str(value) for name, value in outcome._asdict().items()}
        text = json.dumps({"step": step, **found, "rows": list(names)}, indent=1)
        (self._folder / file).write_text(text + "\n", encoding="utf-8")
        rows = "; ".join(names[:4]) + (f"; {len(names) - 4} more" if names[4:] else "")
        what = (
            f"step {step}: loss {outcome.loss}, gradient norm {outcome.grad_norm}; "
            f"its rows ({rows}) are in {self._folder / file}"
        )
        limit = self._run.config.max_skipped_steps
        if self._skipped <= limit:
            self._reporter.say(f"{what}; skipped ({self._skipped} of {limit} allowed)")
            return
        raise self._refusal(
            f"{what}; run.max_skipped_steps={limit} allows no more; a lower "
            "optimizer.learning_rate or a longer warmup may help"
        )

    def _refusal(self, what: str) -> UserError:
        """An error that all processes raise at this place, saying what is not lost."""
        self._checkpoints.wait()
        newest = self._checkpoints.newest()
        last = (
            "there is no checkpoint"
            if newest is None
            else (f"the last good checkpoint is {newest}")
        )
        error = UserError(f"{what}; {last}")
        error.everywhere = True
        return error

    # ---- evaluate, save, stop

    @staticmethod
    def _is_due(step: int, end: int, every: int) -> bool:
        return step == end or (every > 0 and step % every == 0)

    def _evaluates_at(self, step: int, end: int) -> bool:
        return self._is_due(step, end, self._run.config.eval_every)

    def _owes_evaluation(self, end: int) -> bool:
        """Whether a stop came between the newest checkpoint and its evaluation."""
        return self._evaluates_at(self._done, end) and not processes.on_main(
            lambda: self._reporter.has(self._done, "eval")
        )

    def _zero_metrics(self) -> terms_lib.Terms:
        zeros = self._zero_terms()
        return {name: zeros[name] for name in self._run.objective.metrics}

    def _evaluate(self) -> None:
        """Evaluate and report, or leave it for later if there is a request to stop."""
        if not self._data.held_out:
            return
        self._reporter.advance(self._done, f"{self._stage.name}: evaluating")
        with self._ledger.counting("evaluation"):
            found = self._zero_metrics()
            waiting: collections.deque[jax.Array] = collections.deque()
            for batch in self._data.held_out():
                found, signals = self._eval_step(
                    self.state.params,
                    self._to_devices(batch),
                    found,
                    self._signals(0.0),
                )
                waiting.append(signals)
                if len(waiting) > _STEPS_AHEAD:
                    self._heed(jax.device_get(waiting.popleft()))
                    self._alive()
                if self._stopping:
                    return
            values = _ratios(self._run.objective, jax.device_get(found))
            self._reporter.write(self._done, "eval", values)

    def _save(self) -> None:
        with self._ledger.counting("checkpoint"):
            # Skipped steps keep their gradients out; an update may still overflow.
            if not self._is_finite((self.state.params, self.state.opt_state)):
                raise self._refusal(
                    f"step {self._done}: the parameters are not finite, and not saved"
                )
            self._reporter.flush()
            self._complete_checkpoint()
            entry = {"time": self._ledger.entry()}
            self._checkpoints.save(self._done, self.state, entry)

    def wait_for_checkpoint(self) -> None:
        """Return when the last one is complete."""
        with self._ledger.counting("checkpoint"):
            self._complete_checkpoint()

    def _complete_checkpoint(self) -> None:
        self._alive()
        self._checkpoints.wait()
        if processes.is_main() and self._checkpoints.newest() is not None:
            workdir.note_checkpoint(self._folder)

    def _stop_if_asked(self, end: int) -> None:
        """Leave, with the newest step saved.

        Raises:
          Interrupted: there was a request, and there is something left to do.
        """
        if not self._stopping:
            return
        self.wait_for_checkpoint()
        total = self._run.total_steps
        if self._done < total or (self._data.held_out and self._owes_evaluation(end)):
            raise Interrupted(f"saved at step {self._done} of {total}")

    # ---- profile

    def _begin_profile(self) -> None:
        if self._done + 1 == self._run.config.profile_step:
            self._observe(0)
            with self._ledger.counting("profile"):
                jax.profiler.start_trace(str(self._profile_folder()))
            self._profiling = True
            self._window.restart()

    def _profile_folder(self) -> storage.Path:
        # Files are named for the host: processes that share one need their own folder.
        folder = self._folder / "profile"
        if jax.process_count() == 1:
            return folder
        return folder / f"process_{jax.process_index()}"

    def _ends_profile(self, end: int) -> bool:
        config = self._run.config
        last = config.profile_step + config.profile_steps - 1
        return self._profiling and (self._done >= min(last, end) or self._stopping)

    def _end_profile(self, end: int) -> None:
        if self._ends_profile(end):
            with self._ledger.counting("profile"):
                jax.profiler.stop_trace()
            self._profiling = False
            self._reporter.say(f"profile in {self._folder / 'profile'}")


def _make_eval_step(objective: Any):
    eval_step = step_lib.make_eval_step(objective)

    def eval_step_and_signals(params, batch, total, signals):
        return eval_step(params, batch, total), signals

    return eval_step_and_signals


def _is_finite(tree: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def _ratios(objective: Any, found: terms_lib.Terms) -> dict[str, float]:
    values = {name: terms_lib.ratio(term) for name, term in sorted(found.items())}
    return {"loss": sum(values[name] for name in objective.losses), **values}


class _Totals:
    """Shares of the time of steps, evaluations and saves left out, in this start."""

    def __init__(self, mesh: jax.sharding.Mesh):
        device = mesh.devices.flat[0]
        self._peak = mesh.size * flops.peak_flops(device.device_kind)  # 0: not known
        self._seconds = self._waited = self._flops = 0.0

    def add(self, seconds: float, waited: float, work: float) -> dict[str, float]:
        """Count steps, and give their shares alone.

        Args:
          seconds: that they took.
          waited: of them, for data.
          work: of the model, in operations.
        """
        self._seconds += seconds
        self._waited += waited
        self._flops += work
        return self._shares(seconds, waited, work)

    def shares(self) -> dict[str, float]:
        """Of all steps; nothing if there were none."""
        if not self._seconds:
            return {}
        return self._shares(self._seconds, self._waited, self._flops)

    def _shares(self, seconds: float, waited: float, work: float) -> dict[str, float]:
        shares = {"data_wait_fraction": waited / seconds}
        if self._peak:
            shares["mfu"] = work / seconds / self._peak
        return shares


class _Window:
    """The time since the last report, and the steps that were done in it."""

    def __init__(self, run: Run, stage: Stage, totals: _Totals):
        self._run = run
        self._stage = stage
        self._totals = totals
        devices = list(run.mesh.devices.flat)
        self._process_of_device = np.array([d.process_index for d in devices])
        self.restart()

    def restart(self) -> None:
        """Begin anew: what was done between steps is not part of their time."""
        self._start = time.perf_counter()
        self._waited = 0.0
        self._steps = 0
        self._host_seconds = np.zeros(len(self._process_of_device))

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside as waiting for data."""
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    def count(self, signals: np.ndarray) -> None:
        """Count a step that is done."""
        self._steps += 1
        index = Signals._fields.index("host_seconds")
        self._host_seconds += np.asarray(signals)[:, index]

    def close(self, found: terms_lib.Terms) -> dict[str, float]:
        """Values for a report; begins the next window.

        `found` may reach further back than this window, to before a restart. If all of
        its steps were skipped, there is nothing to say of loss and metrics.
        """
        values = {}
        seconds = time.perf_counter() - self._start
        sequences = self._steps * self._stage.batch_size
        counted = float(found["grad_norm"].count)  # steps that were not skipped
        if counted:
            values = _ratios(self._run.objective, found)
            positions = float(found["padding_fraction"].count) / counted
            tokens = self._steps * positions * (1.0 - values["padding_fraction"])
            values["tokens_per_sec"] = tokens / seconds
        values["sequences_per_sec"] = sequences / seconds
        values |= self._totals.add(seconds, self._waited, sequences * self._stage.flops)
        values |= self._host_spread()
        self.restart()
        return values

    def _host_spread(self) -> dict[str, float]:
        """What each process did between steps while its devices may have waited.

        All processes take equally long for a step, because each waits for the slowest;
        which one that is shows in the time that it did not wait.
        """
        processes_here = np.unique(self._process_of_device)
        if len(processes_here) == 1:
            return {}
        per_step = self._host_seconds / max(self._steps, 1)
        means = [per_step[self._process_of_device == p].mean() for p in processes_here]
        return {
            "host_seconds_mean": float(np.mean(means)),
            "host_seconds_max": float(np.max(means)),
            "slowest_process": int(processes_here[np.argmax(means)]),
        }


@contextlib.contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set.

    More SIGTERMs change nothing: the machine's owner sends several, and the save is
    under way. A second SIGINT acts as it did before: somebody at a keyboard means it.
    """
    event = threading.Event()
    before: dict[int, Any] = {}
    leaving = False

    def handle(number, frame):
        del frame
        if not event.is_set():
            event.set()
            terminal.say("stopping: will save after this step")
        if number == signal.SIGINT:
            signal.signal(number, before[number])

    # Handlers belong to the main thread; from elsewhere a run cannot be asked to stop.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, handle)
    try:
        yield event
    except BaseException:
        leaving = event.is_set()
        raise
    finally:
        for number, handler in before.items():
            # A process that ends because it was asked to needs no reminder on its way
            # out: it would change the exit status.
            ignored = leaving and number == signal.SIGTERM
            signal.signal(number, signal.SIG_IGN if ignored else handler)
