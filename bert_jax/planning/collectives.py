"""Collectives of a compiled program, and the networks that they cross."""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from bert_jax.planning.hlo import Instruction, Program, type_bytes

# Networks that a collective can cross, from the nearest to the farthest.
CHIP, ICI, DCN = "inside a chip", "ICI, inside a slice", "DCN, between slices"

# Opcodes; some come in pairs, NAME-start and NAME-done.
KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
# Name of a fused all-reduce and slice, which is a reduce-scatter.
_FUSED_REDUCE_SCATTER = "all-reduce-scatter"

_CHANNEL = re.compile(r"channel_id=(\d+)")
_LAYOUT = re.compile(r"\{[^}]*\}")
_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]+\},?)+)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}"
)
# Attributes of a send between slices: its type, and the slices that take part.
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_SLICES = re.compile(r'_xla_megascale_target="\{([\d,]+)\}')
# Types of sends that are not names in `KINDS`.
_TRANSFER_KINDS = {"ONE_TO_ONE": "collective-permute"}


@dataclasses.dataclass(frozen=True)
class Collective:
    """Communication between devices."""

    kind: str  # "all-reduce" and so on
    size: int  # bytes that a device contributes (all-gather: receives) each time
    times: int  # number of executions
    members: int  # number of devices, or slices, in a group
    # int [groups, members]; groups of devices, numbered in the program's order; None if
    # the members are in different slices of a pod.
    groups: np.ndarray | None

    @property
    def sent(self) -> float:
        """Bytes that a device sends each time, in a ring, the least possible.

        An all-reduce is a reduce-scatter and an all-gather.
        """
        if self.kind == "collective-permute":
            return self.size
        rounds = 2 if self.kind == "all-reduce" else 1
        return rounds * self.size * (self.members - 1) / self.members


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Collectives of one kind over one network, in a step."""

    kind: str  # "all-reduce" and so on
    network: str  # `CHIP`, `ICI` or `DCN`
    count: int  # number of collectives
    size: int  # bytes that a device contributes (all-gather: receives)
    sent: int  # bytes that a device sends in a ring


def traffic(program: Program, devices: Sequence[jax.Device]) -> tuple[Traffic, ...]:
    """Add up collectives by kind and network, the largest first.

    Devices are numbered as in the program's mesh.
    """
    # A program for several slices is compiled for one, and numbers its devices.
    # Devices of a single slice have no `slice_index`.
    slices = [getattr(device, "slice_index", 0) for device in devices]
    first_slice = [
        d for d, index in zip(devices, slices, strict=True) if index == slices[0]
    ]
    chips = np.array([device.coords for device in first_slice])  # [devices, dimensions]
    sums: dict[tuple[str, str], np.ndarray] = {}
    for collective in find_collectives(program):
        network = DCN
        if collective.groups is not None:
            members = chips[collective.groups]  # [groups, members, dimensions]
            network = CHIP if (members == members[:, :1]).all() else ICI
        addend = collective.times * np.array([1, collective.size, collective.sent])
        key = collective.kind, network
        sums[key] = sums.get(key, 0) + addend
    rows = [
        Traffic(kind, network, *(int(value) for value in values))
        for (kind, network), values in sums.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.sent))


def find_collectives(program: Program) -> list[Collective]:
    """Return all collectives of a program, fused ones included, each once."""
    found: dict[tuple, Collective] = {}
    for instruction, times in program.executed(include_async=True):
        for part, kind in _parts(program, instruction):
            # A collective that runs in the background of several fusions is listed in
            # each of them: one collective has one channel and type.
            channel = _CHANNEL.search(part.rest)
            where = part.computation, part.name
            is_background = part is not instruction and kind != "reduce-scatter"
            if channel and is_background:
                where = channel[1], _LAYOUT.sub("", part.type)
            key = part.opcode, where  # a send has channels of its own
            if key not in found or found[key].times < times:
                found[key] = _collective(program, part, kind, times)
    return list(found.values())


def _parts(
    program: Program, instruction: Instruction
) -> Iterator[tuple[Instruction, str]]:
    """Yield the collectives in an instruction, with the kind of each."""
    kind = instruction.opcode.removesuffix("-start")
    if "source_target_pairs={}" in instruction.rest:
        return  # a permutation that moves nothing
    if kind in KINDS:
        yield instruction, kind
    elif kind == "send" and (transfer := _TRANSFER.search(instruction.rest)):
        name = transfer[1].lower().replace("_", "-")
        yield instruction, _TRANSFER_KINDS.get(transfer[1], name)
    elif kind == "fusion":
        name = instruction.called("calls")
        scatters = name.startswith(_FUSED_REDUCE_SCATTER)
        for part in program.computations[name].values():
            for inner, kind in _parts(program, part):
                yield inner, "reduce-scatter" if scatters else kind


def _collective(
    program: Program, instruction: Instruction, kind: str, times: int
) -> Collective:
    operands = program.operands(instruction)
    groups = None
    if instruction.opcode == "send":
        operands = operands[:1]  # the other one is a token
        members = 2  # a permutation's source and target
        if kind != "collective-permute":
            if not (slices := _SLICES.search(instruction.rest)):
                raise ValueError(f"unknown form of slices: {instruction.rest[:200]!r}")
            members = len(_numbers(slices[1]))
    else:
        groups = replica_groups(instruction.rest)
        members = groups.shape[1]
    size = sum(type_bytes(operand.type) for operand in operands)
    if kind == "all-gather":
        size *= members
    return Collective(kind, size, times, members, groups)


def replica_groups(text: str) -> np.ndarray:
    """Parse the groups of devices of a collective.

    The forms are `{{0,1},{2,3}}`; `[2,2]<=[4]T(0)`, a transposed and reshaped iota;
    `mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}`, with named axes of which some
    are summed over; and pairs of source and target. Return int [groups, members].
    """
    if listed := _LISTED.search(text):
        groups = re.findall(r"\{([\d,]+)\}", listed[1])
        return np.array([_numbers(group) for group in groups])
    if iota := _IOTA.search(text):
        return _iota(iota[2], iota[3]).reshape(_numbers(iota[1]))
    if mesh := _MESH.search(text):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh[1]))
        names, shape = list(sizes), [int(size) for size in sizes.values()]
        ids = _iota(mesh[2], mesh[3]) if mesh[2] else np.arange(math.prod(shape))
        summed = [names.index(name) for name in re.findall(r"'([^']+)'", mesh[4])]
        kept = [i for i in range(len(names)) if i not in summed]
        ids = ids.reshape(shape).transpose(*kept, *summed)  # [*kept, *summed]
        return ids.reshape(-1, math.prod(shape[i] for i in summed))
    raise ValueError(f"unknown form of groups of devices: {text[:200]!r}")


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _iota(shape: str, permutation: str | None) -> np.ndarray:
    sizes = _numbers(shape)
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    return ids.transpose(_numbers(permutation)) if permutation else ids
