"""What a phase of training needs of the devices it is planned for, without them.

The step is compiled as the loop compiles it, for a `topology.Topology`, and the result
is taken apart: memory, collectives, and the compiler's own estimate.
"""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from bert_jax.planning import cost as cost_lib
from bert_jax.planning import hlo
from bert_jax.planning.schedule import Dump
from bert_jax.planning.topology import Topology
from bert_jax.training import hardware, programs, sharding
from bert_jax.training import step as step_lib
from bert_jax.training.run import Phase, Run

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
      parameters: Parameters of the model.
      optimizer: State of the optimizer.
      temporaries: Activations, gradients and whatever else lives during a step; for a
        step that was refused the rest, too, for then the compiler gives the sum only.
      rest: The batch, the program, and what rounding to tiles adds to the state.
      available: What programs can use.
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
      count: Number of collectives.
      size: Bytes of the arrays that a device gives (all-gather: gets).
      sent: Bytes that a device sends, if all go around in rings.
    """

    kind: str
    network: str
    count: int
    size: int
    sent: int


@dataclasses.dataclass(frozen=True)
class PhasePlan:
    """A phase on a topology.

    Attributes:
      name: Name for people.
      steps: Number of steps.
      length: Tokens in a sequence.
      batch_size: Sequences in a step.
      batch_per_chip: Sequences of a chip.
      micro_batches: Pieces that they go through in.
      flops: Operations of a step, over all chips, as a formula has them.
      flops_at_peak: Operations in a second, over all chips, as the vendor has them.
      memory: Memory of a chip.
      cost: Cycles of a step on a device; None: the compiler made no program, because it
        would not fit.
      clock: Cycles in a second, or 0 if that is not known.
      traffic: Collectives of a step.
      compile_seconds: Time of the compilation on this machine.
    """

    name: str
    steps: int
    length: int
    batch_size: int
    batch_per_chip: float
    micro_batches: int
    flops: float
    flops_at_peak: float
    memory: Memory
    cost: cost_lib.Cost | None
    clock: float
    traffic: tuple[Traffic, ...]
    compile_seconds: float

    @property
    def fits(self) -> bool:
        return self.memory.left >= 0

    @property
    def refused(self) -> bool:
        return self.cost is None

    @property
    def seconds_at_peak(self) -> float:
        """Time of a step, if the chips did nothing but the model's products."""
        return self.flops / self.flops_at_peak

    @property
    def cycles(self) -> float:
        """The compiler's estimate of a step, with the kernels; 0 if refused."""
        return self.cost.estimated + self.cost.kernel_cycles if self.cost else 0.0

    @property
    def estimated_seconds(self) -> float:
        """The compiler's estimate of a step without its collectives; 0: not known."""
        return self.cycles / self.clock if self.clock else 0.0

    @property
    def estimated_utilisation(self) -> float:
        """That this estimate would mean; 0: not known."""
        return self._utilisation(self.estimated_seconds)

    @property
    def scheduled_seconds(self) -> float:
        """A step by the compiler's schedules, likewise; 0: not known."""
        scheduled = self.cost.scheduled if self.cost else None
        return scheduled / self.clock if scheduled and self.clock else 0.0

    @property
    def scheduled_utilisation(self) -> float:
        """That these would mean; 0: not known."""
        return self._utilisation(self.scheduled_seconds)

    def _utilisation(self, seconds: float) -> float:
        return self.seconds_at_peak / seconds if seconds else 0.0


def plan_phase(
    run: Run, phase: Phase, topology: Topology, dump: Dump | None = None
) -> PhasePlan:
    """Compile the step of a phase and say what it needs.

    Args:
      run: Run on a mesh of the topology's devices.
      phase: Phase of the run.
      topology: What the mesh was made of.
      dump: Where the compiler writes its schedules, if it was asked for them.
    """
    state = run.state_shapes()
    begin = time.perf_counter()
    compiled = None
    try:
        with _no_cache():
            lowered = programs.lower_step(
                run, phase, state, run.batch_shapes(phase, phase.length)
            )
            compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        memory = _memory_refused(_needed(error), state, topology)
    seconds = time.perf_counter() - begin
    cost, traffic = None, ()
    peak = hardware.peak_flops(topology.device_kind)
    if compiled is not None:
        memory = _memory(compiled, state, topology)
        program = hlo.Program(compiled.as_text())
        rates = topology.generation.rates(peak)
        cost = cost_lib.measure(program, rates, dump.take() if dump else None)
        traffic = _traffic(program, run.mesh.devices.flatten(), topology)
    return PhasePlan(
        name=phase.name,
        steps=phase.steps,
        length=phase.length,
        batch_size=phase.batch_size,
        batch_per_chip=phase.batch_size / topology.chips,
        micro_batches=phase.micro_batches,
        flops=run.flops(phase, phase.length),
        flops_at_peak=peak * len(topology.devices),
        memory=memory,
        cost=cost,
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
    size = _NEEDED.search(str(error))
    if "RESOURCE_EXHAUSTED" not in str(error) or not size:
        raise error
    number, unit = size[1] or size[3], size[2] or size[4]
    return int(float(number) * _UNITS[unit])


def _memory(
    compiled: jax.stages.Compiled, state: step_lib.TrainState, topology: Topology
) -> Memory:
    per_chip = topology.devices_per_chip
    analysis = compiled.memory_analysis()
    parameters = sharding.bytes_of_device(state.params)
    optimizer = sharding.bytes_of_device(state.opt_state)
    # The outputs that take the place of inputs are counted with these.
    arrays = (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
    )
    rest = arrays - parameters - optimizer + analysis.generated_code_size_in_bytes
    return Memory(
        parameters=per_chip * parameters,
        optimizer=per_chip * optimizer,
        temporaries=per_chip * analysis.temp_size_in_bytes,
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
    for collective in program.collectives():
        network = DCN
        if collective.groups is not None:
            network = ICI if hlo.spans(collective.groups, chips) else CHIP
        addend = collective.times * np.array([1, collective.size, collective.sent])
        key = collective.kind, network
        sums[key] = sums.get(key, 0) + addend
    traffic = [
        Traffic(kind, network, *(int(value) for value in values))
        for (kind, network), values in sums.items()
    ]
    return tuple(sorted(traffic, key=lambda t: -t.sent))
