"""Cycles of a compiled program by two measures, neither compared with a real device.

- Estimate: the compiler's own estimate of each operation. It has none for kernels, for
  which the schedule counts.
- Schedule: the maximum of an operation's scheduled cycles and of the cycles that its
  arrays take to pass through memory. Without a dump, the cycles of a kernel's products
  at the peak rate stand for its schedule.

Collectives, copies in the background, gathers, scatters and sorts have no estimate, and
count as 0 in both.
"""

import dataclasses
import math
import re
from collections.abc import Mapping

from bert_jax.planning import collectives, hlo
from bert_jax.planning.hlo import Instruction, Program

_KERNEL_FLOPS = re.compile(r'"cost_estimate":\{"flops":"(\d+)"')
_NAMES_AND_METADATA = re.compile(
    r", (?:metadata|frontend_attributes)=\{.*?\}(?=,|$)"
    r"|, (?:calls|control-predecessors|channel_id)=[^,]*"
)
# Operations that rename an array without touching it.
_VIEWS = ("bitcast", "get-tuple-element")


@dataclasses.dataclass(frozen=True)
class Rates:
    """Peak rates of a device per cycle; both infinite if its clock is unknown."""

    flops: float = math.inf  # operations
    hbm_bytes: float = math.inf  # bytes from or to HBM


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cycles of one execution of a program."""

    estimated: int  # of all operations but kernels
    kernels: int  # number of executed kernels
    # By schedule; without a dump, a lower bound; None if the clock is unknown, too.
    kernel_cycles: float | None
    scheduled: float | None  # kernels included; None without a dump


def measure(
    program: Program, rates: Rates = Rates(), schedules: Mapping[str, int] | None = None
) -> Cost:
    """Add up the cycles of a program.

    `schedules` has the cycles by names of instructions, from `schedule.ScheduleFolder`.
    """
    by_name = schedules or {}
    # The compiler writes one schedule for instructions with equal canonical texts.
    by_canonical_text = {
        _canonical_text(program, instruction): by_name[instruction.name]
        for body in program.computations.values()
        for instruction in body.values()
        if instruction.name in by_name
    }
    estimated = kernels = 0
    kernel_cycles = scheduled = 0.0
    for instruction, times in program.executed(include_async=False):
        is_kernel = hlo.is_kernel(instruction)
        estimate = hlo.estimated_cycles(instruction)
        if not is_kernel and not estimate:
            continue
        memory = hbm_traffic(program, instruction) / rates.hbm_bytes
        core = _cycles_at_peak(instruction, rates) if is_kernel else estimate
        if instruction.name in by_name:
            core = by_name[instruction.name]
        elif by_canonical_text:
            core = by_canonical_text.get(_canonical_text(program, instruction), core)
        cycles = times * max(core, memory)
        scheduled += cycles
        estimated += times * estimate
        if is_kernel:
            kernels += times
            kernel_cycles += cycles
    is_known = math.isfinite(rates.flops) or schedules is not None or not kernels
    return Cost(
        estimated,
        kernels,
        kernel_cycles if is_known else None,
        None if schedules is None else scheduled,
    )


def _cycles_at_peak(kernel: Instruction, rates: Rates) -> float:
    flops = _KERNEL_FLOPS.search(kernel.rest)
    return int(flops[1]) / rates.flops if flops else 0.0


def _canonical_text(program: Program, instruction: Instruction) -> str:
    """Return the text of an instruction without names and metadata."""
    types = " ".join(operand.type for operand in program.operands(instruction))
    attributes, _, config = instruction.rest.partition(", backend_config=")
    attributes = _NAMES_AND_METADATA.sub("", attributes)
    called = instruction.called("calls")
    inner = _canonical_body(program, called) if called else ""
    if hlo.is_kernel(instruction):
        inner = config  # with the kernel's own program
    estimate = hlo.estimated_cycles(instruction)
    parts = instruction.opcode, instruction.type, types, attributes, inner, estimate
    return "\n".join(map(str, parts))


def _canonical_body(program: Program, computation: str) -> str:
    body = program.computations[computation]
    numbers = {name: str(i) for i, name in enumerate(body)}
    lines = []
    for instruction in body.values():
        operands = [numbers[name] for name in instruction.operands]
        constant = "" if operands else instruction.arguments
        text = _canonical_text(program, instruction)
        lines.append(f"{' '.join(operands)} {constant} {text}")
    return "\n".join(lines)


def hbm_traffic(program: Program, instruction: Instruction) -> int:
    """Return the bytes that an instruction reads from HBM and writes to it.

    Arrays that are sliced or updated in place count by their slices. Arrays on the chip
    and arrays of collectives in the background count as nothing. Padding to tiles is
    not included.
    """
    called = instruction.called("calls")
    total = 0
    for i, operand in enumerate(program.operands(instruction)):
        size = hlo.hbm_bytes(operand.type)
        if size and called:
            size = min(size, _bytes_read(program, _parameter(program, called, i)))
        total += size
    roots = []
    if called:
        root = program.roots[called]
        roots = program.operands(root) if root.opcode == "tuple" else [root]
    arrays = hlo.arrays(instruction.type)
    if len(roots) != len(arrays):
        return total + hlo.hbm_bytes(instruction.type)
    for (size, in_hbm), root in zip(arrays, roots, strict=True):
        total += min(size, _bytes_written(program, root)) if in_hbm else 0
    return total


def _parameter(program: Program, computation: str, index: int) -> Instruction:
    return next(
        instruction
        for instruction in program.computations[computation].values()
        if instruction.opcode == "parameter" and int(instruction.arguments) == index
    )


def _bytes_read(program: Program, array: Instruction) -> int:
    total = 0
    for user in program.computations[array.computation].values():
        if array.name not in user.operands:
            continue
        first = user.operands[0] == array.name
        if user.opcode in ("slice", "dynamic-slice", "gather") and first:
            total += hlo.type_bytes(user.type)
        elif user.opcode == "dynamic-update-slice" and first:
            continue  # updated in place
        elif user.opcode in ("tuple", *collectives.KINDS):
            continue  # passed on, or read in the background
        elif user.opcode in _VIEWS:
            total += _bytes_read(program, user)
        elif user.opcode == "fusion":
            called = user.called("calls")
            for i, name in enumerate(user.operands):
                if name == array.name:
                    total += _bytes_read(program, _parameter(program, called, i))
        else:
            return hlo.type_bytes(array.type)
    return min(total, hlo.type_bytes(array.type))


def _bytes_written(program: Program, root: Instruction) -> int:
    if root.opcode == "dynamic-update-slice":
        return hlo.type_bytes(program.operands(root)[1].type)
    if root.opcode in ("parameter", *collectives.KINDS):
        return 0  # passed on, or written in the background
    if root.opcode in _VIEWS:
        return _bytes_written(program, program.operands(root)[0])
    if root.opcode == "fusion" and not root.type.startswith("("):
        return _bytes_written(program, program.roots[root.called("calls")])
    return hlo.type_bytes(root.type)
