r"""Say what a pretraining run needs of a TPU slice, on a machine without a TPU.

  python -m bert_jax.run.plan --config=configs/bert_large.py --topology=v4:4x4x4

compiles the step that run.pretrain would run, for the devices of that slice, and prints
one page: memory, arithmetic, what goes over which network, time and chip-hours. It
needs the TPU compiler, `pip install -e '.[tpu]'`, and no TPU. A compilation takes from
half a minute to some minutes; --config.encoder.scan_layers=True is the fastest.

`docs/plan.md` has examples. Exit status: 0 if the run fits into the memory, 3 if not.
"""

import dataclasses
import importlib.metadata
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO

import jax
import numpy as np
from absl import flags

from bert_jax import config as config_lib
from bert_jax import knobs
from bert_jax.corpus import shards
from bert_jax.errors import UserError
from bert_jax.run import command_line, pretrain
from bert_jax.training import loop, sharding
from bert_jax.training import plan as plan_lib
from bert_jax.training import topology as topology_lib

# Shares of the peak that the time of a run is given for.
EXIT_DOES_NOT_FIT = 3

UTILISATIONS = (0.3, 0.4, 0.5, 0.6)

# More than this many compilations in one search are not worth the wait.
_SEARCH_COMPILATIONS = 8

_GIB = 2**30
_WIDTH = 20  # of a column


@dataclasses.dataclass(frozen=True)
class CorpusPlan:
    """What the hosts read.

    Attributes:
      tokens: of the training split.
      shard_groups: that it is cut into.
      host_bytes: tokens and sentence starts of the host that holds the most.
    """

    tokens: int
    shard_groups: int
    host_bytes: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is on the page.

    Attributes:
      recipe: for people.
      topology: of the slices.
      mesh: sizes of its axes, for people.
      parameters: of the model.
      stages: one for each phase of the recipe.
      corpus: None if none was given.
      versions: of what made the programs, for people.
    """

    recipe: str
    topology: topology_lib.Topology
    mesh: str
    parameters: int
    stages: tuple[plan_lib.StagePlan, ...]
    corpus: CorpusPlan | None
    versions: str

    @property
    def fits(self) -> bool:
        return all(stage.fits for stage in self.stages)

    @property
    def seconds_at_peak(self) -> float:
        """Of the whole run."""
        return sum(stage.steps * stage.seconds_at_peak for stage in self.stages)

    @property
    def estimated_seconds(self) -> float:
        """Of the whole run, by the compiler's estimate; 0 where there is none."""
        if not all(stage.estimated_seconds for stage in self.stages):
            return 0.0
        return sum(stage.steps * stage.estimated_seconds for stage in self.stages)


def resolve(
    config: config_lib.PretrainConfig,
) -> tuple[config_lib.PretrainConfig, shards.Corpus | None]:
    """Fill in what a config leaves to its corpus, or to BERT's vocabulary without one.

    Raises:
      UserError: there is no such corpus, or it does not fit the config.
    """
    if config.data.corpus:
        corpus = shards.open_corpus(config.data.corpus)
        return pretrain.resolve(config, corpus), corpus
    size = config.encoder.vocab_size or config_lib.BERT_VOCAB_SIZE
    encoder = dataclasses.replace(config.encoder, vocab_size=size)
    return dataclasses.replace(config, encoder=encoder), None


def make_plan(
    config: config_lib.PretrainConfig,
    topology: topology_lib.Topology,
    recipe: str,
    say: Callable[[str], None] = lambda line: None,
    corpus: shards.Corpus | None = None,
) -> Plan:
    """Compile all phases of a recipe for a topology.

    Args:
      config: from `resolve`.
      topology: to run on.
      recipe: its name, for people.
      say: told of each compilation.
      corpus: from `resolve`.

    Raises:
      UserError: the run cannot be dealt out over the devices.
    """
    mesh = sharding.make_mesh(config.mesh, topology.devices)
    params = _make_run(config, mesh).state_shapes().params
    stages = []
    for i, phase in enumerate(config.phases):
        say(f"compiling phase {i + 1} of {len(config.phases)}, length {phase.length}")
        stages.append(plan_phase(config, topology, i))
    return Plan(
        recipe=recipe,
        topology=topology,
        mesh=sharding.describe(mesh),
        parameters=sum(leaf.size for leaf in jax.tree.leaves(params)),
        stages=tuple(stages),
        corpus=_plan_corpus(config, corpus, mesh) if corpus else None,
        versions=", ".join(
            f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu")
        ),
    )


def _make_run(config: config_lib.PretrainConfig, mesh: jax.sharding.Mesh) -> loop.Run:
    def unused(rows: np.ndarray):
        raise AssertionError("a plan has no data")

    return pretrain.make_run(config, mesh, [unused] * len(config.phases))


def plan_phase(
    config: config_lib.PretrainConfig, topology: topology_lib.Topology, index: int
) -> plan_lib.StagePlan:
    """Compile one phase; as `make_plan`."""
    mesh = sharding.make_mesh(config.mesh, topology.devices)
    run = _make_run(config, mesh)
    phase = config.phases[index]
    batch = run.objective.batch_shapes(
        phase.batch_size, phase.length, phase.max_predictions
    )
    return plan_lib.plan_stage(run, run.stages[index], batch, topology)


def _plan_corpus(
    config: config_lib.PretrainConfig,
    corpus: shards.Corpus,
    mesh: jax.sharding.Mesh,
) -> CorpusPlan:
    """What each host keeps in memory of the corpus, the largest of them."""
    from bert_jax.data import chunks

    groups = config.data.shard_groups
    token_bytes = 2 if corpus.tokenizer.vocab_size <= 2**16 else 4
    sizes = []
    for group in range(groups):
        chosen = chunks.group_shards(corpus, shards.TRAIN, group, groups)
        starts = sum(shard.sentences + shard.documents + 2 for shard in chosen)
        tokens = sum(shard.tokens for shard in chosen)
        sizes.append(tokens * token_bytes + 8 * starts)
    largest = 0
    for phase in config.phases:
        group_rows = phase.batch_size // groups
        for rows in sharding.rows_of_processes(mesh, phase.batch_size).values():
            held = set((rows // group_rows).tolist())
            largest = max(largest, sum(sizes[group] for group in held))
    return CorpusPlan(corpus.count(shards.TRAIN, "tokens"), groups, largest)


# ---- what would fit


@dataclasses.dataclass(frozen=True)
class Trial:
    """A variant that was compiled.

    Attributes:
      change: how it is asked for on the command line.
      stage: what came of it.
    """

    change: str
    stage: plan_lib.StagePlan


def search_batch(
    config: config_lib.PretrainConfig, topology: topology_lib.Topology, index: int
) -> Iterator[Trial]:
    """Look for the largest batch of a phase that fits.

    Compiles a few sizes: first the given one and its double or half, then where a
    straight line through the memory of two that fit leads, then between what fits and
    what does not, until these are a sixteenth apart, or after eight compilations.

    Yields:
      Each size that was tried.
    """
    mesh = sharding.make_mesh(config.mesh, topology.devices)
    phase = config.phases[index]
    pieces = sharding.batch_parts(mesh) * phase.micro_batches
    unit = math.lcm(pieces, config.data.shard_groups)

    def attempt(units: int) -> Trial:
        phases = list(config.phases)
        phases[index] = dataclasses.replace(phase, batch_size=units * unit)
        changed = dataclasses.replace(config, phases=tuple(phases))
        change = f"--config.phases[{index}].batch_size={units * unit}"
        return Trial(change, plan_phase(changed, topology, index))

    fitting: dict[int, int] = {}  # units to bytes that are left
    too_many = 0
    units = max(1, phase.batch_size // unit)
    for _ in range(_SEARCH_COMPILATIONS):
        trial = attempt(units)
        yield trial
        if trial.stage.fits:
            fitting[units] = trial.stage.memory.left
        else:
            too_many = min(units, too_many or units)
        most = max(fitting, default=0)
        if too_many and too_many - most <= max(1, most // 16):
            return
        units = _next_units(fitting, most, too_many)


def _next_units(fitting: dict[int, int], most: int, too_many: int) -> int:
    if len(fitting) < 2:
        return (most + too_many) // 2 if too_many else 2 * most
    low, high = sorted(fitting)[-2:]
    slope = (fitting[low] - fitting[high]) / (high - low)
    guess = high + int(fitting[high] / slope) if slope > 0 else 2 * high
    # What is far too large takes the compiler long: it tries to make it fit.
    guess = min(guess, 8 * high)
    if not too_many:
        return max(guess, high + 1)
    if guess >= too_many or guess <= most:
        guess = (most + too_many) // 2
    return guess


def alternatives(
    config: config_lib.PretrainConfig, topology: topology_lib.Topology, index: int
) -> dict[str, config_lib.PretrainConfig]:
    """What may make a phase fit that does not: flags, and the config they give."""
    phase, mesh = config.phases[index], config.mesh

    def with_pieces(pieces: int) -> config_lib.PretrainConfig:
        phases = list(config.phases)
        phases[index] = dataclasses.replace(phase, micro_batches=pieces)
        return dataclasses.replace(config, phases=tuple(phases))

    found = {}
    if config.encoder.remat != "layer":
        encoder = dataclasses.replace(config.encoder, remat="layer")
        change = "--config.encoder.remat=layer"
        found[change] = dataclasses.replace(config, encoder=encoder)
    for factor in (2, 4, 8, 16):
        pieces = factor * phase.micro_batches
        change = f"--config.phases[{index}].micro_batches={pieces}"
        found[change] = with_pieces(pieces)
    if not mesh.shard_optimizer:
        found["--config.mesh.shard_optimizer=True"] = dataclasses.replace(
            config, mesh=dataclasses.replace(mesh, shard_optimizer=True)
        )
    # Inside of a slice, and not more than pays (docs/sharding.md).
    parts = min(8, len(topology.devices) // topology.slices // mesh.tensor)
    if mesh.fsdp == 1 < parts:
        change = f"--config.mesh.fsdp={parts}"
        if mesh.data != -1:
            change = f"--config.mesh.data=-1 {change}"
        found[change] = dataclasses.replace(
            config, mesh=dataclasses.replace(mesh, data=-1, fsdp=parts)
        )
    return {change: c for change, c in found.items() if _can_run(c, topology)}


def _can_run(
    config: config_lib.PretrainConfig, topology: topology_lib.Topology
) -> bool:
    try:
        knobs.check(config)
        _make_run(config, sharding.make_mesh(config.mesh, topology.devices))
    except UserError:
        return False
    return True


# ---- the page


def page(plan: Plan, step_ms: Sequence[float] = ()) -> str:
    """All of it, for people.

    Args:
      plan: from `make_plan`.
      step_ms: measured or expected milliseconds of a step, one for each phase, or none.
    """
    topology, stages = plan.topology, plan.stages
    lines = [f"{plan.recipe} on {_slices(topology)}", ""]

    def head(name: str, value: str) -> None:
        lines.append(f"{name:<20}{value}")

    def row(name: str, values: Iterable[str], note: str = "") -> None:
        cells = "".join(f"{value:>{_WIDTH}}" for value in values)
        lines.append(f"{name:<32}{cells}{'   ' if note else ''}{note}".rstrip())

    def rows(name: str, value: Callable[[plan_lib.StagePlan], str], note: str = ""):
        row(name, map(value, stages), note)

    per_chip = topology.devices_per_chip
    devices = f", {per_chip} JAX devices to a chip" if per_chip > 1 else ""
    hosts = f"{topology.hosts:,} host{'s' if topology.hosts > 1 else ''}"
    head("chips", f"{topology.chips:,} {topology.device_kind} in {hosts}{devices}")
    head("mesh", plan.mesh)
    head("parameters", f"{plan.parameters / 1e6:.1f} M")
    if plan.corpus:
        head(
            "corpus",
            f"{plan.corpus.tokens:,} tokens, {_gib(plan.corpus.host_bytes)} GiB on a "
            f"host with data.shard_groups={plan.corpus.shard_groups}, "
            "without working copies",
        )

    lines.append("")
    rows("phase", lambda s: s.name.split(", ")[-1])
    rows("steps", lambda s: f"{s.steps:,}")
    rows("sequences in a step", lambda s: f"{s.batch_size:,}")
    rows("  for a chip", lambda s: f"{s.batch_per_chip:g}")
    rows("  micro-batches", lambda s: f"{s.micro_batches}")

    available = _gib(per_chip * topology.generation.hbm)
    lines.extend(["", f"memory of a chip, GiB (programs can use {available})"])
    for name, field in (
        ("parameters", "parameters"),
        ("optimizer", "optimizer"),
        ("activations, gradients, ...", "temporaries"),
        ("batch, program, padding", "rest"),
        ("left", "left"),
    ):
        rows(
            f"  {name}",
            lambda s, field=field: _memory(s, field),
        )
    for stage in stages:
        if not stage.fits:
            lines.append(f"  {stage.name}: DOES NOT FIT, {_excess(stage, topology)}")

    lines.extend(["", "arithmetic of a step"])
    rows("  model, TFLOP", lambda s: f"{s.flops / 1e12:,.2f}")
    rows(
        "  at the chips' peak, ms",
        lambda s: f"{1e3 * s.seconds_at_peak:,.2f}",
        "utilisation = this / time of a step",
    )
    if step_ms:
        shares = [
            f"{1e3 * stage.seconds_at_peak / ms:.1%}"
            for stage, ms in zip(stages, step_ms, strict=True)
        ]
        given = " and ".join(f"{ms:g}" for ms in step_ms)
        row("  utilisation", shares, f"if a step takes {given} ms")
    rows(
        "  estimated, million cycles",
        lambda s: "-" if s.refused else f"{s.cycles / 1e6:,.2f}",
        "the compiler's own estimate, collectives not counted",
    )
    clock = topology.generation.clock
    if clock:
        rows(
            "  estimated, ms",
            lambda s: "-" if s.refused else f"{1e3 * s.estimated_seconds:,.2f}",
            f"these cycles at {clock / 1e9:g} GHz",
        )
        rows(
            "  utilisation, if it were so",
            lambda s: "-" if s.refused else f"{s.estimated_utilisation:.1%}",
        )

    lines.extend(
        ["", "collectives of a step: number, MiB of arrays, MiB that a device sends"]
    )
    kinds = sorted({(t.network, t.kind) for stage in stages for t in stage.traffic})
    for network, kind in kinds:
        rows(
            f"  {kind}",
            lambda s, key=(network, kind): _traffic(s, *key),
            f"{network}",
        )
    if not kinds:
        refused = any(stage.refused for stage in stages)
        lines.append("  not known" if refused else "  none")

    lines.extend(["", "time of all phases, at a utilisation of"])
    estimated = plan.estimated_seconds
    last = ["as estimated *"] if estimated else []
    row("", [f"{share:.0%}" for share in UTILISATIONS] + last)
    for i, stage in enumerate(stages):
        times = [stage.seconds_at_peak / share for share in UTILISATIONS]
        times += [stage.estimated_seconds] if estimated else []
        row(f"  a step of phase {i + 1}, ms", [f"{1e3 * t:,.1f}" for t in times])
    seconds = [plan.seconds_at_peak / share for share in UTILISATIONS]
    seconds += [estimated] if estimated else []
    unit, name = (3600, "hours") if max(seconds) < 3 * 86400 else (86400, "days")
    row(f"  {name}", [f"{s / unit:,.1f}" for s in seconds])
    row("  chip-hours", [f"{s / 3600 * topology.chips:,.0f}" for s in seconds])
    if estimated:
        lines.append("  * the compiler's estimate, to which the collectives come")
    took = " and ".join(f"{stage.compile_seconds:.0f}" for stage in stages)
    lines.extend(["", f"Compiled in {took} seconds with {plan.versions}."])
    return "\n".join(lines)


def _slices(topology: topology_lib.Topology) -> str:
    many = f"{topology.slices} slices of " if topology.slices > 1 else ""
    return f"{many}{topology.name}"


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}" if size >= 2**20 / 10 else "<0.1"


def _memory(stage: plan_lib.StagePlan, field: str) -> str:
    if stage.refused and field == "rest":
        return "with these"
    return _gib(getattr(stage.memory, field))


def _traffic(stage: plan_lib.StagePlan, network: str, kind: str) -> str:
    for found in stage.traffic:
        if (found.network, found.kind) == (network, kind):
            return f"{found.count} {_mib(found.size)} {_mib(found.sent)}"
    return "-"


def _excess(stage: plan_lib.StagePlan, topology: topology_lib.Topology) -> str:
    """By how much a stage does not fit. Of a device: it is what a program fills."""
    available = topology.generation.hbm
    excess = -stage.memory.left / topology.devices_per_chip
    return (
        f"{_gib(excess)} GiB too much: a device needs {_gib(available + excess)} and "
        f"has {_gib(available)}"
    )


def to_dict(plan: Plan, step_ms: Sequence[float] = ()) -> dict:
    """All of it, for programs, in bytes, seconds and operations; None: not known.

    Args:
      plan: to tell.
      step_ms: as for `page`.
    """
    topology = plan.topology
    hours = plan.seconds_at_peak / 3600
    estimated = plan.estimated_seconds / 3600 or None
    utilisation = [
        1e3 * stage.seconds_at_peak / ms
        for stage, ms in zip(plan.stages, step_ms, strict=False)
    ]
    return {
        "recipe": plan.recipe,
        "topology": topology.name,
        "slices": topology.slices,
        "device_kind": topology.device_kind,
        "chips": topology.chips,
        "hosts": topology.hosts,
        "devices_per_chip": topology.devices_per_chip,
        "mesh": plan.mesh,
        "parameters": plan.parameters,
        "fits": plan.fits,
        "corpus": dataclasses.asdict(plan.corpus) if plan.corpus else None,
        "stages": [
            {
                **dataclasses.asdict(stage),
                "fits": stage.fits,
                "memory_left": stage.memory.left,
                "seconds_at_peak": stage.seconds_at_peak,
                "cycles": stage.cycles or None,
                "estimated_seconds_without_collectives": stage.estimated_seconds
                or None,
                "estimated_utilisation": stage.estimated_utilisation or None,
            }
            for stage in plan.stages
        ],
        "hours": {str(share): hours / share for share in UTILISATIONS},
        "chip_hours": {
            str(share): topology.chips * hours / share for share in UTILISATIONS
        },
        "estimated_hours_without_collectives": estimated,
        "estimated_chip_hours_without_collectives": estimated
        and topology.chips * estimated,
        "utilisation_at_step_ms": utilisation or None,
        "versions": plan.versions,
    }


# ---- the entrypoint


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    command_line.define_config(None, "configs/bert_large.py")
    flags.DEFINE_string(
        "topology", "", "Generation and chips of a slice, such as v4:4x4x8, v5e:16x16."
    )
    flags.DEFINE_integer("slices", 1, "Slices of this topology.")
    flags.DEFINE_list(
        "step_ms",
        [],
        "Milliseconds of a step in each phase, to say what utilisation that would be.",
    )
    flags.DEFINE_bool("json", False, "Print JSON instead of the page.")
    flags.DEFINE_bool(
        "search",
        False,
        "Also find, by compiling, the largest batch that fits; for a phase that does "
        "not fit, what would make it fit.",
    )
    flags.adopt_module_key_flags(command_line)


def main() -> int:
    """The entrypoint."""
    values = flags.FLAGS
    config = knobs.from_configdict(config_lib.PretrainConfig, command_line.config())
    name = command_line.required(
        "topology", "give a slice, such as --topology=v4:4x4x4"
    )
    step_ms = _step_ms(values.step_ms, len(config.phases))
    config, corpus = resolve(config)
    topology = topology_lib.open_topology(name, values.slices)
    recipe = pathlib.Path(values["config"].config_filename).stem
    plan = make_plan(config, topology, recipe, _say, corpus)
    found = to_dict(plan, step_ms)
    found["suggestions"] = _suggestions(config, plan)
    if not values.json:
        print(page(plan, step_ms), flush=True)
    if values.search:
        trials = list(_search(config, plan, sys.stderr if values.json else sys.stdout))
        found["search"] = [
            dataclasses.asdict(trial) | {"fits": trial.stage.fits} for trial in trials
        ]
    elif not plan.fits and not values.json:
        print("\nWhat may make it fit; not tried, --search compiles them:")
        print(*(f"  {change}" for change in found["suggestions"]), sep="\n")
    if values.json:
        print(json.dumps(found, indent=1))
    return 0 if plan.fits else EXIT_DOES_NOT_FIT


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _step_ms(given: list[str], phases: int) -> list[float]:
    try:
        times = [float(value) for value in given]
    except ValueError as error:
        raise UserError(f"--step_ms={','.join(given)}: expected numbers") from error
    if times and (len(times) != phases or not all(0 < t < math.inf for t in times)):
        raise UserError(
            f"--step_ms={','.join(given)}: expected {phases} numbers above 0, one for "
            "each phase"
        )
    return times


def _suggestions(config: config_lib.PretrainConfig, plan: Plan) -> list[str]:
    """What may make the phases fit that do not."""
    return list(
        dict.fromkeys(
            change
            for i, stage in enumerate(plan.stages)
            if not stage.fits
            for change in alternatives(config, plan.topology, i)
        )
    )


def _search(
    config: config_lib.PretrainConfig, plan: Plan, stream: TextIO
) -> Iterator[Trial]:
    """Compile variants, and print what comes of each."""

    def tell(line: str) -> None:
        print(line, file=stream, flush=True)

    def show(trial: Trial) -> Trial:
        stage = trial.stage
        if stage.fits:
            result = (
                f"fits, {_gib(stage.memory.left)} GiB left, "
                f"{stage.cycles / 1e6:,.1f} Mcycle"
            )
        else:
            result = _excess(stage, plan.topology)
        tell(f"  '{trial.change}': {result}")
        return trial

    for i, stage in enumerate(plan.stages):
        if not stage.fits:
            tell(f"\n{stage.name}: to make it fit")
            for change, changed in alternatives(config, plan.topology, i).items():
                yield show(Trial(change, plan_phase(changed, plan.topology, i)))
        tell(f"\n{stage.name}: the largest batch")
        tried = []
        for trial in search_batch(config, plan.topology, i):
            tried.append(trial)
            yield show(trial)
        tell(_largest(tried))


def _largest(tried: list[Trial]) -> str:
    fitting = [trial.stage for trial in tried if trial.stage.fits]
    if not fitting:
        return "  none fits"
    best = max(fitting, key=lambda stage: stage.batch_size)
    return f"  so {best.batch_size:,} fit, {best.batch_per_chip:g} on a chip"


if __name__ == "__main__":
    command_line.main(main, define_flags)
