"""What a stage of training needs of the devices it is planned for, without them.

The step is compiled as `training/loop.py` compiles it, for a `topology.Topology`, and
the result is taken apart: memory, collectives, and the compiler's own estimate.
"""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from bert_jax.training import flops, hlo, loop, sharding
from bert_jax.training import step as step_lib
from bert_jax.training.topology import Topology

# Networks that a collective can cross, from the nearest to the farthest.
CHIP, ICI, DCN = "inside a chip", "ICI, inside a slice", "DCN, between slices"

_NEEDED = re.compile(
    r"\(([\d.]+)([KMGT]?)\) exceeds available|Used ([\d.]+)([KMGT]?) of"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a chip.

    Attributes:
      parameters: of the model.
      optimizer: its state.
      temporaries: activations, gradients and whatever else lives during a step; for a
        step that was refused the rest, too, for then the compiler tells the sum only.
      rest: the batch, the program, and what rounding to tiles adds to the state.
      available: to programs.
    """

    parameters: int
    optimizer: int
    temporaries: int
    rest: int
    available: int

    @property
    def left(self) -> int:
        used = self.parameters + self.optimizer + self.temporaries + self.rest
        return self.available - used


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Collectives of one kind over one network, in a step.

    Attributes:
      kind: "all-reduce" and so on.
      network: `CHIP`, `ICI` or `DCN`.
      count: how many.
      size: bytes of the arrays that a device gives (all-gather: gets).
      sent: bytes that a device sends, if all go around in rings.
    """

    kind: str
    network: str
    count: int
    size: int
    sent: int


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """A stage on a topology.

    Attributes:
      name: for people.
      steps: of the stage.
      batch_size: sequences in a step.
      batch_per_chip: of them.
      micro_batches: pieces that they go through in.
      flops: operations of a step, over all chips, as a formula has them.
      flops_at_peak: operations in a second, over all chips, as the vendor has them.
      memory: of a chip.
      refused: whether the compiler made no program because it would not fit.
      cycles: the compiler's estimate of a step; 0 if refused.
      clock: cycles in a second, or 0 if that is not known.
      traffic: collectives of a step.
      compile_seconds: on this machine.
    """

    name: str
    steps: int
    batch_size: int
    batch_per_chip: float
    micro_batches: int
    flops: float
    flops_at_peak: float
    memory: Memory
    refused: bool
    cycles: int
    clock: float
    traffic: tuple[Traffic, ...]
    compile_seconds: float

    @property
    def fits(self) -> bool:
        return self.memory.left >= 0

    @property
    def seconds_at_peak(self) -> float:
        """Of a step, if the chips did nothing but the model's products."""
        return self.flops / self.flops_at_peak

    @property
    def estimated_seconds(self) -> float:
        """The compiler's estimate of a step without its collectives; 0: not known."""
        return self.cycles / self.clock if self.clock else 0.0

    @property
    def estimated_utilisation(self) -> float:
        """That this estimate would mean; 0: not known."""
        estimated = self.estimated_seconds
        return self.seconds_at_peak / estimated if estimated else 0.0


def plan_stage(
    run: loop.Run,
    stage: loop.Stage,
    batch: dict[str, jax.ShapeDtypeStruct],
    topology: Topology,
) -> StagePlan:
    """Compile the step of a stage and say what it needs.

    Args:
      run: on a mesh of the topology's devices.
      stage: of the run.
      batch: shapes of its arrays.
      topology: what the mesh was made of.
    """
    state = run.state_shapes()
    batch = sharding.batch_shapes(run.mesh, batch)
    begin = time.perf_counter()
    compiled = None
    try:
        with _no_cache():
            compiled = loop.lower_step(run, stage, state, batch).compile()
    except jax.errors.JaxRuntimeError as error:
        memory = _memory_refused(_needed(error), state, topology)
    seconds = time.perf_counter() - begin
    cycles, traffic = 0, ()
    if compiled is not None:
        memory = _memory(compiled, state, topology)
        program = hlo.Program(compiled.as_text())
        cycles = program.estimated_cycles()
        traffic = _traffic(program, run.mesh.devices.flatten(), topology)
    return StagePlan(
        name=stage.name,
        steps=stage.steps,
        batch_size=stage.batch_size,
        batch_per_chip=stage.batch_size / topology.chips,
        micro_batches=stage.micro_batches,
        flops=stage.flops * stage.batch_size,
        flops_at_peak=flops.peak_flops(topology.device_kind) * len(topology.devices),
        memory=memory,
        refused=compiled is None,
        cycles=cycles,
        clock=topology.generation.clock,
        traffic=traffic,
        compile_seconds=seconds,
    )


@contextlib.contextmanager
def _no_cache() -> Iterator[None]:
    """Without JAX's cache: it can write programs for absent devices, not read them."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _needed(error: jax.errors.JaxRuntimeError) -> int:
    """Bytes that the compiler says a program needs, if that is what went wrong."""
    found = _NEEDED.search(str(error))
    if "RESOURCE_EXHAUSTED" not in str(error) or not found:
        raise error
    number, unit = found[1] or found[3], found[2] or found[4]
    return int(float(number) * _UNITS[unit])


def _memory(
    compiled: jax.stages.Compiled, state: step_lib.TrainState, topology: Topology
) -> Memory:
    per_chip = topology.devices_per_chip
    found = compiled.memory_analysis()
    parameters = sharding.bytes_of_device(state.params)
    optimizer = sharding.bytes_of_device(state.opt_state)
    # The outputs that take the place of inputs are counted with these.
    arrays = (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes
    )
    rest = arrays - parameters - optimizer + found.generated_code_size_in_bytes
    return Memory(
        parameters=per_chip * parameters,
        optimizer=per_chip * optimizer,
        temporaries=per_chip * found.temp_size_in_bytes,
        rest=per_chip * rest,
        available=per_chip * topology.generation.hbm,
    )


def _memory_refused(
    needed: int, state: step_lib.TrainState, topology: Topology
) -> Memory:
    per_chip = topology.devices_per_chip
    parameters = sharding.bytes_of_device(state.params)
    optimizer = sharding.bytes_of_device(state.opt_state)
    return Memory(
        parameters=per_chip * parameters,
        optimizer=per_chip * optimizer,
        temporaries=per_chip * (needed - parameters - optimizer),
        rest=0,
        available=per_chip * topology.generation.hbm,
    )


def _traffic(
    program: hlo.Program, devices: Sequence[jax.Device], topology: Topology
) -> tuple[Traffic, ...]:
    """Collectives, added up by kind and network, the largest first."""
    if topology.slices > 1:
        # The program is that of one slice, and numbers the devices of one.
        first = devices[0].slice_index
        devices = [device for device in devices if device.slice_index == first]
    chips = [tuple(device.coords) for device in devices]
    sums: dict[tuple[str, str], np.ndarray] = {}
    for found in program.collectives():
        network = DCN
        if found.groups is not None:
            network = ICI if hlo.spans(found.groups, chips) else CHIP
        addend = found.times * np.array([1, found.size, found.sent])
        key = found.kind, network
        sums[key] = sums.get(key, 0) + addend
    traffic = [
        Traffic(kind, network, *(int(value) for value in values))
        for (kind, network), values in sums.items()
    ]
    return tuple(sorted(traffic, key=lambda t: -t.sent))
