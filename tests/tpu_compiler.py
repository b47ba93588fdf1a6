"""Programs for TPUs, lowered or compiled without a TPU."""

import importlib.util

import jax
import pytest

from bert_jax.model.kernels import tpu_attention_grid, tpu_attention_passes
from bert_jax.planning import phase as phase_lib
from bert_jax.planning import topology


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
