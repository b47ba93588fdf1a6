"""The attention kernel, interpreted, beside the plain path; and compiled for TPUs."""

import dataclasses
import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from bert_jax import config
from bert_jax.errors import UserError
from bert_jax.model import attention, dropout, randomness
from bert_jax.model.inputs import Inputs
from bert_jax.planning import topology
from bert_jax.training import sharding


@dataclasses.dataclass(frozen=True)
class Case:
    """A shape, and which positions attend to which."""

    heads: int
    head_size: int
    length: int = 128
    rows: int = 2
    rate: float = 0.0
    causal: bool = False
    documents: bool = False
    dtype: str = "float32"

    @property
    def encoder(self):
        return config.EncoderConfig(
            hidden_size=self.heads * self.head_size,
            num_heads=self.heads,
            attention_dropout_rate=self.rate,
            causal=self.causal,
            dtype=self.dtype,
        )

    def inputs(self):
        """The first row is full; of the others, all but the beginning is padding.

        Of their documents, too: the tokens of the last two attend to nothing.
        """
        rng = np.random.default_rng(1)
        shape = self.rows, self.length
        lengths = np.full(self.rows, 5)
        lengths[0] = self.length
        documents = np.sort(rng.integers(0, 3, shape), axis=1)
        return Inputs(
            jnp.zeros(shape, jnp.int32),
            jnp.asarray(np.arange(self.length) < lengths[:, None]),
            documents=jnp.asarray(documents, jnp.int32) if self.documents else None,
        )

    def arrays(self):
        """Queries, keys and values, and the gradient of what comes of them."""
        rng = np.random.default_rng(0)
        shape = self.rows, self.length, self.heads, self.head_size
        return [jnp.asarray(rng.normal(size=shape), self.dtype) for _ in range(4)]

    def keys(self):
        rows = jnp.arange(self.rows)
        return randomness.row_keys(3, "dropout", jnp.int32(5), rows)


def output_and_gradients(case, attend):
    @jax.jit
    def run(query, key, value, g):
        context, pullback = jax.vjp(
            lambda *x: attend(case.encoder, *x, case.inputs(), case.keys()),
            query,
            key,
            value,
        )
        return context, *pullback(g)

    return run(*case.arrays())


KERNEL = functools.partial(attention._by_kernel, interpret=True)


@pytest.mark.parametrize(
    ("case", "tolerance"),
    [
        (Case(1, 64), 2e-6),
        (Case(1, 32, length=77, rate=0.1, documents=True), 2e-6),
        (Case(3, 64, length=130, rate=0.5, causal=True), 2e-6),
        (Case(1, 128, length=256, rate=0.1, documents=True, causal=True), 2e-6),
        (Case(16, 64, rows=1, rate=0.1), 2e-6),  # in two programs of the grid
        (Case(2, 64, rate=0.1, dtype="bfloat16"), 0.02),
    ],
    ids=str,
)
def test_kernel_equals_the_plain_path(case, tolerance):
    ours = output_and_gradients(case, KERNEL)
    plain = output_and_gradients(case, attention._plain)
    for a, b in zip(ours, plain, strict=True):
        a, b = (np.asarray(x.astype(jnp.float32)) for x in (a, b))
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()


def test_kernel_draws_the_dropout_of_the_plain_path():
    # Values that are rows of an identity show the probabilities; with equal scores
    # they are all the same, so what is zero was dropped.
    case = Case(3, 128, rate=0.3)
    zeros = jnp.zeros((2, 128, 3, 128))
    eye = jnp.broadcast_to(jnp.eye(128)[:, None], zeros.shape)
    ids = jnp.zeros((2, 128), jnp.int32)
    context = KERNEL(
        case.encoder, zeros, zeros, eye, Inputs(ids, ids == 0), case.keys()
    )
    dropped = dropout.mask(case.keys(), (3, 128, 128), 0.3)
    np.testing.assert_array_equal(context.swapaxes(1, 2) == 0, dropped)


@functools.cache
def module_results(kind, remat="none", mesh=None):
    """Output and gradients of the module, with everything on."""
    encoder = config.EncoderConfig(
        vocab_size=11,
        hidden_size=256,
        num_heads=4,
        dtype="float32",
        attention=kind,
        remat=remat,
    )
    case = Case(4, 64, rows=4)
    module = attention.SelfAttention(encoder)
    x = case.arrays()[0].reshape(4, 128, 256)

    def run(params, x):
        def loss(params, x):
            y, _ = module.apply(params, x, x, case.inputs(), case.keys())
            return jnp.sum(jnp.square(y))

        return jax.value_and_grad(loss, argnums=(0, 1))(params, x)

    boxed = jax.jit(lambda: module.init(jax.random.key(0), x, x, case.inputs(), None))()
    params = nn.unbox(boxed)
    if mesh is None:
        return jax.tree.leaves(jax.jit(run)(params, x))
    specs = nn.get_partition_spec(boxed)
    split = nn.logical_to_mesh_sharding(specs, mesh, sharding.RULES)
    rows = NamedSharding(mesh, P(("data", "fsdp")))
    with sharding.use(mesh):
        return jax.tree.leaves(jax.jit(run, in_shardings=(split, rows))(params, x))


def assert_close(results, expected):
    for a, b in zip(results, expected, strict=True):
        # The keys' bias moves all scores alike: its gradient is only rounding.
        scale = max(np.abs(b).max(), 1.0)
        assert np.abs(a - b).max() <= 3e-6 * scale


def test_each_device_has_its_rows_and_heads():
    axes = config.MeshConfig(data=2, fsdp=2, tensor=2)
    kernel = module_results("kernel", mesh=sharding.make_mesh(axes))
    for a, b in zip(kernel, module_results("plain"), strict=True):
        # The keys' bias moves all scores alike: its gradient is only rounding.
        assert np.abs(a - b).max() <= 3e-6 * max(np.abs(b).max(), 1.0)


def test_auto_is_the_plain_path_on_a_processor():
    auto = module_results("auto", remat="attention")
    for a, b in zip(auto, module_results("plain"), strict=True):
        np.testing.assert_array_equal(a, b)


def kernels(kind, length=128, tensor=1, heads=4, head_size=64):
    """Kernels in a program that is traced once, for processors and for TPUs."""
    size = heads * head_size
    encoder = config.EncoderConfig(hidden_size=size, num_heads=heads, attention=kind)
    case = Case(heads, head_size, length=length)
    query, key, value, _ = case.arrays()
    mesh = sharding.make_mesh(
        config.MeshConfig(data=1, tensor=tensor), jax.devices()[:tensor]
    )
    with sharding.use(mesh):
        traced = jax.jit(
            lambda: attention.attend(
                encoder, query, key, value, case.inputs(), case.keys()
            )
        ).trace()
        counts = {
            platform: traced.lower(lowering_platforms=(platform,))
            .as_text()
            .count("tpu_custom_call")
            for platform in ("tpu", "cpu")
        }
    assert counts["cpu"] == 0
    return counts["tpu"]


def test_auto_takes_the_kernel_on_tpus_where_shapes_allow():
    assert kernels("auto") == 1
    assert kernels("plain") == 0
    assert kernels("auto", length=256, tensor=2) == 1
    assert kernels("auto", length=120) == 0
    assert kernels("auto", length=640) == 0
    assert kernels("auto", head_size=48, heads=8) == 0
    # Each device would have one head, half as wide as a register.
    assert kernels("auto", tensor=4) == 0
    assert kernels("kernel", tensor=4, length=120) == 1


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"hidden_size": 96, "num_heads": 2}, "heads of 32, 64, 128 columns.* = 48"),
        ({"max_position_embeddings": 1024}, "up to 512 positions.*=1024"),
    ],
)
def test_kernel_is_refused_for_shapes_it_is_not_for(fields, complaint):
    encoder = config.EncoderConfig(attention="kernel", **fields)
    with pytest.raises(UserError, match=rf"encoder\.attention=kernel.*{complaint}"):
        encoder.check("encoder.")
    dataclasses.replace(encoder, attention="auto").check("encoder.")


@pytest.mark.plans
@pytest.mark.parametrize("name", ["v4:2x2x1", "v5e:1x1", "v6e:1x1"])
@pytest.mark.parametrize(
    "case",
    [
        Case(4, 64, rate=0.1, dtype="bfloat16"),
        Case(1, 32, length=100, rate=0.1, documents=True, causal=True),
    ],
    ids=str,
)
def test_kernel_compiles(name, case):
    device = topology.open_topology(name).devices[0]
    shape = case.rows, case.length, case.heads, case.head_size
    array = jax.ShapeDtypeStruct(
        shape, case.dtype, sharding=SingleDeviceSharding(device)
    )

    def run(query, key, value, g):
        context, pullback = jax.vjp(
            lambda *x: attention.attend(
                dataclasses.replace(case.encoder, attention="kernel"),
                *x,
                case.inputs(),
                case.keys(),
            ),
            query,
            key,
            value,
        )
        return context, *pullback(g)

    text = jax.jit(run).lower(*[array] * 4).compile().as_text()
    names = re.findall(r"kernel_name = \"(\w+)\"|%(attention_\w+?)[.\d]* = ", text)
    assert {a or b for a, b in names} >= {"attention_forward", "attention_backward"}
