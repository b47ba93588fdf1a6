"""Plan as a page of text, and as a dict for JSON."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bert_jax.planning.phase import PhasePlan
from bert_jax.planning.plan import Plan
from bert_jax.planning.topology import Topology

_WORTH = (
    "Large products are nearly the same by both. Passes over memory are estimated "
    "several times too high; the schedule has nothing for waiting: it is a lower bound."
)
# Utilisations that the page gives times for.
UTILISATIONS = (0.3, 0.4, 0.5, 0.6)

_GIB = 2**30
_WIDTH = 20  # of a column


def page(plan: Plan, step_ms: Sequence[float] = ()) -> str:
    """Return the page.

    Args:
      plan: From `Planner.plan`.
      step_ms: Measured or expected milliseconds of a step, one for each phase, or none.
    """
    lines = _Lines(plan.phases)
    _add_header(lines, plan)
    _add_memory(lines, plan.topology)
    _add_arithmetic(lines, plan.topology, step_ms)
    _add_collectives(lines)
    _add_times(lines, plan)
    seconds = " and ".join(f"{phase.compile_seconds:.0f}" for phase in plan.phases)
    lines.text("", f"Compiled in {seconds} seconds with {plan.versions}.")
    return "\n".join(lines.lines)


class _Lines:
    """Lines of a page: a name, and a column for each phase."""

    def __init__(self, phases: Sequence[PhasePlan]):
        self.phases = phases
        self.lines: list[str] = []

    def text(self, *lines: str) -> None:
        self.lines.extend(lines)

    def head(self, name: str, value: str) -> None:
        self.lines.append(f"{name:<20}{value}")

    def row(self, name: str, values: Iterable[str], note: str = "") -> None:
        cells = "".join(f"{value:>{_WIDTH}}" for value in values)
        line = f"{name:<32}{cells}{'   ' if note else ''}{note}"
        self.lines.append(line.rstrip())

    def rows(
        self, name: str, value: Callable[[PhasePlan], str], note: str = ""
    ) -> None:
        self.row(name, map(value, self.phases), note)


def _add_header(lines: _Lines, plan: Plan) -> None:
    topology = plan.topology
    many = f"{topology.slices} slices of " if topology.slices > 1 else ""
    lines.text(f"{plan.recipe} on {many}{topology.name}", "")
    per_chip = topology.devices_per_chip
    devices = f", {per_chip} JAX devices to a chip" if per_chip > 1 else ""
    hosts = f"{topology.hosts:,} host{'s' if topology.hosts > 1 else ''}"
    chips = f"{topology.chips:,} {topology.device_kind} in {hosts}{devices}"
    lines.head("chips", chips)
    lines.head("mesh", plan.mesh)
    lines.head("parameters", f"{plan.parameters / 1e6:.1f} M")
    lines.text("")
    lines.rows("phase", lambda p: f"length {p.length}")
    lines.rows("steps", lambda p: f"{p.steps:,}")
    lines.rows("sequences in a step", lambda p: f"{p.batch_size:,}")
    lines.rows("  for a chip", lambda p: f"{p.batch_per_chip:g}")
    lines.rows("  micro-batches", lambda p: f"{p.micro_batches}")
    lines.text(
        "", "implementation of the model's parts", *(f"  {x}" for x in plan.kernels)
    )


def _add_memory(lines: _Lines, topology: Topology) -> None:
    available = gib(topology.devices_per_chip * topology.generation.hbm)
    lines.text("", f"memory of a chip, GiB (programs can use {available})")
    for name, field in (
        ("parameters", "parameters"),
        ("optimizer", "optimizer"),
        ("activations, gradients, ...", "temporaries"),
        ("batch, program, padding", "rest"),
        ("left", "left"),
    ):
        lines.rows(f"  {name}", lambda p, field=field: _memory(p, field))
    for phase in lines.phases:
        if not phase.fits:
            excess = describe_excess(phase, topology)
            lines.text(f"  {phase.name}: DOES NOT FIT, {excess}")


def _add_arithmetic(
    lines: _Lines, topology: Topology, step_ms: Sequence[float]
) -> None:
    lines.text("", "arithmetic of a step")
    lines.rows("  model, TFLOP", lambda p: f"{p.flops / 1e12:,.2f}")
    lines.rows(
        "  at the chips' peak, ms",
        lambda p: f"{1e3 * p.seconds_at_peak:,.2f}",
        "utilisation = this / time of a step",
    )
    if step_ms:
        shares = [
            f"{phase.utilisation(ms / 1e3):.1%}"
            for phase, ms in zip(lines.phases, step_ms, strict=True)
        ]
        given = " and ".join(f"{ms:g}" for ms in step_ms)
        lines.row("  utilisation", shares, f"if a step takes {given} ms")
    _add_cycles(lines, topology)


def _add_cycles(lines: _Lines, topology: Topology) -> None:
    """Add both gauges, in cycles and, if the clock is known, in time."""

    def rows(name, value, note=""):
        lines.rows(name, lambda p: "-" if p.refused else value(p), note)

    clock = topology.generation.clock
    scheduled = any(p.cost and p.cost.scheduled for p in lines.phases)
    kernels = any(p.cost and p.cost.kernels for p in lines.phases)
    rows(
        "  estimated, million cycles",
        lambda p: f"{p.cost.estimated / 1e6:,.2f}",
        "the compiler's own estimate, without collectives and kernels",
    )
    if kernels:
        how = "by schedule, or by bytes where that is more"
        if not scheduled:
            how = "at least: products at peak, or bytes; --schedule knows more"
        if not clock:
            how = "by schedule" if scheduled else "not counted; --schedule does"
        rows(
            "  kernels, million cycles",
            lambda p: f"{p.cost.kernel_cycles / 1e6:,.2f}",
            how,
        )
    if clock:
        rows(
            "  estimated, ms",
            lambda p: f"{1e3 * p.estimated_seconds:,.2f}",
            f"these cycles at {clock / 1e9:g} GHz",
        )
        rows(
            "  utilisation, if it were so",
            lambda p: f"{p.estimated_utilisation:.1%}",
        )
    if scheduled:
        how = "instructions, or bytes where that is more" if clock else "instructions"
        rows(
            "  scheduled, million cycles",
            lambda p: f"{p.cost.scheduled / 1e6:,.2f}",
            f"of each operation its {how}; no collectives",
        )
    if scheduled and clock:
        rows("  scheduled, ms", lambda p: f"{1e3 * p.scheduled_seconds:,.2f}")
        rows(
            "  utilisation, if it were so",
            lambda p: f"{p.scheduled_utilisation:.1%}",
        )
    if scheduled:
        lines.text(f"  {_WORTH}")


def _add_collectives(lines: _Lines) -> None:
    lines.text(
        "", "collectives of a step: number, MiB of arrays, MiB that a device sends"
    )
    traffic = [traffic for phase in lines.phases for traffic in phase.traffic]
    kinds = sorted({(t.network, t.kind) for t in traffic})
    for network, kind in kinds:
        lines.rows(
            f"  {kind}", lambda p, key=(network, kind): _traffic(p, *key), f"{network}"
        )
    if not kinds:
        refused = any(phase.refused for phase in lines.phases)
        lines.text("  not known" if refused else "  none")


def _add_times(lines: _Lines, plan: Plan) -> None:
    lines.text("", "time of all phases, at a utilisation of")
    estimated, scheduled = plan.estimated_seconds, plan.scheduled_seconds
    last = ["as estimated *"] if estimated else []
    last += ["as scheduled *"] if scheduled else []
    lines.row("", [f"{share:.0%}" for share in UTILISATIONS] + last)
    for i, phase in enumerate(lines.phases):
        times = [phase.seconds_at_peak / share for share in UTILISATIONS]
        times += [phase.estimated_seconds] if estimated else []
        times += [phase.scheduled_seconds] if scheduled else []
        cells = [f"{1e3 * t:,.1f}" for t in times]
        lines.row(f"  a step of phase {i + 1}, ms", cells)
    seconds = [plan.seconds_at_peak / share for share in UTILISATIONS]
    seconds += [t for t in (estimated, scheduled) if t]
    unit, name = (3600, "hours") if max(seconds) < 3 * 86400 else (86400, "days")
    lines.row(f"  {name}", [f"{s / unit:,.1f}" for s in seconds])
    chips = plan.topology.chips
    lines.row("  chip-hours", [f"{s / 3600 * chips:,.0f}" for s in seconds])
    if estimated:
        lines.text("  * as above; collectives come to it")


def gib(size: float) -> str:
    """Format bytes in GiB."""
    return f"{size / _GIB:.2f}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}" if size >= 2**20 / 10 else "<0.1"


def _memory(phase: PhasePlan, field: str) -> str:
    if phase.refused and field == "rest":
        return "with these"
    return gib(getattr(phase.memory, field))


def _traffic(phase: PhasePlan, network: str, kind: str) -> str:
    for traffic in phase.traffic:
        if (traffic.network, traffic.kind) == (network, kind):
            return f"{traffic.count} {_mib(traffic.size)} {_mib(traffic.sent)}"
    return "-"


def describe_excess(phase: PhasePlan, topology: Topology) -> str:
    """Say how much memory a device lacks for a phase."""
    available = topology.generation.hbm
    excess = -phase.memory.left / topology.devices_per_chip
    return (
        f"{gib(excess)} GiB too much: a device needs {gib(available + excess)} and "
        f"has {gib(available)}"
    )


def to_dict(plan: Plan, step_ms: Sequence[float] = ()) -> dict[str, Any]:
    """Return the plan in bytes, seconds and operations; None if unknown.

    Args:
      plan: From `Planner.plan`.
      step_ms: As for `page`.
    """
    topology = plan.topology
    hours = plan.seconds_at_peak / 3600
    estimated = plan.estimated_seconds / 3600 or None
    utilisation = [
        phase.utilisation(ms / 1e3)
        for phase, ms in zip(plan.phases, step_ms, strict=False)
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
        "kernels": plan.kernels,
        "phases": [_phase_to_dict(phase) for phase in plan.phases],
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


def _phase_to_dict(phase: PhasePlan) -> dict[str, Any]:
    return {
        **dataclasses.asdict(phase),
        "fits": phase.fits,
        "memory_left": phase.memory.left,
        "seconds_at_peak": phase.seconds_at_peak,
        "refused": phase.refused,
        "cycles": phase.cycles or None,
        "estimated_seconds_without_collectives": phase.estimated_seconds or None,
        "estimated_utilisation": phase.estimated_utilisation or None,
        "scheduled_seconds_without_collectives": phase.scheduled_seconds or None,
        "scheduled_utilisation": phase.scheduled_utilisation or None,
    }
