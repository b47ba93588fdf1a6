"""Attention kernels of TPUs and GPUs: their choice, and results of the plain path."""

import dataclasses
import functools
import re
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tpu_compiler import assert_kernels_compile, count_kernels, needs_compiler

from bert_jax import config
from bert_jax.model import randomness, rotary
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.kernels import attention as kernels_lib
from bert_jax.model.kernels import (
    block_sizes,
    decisions,
    overlapping_pieces,
    tpu_attention,
)
from bert_jax.training import sharding

pytestmark = pytest.mark.usefixtures("checked_shapes")

NO_BIASES = (None,) * 3
HALF = "bfloat16"


@dataclasses.dataclass(frozen=True)
class Case:
    """A shape, and an attention pattern."""

    heads: int = 2
    head_size: int = 64
    length: int = 128
    rows: int = 3
    rate: float = 0.0
    causal: bool = False
    window: int | None = None
    documents: bool = False
    rotary: bool = False
    dtype: str = "float32"
    key_heads: int = 0  # heads of keys and values; 0: as many as of queries

    @property
    def encoder(self):
        return config.EncoderConfig(
            hidden_size=self.heads * self.head_size,
            num_heads=self.heads,
            num_key_value_heads=self.key_heads,
            attention_dropout_rate=self.rate,
            dtype=self.dtype,
        )

    def pattern(self):
        """Return a pattern of a full row, one of 5 tokens, one of none, and so on.

        With documents, padding in the documents behind the tokens' sees no key.
        """
        rng = np.random.default_rng(1)
        lengths = np.resize([self.length, 5, 0], self.rows)
        documents = np.sort(rng.integers(0, 3, (self.rows, self.length)), axis=1)
        return AttentionPattern(
            jnp.asarray(np.arange(self.length) < lengths[:, None]),
            jnp.asarray(documents, jnp.int32) if self.documents else None,
            causal=self.causal,
            window=self.window,
            rotations=self.rotations(),
        )

    def rotations(self):
        """Return rotations of packed rows if there are documents, else of any row."""
        if not self.rotary:
            return None
        positions = np.arange(self.length)[None]
        if self.documents:
            positions = positions - 7 * np.arange(self.rows)[:, None]
        return rotary.rotations(jnp.asarray(positions), self.head_size, 100.0)

    def arrays(self):
        """Return queries, keys and values, their biases, and the output's gradient."""
        rng = np.random.default_rng(0)
        shape = self.rows, self.length, self.heads, self.head_size
        of_keys = *shape[:2], self.key_heads or self.heads, self.head_size
        projections = shape, of_keys, of_keys
        return [
            jnp.asarray(rng.normal(size=shape), dtype)
            for shape, dtype in (
                *((each, self.dtype) for each in projections),
                *((each[2:], "float32") for each in projections),
                (shape, self.dtype),
            )
        ]

    def keys(self):
        rows = jnp.arange(self.rows)
        return randomness.row_keys(3, "dropout", jnp.int32(5), rows)


def output_and_gradients(case, attend, *arrays):
    """Return output and gradients of tokens; nothing reads the output of padding."""
    pattern = case.pattern()

    def read(*arrays):
        projections, biases = arrays[:3], arrays[3:]
        context = attend(case.encoder, projections, biases, pattern, case.keys())
        return jnp.where(pattern.is_token[..., None, None], context, 0)

    @jax.jit
    def run(*arrays):
        *arrays, g = arrays
        context, pullback = jax.vjp(read, *arrays)
        return context, *pullback(g)

    return run(*arrays) if arrays else run(*case.arrays())


plain = kernels_lib._plain
by_kernel = kernels_lib._tpu


# Attention of rows that are cut into pieces of 128 positions.
_shortened = mock.patch.object(block_sizes, "MAX_LENGTH", 128)
by_pieces = _shortened(kernels_lib._tpu_pieces)
by_kernel_of_long_rows = _shortened(by_kernel)
by_cudnn = functools.partial(kernels_lib._cudnn, implementation="xla")


def assert_equals_plain(case, got, plain=plain):
    tolerance = 3e-6 if case.dtype == "float32" else 0.02
    expected = output_and_gradients(case, plain)
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        assert np.isfinite(a).all()
        # The keys' bias shifts all scores: its gradient is rounding of that of queries.
        size = np.abs(expected[4] if i == 5 else b).max()
        assert np.abs(a - b).max() <= tolerance * size


@pytest.mark.parametrize(
    ("attend", "case"),
    [
        (by_kernel, Case(1, 128, length=256, rate=0.5, documents=True, causal=True)),
        (by_kernel, Case(16, 64, rows=1, rate=0.1)),  # in two programs of the grid
        (by_kernel, Case(length=256, rate=0.1, window=20, documents=True)),
        (by_kernel, Case(rate=0.1, dtype=HALF)),
        (by_kernel, Case(4, 32, 256, 3, 0.1, rotary=True, documents=True, key_heads=2)),
        (by_kernel, Case(1, 128, rate=0.1, rotary=True)),
        # Queries meet some blocks of keys only.
        (by_kernel, Case(1, 128, 512, 2, rotary=True, window=64, documents=True)),
        (by_kernel, Case(1, 128, 512, 2, window=130, causal=True)),
        (by_pieces, Case(length=384, window=20, rotary=True, documents=True)),
        pytest.param(
            by_pieces,
            Case(4, 32, length=256, window=128, causal=True, rotary=True),
            marks=pytest.mark.runs,
        ),
        (by_kernel_of_long_rows, Case(length=384, rotary=True, documents=True)),
        # Queries meet some pieces only.
        (by_kernel_of_long_rows, Case(length=512, window=150, documents=True)),
        (by_kernel_of_long_rows, Case(1, 128, 512, causal=True, dtype=HALF)),
        pytest.param(
            kernels_lib._cudnn,
            Case(documents=True, causal=True, rotary=True, dtype=HALF),
            id="cudnn",
            marks=pytest.mark.skipif(
                not decisions.is_cudnn_available(), reason="no NVIDIA GPU"
            ),
        ),
    ],
    ids=lambda x: str(x) if isinstance(x, Case) else "",  # no addresses of functions
)
def test_kernels_equal_the_plain_path(attend, case, simulated_kernels):
    assert_equals_plain(case, output_and_gradients(case, attend))


@pytest.mark.parametrize(
    ("attend", "case"),
    [
        (by_kernel, Case(8, 32, 256, 4, rotary=True, documents=True)),
        (by_kernel_of_long_rows, Case(4, length=512, rows=4, rotary=True)),
        (by_kernel_of_long_rows, Case(4, 64, 256, 4, documents=True, dtype=HALF)),
    ],
    ids=lambda x: str(x) if isinstance(x, Case) else "",
)
def test_kernel_serves_some_positions_only(attend, case, interpreted_kernels):
    """150 queries are padded to two chunks."""
    rng = np.random.default_rng(2)
    asked = jnp.asarray(rng.integers(0, case.length, (case.rows, 150)))

    def at_positions(attend):
        def run(encoder, projections, *others):
            query, key, value = projections
            query = jnp.take_along_axis(query, asked[..., None, None], axis=1)
            context = attend(encoder, (query, key, value), *others[:-1], None, asked)
            index = jnp.arange(case.rows)[:, None], asked
            return jnp.zeros_like(projections[0]).at[index].set(context)

        return run

    mesh = sharding.make_mesh(config.MeshConfig(data=2, tensor=2), jax.devices()[:4])
    with sharding.use(mesh):
        got = output_and_gradients(case, at_positions(attend))
    assert_equals_plain(case, got, at_positions(plain))


@pytest.mark.parametrize("window", [64, 128])
def test_overlapping_pieces_are_whole_in_the_kernel(window):
    """In pieces of its own, the kernel would compute all scores of a piece."""
    length = overlapping_pieces.cut(jnp.zeros((1, 8192, 1)), window).shape[1]
    assert tpu_attention._piece_size(length, window) == length
    # Two such pieces of a longer row are too large for the memory of a v4.
    assert tpu_attention._piece_size(2560, 2 * window + 1) == 640


@pytest.mark.parametrize("attend", [by_kernel, by_kernel_of_long_rows, plain, by_cudnn])
def test_a_query_without_keys_has_no_output_and_no_gradient(
    attend, interpreted_kernels
):
    """In the first two rows, the last documents are all padding."""
    case = Case(4, 32, 256, documents=True)
    pattern = case.pattern()
    is_token = pattern.is_token.at[0, 50:].set(False)
    pattern = dataclasses.replace(pattern, is_token=is_token)
    sees_nothing = ~np.asarray(pattern.mask()).any(axis=2)
    assert 0 < sees_nothing[0].sum() < sees_nothing[0].size
    *projections, _, _, _, g = case.arrays()
    context, pullback = jax.vjp(
        lambda *x: attend(case.encoder, x, NO_BIASES, pattern, None), *projections
    )
    d_query, d_key, d_value = pullback(g)
    assert np.abs(context[sees_nothing]).max() == 0
    assert np.abs(d_query[sees_nothing]).max() == 0
    # Keys that no query sees have no gradient, either.
    assert np.abs(d_key[~pattern.is_token]).max() == 0
    assert np.abs(d_value[~pattern.is_token]).max() == 0


def test_kernels_run_on_the_rows_and_heads_of_a_device(interpreted_kernels):
    attend = kernels_lib.attend
    case = Case(4, rows=4, rate=0.1, documents=True, rotary=True)
    with sharding.use(sharding.make_mesh(config.MeshConfig(data=2, fsdp=2, tensor=2))):
        got = output_and_gradients(case, attend)
        traced = jax.make_jaxpr(lambda: output_and_gradients(case, attend))()
    assert "pallas_call" in str(traced)
    assert_equals_plain(case, got)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_cudnn_runs_on_the_rows_and_heads_of_a_device(causal, documents, monkeypatch):
    """Without a GPU: the results of the same call of XLA, and the program for GPUs.

    Gradients of micro-batches are summed inside a `shard_map` over one of the axes.
    """
    case = Case(4, rows=4, documents=documents, causal=causal, rotary=True, key_heads=2)
    mesh = sharding.make_mesh(config.MeshConfig(data=2, fsdp=2, tensor=2))
    with sharding.use(mesh):
        got = output_and_gradients(case, by_cudnn)
    assert_equals_plain(case, got)

    version = "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version"
    monkeypatch.setattr(version, lambda: 91_300)
    monkeypatch.setattr(decisions, "is_cudnn_available", lambda: True)
    case = dataclasses.replace(case, dtype=HALF)

    def differentiate(_, batch, *others):
        projections, *rows = batch

        def total(projections):
            pattern = AttentionPattern(*rows, causal=causal)
            arguments = NO_BIASES, pattern, None
            context = kernels_lib.attend(case.encoder, projections, *arguments)
            return jnp.sum(context.astype(jnp.float32))

        value, gradients = jax.value_and_grad(total)(projections)
        return value, jax.tree.map(jnp.sum, gradients)

    summed = sharding.sum_over_replicas(differentiate, mesh, jnp.float32)
    pattern = case.pattern()
    batch = tuple(case.arrays()[:3]), pattern.is_token, pattern.documents
    with sharding.use(mesh):
        traced = jax.jit(summed).trace(None, batch, None, None)
        cuda, cpu = (
            traced.lower(lowering_platforms=(name,)).as_text()
            for name in ("cuda", "cpu")
        )
    assert "cudnn" not in cpu
    call = "fmhaScaleBiasSoftmax" if documents else "fmhaSoftmax"
    assert set(re.findall(r"__cudnn\$(\w+)", cuda)) == {call, f"{call}Backward"}
    mask = "PADDING_CAUSAL" if causal else "PADDING"
    assert set(re.findall(r"mask_type\\22: \\22(\w+)", cuda)) == {mask}
    assert "CustomSPMDPartitioning" not in cuda  # XLA's partitioner fails on it here


# ---- which implementation runs


def tpu_decision(
    batch=2, length=128, tensor=1, data=1, heads=4, head_size=64, rate=0.1, **more
):
    """Return the decision for TPUs, after a check with the program for them."""
    case = Case(heads, head_size, length, batch, rate, dtype=HALF)
    encoder = dataclasses.replace(case.encoder, **more)
    arrays = case.arrays()[:3]
    devices = jax.devices()[: tensor * data]
    mesh = sharding.make_mesh(config.MeshConfig(data=data, tensor=tensor), devices)

    def total(*arrays):
        pattern, keys = case.pattern(), case.keys()
        context = kernels_lib.attend(encoder, arrays, NO_BIASES, pattern, keys)
        return jnp.sum(context.astype(jnp.float32))

    with sharding.use(mesh):
        traced = jax.jit(jax.grad(total, argnums=(0, 1, 2))).trace(*arrays)
        decided = decisions.attention(
            encoder, "tpu", batch, length, is_local=False, has_dropout=rate > 0
        )
        calls = {decisions.TPU_KERNEL: 2, decisions.PLAIN: 0}
        assert count_kernels(traced) == calls[decided.implementation]
    return str(decided)


def test_tpus_use_the_kernel_where_shapes_allow():
    assert tpu_decision() == "TPU kernel"
    assert tpu_decision(length=256, tensor=2) == "TPU kernel"
    assert tpu_decision(length=1152, rate=0.0, tensor=2) == "TPU kernel"
    rows = "plain operations (rows of 120 tokens; kernels take multiples of 128)"
    assert tpu_decision(length=120) == rows
    assert "more than 1024 tokens with dropout" in tpu_decision(length=1152)
    assert tpu_decision(kernels="off") == "plain operations (encoder.kernels=off)"
    assert "heads of 48 columns; kernels take 32, 64, 128" in tpu_decision(
        head_size=48, heads=8
    )
    small = {"head_size": 32, "length": 640, "dtype": "float32"}
    assert "more than 512 tokens in float32" in tpu_decision(**small)
    # Each device would have one head, half as wide as a register.
    assert "64 columns of heads on a device" in tpu_decision(tensor=4)
    assert "3 rows are not a multiple of 2 devices" in tpu_decision(batch=3, data=2)


@pytest.mark.parametrize(
    ("kind", "dtype", "length", "parts"),
    [
        ("TPU v2", "bfloat16", 128, "residuals"),
        ("TPU v3", "float32", 128, "residuals"),
        ("TPU v4", "float32", 256, "attention, residuals"),
        ("TPU v4", "float32", 512, "residuals"),
        ("TPU v4", "bfloat16", 512, "attention, residuals, cross entropy"),
        ("TPU v4", "bfloat16", 8192, "attention, residuals, cross entropy"),
        ("TPU v4", "bfloat16", 16384, "residuals, cross entropy"),
        ("TPU v5 lite", "float32", 1024, "attention, residuals"),
        ("TPU v5 lite", "bfloat16", 16384, "attention, residuals, cross entropy"),
    ],
)
def test_old_tpus_have_fewer_kernels(kind, dtype, length, parts):
    device = jax.sharding.AbstractDevice(kind, 1, "tpu")
    mesh = jax.sharding.AbstractMesh((2,), ("data",), abstract_device=device)
    encoder = config.EncoderConfig(dtype=dtype, attention_dropout_rate=0.0)
    with jax.sharding.use_abstract_mesh(mesh):
        text = decisions.describe(
            encoder, "tpu", 8, length, predictions=300, logits_reader=""
        )
    assert f"{parts}: TPU kernel" in text.split("; ")


@pytest.mark.parametrize(
    ("queries", "fields", "is_kernel"),
    [
        (150, {}, True),
        (100, {}, False),
        (257, {}, False),
        (150, {"causal": True}, False),
        (150, {"window": 64}, False),
        (150, {"rate": 0.1}, False),
    ],
)
def test_tpus_use_the_kernel_for_many_positions_of_global_attention(
    queries, fields, is_kernel
):
    case = Case(length=256, **fields)
    encoder = dataclasses.replace(case.encoder, causal=case.causal)
    query, key, value, *_ = case.arrays()
    positions = jnp.zeros((case.rows, queries), jnp.int32)

    def attend(*projections):
        return kernels_lib.attend(
            encoder, projections, NO_BIASES, case.pattern(), case.keys(), positions
        )

    query = query[:, jnp.arange(queries) % case.length]
    traced = jax.jit(attend).trace(query, key, value)
    for platform, has_kernel in (("tpu", is_kernel), ("cpu", False), ("cuda", False)):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("tpu_custom_call" in text) == has_kernel


def test_runs_and_plans_name_each_part_and_the_reason(monkeypatch):
    monkeypatch.setattr(decisions, "is_cudnn_available", lambda: True)
    modern = config.EncoderConfig(
        positions="rotary",
        attention_window=64,
        global_layer_every=3,
        norm_placement="pre",
        feed_forward="gated",
        linear_bias=False,
        attention_dropout_rate=0.0,
    )
    describe = functools.partial(
        decisions.describe, modern, predictions=300, logits_reader=""
    )
    assert describe("tpu", 8, 512) == (
        "global attention, local attention, residuals, feed-forward, cross entropy: "
        "TPU kernel"
    )
    assert describe("tpu", 8, 8192) == (
        "global attention, residuals, feed-forward, cross entropy: TPU kernel; local "
        "attention: TPU kernel on overlapping pieces"
    )
    assert describe("cuda", 8, 8192) == (
        "global attention: cuDNN; local attention: plain operations (the window of "
        "JAX's cuDNN call is one-sided); residuals, feed-forward, cross entropy: plain "
        "operations (no kernel for platform cuda)"
    )


@needs_compiler
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("v6e:1x1", Case(4, rate=0.1, dtype=HALF)),
        ("v5e:1x1", Case(4, 32, rate=0.1, documents=True, causal=True)),
        ("v5e:1x1", Case(length=8192, rows=1, window=64, dtype=HALF)),
        ("v4:2x2x1", Case(length=8192, rows=1, rotary=True, dtype=HALF)),
        ("v4:2x2x1", Case(length=256, rate=0.1, documents=True, rotary=True)),
        ("v5p:2x2x1", Case(rate=0.1, dtype=HALF)),
        ("tpu7x:2x2x1", Case(rate=0.1, dtype=HALF)),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in (
                ("v4:2x2x1", Case(length=1024, window=64, rotary=True, dtype=HALF)),
                ("v6e:1x1", Case(4, 32, 1024, documents=True, rotary=True, dtype=HALF)),
                ("v4:2x2x1", Case(length=1024, rate=0.1, rotary=True, dtype=HALF)),
                ("v5e:1x1", Case(length=1024, rate=0.1, documents=True, rotary=True)),
                ("v5e:1x1", Case(4, 32, 512, rate=0.1, documents=True, rotary=True)),
            )
        ),
    ],
    ids=str,
)
def test_kernels_compile(name, case):
    in_pieces = case.window and case.length > block_sizes.MAX_LENGTH
    attend = kernels_lib._tpu_pieces if in_pieces else by_kernel
    run = functools.partial(output_and_gradients, case, attend)
    assert_kernels_compile(name, "attention", run, case.arrays())


@pytest.mark.parametrize(
    ("fields", "request_", "reason"),
    [
        ({}, {}, ""),
        ({}, {"length": 100}, ""),
        ({"hidden_size": 160}, {}, ""),
        ({}, {"has_dropout": True}, "dropout"),
        ({"dtype": "float32"}, {}, "computes in bfloat16, not float32"),
        ({"hidden_size": 176}, {}, "heads of 44 columns"),
        ({"hidden_size": 1024}, {}, "heads of 256 columns"),
        ({}, {"is_local": True}, "one-sided"),
        ({}, {"length": 101}, "rows of 101 tokens; cuDNN takes even lengths"),
        ({}, {"batch": 3}, "3 rows are not a multiple of 2 devices"),
    ],
)
def test_gpus_use_cudnn_where_it_applies(fields, request_, reason, monkeypatch):
    monkeypatch.setattr(decisions, "is_cudnn_available", lambda: True)
    encoder = config.EncoderConfig(**{"hidden_size": 256, "num_heads": 4} | fields)
    asked = {"batch": 2, "length": 128, "is_local": False, "has_dropout": False}
    mesh = sharding.make_mesh(config.MeshConfig(data=2), jax.devices()[:2])
    with sharding.use(mesh):
        got = decisions.attention(encoder, "cuda", **(asked | request_))
    assert (got.implementation == decisions.CUDNN) == (not reason)
    assert reason in got.reason


@pytest.mark.parametrize(
    ("platform", "version", "capability", "available"),
    [
        ("gpu", "PJRT C API\ncuda 12090", "8.0", True),
        ("gpu", "PJRT C API\ncuda 12090", "7.5", False),
        ("gpu", "PJRT C API\nrocm 60000", "gfx942", False),
    ],
)
def test_cudnn_needs_a_recent_nvidia_gpu(
    platform, version, capability, available, monkeypatch
):
    device = types.SimpleNamespace(
        platform=platform,
        client=types.SimpleNamespace(platform_version=version),
        compute_capability=capability,
    )
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert decisions.is_cudnn_available() == available
