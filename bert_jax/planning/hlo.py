"""Parser of optimized XLA programs: instructions, trip counts, cycles, collectives.

The TPU compiler writes its estimate of each instruction into `backend_config`. The
grammar is that of XLA's `HloModule::ToString`; `tests/test_plan.py` has an example of
each form.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

# Opcodes of collectives; some come in pairs, NAME-start and NAME-done.
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
# Name of a fused all-reduce and slice, which is a reduce-scatter.
_FUSED_REDUCE_SCATTER = "all-reduce-scatter"

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+|c\d+|f8\w+)\[([\d,]*)\](\{[^{}]*\})?")
# Memory space in a layout; HBM is the default.
_NOT_HBM = re.compile(r"S\([1-9]\d*\)")
_CALLED = re.compile(r"\b(calls|body|condition|to_apply)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_KERNEL = 'custom_call_target="tpu_custom_call"'
_CHANNEL = re.compile(r"channel_id=(\d+)")
_LAYOUT = re.compile(r"\{[^}]*\}")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}"
)
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program.

    Attributes:
      name: Name of the result.
      opcode: Kind of operation.
      type: Type of the result, as text.
      operands: Names of instructions of the same computation.
      arguments: Text between the parentheses.
      rest: Text after the parentheses.
    """

    name: str
    opcode: str
    type: str
    operands: tuple[str, ...]
    arguments: str
    rest: str

    def called(self, role: str) -> str | None:
        """Return the name of the computation that is called as `body` and so on."""
        return dict(_CALLED.findall(self.rest)).get(role)


@dataclasses.dataclass(frozen=True)
class Collective:
    """Communication between devices.

    Attributes:
      kind: "all-reduce" and so on.
      size: Bytes that a device contributes (all-gather: receives) each time.
      times: Number of executions.
      groups: int [groups, members]; groups of devices, numbered in the program's order;
        None if the members are whole slices of a pod.
    """

    kind: str
    size: int
    times: int
    groups: np.ndarray | None

    @property
    def sent(self) -> float:
        """Bytes that a device sends each time, in a ring, the least possible.

        An all-reduce is a reduce-scatter and an all-gather.
        """
        if self.groups is None or self.kind == "collective-permute":
            return self.size
        members = self.groups.shape[1]
        rounds = 2 if self.kind == "all-reduce" else 1
        return rounds * self.size * (members - 1) / members


class Program:
    """An optimized program."""

    def __init__(self, text: str):
        """Parse the text of `jax.stages.Compiled.as_text`.

        Raises:
          ValueError: The program has no entry computation.
        """
        self.computations: dict[str, dict[str, Instruction]] = {}
        self._roots: dict[str, Instruction] = {}
        self.entry = ""
        body: dict[str, Instruction] = {}
        name = ""
        for line in text.splitlines():
            header = _HEADER.match(line)
            if header:
                name, body = header[2], {}
                self.computations[name] = body
                self.entry = name if header[1] else self.entry
                continue
            start = _INSTRUCTION.match(line)
            if start:
                instruction = _instruction(start[2], line[start.end() :])
                body[instruction.name] = instruction
                if start[1]:
                    self._roots[name] = instruction
        if not self.entry:
            raise ValueError("there is no entry computation in this program")

    def root(self, computation: str) -> Instruction:
        """Return the root instruction of a computation."""
        return self._roots[computation]

    def executed(self, *, beside: bool) -> Iterator[tuple[str, Instruction, int]]:
        """Yield computation, instruction and number of executions.

        A fusion is one instruction. All branches of a conditional are included.

        Args:
          beside: Whether to include instructions that another unit of the chip executes
            meanwhile, such as the SparseCore of a TPU7x.
        """
        yield from self._executed(self.entry, 1, beside)

    def _executed(
        self, computation: str, times: int, beside: bool
    ) -> Iterator[tuple[str, Instruction, int]]:
        for instruction in self.computations[computation].values():
            yield computation, instruction, times
            called, repeats = [], 1
            if instruction.opcode == "while":
                called = [instruction.called("body")]
                repeats = self.trip_count(computation, instruction)
            elif instruction.opcode == "call" or (
                beside and instruction.opcode in ("call-start", "async-start")
            ):
                name = instruction.called("calls") or instruction.called("to_apply")
                called = [name]
            elif instruction.opcode == "conditional":
                branches = _BRANCHES.search(instruction.rest)
                called = _OPERAND.findall(branches[1])
            for name in called:
                yield from self._executed(name, times * repeats, beside)

    def trip_count(self, computation: str, loop: Instruction) -> int:
        """Return the trip count of a while loop.

        It is in the program, or the loop is that of jax.lax.scan: while counter <
        limit, counter += 1.

        Raises:
          ValueError: The loop has another form.
        """
        count = _TRIPS.search(loop.rest)
        if count:
            return int(count[1])
        condition = loop.called("condition")
        root = self.root(condition)
        if root.opcode == "fusion":
            # The comparison alone, of the fusion's operands.
            inner = self.root(root.called("calls"))
            root = dataclasses.replace(inner, operands=root.operands[:2])
        if root.opcode != "compare" or "direction=LT" not in root.rest:
            raise ValueError(f"the loop {loop.name} does not count up to a limit")

        def value(name: str, where: str) -> int:
            instruction = self.computations[where][name]
            if instruction.opcode == "constant":
                return int(instruction.arguments)
            if instruction.opcode in ("copy", "bitcast", "convert", "copy-done"):
                return value(instruction.operands[0], where)
            if instruction.opcode == "copy-start":
                return value(instruction.operands[0], where)
            if instruction.opcode == "get-tuple-element" and where == condition:
                index = int(re.search(r"index=(\d+)", instruction.rest)[1])
                initial = self.computations[computation][loop.operands[0]]
                return value(initial.operands[index], computation)
            raise ValueError(
                f"the limit of the loop {loop.name} is a {instruction.opcode}"
            )

        start, limit = (value(name, condition) for name in root.operands)
        return limit - start

    def estimated_cycles(self) -> int:
        """Return the sum of the compiler's estimates.

        Collectives have none. Asynchronous instructions count as nothing.
        """
        return sum(
            times * estimated_cycles(instruction)
            for _, instruction, times in self.executed(beside=False)
        )

    def collectives(self) -> list[Collective]:
        """Return all collectives, fused ones included, each once."""
        collectives: dict[tuple, Collective] = {}
        for computation, instruction, times in self.executed(beside=True):
            for inside, part, kind in self._parts(computation, instruction):
                collective = self._collective(inside, part, kind, times)
                # A collective that goes on in the background of several fusions is in
                # each of them, with the same channel. Others may share a channel, too.
                channel = _CHANNEL.search(part.rest)
                where = inside, part.name
                is_background = part is not instruction and kind != "reduce-scatter"
                if channel and is_background:
                    where = channel[1], _LAYOUT.sub("", part.type)
                key = part.opcode, where  # a send has channels of its own
                if key not in collectives or collectives[key].times < times:
                    collectives[key] = collective
        return list(collectives.values())

    def _parts(
        self, computation: str, instruction: Instruction
    ) -> Iterator[tuple[str, Instruction, str]]:
        """Yield the collectives in an instruction, with their kinds."""
        kind = instruction.opcode.removesuffix("-start")
        if kind in _COLLECTIVES:
            yield computation, instruction, kind
        elif kind == "send" and _SLICES.search(instruction.rest):
            transfer = _SLICES.search(instruction.rest)[1]
            yield computation, instruction, transfer.lower().replace("_", "-")
        elif kind == "fusion":
            name = instruction.called("calls")
            scatters = name.startswith(_FUSED_REDUCE_SCATTER)
            for part in self.computations[name].values():
                for inside, inner, kind in self._parts(name, part):
                    yield inside, inner, "reduce-scatter" if scatters else kind

    def _collective(
        self, computation: str, instruction: Instruction, kind: str, times: int
    ) -> Collective:
        operands = instruction.operands
        if instruction.opcode == "send":
            operands = operands[:1]  # and a token
        body = self.computations[computation]
        size = sum(type_bytes(body[name].type) for name in operands)
        if instruction.opcode == "send":
            return Collective(kind, size, times, None)
        groups = replica_groups(instruction.rest)
        if kind == "all-gather":
            size *= groups.shape[1]
        return Collective(kind, size, times, groups)


def _instruction(name: str, text: str) -> Instruction:
    """Parse the text after `name = `: type, opcode, operands, attributes."""
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    kind, text = text[:end], text[end:].lstrip()
    start = text.index("(")
    end = _closing(text, start)
    arguments = text[start + 1 : end - 1]
    operands = tuple(_OPERAND.findall(arguments))
    return Instruction(name, text[:start], kind, operands, arguments, text[end:])


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


def replica_groups(text: str) -> np.ndarray:
    """Parse the groups of devices of a collective.

    The forms are `{{0,1},{2,3}}`; `[2,2]<=[4]T(0)`, a transposed and reshaped iota;
    `mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}`, with named axes of which some
    are summed over; and pairs of source and target.

    Returns:
      int [groups, members].

    Raises:
      ValueError: The form is unknown.
    """
    listed = _LISTED.search(text) or _PAIRS.search(text)
    if listed and listed[1]:
        groups = re.findall(r"\{([\d,]+)\}", listed[1])
        return np.array([_numbers(group) for group in groups])
    iota = _IOTA.search(text)
    if iota:
        return _iota(iota[2], iota[3]).reshape(_numbers(iota[1]))
    mesh = _MESH.search(text)
    if mesh:
        axes = re.findall(r"'([^']+)'=(\d+)", mesh[1])
        names, sizes = [a for a, _ in axes], [int(n) for _, n in axes]
        ids = _iota(mesh[2], mesh[3]) if mesh[2] else np.arange(math.prod(sizes))
        chosen = [names.index(name) for name in re.findall(r"'([^']+)'", mesh[4])]
        others = [i for i in range(len(names)) if i not in chosen]
        ids = ids.reshape(sizes).transpose(*others, *chosen)
        return ids.reshape(-1, math.prod(sizes[i] for i in chosen))
    raise ValueError(f"unknown form of groups of devices: {text[:200]!r}")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _iota(shape: str, permutation: str | None) -> np.ndarray:
    sizes = _numbers(shape)
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    return ids.transpose(_numbers(permutation)) if permutation else ids


def spans(groups: np.ndarray | None, positions: Sequence[tuple[int, ...]]) -> bool:
    """Return whether any group has members at different positions.

    Args:
      groups: Groups of a `Collective`.
      positions: Position of each device, in the program's order.
    """
    if groups is None:
        return True
    return any(len({positions[i] for i in group}) > 1 for group in groups.tolist())
