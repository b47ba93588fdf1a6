"""The TPU kernels of the feed-forward network: equal to a restatement, compiled."""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from toy import assert_trees_close
from tpu_compiler import assert_kernels_compile, count_kernels, needs_compiler

from bert_jax import config
from bert_jax.model import feed_forward
from bert_jax.model.kernels import decisions, tpu_feed_forward
from bert_jax.training import sharding

pytestmark = pytest.mark.usefixtures("checked_shapes")

# Two blocks of rows, the second one not full. The last columns fill no register.
SHAPE, SIZE = (4, 150, 128), 344


def arrays_of(shape=SHAPE, size=SIZE):
    """Return rows, the kernels gate, intermediate and output, and a gradient."""
    rng = np.random.default_rng(0)
    kernels = [(shape[-1], size)] * 2 + [(size, shape[-1])]
    kernels = [0.2 * rng.normal(size=shape) for shape in kernels]
    arrays = rng.normal(size=shape), *kernels, rng.normal(size=shape)
    return [array.astype(np.float32) for array in arrays]


def gelu(x):
    """Return GELU and its derivative."""
    below = 0.5 + 0.5 * np.vectorize(math.erf)(x / math.sqrt(2))
    return x * below, below + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def gelu_tanh(x):
    t = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * inner


def silu(x):
    gate = 1 / (1 + np.exp(-x))
    return x * gate, gate + x * gate * (1 - gate)


def restated(activation, x, gate, intermediate, output, g):
    """Return the output and all gradients, in float64."""
    shape, g, x = x.shape, g.reshape(-1, x.shape[-1]), x.reshape(-1, x.shape[-1])
    x, gate, intermediate, output, g = (
        array.astype(np.float64) for array in (x, gate, intermediate, output, g)
    )
    opened, slope = activation(x @ gate)
    values = x @ intermediate
    inner, d = opened * values, g @ output.T
    d_gates, d_values = d * values * slope, d * opened
    dx = d_gates @ gate.T + d_values @ intermediate.T
    of_rows = (array.reshape(shape) for array in (inner @ output, dx))
    return *of_rows, x.T @ d_gates, x.T @ d_values, inner.T @ g


def by_kernel(*arrays, activation="gelu_erf"):
    *arrays, g = arrays
    run = functools.partial(tpu_feed_forward.gated_feed_forward, activation=activation)
    y, pullback = jax.vjp(run, *arrays)
    return y, *pullback(g)


@pytest.mark.parametrize(
    ("name", "activation", "shape"),
    [
        ("gelu_erf", gelu, SHAPE),
        ("gelu_erf", gelu, (1, 75, 128)),  # less than a block
        ("gelu_tanh", gelu_tanh, SHAPE),
        ("silu", silu, SHAPE),
    ],
)
def test_kernels_equal_a_restatement(name, activation, shape, simulated_kernels):
    arrays = arrays_of(shape)
    got = jax.jit(functools.partial(by_kernel, activation=name))(*arrays)
    assert_trees_close(got, restated(activation, *arrays), 2e-6)


def test_gradients_of_kernels_are_float32(simulated_kernels):
    x, *kernels, g = arrays_of()
    rows = [jnp.asarray(array, jnp.bfloat16) for array in (x, g)]
    got = jax.jit(by_kernel)(rows[0], *kernels, rows[1])
    assert {array.dtype for array in got[:2]} == {jnp.dtype("bfloat16")}
    assert {array.dtype for array in got[2:]} == {jnp.dtype("float32")}
    assert_trees_close(got, restated(gelu, *arrays_of()), 0.02)


def test_kernels_run_on_the_rows_of_a_device(interpreted_kernels):
    x, *kernels, g = arrays_of()
    mesh = sharding.make_mesh(config.MeshConfig(data=2, fsdp=2), jax.devices()[:4])
    rows, columns = NamedSharding(mesh, P(("data", "fsdp"))), P(None, "fsdp")
    kernels = [jax.device_put(x, NamedSharding(mesh, columns)) for x in kernels]
    with sharding.use(mesh):
        x, g = jax.device_put((x, g), rows)
        got = jax.jit(by_kernel)(x, *kernels, g)
    assert_trees_close(got, restated(gelu, *arrays_of()), 2e-6)


def encoder_of(**fields):
    fields = {"feed_forward": "gated", "linear_bias": False, **fields}
    return config.EncoderConfig(hidden_size=128, intermediate_size=SIZE, **fields)


@pytest.mark.parametrize("differentiates", [False, True])
def test_the_module_has_the_results_of_its_plain_path(
    differentiates, simulated_kernels
):
    encoder = encoder_of(activation="silu")
    x, *_, g = arrays_of()
    x, g = jnp.asarray(x, encoder.dtype), jnp.asarray(g)
    variables = feed_forward.FeedForward(encoder).init(jax.random.key(0), x)

    def results(kernels):
        c = dataclasses.replace(encoder, kernels=kernels)

        def run(variables, x):
            product, bias = feed_forward.FeedForward(c).apply(variables, x)
            assert bias is None and product.dtype == jnp.float32
            return product

        if not differentiates:
            return [jax.jit(run)(variables, x)]
        y, pullback = jax.vjp(jax.jit(run), variables, x)
        return [y, *jax.tree.leaves(pullback(g))]

    pairs = list(zip(results("auto"), results("off"), strict=True))
    assert len(pairs) == (5 if differentiates else 1)
    for a, b in pairs:
        assert a.dtype == b.dtype
        a, b = (np.asarray(array, np.float32) for array in (a, b))
        assert 0 < np.abs(a - b).max() <= 0.02 * np.abs(b).max()


def kernels(rows=4, tensor=1, **fields):
    """Return the number of kernels of the module."""
    encoder = dataclasses.replace(encoder_of(), **fields)
    module = feed_forward.FeedForward(encoder)
    x = jnp.zeros((rows, 16, encoder.hidden_size), encoder.dtype)
    params = jax.eval_shape(lambda: nn.unbox(module.init(jax.random.key(0), x)))
    mesh = config.MeshConfig(data=2, tensor=tensor)
    with sharding.use(sharding.make_mesh(mesh, jax.devices()[: 2 * tensor])):
        return count_kernels(jax.jit(lambda p: module.apply(p, x)[0]).trace(params))


def test_tpus_use_the_kernel_where_shapes_allow():
    assert kernels() == 1
    assert kernels(rows=3) == 0
    assert kernels(tensor=2) == 0
    assert kernels(feed_forward="plain") == 0
    assert kernels(linear_bias=True) == 0
    assert kernels(dtype="float32") == 0
    assert kernels(hidden_size=192) == 0
    assert kernels(hidden_size=1152, intermediate_size=4096) == 1
    assert kernels(hidden_size=1792, intermediate_size=3840) == 0
    assert kernels(kernels="off") == 0


@pytest.mark.parametrize(
    ("kind", "has_kernel"),
    [("TPU v4", False), ("TPU v5", False), ("TPU v5 lite", True), ("TPU v9", False)],
)
def test_other_cores_use_plain_operations(kind, has_kernel):
    device = jax.sharding.AbstractDevice(kind, 1, "tpu")
    mesh = jax.sharding.AbstractMesh((2,), ("data",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        decision = decisions.feed_forward(encoder_of(), "tpu", 4)
    plain = f"plain operations (the kernel is for v5e and v6e, not {kind})"
    assert str(decision) == ("TPU kernel" if has_kernel else plain)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("v5e:1x1", SHAPE, SIZE),
        ("v5e:1x1", (1, 75, 128), SIZE),
        ("v6e:1x1", (1, 1024, 768), 1152),
        pytest.param("v5e:1x1", (9, 1024, 1024), 2624, marks=pytest.mark.slow),
        pytest.param("v6e:1x1", (4, 2048, 1152), 4096, marks=pytest.mark.slow),
    ],
)
def test_kernels_compile(name, shape, size):
    x, *kernels, g = map(jnp.asarray, arrays_of(shape, size))
    half = [array.astype(jnp.bfloat16) for array in (x, g)]
    arrays = half[0], *kernels, half[1]
    assert_kernels_compile(name, "feed_forward", by_kernel, arrays)
