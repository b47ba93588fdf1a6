"""The TPU kernel of dropout, residual and norm: equal to the plain path, compiled."""

import dataclasses
import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from toy import assert_close, assert_trees_close
from tpu_compiler import assert_kernels_compile, count_kernels, needs_compiler

from bert_jax import config
from bert_jax.model import randomness
from bert_jax.model.kernels import residual
from bert_jax.training import sharding

pytestmark = pytest.mark.usefixtures("checked_shapes")

# Results of either kind of block: two copies of the norm, or the sum and its norm.
RESULTS = 2


def by_kernel(encoder, *arrays, apply=residual._tpu):
    keeps_sum = encoder.norm_placement == "pre"
    return apply(encoder, keeps_sum, RESULTS - keeps_sum, *arrays)


plain = functools.partial(by_kernel, apply=residual._plain)


def encoder_of(size, rate=0.1, dtype="float32", **fields):
    return config.EncoderConfig(
        hidden_size=size, dropout_rate=rate, dtype=dtype, **fields
    )


def arrays_of(shape, dtype="float32"):
    """Return input, product, bias, scale, offset, and gradients of the results."""
    rng = np.random.default_rng(0)
    size = shape[-1:], "float32"
    shapes = (shape, dtype), (shape, "float32"), *[size] * 3
    return [
        jnp.asarray(rng.normal(size=shape) + 1.0, dtype)
        for shape, dtype in (*shapes, *[(shape, dtype)] * RESULTS)
    ]


def keys_of(rows):
    return randomness.row_keys(3, "dropout", jnp.int32(5), jnp.arange(rows))


def output_and_gradients(apply, encoder, *arrays, dropout_keys):
    def run(*arrays):
        inputs, gradients = arrays[:-RESULTS], arrays[-RESULTS:]
        results, pullback = jax.vjp(
            lambda *x: apply(encoder, *x, dropout_keys), *inputs
        )
        return *results, *pullback(gradients)

    return jax.jit(run)(*arrays)


@pytest.mark.parametrize(
    ("shape", "rate", "dtype", "fields"),
    [
        ((3, 48, 256), 0.0, "float32", {}),  # all rows in one program of the grid
        # Several programs for each row, which ends within a chunk of 16.
        ((2, 277, 768), 0.5, "float32", {}),
        ((2, 32, 128), 0.1, "bfloat16", {}),
        ((2, 48, 128), 0.0, "float32", {"norm_placement": "pre"}),
        ((2, 48, 128), 0.1, "float32", {"norm_placement": "pre", "norm": "rms"}),
        ((2, 32, 128), 0.1, "bfloat16", {"norm_placement": "pre"}),
    ],
)
@pytest.mark.parametrize("has_product", [True, False])
def test_kernel_equals_the_plain_path(
    shape, rate, dtype, fields, has_product, simulated_kernels
):
    tolerance = 2e-6 if dtype == "float32" else 0.02
    encoder = encoder_of(shape[-1], rate, dtype, **fields)
    arrays = arrays_of(shape, dtype)
    if not has_product:  # the norm of x, without dropout
        arrays[1], rate = None, 0.0
    keys = keys_of(shape[0]) if rate else None
    ours = output_and_gradients(by_kernel, encoder, *arrays, dropout_keys=keys)
    expected = output_and_gradients(plain, encoder, *arrays, dropout_keys=keys)
    for a, b in zip(*map(jax.tree.leaves, (ours, expected)), strict=True):
        assert a.dtype == b.dtype
        assert_close(a.astype(jnp.float32), b.astype(jnp.float32), tolerance)


def test_kernel_runs_on_the_rows_of_a_device(interpreted_kernels):
    arrays, keys = arrays_of((8, 16, 128)), keys_of(8)
    encoder = encoder_of(128)
    expected = output_and_gradients(plain, encoder, *arrays, dropout_keys=keys)
    mesh = sharding.make_mesh(config.MeshConfig(data=2, fsdp=2, tensor=2))
    with sharding.use(mesh):
        rows = NamedSharding(mesh, P(("data", "fsdp")))
        split = [jax.device_put(x, rows) if x.ndim == 3 else x for x in arrays]
        ours = output_and_gradients(by_kernel, encoder, *split, dropout_keys=keys)
    assert_trees_close(ours, expected, 2e-6)


def test_kernels_follow_the_mesh_and_the_rules_in_use():
    """The same shapes are traced again: rules are no part of JAX's key for traces."""
    *arrays, _, _ = arrays_of((4, 16, 128))

    def rows_of_a_device():
        traced = jax.make_jaxpr(
            lambda *x: by_kernel(encoder_of(128), *x, keys_of(4))[0]
        )(*arrays)
        return set(re.findall(r"f32\[(\d),16,128\] = pallas_call", str(traced)))

    for devices in (2, 4):
        axes = config.MeshConfig(data=devices)
        with sharding.use(sharding.make_mesh(axes, jax.devices()[:devices])):
            assert rows_of_a_device() == {str(4 // devices)}
            with nn.logical_axis_rules(()):
                assert rows_of_a_device() == {"4"}
    assert rows_of_a_device() == {"4"}


def kernels(shape, keys_shape, data=1, **fields):
    encoder = dataclasses.replace(encoder_of(shape[-1]), **fields)
    module = residual.AddAndNormalise(encoder)
    arrays = arrays_of(shape)[:3]
    params = nn.unbox(module.init(jax.random.key(0), *arrays, None))
    mesh = sharding.make_mesh(config.MeshConfig(data=data), jax.devices()[:data])
    with sharding.use(mesh):
        traced = jax.jit(
            lambda: module.apply(params, *arrays, jnp.zeros(keys_shape, jnp.uint32))
        ).trace()
        return count_kernels(traced)


def test_tpus_use_the_kernel_where_shapes_allow():
    assert kernels((4, 16, 128), 4, data=2) == 1
    assert kernels((3, 16, 128), 3, data=2) == 0
    assert kernels((4, 24, 128), 4) == 1
    assert kernels((4, 8, 128), 4) == 0
    assert kernels((4, 16, 128), 4, kernels="off") == 0
    assert kernels((4, 16, 128), 4, norm="rms") == 1
    assert kernels((4, 16, 192), 4) == 0
    # The last layer, at some positions.
    assert kernels((4, 16, 128), (4, 16)) == 0


@needs_compiler
@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("v6e:1x1", (2, 512, 1024), "bfloat16"),
        ("v5e:1x1", (4, 32, 128), "float32"),
        ("v4:2x2x1", (2, 597, 768), "bfloat16"),  # XLNet's 512 tokens and 85 targets
    ],
)
def test_kernels_compile(name, shape, dtype):
    def run(*arrays):
        *arrays, keys = arrays
        encoder = encoder_of(shape[-1], dtype=dtype)
        return output_and_gradients(by_kernel, encoder, *arrays, dropout_keys=keys)

    arrays = *arrays_of(shape, dtype), keys_of(shape[0])
    assert_kernels_compile(name, "residual", run, arrays)
