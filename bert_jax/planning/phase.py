"""Plan of one phase: memory, collectives and cycles of its compiled programs.

The training step and the evaluation step are compiled as the training loop compiles
them, for the absent devices of a `topology.Topology`.
"""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from bert_jax.planning import cost as cost_lib
from bert_jax.planning import hlo
from bert_jax.planning.collectives import Traffic, traffic
from bert_jax.planning.schedule import ScheduleFolder
from bert_jax.planning.topology import Topology
from bert_jax.training import programs, sharding
from bert_jax.training import step as step_lib
from bert_jax.training.run_description import Phase, Run

_NEEDED = re.compile(
    r"(?:\(|Used )([\d.]+)([KMGT]?)(?:\) exceeds available| of [\d.]+[KMGT]? hbm)"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of a chip while a program runs."""

    parameters: int
    optimizer: int  # state of the optimizer, also during evaluation
    # Activations, gradients and other arrays of a step. It includes `other` if the
    # compiler refused the program.
    temporaries: int
    other: int  # the batch, the program, and the padding of its arguments to tiles
    available: int  # memory that programs can use

    @property
    def left(self) -> int:
        used = self.parameters + self.optimizer + self.temporaries + self.other
        return self.available - used


@dataclasses.dataclass(frozen=True)
class PhasePlan:
    """A phase on a topology."""

    name: str
    steps: int
    length: int  # tokens in a sequence
    batch_size: int  # sequences in a step
    batch_per_chip: float  # sequences on a chip; with `tensor`, a part of each
    micro_batches: int  # micro-batches in a step
    flops: float  # of a step, over all chips, by a formula
    flops_at_peak: float  # peak FLOP/s, over all chips
    memory: Memory  # of a chip in training
    evaluation: Memory  # of a chip in evaluation
    # Cycles of a step on a device; None if the compiler refused the program.
    cost: cost_lib.Cost | None
    clock: float  # cycles per second; 0 if unknown
    traffic: tuple[Traffic, ...]  # collectives of a step
    compile_seconds: float  # time of the compilations on this machine

    @property
    def left(self) -> int:
        """Free bytes of a chip, in training or in evaluation, whichever is less."""
        return min(self.memory.left, self.evaluation.left)

    @property
    def fits(self) -> bool:
        return self.left >= 0

    @property
    def refused(self) -> bool:
        return self.cost is None

    @property
    def seconds_at_peak(self) -> float:
        """Time of a step, if the chips did nothing but the model's products."""
        return self.flops / self.flops_at_peak

    @property
    def cycles(self) -> float:
        """Estimated cycles of a step, with kernels if known; 0 if refused."""
        cost = self.cost
        return cost.estimated + (cost.kernel_cycles or 0.0) if cost else 0.0

    @property
    def estimated_seconds(self) -> float:
        """Estimated time of a step without collectives; 0 if unknown."""
        return self.cycles / self.clock if self.clock else 0.0

    @property
    def scheduled_seconds(self) -> float:
        """Scheduled time of a step without collectives; 0 if unknown."""
        scheduled = self.cost.scheduled if self.cost else None
        return scheduled / self.clock if scheduled and self.clock else 0.0


def plan_phase(
    run: Run, phase: Phase, topology: Topology, folder: ScheduleFolder | None = None
) -> PhasePlan:
    """Compile the training step and the evaluation step of a phase.

    The run's mesh has the devices of the topology.
    """
    state = run.state_shapes
    begin = time.perf_counter()
    batch = run.batch_shapes(phase, phase.length)
    compiled = _compile(programs.lower_train_step(run, phase, state, batch))
    is_refused = isinstance(compiled, int)
    schedules = folder.read_cycles() if folder and not is_refused else None
    # A chip holds the constants beside the trained parameters.
    params = {**state.params, **run.constant_shapes()}
    state = dataclasses.replace(state, params=params)
    evaluation = _compile(programs.lower_eval_step(run, phase, state.params, batch))
    seconds = time.perf_counter() - begin
    if folder:
        folder.clear()
    cost, collectives = None, ()
    if not is_refused:
        program = hlo.Program(compiled.as_text())
        cost = cost_lib.measure(program, topology.rates, schedules)
        collectives = traffic(program, run.mesh.devices.flatten())
    return PhasePlan(
        name=phase.name,
        steps=phase.steps,
        length=phase.length,
        batch_size=phase.batch_size,
        batch_per_chip=(
            phase.batch_size / min(topology.chips, sharding.num_batch_shards(run.mesh))
        ),
        micro_batches=phase.micro_batches,
        flops=run.flops(phase, phase.length),
        flops_at_peak=topology.peak_flops * len(topology.devices),
        memory=_memory(
            compiled, state, topology, arguments=(state.params, state.opt_state)
        ),
        evaluation=_memory(evaluation, state, topology, arguments=state.params),
        cost=cost,
        clock=topology.generation.clock,
        traffic=collectives,
        compile_seconds=seconds,
    )


def _compile(lowered: jax.stages.Lowered) -> jax.stages.Compiled | int:
    """Compile a program, or return the bytes that it needs if they are too many."""
    try:
        with _no_cache():
            return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        size = _NEEDED.search(str(error))
        if "RESOURCE_EXHAUSTED" not in str(error) or not size:
            raise
        return int(float(size[1]) * _UNITS[size[2]])


@contextlib.contextmanager
def _no_cache() -> Iterator[None]:
    """Disable JAX's cache: it cannot read back programs for absent devices."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _memory(
    compiled: jax.stages.Compiled | int,
    state: step_lib.TrainState,
    topology: Topology,
    *,
    arguments: Any,
) -> Memory:
    """Return the memory of a chip for a program with parts of the state as arguments.

    `compiled` is an int if the compiler refused: the bytes that it asked for.
    """
    arguments = sharding.bytes_per_device(arguments)
    parameters = sharding.bytes_per_device(state.params)
    optimizer = sharding.bytes_per_device(state.opt_state)
    if isinstance(compiled, int):
        # The compiler rounds the size, which may then be the size of the memory.
        needed = max(compiled, topology.generation.hbm + 1)
        temporaries, other = needed - arguments, 0
    else:
        analysis = compiled.memory_analysis()
        temporaries = analysis.temp_size_in_bytes
        # Outputs that alias inputs are counted with the inputs.
        other = (
            analysis.argument_size_in_bytes
            + analysis.output_size_in_bytes
            - analysis.alias_size_in_bytes
            + analysis.generated_code_size_in_bytes
            - arguments
        )
    sizes = parameters, optimizer, temporaries, other, topology.generation.hbm
    return Memory(*(topology.devices_per_chip * size for size in sizes))
