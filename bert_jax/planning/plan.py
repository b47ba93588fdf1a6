"""Plan of a whole recipe on an absent TPU slice."""

import dataclasses
import importlib.metadata

import jax

from bert_jax import config as config_lib
from bert_jax import pretraining, terminal
from bert_jax.planning.phase import PhasePlan, plan_phase
from bert_jax.planning.schedule import ScheduleFolder
from bert_jax.planning.topology import Topology
from bert_jax.training import sharding
from bert_jax.training.run_description import Run


@dataclasses.dataclass(frozen=True)
class Plan:
    """Plan of a recipe on a topology."""

    recipe: str
    topology: Topology  # slices to run on
    mesh: str
    parameters: int
    phases: tuple[PhasePlan, ...]
    # Implementation of each part of the model, as a run reports it.
    kernels: tuple[str, ...]
    versions: str  # versions of jax and libtpu

    @property
    def fits(self) -> bool:
        return all(phase.fits for phase in self.phases)

    @property
    def seconds_at_peak(self) -> float:
        """Time of the whole run at the chips' peak."""
        return sum(phase.steps * phase.seconds_at_peak for phase in self.phases)

    @property
    def estimated_seconds(self) -> float:
        """Time of the whole run by the compiler's estimate; 0 if unknown."""
        return self._total("estimated_seconds")

    @property
    def scheduled_seconds(self) -> float:
        """Time of the whole run by the compiler's schedules; 0 if unknown."""
        return self._total("scheduled_seconds")

    def _total(self, name: str) -> float:
        """Add up the times of all steps; 0 if the time of a step is unknown."""
        times = [phase.steps * getattr(phase, name) for phase in self.phases]
        return sum(times) if all(times) else 0.0


@dataclasses.dataclass(frozen=True)
class Planner:
    """Compiler of runs for a topology."""

    topology: Topology
    schedule_folder: ScheduleFolder | None = None  # if schedules are requested

    def plan(self, config: config_lib.PretrainConfig, recipe: str) -> Plan:
        """Compile all phases of a recipe, and announce each one first."""
        run = self.make_run(config)
        params = run.state_shapes.params
        phases = []
        for i, phase in enumerate(run.phases):
            terminal.say(
                f"compiling phase {i + 1} of {len(run.phases)}, length {phase.length}"
            )
            phases.append(plan_phase(run, phase, self.topology, self.schedule_folder))
        return Plan(
            recipe=recipe,
            topology=self.topology,
            mesh=", ".join(f"{axis} {size}" for axis, size in run.mesh.shape.items()),
            parameters=sum(leaf.size for leaf in jax.tree.leaves(params)),
            phases=tuple(phases),
            kernels=tuple(run.describe_kernels("tpu")),
            versions=", ".join(
                f"{name} {importlib.metadata.version(name)}"
                for name in ("jax", "libtpu")
            ),
        )

    def plan_phase(self, config: config_lib.PretrainConfig, index: int) -> PhasePlan:
        run = self.make_run(config)
        return plan_phase(run, run.phases[index], self.topology, self.schedule_folder)

    def make_run(self, config: config_lib.PretrainConfig) -> Run:
        """Return the run of a resolved config on the devices of the topology."""
        mesh = sharding.make_mesh(config.mesh, self.topology.devices)
        return pretraining.make_run(config, mesh, corpora=())
