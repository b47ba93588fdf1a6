"""Shared helpers of the tests of plans and of kernels for TPUs."""

import importlib.util

import jax
import pytest

from bert_jax.model.kernels import tpu_attention_grid, tpu_attention_passes
from bert_jax.planning import collectives, cost, plan, topology
from bert_jax.planning import phase as phase_lib


def needs_compiler(test):
    """Mark a test that compiles for TPUs."""
    without = pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="the TPU compiler is missing: pip install -e '.[tpu]'",
    )
    return pytest.mark.plans(without(test))


def on_tpu(name, arrays):
    """Return the shapes and types of arrays that are on one TPU of a slice."""
    place = jax.sharding.SingleDeviceSharding(topology.open_topology(name).devices[0])
    return [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place) for x in arrays]


def compiled_text(lowered):
    """Compile a program for TPUs, without JAX's cache, and return its text."""
    return phase_lib._compile(lowered).as_text()


def assert_kernels_compile(name, part, run, arrays):
    """Compile a function of arrays for a TPU, and find both kernels of a part."""
    kind = topology.open_topology(name).devices[0].device_kind
    with pytest.MonkeyPatch.context() as patch:
        for module in (tpu_attention_grid, tpu_attention_passes):
            patch.setattr(module, "device_kind", lambda: kind)
        text = compiled_text(jax.jit(run).lower(*on_tpu(name, arrays)))
    kernels = [line for line in text.splitlines() if "tpu_custom_call" in line]
    for direction in ("forward", "backward"):
        assert any(f"{part}_{direction}" in line for line in kernels)


def count_kernels(traced):
    """Count the kernels in a traced program for TPUs; for CPUs it has none."""
    on_cpus, on_tpus = (
        traced.lower(lowering_platforms=(name,)).as_text().count("tpu_custom_call")
        for name in ("cpu", "tpu")
    )
    assert on_cpus == 0
    return on_tpus


def fake_phase(steps=1, flops=1e12, left=1.0, batch_size=256):
    available = topology.GENERATIONS["v4"].hbm
    used = available - int(left * 2**30)
    other = used - used // 4 - used // 2
    memory = phase_lib.Memory(used // 4, used // 2, 0, other, available)
    return phase_lib.PhasePlan(
        name="phase 1/2, length 128",
        steps=steps,
        length=128,
        batch_size=batch_size,
        batch_per_chip=batch_size / 64,
        micro_batches=1,
        flops=flops,
        flops_at_peak=1e15,
        memory=memory,
        evaluation=memory,
        cost=cost.Cost(1_050_000, 0, 0.0, None),
        clock=1.05e9,
        traffic=(collectives.Traffic("all-reduce", collectives.ICI, 2, 2**20, 2**21),),
        compile_seconds=1.0,
    )


def fake_plan(*phases):
    # Stand-ins for the 64 devices of v4:4x4x4.
    device = jax.devices()[0]
    shape = topology.Topology(
        "v4:4x4x4", 1, topology.GENERATIONS["v4"], (4, 4, 4), (device,) * 64
    )
    return plan.Plan(
        "bert",
        shape,
        "data 64",
        336_000_000,
        phases,
        ("attention: TPU kernel",),
        "jax 1",
    )
