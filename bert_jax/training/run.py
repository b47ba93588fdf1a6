"""What is trained, how, and on what: the description that the loop carries out."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax import config as config_lib
from bert_jax.model.kernels import decisions
from bert_jax.training import sharding
from bert_jax.training import step as step_lib

Batches = Iterator[dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Held-out batches to evaluate on; rows of this process only.

    Attributes:
      batches: Function to the batches of an evaluation.
      name: What stands before the names of its values where there are several.
      weight: What its sums and counts are multiplied by before those of several are
        added up.
      levels: What to compare its values with; reported with them.
    """

    batches: Callable[[], Batches]
    name: str = ""
    weight: float = 1.0
    levels: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class PhaseData:
    """The batches of a phase; rows of this process only.

    Attributes:
      batches: Function from (start, stop) to the batches of these steps, counted from 0
        at the beginning of the phase.
      held_out: What to evaluate on; nothing for no evaluation.
      row_names: Function from a step to what each row of its batch was made from, for
        people.
      levels: What to compare evaluations with, the values of all of `held_out`
        together; reported with each of them.
    """

    batches: Callable[[int, int], Batches]
    held_out: Sequence[HeldOut]
    row_names: Callable[[int], Sequence[str]]
    levels: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Phase:
    """Stretch of a run with one batch size and one objective.

    Attributes:
      name: Name for people.
      objective: See `bert_jax.objectives`. The objectives of a run may differ in
        anything but parameters, losses and metrics.
      steps: Number of steps.
      lengths: Tokens in a sequence: each batch has one of these, in ascending order.
      batch_size: Sequences in a batch, over all processes.
      micro_batches: Pieces that a batch goes through in.
      open_data: Function from the rows of a batch that this process makes to the data.
        It is called when the turn of the phase comes, so that no two phases are in
        memory at once.
    """

    name: str
    objective: Any
    steps: int
    lengths: tuple[int, ...]
    batch_size: int
    micro_batches: int
    open_data: Callable[[np.ndarray], PhaseData]

    @property
    def length(self) -> int:
        """The largest length."""
        return self.lengths[-1]


@dataclasses.dataclass(frozen=True)
class Run:
    """What is trained, how, and on what.

    Attributes:
      optimizer: Update rule, one for all phases.
      schedule: Learning rate by number of updates, for the reports.
      phases: Stretches of the run, one after the other.
      seed: Seed for dropout.
      config: How often to log, evaluate and save.
      mesh: Devices of all phases.
      encoders: Encoders that are trained, by their names in messages.
      shard_optimizer: Whether copies of the model share the optimizer's state.
      gradient_sum: Type in which gradients of the copies are added up.
      frozen: Path of the parameters that stay as they are; "" for none.
      best: Metric of evaluations by which the best state is kept; "" for none.
    """

    optimizer: optax.GradientTransformation
    schedule: Callable[[jax.Array], jax.Array]
    phases: tuple[Phase, ...]
    seed: int
    config: config_lib.LoopConfig
    mesh: Mesh
    encoders: Mapping[str, config_lib.EncoderConfig]
    shard_optimizer: bool
    gradient_sum: str = "float32"
    frozen: str = ""
    best: str = ""

    @property
    def objective(self) -> Any:
        """Objective of the first phase, for what those of all phases share."""
        return self.phases[0].objective

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

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

    def batch_shapes(
        self, phase: Phase, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Return a batch of a phase as `jax.ShapeDtypeStruct`s with shardings."""
        shapes = phase.objective.batch_shapes(phase.batch_size, length)
        return sharding.batch_shapes(self.mesh, shapes)

    def describe_kernels(self, platform: str) -> list[str]:
        """Say which implementation each part of the model has, a line for each phase.

        Phases that equal the one before have no line of their own.

        Args:
          platform: Platform that the programs are compiled for.
        """
        lines: list[str] = []
        described = None
        with sharding.use(self.mesh):
            for phase in self.phases:
                rows = phase.batch_size // phase.micro_batches
                found = [
                    name.removeprefix("encoder.")
                    + decisions.describe(encoder, platform, rows, phase.length)
                    for name, encoder in self.encoders.items()
                ]
                if found != described:
                    lines += [f"{phase.name}: {line}" for line in found]
                described = found
        return lines

    def flops(self, phase: Phase, length: int) -> float:
        """Return the operations of a step, forward and backward, over all devices."""
        return phase.batch_size * phase.objective.sequence_flops(length)
