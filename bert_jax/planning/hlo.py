"""Parser of optimized XLA programs: instructions, trip counts, cycles.

The TPU compiler writes its estimate of each instruction into `backend_config`. XLA's
`HloModule::ToString` defines the grammar; `tests/fixtures/hlo` has an example of each
form.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_COPIES = ("copy", "copy-start", "copy-done", "bitcast", "convert")

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+|c\d+|f8\w+)\[([\d,]*)\](\{[^{}]*\})?")
# Memory space in a layout; HBM is the default.
_NOT_HBM = re.compile(r"S\([1-9]\d*\)")
_CALLED = re.compile(r"\b(calls|body|condition|to_apply)=%?([\w.\-]+)")
_BRANCHES = re.compile(
    r"\b(?:branch_computations|true_computation|false_computation)="
    r"(\{[^}]*\}|%[\w.\-]+)"
)
_OPERAND = re.compile(r"%([\w.\-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_KERNEL = 'custom_call_target="tpu_custom_call"'


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program."""

    name: str  # name of the result
    computation: str  # name of the computation that it belongs to
    opcode: str  # kind of operation
    type: str  # type of the result, as text
    operands: tuple[str, ...]  # names, in the same computation
    arguments: str  # text between the parentheses
    rest: str  # text after the parentheses

    def called(self, role: str) -> str | None:
        """Return the computation that an attribute such as `body` names, if any."""
        return dict(_CALLED.findall(self.rest)).get(role)


class Program:
    """An optimized program."""

    def __init__(self, text: str):
        """Parse the text of `jax.stages.Compiled.as_text`."""
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.roots: dict[str, Instruction] = {}  # by computation
        self.entry = ""
        body: dict[str, Instruction] = {}
        name = ""
        for line in text.splitlines():
            if header := _HEADER.match(line):
                name, body = header[2], {}
                self.computations[name] = body
                self.entry = name if header[1] else self.entry
            elif start := _INSTRUCTION.match(line):
                instruction = _instruction(start[2], name, line[start.end() :])
                body[instruction.name] = instruction
                if start[1]:
                    self.roots[name] = instruction

    def operands(self, instruction: Instruction) -> list[Instruction]:
        body = self.computations[instruction.computation]
        return [body[name] for name in instruction.operands]

    def executed(self, *, include_async: bool) -> Iterator[tuple[Instruction, int]]:
        """Yield each instruction and its number of executions.

        A fusion is one instruction. All branches of a conditional are included.
        `include_async` adds instructions that another unit of the chip executes
        meanwhile, such as the SparseCore of a TPU7x.
        """
        yield from self._executed(self.entry, 1, include_async)

    def _executed(
        self, computation: str, times: int, include_async: bool
    ) -> Iterator[tuple[Instruction, int]]:
        for instruction in self.computations[computation].values():
            yield instruction, times
            called, repeats = [], 1
            if instruction.opcode == "while":
                called = [instruction.called("body")]
                repeats = self.trip_count(instruction)
            elif instruction.opcode == "call" or (
                include_async and instruction.opcode in ("call-start", "async-start")
            ):
                name = instruction.called("calls") or instruction.called("to_apply")
                called = [name]
            elif instruction.opcode == "conditional":
                branches = " ".join(_BRANCHES.findall(instruction.rest))
                called = _OPERAND.findall(branches)
            for name in called:
                yield from self._executed(name, times * repeats, include_async)

    def trip_count(self, loop: Instruction) -> int:
        """Return the trip count of a while loop.

        The program states it, or the loop comes from jax.lax.scan: while counter <
        limit, counter += 1.

        Raises:
          ValueError: The loop has another form.
        """
        if count := _TRIPS.search(loop.rest):
            return int(count[1])
        condition = loop.called("condition")
        root = self.roots[condition]
        if root.opcode == "fusion":
            # The comparison alone, of the fusion's operands.
            inner = self.roots[root.called("calls")]
            root = dataclasses.replace(
                inner, computation=condition, operands=root.operands[:2]
            )
        if root.opcode != "compare" or "direction=LT" not in root.rest:
            raise ValueError(f"the loop {loop.name} does not count up to a limit")

        def value(instruction: Instruction) -> int:
            if instruction.opcode == "constant":
                return int(instruction.arguments)
            if instruction.opcode in _COPIES:
                return value(self.operands(instruction)[0])
            is_inside = instruction.computation == condition
            if instruction.opcode == "get-tuple-element" and is_inside:
                index = int(re.search(r"index=(\d+)", instruction.rest)[1])
                (initial,) = self.operands(loop)
                return value(self.operands(initial)[index])
            raise ValueError(
                f"the limit of the loop {loop.name} is a {instruction.opcode}"
            )

        start, limit = map(value, self.operands(root))
        return limit - start


def _instruction(name: str, computation: str, text: str) -> Instruction:
    """Parse the text after `name = `: type, opcode, operands, attributes."""
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    kind, text = text[:end], text[end:].lstrip()
    start = text.index("(")
    end = _closing(text, start)
    arguments = text[start + 1 : end - 1]
    operands = tuple(_OPERAND.findall(arguments))
    opcode, rest = text[:start], text[end:]
    return Instruction(name, computation, opcode, kind, operands, arguments, rest)


def _closing(text: str, start: int) -> int:
    """Return the index after the parenthesis that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    raise ValueError(f"unbalanced parentheses in {text[:80]!r}")


def estimated_cycles(instruction: Instruction) -> int:
    """Return the compiler's estimate of an instruction; 0 if it has none."""
    cycles = _CYCLES.search(instruction.rest)
    return int(cycles[1]) if cycles else 0


def is_kernel(instruction: Instruction) -> bool:
    """Return whether an instruction is a TPU kernel."""
    return instruction.opcode == "custom-call" and _KERNEL in instruction.rest


def type_bytes(text: str) -> int:
    """Return the bytes of all arrays in a type, such as `(f32[2,3]{1,0}, bf16[])`."""
    return sum(size for size, _ in arrays(text))


def hbm_bytes(text: str) -> int:
    """Return the bytes of the arrays in a type that are in HBM."""
    return sum(size for size, in_hbm in arrays(text) if in_hbm)


@functools.cache
def arrays(text: str) -> tuple[tuple[int, bool], ...]:
    """Return the bytes of each array in a type, and whether it is in HBM."""
    found = []
    for dtype, shape, layout in _ARRAY.findall(text):
        bits = (
            8 if dtype.startswith(("pred", "f8")) else int(re.search(r"\d+", dtype)[0])
        )
        count = math.prod(int(size) for size in shape.split(",") if size)
        found.append((count * bits // 8, not _NOT_HBM.search(layout)))
    return tuple(found)
