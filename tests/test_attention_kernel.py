"""The attention kernel for TPUs: equal to the plain path, and compiled."""

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
from bert_jax.model import attention, dropout, randomness
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.kernels import attention as kernels_lib
from bert_jax.model.kernels import cudnn_attention, decisions, tpu_attention
from bert_jax.planning import topology
from bert_jax.training import sharding


@dataclasses.dataclass(frozen=True)
class Case:
    """A shape, and an attention pattern."""

    heads: int
    head_size: int
    length: int = 128
    rows: int = 2
    rate: float = 0.0
    causal: bool = False
    window: int | None = None
    documents: bool = False
    dtype: str = "float32"

    @property
    def encoder(self):
        return config.EncoderConfig(
            hidden_size=self.heads * self.head_size,
            num_heads=self.heads,
            attention_dropout_rate=self.rate,
            dtype=self.dtype,
        )

    def pattern(self):
        """The first row is full; the others are padding after 5 tokens.

        With documents, padding in the documents behind the tokens' sees no key.
        """
        rng = np.random.default_rng(1)
        shape = self.rows, self.length
        lengths = np.full(self.rows, 5)
        lengths[0] = self.length
        documents = np.sort(rng.integers(0, 3, shape), axis=1)
        return AttentionPattern(
            jnp.asarray(np.arange(self.length) < lengths[:, None]),
            jnp.asarray(documents, jnp.int32) if self.documents else None,
            causal=self.causal,
            window=self.window,
        )

    def arrays(self):
        """Return queries, keys and values, and the gradient of the output."""
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
            lambda *x: attend(case.encoder, x, case.pattern(), case.keys()),
            query,
            key,
            value,
        )
        return context, *pullback(g)

    return run(*case.arrays())


def by_kernel(encoder, arrays, pattern, keys, interpret=True):
    context = tpu_attention.attend(
        *(x.reshape(*x.shape[:2], -1) for x in arrays),
        (jnp.zeros(encoder.hidden_size),) * 3,
        pattern,
        keys,
        dtype=jnp.dtype(encoder.dtype),
        head_size=encoder.head_size,
        rate=encoder.attention_dropout_rate,
        interpret=interpret,
    )
    return context.reshape(arrays[0].shape)


def plain(encoder, arrays, pattern, keys):
    return kernels_lib._plain(encoder, arrays, (None,) * 3, pattern, keys)


@pytest.mark.parametrize(
    ("case", "tolerance"),
    [
        (Case(1, 64), 2e-6),
        (Case(1, 32, length=77, rate=0.1, documents=True), 2e-6),
        (Case(3, 64, length=130, rate=0.5, causal=True), 2e-6),
        (Case(1, 128, length=256, rate=0.1, documents=True, causal=True), 2e-6),
        (Case(16, 64, rows=1, rate=0.1), 2e-6),  # in two programs of the grid
        (Case(2, 64, length=256, rate=0.1, window=20, documents=True), 2e-6),
        (Case(2, 64, rate=0.1, dtype="bfloat16"), 0.02),
    ],
    ids=str,
)
def test_kernel_equals_the_plain_path(case, tolerance):
    ours = output_and_gradients(case, by_kernel)
    for a, b in zip(ours, output_and_gradients(case, plain), strict=True):
        a, b = (np.asarray(x.astype(jnp.float32)) for x in (a, b))
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()


def test_kernel_draws_the_dropout_of_the_plain_path():
    # With an identity as values, outputs are probabilities. With equal scores these are
    # equal, so zeros were dropped.
    case = Case(3, 128, rate=0.3)
    zeros = jnp.zeros((2, 128, 3, 128))
    eye = jnp.broadcast_to(jnp.eye(128)[:, None], zeros.shape)
    pattern = AttentionPattern(jnp.ones((2, 128), bool))
    context = by_kernel(case.encoder, (zeros, zeros, eye), pattern, case.keys())
    dropped = dropout.mask(case.keys(), (3, 128, 128), 0.3)
    np.testing.assert_array_equal(context.swapaxes(1, 2) == 0, dropped)


@functools.cache
def module_results(kernels, remat="none", mesh=None):
    """Return output and gradients of the module, with all features."""
    encoder = config.EncoderConfig(
        vocab_size=11,
        hidden_size=256,
        num_heads=4,
        dtype="float32",
        kernels=kernels,
        remat=remat,
    )
    case = Case(4, 64, rows=4)
    module = attention.SelfAttention(encoder)
    x = case.arrays()[0].reshape(4, 128, 256)

    def run(params, x):
        def loss(params, x):
            y, bias, _ = module.apply(params, x, x, case.pattern(), None, case.keys())
            return jnp.sum(jnp.square(y + bias))

        return jax.value_and_grad(loss, argnums=(0, 1))(params, x)

    boxed = jax.jit(
        lambda: module.init(jax.random.key(0), x, x, case.pattern(), None, None)
    )()
    params = nn.unbox(boxed)
    if mesh is None:
        return jax.tree.leaves(jax.jit(run)(params, x))
    specs = nn.get_partition_spec(boxed)
    split = nn.logical_to_mesh_sharding(specs, mesh, sharding.RULES)
    rows = NamedSharding(mesh, P(("data", "fsdp")))
    with sharding.use(mesh):
        return jax.tree.leaves(jax.jit(run, in_shardings=(split, rows))(params, x))


def test_kernels_run_on_the_rows_and_heads_of_a_device(interpreted_kernels):
    expected = module_results("off")
    assert interpreted_kernels == []
    axes = config.MeshConfig(data=2, fsdp=2, tensor=2)
    kernel = module_results("auto", mesh=sharding.make_mesh(axes))
    assert set(interpreted_kernels) == {"attention"}
    for a, b in zip(kernel, expected, strict=True):
        # The keys' bias shifts all scores: its gradient is only rounding.
        assert np.abs(a - b).max() <= 3e-6 * max(np.abs(b).max(), 1.0)


def test_cpus_use_the_plain_path():
    auto = module_results("auto", remat="attention")
    for a, b in zip(auto, module_results("off"), strict=True):
        np.testing.assert_array_equal(a, b)


def decision(batch=2, length=128, tensor=1, data=1, heads=4, head_size=64, **fields):
    """Return the decision for TPUs, after a check with the program for them."""
    encoder = config.EncoderConfig(
        hidden_size=heads * head_size, num_heads=heads, **fields
    )
    case = Case(heads, head_size, length=length, rows=batch)
    query, key, value, _ = case.arrays()
    # Rotated queries and keys have the encoder's type, values are float32 products.
    arrays = query.astype(encoder.dtype), key.astype(encoder.dtype), value
    devices = jax.devices()[: tensor * data]
    mesh = sharding.make_mesh(config.MeshConfig(data=data, tensor=tensor), devices)

    def total(*arrays):
        context = kernels_lib.attend(
            encoder, *arrays, (None,) * 3, case.pattern(), case.keys()
        )
        return jnp.sum(context.astype(jnp.float32))

    with sharding.use(mesh):
        traced = jax.jit(jax.grad(total, argnums=(0, 1, 2))).trace(*arrays)
        decided = decisions.attention(
            encoder, "tpu", batch, length, is_local=False, has_dropout=True
        )
        counts = {
            platform: traced.lower(lowering_platforms=(platform,))
            .as_text()
            .count("tpu_custom_call")
            for platform in ("tpu", "cpu")
        }
    is_kernel = decided.implementation == decisions.TPU_KERNEL
    assert counts == {"tpu": 2 * is_kernel, "cpu": 0}
    return str(decided)


def test_tpus_use_the_kernel_where_shapes_allow():
    assert decision() == "TPU kernel"
    assert decision(length=256, tensor=2) == "TPU kernel"
    rows = "plain operations (rows of {} tokens; the kernel takes multiples of 128 up "
    assert decision(length=120).startswith(rows.format(120))
    assert decision(length=640).startswith(rows.format(640))
    assert decision(kernels="off") == "plain operations (encoder.kernels=off)"
    assert "heads of 48 columns; kernels take 32, 64, 128" in decision(
        head_size=48, heads=8
    )
    # Each device would have one head, half as wide as a register.
    assert "64 columns of heads on a device" in decision(tensor=4)
    assert "3 rows are not a multiple of 2 devices" in decision(batch=3, data=2)


@pytest.mark.plans
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("v4:2x2x1", Case(4, 64, rate=0.1, dtype="bfloat16")),
        ("v5e:1x1", Case(4, 64, rate=0.1, dtype="bfloat16")),
        ("v6e:1x1", Case(4, 64, rate=0.1, dtype="bfloat16")),
        (
            "v5e:1x1",
            Case(1, 32, length=100, rate=0.1, documents=True, causal=True),
        ),
        ("v4:2x2x1", Case(2, 64, length=256, window=64)),
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
            lambda *x: by_kernel(
                case.encoder, x, case.pattern(), case.keys(), interpret=False
            ),
            query,
            key,
            value,
        )
        return context, *pullback(g)

    text = jax.jit(run).lower(*[array] * 4).compile().as_text()
    names = re.findall(r"kernel_name = \"(\w+)\"|%(attention_\w+?)[.\d]* = ", text)
    assert {a or b for a, b in names} >= {"attention_forward", "attention_backward"}


def test_a_query_without_keys_has_neither_output_nor_gradient():
    """In every implementation; the second row's last documents are all padding."""
    case = Case(1, 32, length=128, documents=True)
    pattern = case.pattern()
    sees_nothing = ~np.asarray(pattern.mask()).any(axis=2)
    assert 0 < sees_nothing.sum() < sees_nothing.size
    for attend in (by_kernel, plain, by_cudnn):
        context, d_query, d_key, d_value = output_and_gradients(case, attend)
        assert np.abs(context[sees_nothing]).max() == 0
        assert np.abs(d_query[sees_nothing]).max() == 0
        # Keys that no query sees have no gradient, either.
        assert np.abs(d_key[~pattern.is_token]).max() == 0
        assert np.abs(d_value[~pattern.is_token]).max() == 0


def by_cudnn(encoder, arrays, pattern, keys):
    return cudnn_attention.attend(*arrays, pattern, implementation="xla")
