"""Description of a run, which the training loop carries out."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax import config as config_lib
from bert_jax.model import flops
from bert_jax.model.kernels import decisions
from bert_jax.objectives import BatchShapes, Objective
from bert_jax.training import optimizer as optimizer_lib
from bert_jax.training import sharding
from bert_jax.training import step as step_lib

Batches = Iterator[dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Held-out batches to evaluate on; rows of this process only."""

    batches: Callable[[], Batches]
    name: str = ""  # prefix of its metrics if there are several `HeldOut`s
    # Factor of its sums and counts in the mean over several `HeldOut`s.
    weight: float = 1.0
    # Baselines of its metrics, reported with them.
    baselines: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class PhaseData:
    """The batches of a phase; rows of this process only."""

    # Function from (start, stop) to the batches of these steps, counted from 0 at the
    # beginning of the phase.
    batches: Callable[[int, int], Batches]
    held_out: Sequence[HeldOut]  # data to evaluate on; empty for no evaluation
    # Function from a step to a description of each row of its batch.
    row_names: Callable[[int], Sequence[str]]
    # Baselines of the mean over `held_out`, reported with each evaluation.
    baselines: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # Function from the parameters and a callback to further values of each evaluation;
    # None for none. It calls the callback after each batch. The callback may raise, to
    # stop the evaluation.
    scores: Callable[[Any, Callable[[], None]], Mapping[str, float]] | None = None


@dataclasses.dataclass(frozen=True)
class Phase:
    """Part of a run with one batch size and one objective."""

    name: str
    # All objectives of a run have the same parameters, losses and metrics.
    objective: Objective
    steps: int
    # Tokens in a sequence, ascending: each training batch has one of these.
    lengths: tuple[int, ...]
    batch_size: int  # sequences in a batch, over all processes
    micro_batches: int  # number of pieces of a batch, for gradient accumulation
    # Function from the rows of a batch that this process makes to the data. It is
    # called when the phase begins, so that no two phases are in memory at once.
    open_data: Callable[[np.ndarray], PhaseData]
    held_out_lengths: tuple[int, ...] = ()  # lengths that only held-out batches have

    @property
    def length(self) -> int:
        """The largest length of training batches."""
        return self.lengths[-1]


@dataclasses.dataclass(frozen=True)
class Run:
    """Description of a run."""

    # Learning rate by number of updates.
    schedule: optimizer_lib.Schedule
    phases: tuple[Phase, ...]
    # With all fields filled in.
    config: config_lib.PretrainConfig | config_lib.FinetuneConfig
    mesh: Mesh
    # Encoders of a step, by name: "encoder", and maybe "generator" or "teacher".
    encoders: Mapping[str, config_lib.EncoderConfig]
    # Predicate of the paths of frozen parameters; None for none.
    is_frozen: Callable[[str], bool] | None = None
    # Evaluation metric that selects the best state, which is kept; "" for none.
    best_metric: str = ""
    # Function from a key to constants, boxed with the names of dimensions. Only their
    # shapes are used. Constants are parameters that the objectives read and no step
    # changes. Neither state nor checkpoints contain them.
    init_constants: Callable[[jax.Array], Any] = lambda key: {}
    # Function from `constant_shapes` to the arrays. All processes must call it.
    read_constants: Callable[[Any], Any] = lambda shapes: {}

    @property
    def objective(self) -> Objective:
        """Objective of the first phase. All phases share parameters and metrics."""
        return self.phases[0].objective

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Update rule, one for all phases."""
        return optimizer_lib.make_optimizer(
            self.config.optimizer, self.schedule, is_frozen=self.is_frozen
        )

    def init(self, key: jax.Array) -> step_lib.TrainState:
        """Return the initial state, boxed with the names of dimensions."""
        return step_lib.init_state(self.objective, self.optimizer, key)

    @functools.cached_property
    def state_shapes(self) -> step_lib.TrainState:
        """The state as `jax.ShapeDtypeStruct`s with shardings."""
        shapes = sharding.state_shapes(self.init, self.mesh)
        if self.config.mesh.shard_optimizer:
            opt_state = sharding.split_over_data(shapes.opt_state)
            shapes = dataclasses.replace(shapes, opt_state=opt_state)
        return shapes

    def constant_shapes(self) -> dict[str, Any]:
        """Return the constants as `jax.ShapeDtypeStruct`s with shardings."""
        return sharding.state_shapes(self.init_constants, self.mesh)

    def batch_shapes(self, phase: Phase, length: int) -> BatchShapes:
        """Return a batch of a phase as `jax.ShapeDtypeStruct`s with shardings."""
        shapes = phase.objective.batch_shapes(phase.batch_size, length)
        rows = sharding.batch_sharding(self.mesh)
        return {name: leaf.update(sharding=rows) for name, leaf in shapes.items()}

    def describe_kernels(self, platform: str) -> list[str]:
        """Describe the implementation of each part of the model, a line for each phase.

        Phases that equal the previous one have no line.
        """
        lines: list[str] = []
        previous = None
        with sharding.use(self.mesh):
            for phase in self.phases:
                found = [
                    self._describe_kernels(n, phase, platform) for n in self.encoders
                ]
                if found != previous:
                    lines += [f"{phase.name}: {line}" for line in found]
                previous = found
        return lines

    def _describe_kernels(self, name: str, phase: Phase, platform: str) -> str:
        """Describe the implementation of each part of an encoder in a phase."""
        objective, encoder, predictions = phase.objective, self.encoders[name], 0
        if name == "teacher":  # runs without dropout
            encoder = dataclasses.replace(encoder, attention_dropout_rate=0.0)
        predictor = "generator" if "generator" in self.encoders else "encoder"
        if name == predictor:
            predictions = objective.num_predictions(phase.length)
        description = decisions.describe(
            encoder,
            platform,
            phase.batch_size // phase.micro_batches,
            phase.length,
            predictions=predictions,
            logits_reader=objective.logits_reader,
        )
        return description if name == "encoder" else f"{name} {description}"

    def flops(self, phase: Phase, length: int) -> float:
        """Return the operations of a step, forward and backward, over all devices."""
        total = phase.batch_size * phase.objective.sequence_flops(length)
        # With a frozen encoder, only the head, which is small, has a backward pass.
        return total / flops.training(1.0) if self.is_frozen else total
