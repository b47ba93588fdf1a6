"""Plan as a page of text, and as a dict for JSON."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bert_jax.planning.phase import PhasePlan
from bert_jax.planning.plan import Plan

# Utilisations that the page gives times for.
_UTILISATIONS = (0.3, 0.4, 0.5, 0.6)


def format_page(plan: Plan) -> str:
    """Return the page: a column for each phase."""
    seconds = " and ".join(f"{phase.compile_seconds:.0f}" for phase in plan.phases)
    lines = [
        *_header(plan),
        *_memory(plan),
        *_arithmetic(plan),
        *_collectives(plan),
        *_times(plan),
        "",
        f"Compiled in {seconds} seconds with {plan.versions}.",
    ]
    return "\n".join(lines)


def _row(name: str, cells: Iterable[str], note: str = "") -> str:
    columns = "".join(f" {cell:>19}" for cell in cells)
    return f"{name:<32}{columns}   {note}".rstrip()


def _header(plan: Plan) -> list[str]:
    topology, phases = plan.topology, plan.phases
    slices = f"{topology.slices} slices of " if topology.slices > 1 else ""
    per_chip = topology.devices_per_chip
    devices = f", {per_chip} JAX devices to a chip" if per_chip > 1 else ""
    hosts = f"{topology.hosts:,} host{'s' if topology.hosts > 1 else ''}"
    chips = f"{topology.chips:,} {topology.device_kind} in {hosts}{devices}"
    return [
        f"{plan.recipe} on {slices}{topology.name}",
        "",
        f"{'chips':<20}{chips}",
        f"{'mesh':<20}{plan.mesh}",
        f"{'parameters':<20}{plan.parameters / 1e6:.1f} M",
        "",
        _row("phase", (f"length {p.length}" for p in phases)),
        _row("steps", (f"{p.steps:,}" for p in phases)),
        _row("sequences per step", (f"{p.batch_size:,}" for p in phases)),
        _row("  per chip", (f"{p.batch_per_chip:g}" for p in phases)),
        _row("  micro-batches", (str(p.micro_batches) for p in phases)),
        "",
        "implementation of the model's parts",
        *(f"  {kernel}" for kernel in plan.kernels),
    ]


def _memory(plan: Plan) -> list[str]:
    topology, phases = plan.topology, plan.phases
    memories = [phase.memory for phase in phases]
    evaluated = [phase.evaluation for phase in phases]
    available = gib(topology.devices_per_chip * topology.generation.hbm)
    other = ("included" if p.refused else gib(p.memory.other) for p in phases)
    return [
        "",
        f"memory per chip, GiB (programs can use {available})",
        _row("  parameters", (gib(m.parameters) for m in memories)),
        _row("  optimizer", (gib(m.optimizer) for m in memories)),
        _row("  activations, gradients, ...", (gib(m.temporaries) for m in memories)),
        _row("  batch, program, padding", other),
        _row("  free", (gib(m.left) for m in memories)),
        _row("  evaluation: activations, ...", (gib(m.temporaries) for m in evaluated)),
        _row("  evaluation: free", (gib(m.left) for m in evaluated)),
        *(
            f"  {phase.name}: DOES NOT FIT, {describe_excess(phase, plan)}"
            for phase in phases
            if not phase.fits
        ),
    ]


def _arithmetic(plan: Plan) -> Iterator[str]:
    """Yield both measures, in cycles and, if the clock is known, in time."""
    clock = plan.topology.generation.clock
    costs = [phase.cost for phase in plan.phases if phase.cost]
    scheduled = any(cost.scheduled for cost in costs)

    def row(name: str, value: Callable[[PhasePlan], str], note: str = "") -> str:
        cells = ("-" if phase.refused else value(phase) for phase in plan.phases)
        return _row(f"  {name}", cells, note)

    yield from ("", "arithmetic per step")
    yield _row("  model, TFLOP", (f"{p.flops / 1e12:,.2f}" for p in plan.phases))
    yield _row(
        "  at the chips' peak, ms",
        (f"{1e3 * p.seconds_at_peak:,.2f}" for p in plan.phases),
        "utilisation = this / time of a step",
    )
    yield row(
        "estimated, million cycles",
        lambda p: f"{p.cost.estimated / 1e6:,.2f}",
        "by the compiler, without kernels and collectives",
    )
    if any(cost.kernels for cost in costs):
        bound = "lower bound" if clock else "unknown without a clock"
        yield row(
            "kernels, million cycles",
            lambda p: (
                "-"
                if p.cost.kernel_cycles is None
                else f"{p.cost.kernel_cycles / 1e6:,.2f}"
            ),
            "by schedule or memory" if scheduled else f"{bound}; use --schedule",
        )
    if clock:
        yield row(
            "estimated, ms",
            lambda p: f"{1e3 * p.estimated_seconds:,.2f}",
            f"estimated and kernels, at {clock / 1e9:g} GHz",
        )
        yield row(
            "utilisation by estimate",
            lambda p: f"{p.seconds_at_peak / p.estimated_seconds:.1%}",
        )
    if scheduled:
        memory = ", or bytes where they take longer" if clock else ""
        yield row(
            "scheduled, million cycles",
            lambda p: f"{p.cost.scheduled / 1e6:,.2f}",
            f"instructions{memory}; without collectives",
        )
    if scheduled and clock:
        yield row("scheduled, ms", lambda p: f"{1e3 * p.scheduled_seconds:,.2f}")
        yield row(
            "utilisation by schedule",
            lambda p: f"{p.seconds_at_peak / p.scheduled_seconds:.1%}",
        )


def _collectives(plan: Plan) -> Iterator[str]:
    yield ""
    yield "collectives per step: number, MiB of arrays, MiB sent per device"
    traffic = [{(t.network, t.kind): t for t in p.traffic} for p in plan.phases]
    kinds = sorted({key for phase in traffic for key in phase})
    for network, kind in kinds:
        found = [phase.get((network, kind)) for phase in traffic]
        cells = (
            f"{t.count} {_mib(t.size)} {_mib(t.sent)}" if t else "-" for t in found
        )
        yield _row(f"  {kind}", cells, network)
    if not kinds:
        yield "  unknown" if any(phase.refused for phase in plan.phases) else "  none"


def _times(plan: Plan) -> Iterator[str]:
    shares = [f"{share:.0%}" for share in _UTILISATIONS]
    known = {"estimated": plan.estimated_seconds, "scheduled": plan.scheduled_seconds}
    known = {name: seconds for name, seconds in known.items() if seconds}
    seconds = [plan.seconds_at_peak / share for share in _UTILISATIONS]
    seconds += known.values()
    yield from ("", "time by utilisation", _row("", [*shares, *known]))
    for i, phase in enumerate(plan.phases):
        times = [phase.seconds_at_peak / share for share in _UTILISATIONS]
        times += [getattr(phase, f"{name}_seconds") for name in known]
        cells = (f"{1e3 * t:,.1f}" for t in times)
        yield _row(f"  a step of phase {i + 1}, ms", cells)
    unit, name = (3600, "hours") if max(seconds) < 3 * 86400 else (86400, "days")
    yield _row(f"  all phases, {name}", (f"{s / unit:,.1f}" for s in seconds))
    chips = plan.topology.chips
    cells = (f"{s / 3600 * chips:,.0f}" for s in seconds)
    yield _row("  all phases, chip-hours", cells)
    if known:
        yield "  Estimated and scheduled times do not include collectives."


def gib(size: float) -> str:
    """Format bytes in GiB."""
    return f"{size / 2**30:.2f}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}" if size >= 2**20 / 10 else "<0.1"


def describe_excess(phase: PhasePlan, plan: Plan) -> str:
    """Say how much memory a device lacks for a phase."""
    available = plan.topology.generation.hbm
    excess = -phase.left / plan.topology.devices_per_chip
    shown = gib(excess) if excess >= 0.005 * 2**30 else "less than 0.01"
    return (
        f"{shown} GiB too much: a device needs {gib(available + excess)} and "
        f"has {gib(available)}"
    )


def to_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan in bytes, seconds and operations; None if unknown."""
    topology = plan.topology
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
        "kernels": plan.kernels,
        "phases": [_phase_to_dict(phase) for phase in plan.phases],
        "seconds_at_peak": plan.seconds_at_peak,
        "estimated_seconds_without_collectives": plan.estimated_seconds or None,
        "scheduled_seconds_without_collectives": plan.scheduled_seconds or None,
        "versions": plan.versions,
    }


def _phase_to_dict(phase: PhasePlan) -> dict[str, Any]:
    return {
        **dataclasses.asdict(phase),
        "fits": phase.fits,
        "memory_left": phase.left,
        "seconds_at_peak": phase.seconds_at_peak,
        "refused": phase.refused,
        "cycles": phase.cycles or None,
        "estimated_seconds_without_collectives": phase.estimated_seconds or None,
        "scheduled_seconds_without_collectives": phase.scheduled_seconds or None,
    }
