"""A plan: what all phases of a recipe need of a TPU slice that is not there."""

import dataclasses
import importlib.metadata
from collections.abc import Callable, Sequence

import jax

from bert_jax import config as config_lib
from bert_jax.corpus import shards
from bert_jax.planning.phase import PhasePlan, plan_phase
from bert_jax.planning.schedule import Dump
from bert_jax.planning.topology import Topology
from bert_jax.training import sharding
from bert_jax.training.run import Run


@dataclasses.dataclass(frozen=True)
class CorpusPlan:
    """What the hosts read.

    Attributes:
      tokens: Tokens of the training split.
      shard_groups: Groups that its shards are dealt to.
      host_bytes: Tokens and sentence starts of the host that holds the most.
    """

    tokens: int
    shard_groups: int
    host_bytes: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is on the page.

    Attributes:
      recipe: Name of the recipe, for people.
      topology: Slices to run on.
      mesh: Sizes of its axes, for people.
      parameters: Number of parameters of the model.
      phases: Plans of the phases of the recipe.
      kernels: Implementation of each part of the model, as a run reports it.
      corpus: None if no corpus was given.
      versions: What made the programs, for people.
    """

    recipe: str
    topology: Topology
    mesh: str
    parameters: int
    phases: tuple[PhasePlan, ...]
    kernels: tuple[str, ...]
    corpus: CorpusPlan | None
    versions: str

    @property
    def fits(self) -> bool:
        return all(phase.fits for phase in self.phases)

    @property
    def seconds_at_peak(self) -> float:
        """Time of the whole run."""
        return sum(phase.steps * phase.seconds_at_peak for phase in self.phases)

    @property
    def estimated_seconds(self) -> float:
        """Time of the whole run by the compiler's estimate; 0 where there is none."""
        return self._seconds([phase.estimated_seconds for phase in self.phases])

    @property
    def scheduled_seconds(self) -> float:
        """Time of the whole run by the compiler's schedules; likewise."""
        return self._seconds([phase.scheduled_seconds for phase in self.phases])

    def _seconds(self, of_steps: list[float]) -> float:
        if not all(of_steps):
            return 0.0
        steps = [phase.steps for phase in self.phases]
        return sum(n * seconds for n, seconds in zip(steps, of_steps, strict=True))


@dataclasses.dataclass(frozen=True)
class Planner:
    """Compiles runs for a topology.

    Attributes:
      topology: Slices to run on.
      make_run: Function from a config with nothing left open and a mesh to the run; its
        data are never opened.
      dump: Where the compiler writes its schedules, if it was asked for them.
    """

    topology: Topology
    make_run: Callable[[config_lib.PretrainConfig, jax.sharding.Mesh], Run]
    dump: Dump | None = None

    def plan(
        self,
        config: config_lib.PretrainConfig,
        recipe: str,
        corpora: Sequence[shards.Corpus] = (),
        say: Callable[[str], None] = lambda line: None,
    ) -> Plan:
        """Compile all phases of a recipe.

        Args:
          config: Config with nothing left open.
          recipe: Name of the recipe, for people.
          corpora: Corpora of the config, if it has any.
          say: Called with a line before each compilation.

        Raises:
          UserError: The run cannot be dealt out over the devices.
        """
        run = self.run(config)
        params = run.state_shapes().params
        phases = []
        for i, phase in enumerate(run.phases):
            say(f"compiling phase {i + 1} of {len(run.phases)}, length {phase.length}")
            phases.append(plan_phase(run, phase, self.topology, self.dump))
        return Plan(
            recipe=recipe,
            topology=self.topology,
            mesh=sharding.describe(run.mesh),
            parameters=sum(leaf.size for leaf in jax.tree.leaves(params)),
            phases=tuple(phases),
            kernels=tuple(run.describe_kernels("tpu")),
            corpus=_plan_corpus(config, corpora, run.mesh) if corpora else None,
            versions=", ".join(
                f"{name} {importlib.metadata.version(name)}"
                for name in ("jax", "libtpu")
            ),
        )

    def plan_phase(self, config: config_lib.PretrainConfig, index: int) -> PhasePlan:
        """Compile one phase; as `plan`."""
        run = self.run(config)
        return plan_phase(run, run.phases[index], self.topology, self.dump)

    def run(self, config: config_lib.PretrainConfig) -> Run:
        """The run of a config on the devices of the topology."""
        mesh = sharding.make_mesh(config.mesh, self.topology.devices)
        return self.make_run(config, mesh)


def _plan_corpus(
    config: config_lib.PretrainConfig,
    corpora: Sequence[shards.Corpus],
    mesh: jax.sharding.Mesh,
) -> CorpusPlan:
    """What each host keeps in memory of the corpora, the largest of them."""
    from bert_jax.data import chunks

    groups = config.data.shard_groups
    token_bytes = 2 if corpora[0].tokenizer.vocab_size <= 2**16 else 4
    sizes = []
    for group in range(groups):
        chosen = [
            shard
            for corpus in corpora
            for shard in chunks.group_shards(corpus, shards.TRAIN, group, groups)
        ]
        starts = sum(shard.sentences + shard.documents + 2 for shard in chosen)
        tokens = sum(shard.tokens for shard in chosen)
        sizes.append(tokens * token_bytes + 8 * starts)
    largest = 0
    for phase in config.phases:
        group_rows = phase.batch_size // groups
        for rows in sharding.rows_of_processes(mesh, phase.batch_size).values():
            held = set((rows // group_rows).tolist())
            largest = max(largest, sum(sizes[group] for group in held))
    tokens = sum(corpus.count(shards.TRAIN, "tokens") for corpus in corpora)
    return CorpusPlan(tokens, groups, largest)
