"""Search for batch sizes and settings that fit."""

import dataclasses
import math
import shlex
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections.config_flags import config_path

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.planning import page
from bert_jax.planning.phase import PhasePlan
from bert_jax.planning.plan import Plan, Planner
from bert_jax.training import sharding

# Maximum number of sizes in a search.
_MAX_SIZES = 8


@dataclasses.dataclass(frozen=True)
class Trial:
    """Compiled variant of a phase."""

    change: str  # flags that select the variant, for a shell
    phase: PhasePlan


def search_batch(
    planner: Planner, config: config_lib.PretrainConfig, index: int, planned: PhasePlan
) -> Iterator[Trial]:
    """Look for the largest batch of a phase that fits.

    Begin with the size of the config, which is `planned`. If it does not fit, reduce it
    in proportion to the room for temporary arrays. If it fits, double it. Then
    extrapolate from the memory of the two largest sizes that fit, and bisect. Stop when
    the largest size that fits and the smallest that does not are a sixteenth apart, at
    a size that the config does not allow, or after `_MAX_SIZES` sizes.
    """
    phase = config.phases[index]
    pieces = (
        sharding.num_batch_shards(planner.make_run(config).mesh) * phase.micro_batches
    )
    unit = math.lcm(pieces, config.data.shard_groups)

    fitting: dict[int, int] = {}  # from units to free bytes
    too_many = 0
    units = phase.batch_size // unit
    for i in range(_MAX_SIZES):
        fields = {f"phases[{index}].batch_size": units * unit}
        if not (changed := _replace_fields(planner, config, fields)):
            return
        compiled = planner.plan_phase(changed, index) if i else planned
        yield Trial(_flags(fields), compiled)
        if compiled.fits:
            fitting[units] = compiled.left
        else:
            too_many = units
            if not fitting and units > 1:
                units = max(1, int(units * min(0.5, _share_with_room(compiled))))
                continue
        most = max(fitting, default=0)
        if too_many and too_many - most <= max(1, most // 16):
            return
        units = _next_units(fitting, most, too_many)


def _share_with_room(phase: PhasePlan) -> float:
    """Return the room for temporary arrays as a share of their size."""
    memory = min(phase.memory, phase.evaluation, key=lambda memory: memory.left)
    temporary = memory.temporaries + memory.other
    return max(0, temporary + memory.left) / temporary


def _next_units(fitting: dict[int, int], most: int, too_many: int) -> int:
    if len(fitting) < 2:
        return (most + too_many) // 2 if too_many else 2 * most
    low, high = sorted(fitting)[-2:]
    slope = (fitting[low] - fitting[high]) / (high - low)
    guess = high + int(fitting[high] / slope) if slope > 0 else 2 * high
    # The compiler is slow for much too large programs: it tries to make them fit.
    guess = min(guess, 8 * high)
    if not too_many:
        return max(guess, high + 1)
    return guess if high < guess < too_many else (high + too_many) // 2


def alternatives(
    planner: Planner, config: config_lib.PretrainConfig, index: int
) -> dict[str, config_lib.PretrainConfig]:
    """Return flags that may make a phase fit, and the config of each."""
    phase, topology = config.phases[index], planner.topology
    # Without -1, the rest of the devices.
    mesh = dataclasses.replace(config.mesh, **planner.make_run(config).mesh.shape)
    changes: list[dict[str, Any]] = []
    if config.encoder.remat != "layer":
        changes.append({"encoder.remat": "layer"})
    for factor in (2, 3, 4, 8, 16):
        pieces = factor * phase.micro_batches
        changes.append({f"phases[{index}].micro_batches": pieces})
    if mesh.data > 1 and not mesh.shard_optimizer:
        changes.append({"mesh.shard_optimizer": True})
    # fsdp must fit in a slice, and more than 8 parts do not pay (docs/sharding.md).
    parts = min(8, len(topology.devices) // topology.slices // mesh.tensor)
    if mesh.fsdp == 1 < parts:
        rest = {} if config.mesh.data == -1 else {"mesh.data": -1}
        if config.mesh.tensor == -1:
            rest["mesh.tensor"] = mesh.tensor
        changes.append({**rest, "mesh.fsdp": parts})
    changed = {_flags(each): _replace_fields(planner, config, each) for each in changes}
    return {flags: each for flags, each in changed.items() if each}


def _flags(changes: dict[str, Any]) -> str:
    """Return the flags of changes, quoted for a shell."""
    return shlex.join(f"--config.{path}={value}" for path, value in changes.items())


def _replace_fields(
    planner: Planner, config: config_lib.PretrainConfig, changes: dict[str, Any]
) -> config_lib.PretrainConfig | None:
    """Return a config with fields replaced, by path; None if it cannot run."""
    cfg = config_lib.to_configdict(config)
    for path, value in changes.items():
        config_path.set_value(path, cfg, value)
    try:
        changed = config_lib.from_dict(type(config), cfg)
        planner.make_run(changed)
    except UserError:
        return None
    return changed


def search(
    planner: Planner,
    config: config_lib.PretrainConfig,
    plan: Plan,
    say: Callable[[str], None],
) -> Iterator[Trial]:
    """Compile variants of all phases, and report each.

    Try `alternatives` for a phase that does not fit, and `search_batch` for each phase.
    """
    for i, phase in enumerate(plan.phases):
        if not phase.fits:
            say(f"\n{phase.name}: changes that may make it fit")
            for change, changed in alternatives(planner, config, i).items():
                trial = Trial(change, planner.plan_phase(changed, i))
                say(_describe(trial, plan))
                yield trial
        say(f"\n{phase.name}: the largest batch")
        fitting = []
        for trial in search_batch(planner, config, i, phase):
            say(_describe(trial, plan))
            if trial.phase.fits:
                fitting.append((trial.phase.batch_size, trial.phase.batch_per_chip))
            yield trial
        found = "{:,}, {:g} on a chip".format(*max(fitting)) if fitting else "none"
        say(f"  the largest that fits: {found}")


def _describe(trial: Trial, plan: Plan) -> str:
    phase = trial.phase
    result = (
        f"fits, {page.gib(phase.left)} GiB free, "
        f"{phase.cycles / 1e6:,.1f} million cycles"
        if phase.fits
        else page.describe_excess(phase, plan)
    )
    return f"  {trial.change}: {result}"


def suggestions(
    planner: Planner, config: config_lib.PretrainConfig, plan: Plan
) -> list[str]:
    """Return flags that may make phases fit, without compiling them."""
    changes = [
        change
        for i, phase in enumerate(plan.phases)
        if not phase.fits
        for change in alternatives(planner, config, i)
    ]
    return list(dict.fromkeys(changes))
