"""Attention by cuDNN: its call, its conditions, and its result on a GPU."""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import config
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.kernels import attention, cudnn_attention, decisions

ROWS, LENGTH, HEADS, HEAD_SIZE = 3, 128, 4, 64
needs_gpu = pytest.mark.skipif(
    not decisions.is_cudnn_available(), reason="no NVIDIA GPU"
)


def encoder(**fields):
    return config.EncoderConfig(
        **{"hidden_size": HEADS * HEAD_SIZE, "num_heads": HEADS} | fields
    )


def make_pattern(*, packed, causal=False):
    """A full row, one that is half padding, and one that is all padding."""
    columns = np.arange(LENGTH)
    mask = columns < np.array([LENGTH, LENGTH // 2, 0])[:, None]
    documents = np.broadcast_to(columns // 40, mask.shape)
    return AttentionPattern(
        jnp.asarray(mask),
        jnp.asarray(documents, jnp.int32) if packed else None,
        causal=causal,
    )


def output_and_gradients(attend, pattern, dtype):
    """Return output and gradients of tokens; nothing reads the output of padding."""
    rng = np.random.default_rng(0)
    shape = ROWS, LENGTH, HEADS, HEAD_SIZE
    query, key, value, g = (jnp.asarray(rng.normal(size=shape), dtype) for _ in "qkvg")
    is_read = pattern.is_token[..., None, None]

    def read(*arrays):
        return jnp.where(is_read, attend(arrays, pattern), 0)

    @jax.jit
    def run(*arrays):
        context, pullback = jax.vjp(read, *arrays)
        return context, *pullback(g)

    return [np.asarray(x, np.float32) for x in run(query, key, value)]


def assert_equals_plain(dtype, tolerance, *, packed, causal, implementation):
    pattern = make_pattern(packed=packed, causal=causal)

    def fused(arrays, pattern):
        return cudnn_attention.attend(*arrays, pattern, implementation=implementation)

    def plain(arrays, pattern):
        return attention._plain(
            encoder(dtype=dtype), arrays, (None,) * 3, pattern, None
        )

    expected = output_and_gradients(plain, pattern, dtype)
    for a, b in zip(output_and_gradients(fused, pattern, dtype), expected, strict=True):
        assert np.isfinite(a).all()
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()


masks = pytest.mark.parametrize(
    ("packed", "causal"),
    [(False, False), (True, False), (False, True), (True, True)],
    ids=["padding", "packed", "causal", "packed-causal"],
)


@masks
def test_the_call_describes_what_the_plain_path_computes(packed, causal):
    assert_equals_plain(
        "float32", 2e-6, packed=packed, causal=causal, implementation="xla"
    )


@needs_gpu
@masks
def test_cudnn_equals_the_plain_path(packed, causal):
    assert_equals_plain(
        "bfloat16", 0.02, packed=packed, causal=causal, implementation="cudnn"
    )


@pytest.mark.parametrize(
    ("packed", "causal", "call", "mask"),
    [
        (False, False, "fmhaSoftmax", "PADDING"),
        (False, True, "fmhaSoftmax", "PADDING_CAUSAL"),
        (True, False, "fmhaScaleBiasSoftmax", "PADDING"),
        (True, True, "fmhaScaleBiasSoftmax", "PADDING_CAUSAL"),
    ],
    ids=str,
)
def test_programs_for_gpus_call_cudnn(packed, causal, call, mask, monkeypatch):
    """Lowered without a GPU: all that tracing asks for is the version of cuDNN."""
    version = "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version"
    monkeypatch.setattr(version, lambda: 91_300)
    monkeypatch.setattr(decisions, "is_cudnn_available", lambda: True)
    shape = ROWS, LENGTH, HEADS, HEAD_SIZE
    pattern = make_pattern(packed=packed, causal=causal)

    def total(*arrays):
        context = attention.attend(encoder(), *arrays, (None,) * 3, pattern, None)
        return jnp.sum(context.astype(jnp.float32))

    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    traced = jax.jit(jax.grad(total, argnums=(0, 1, 2))).trace(x, x, x)
    cuda, cpu = (
        traced.lower(lowering_platforms=(name,)).as_text() for name in ("cuda", "cpu")
    )
    assert set(re.findall(r"__cudnn\$(\w+)", cuda)) == {call, f"{call}Backward"}
    assert set(re.findall(r"mask_type\\22: \\22(\w+)", cuda)) == {mask}
    assert "cudnn" not in cpu


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({}, ""),
        ({"has_dropout": True}, "dropout"),
        ({"dtype": "float32"}, "computes in bfloat16, not float32"),
        ({"length": 100}, ""),
        ({"hidden_size": 160}, ""),
        ({"hidden_size": 176}, "heads of 44 columns"),
        ({"hidden_size": 1024}, "heads of 256 columns"),
        ({"is_local": True}, "one-sided"),
        ({"kernels": "off"}, "encoder.kernels=off"),
    ],
    ids=str,
)
def test_gpus_use_cudnn_where_it_applies(case, reason, monkeypatch):
    monkeypatch.setattr(decisions, "is_cudnn_available", lambda: True)
    case = {"length": LENGTH, "is_local": False, "has_dropout": False} | case
    names = ("length", "is_local", "has_dropout")
    length, is_local, has_dropout = (case.pop(name) for name in names)
    got = decisions.attention(
        encoder(**case),
        "cuda",
        ROWS,
        length,
        is_local=is_local,
        has_dropout=has_dropout,
    )
    assert (got.implementation == decisions.CUDNN) == (not reason)
    assert reason in got.reason


def device(platform, version, capability):
    return types.SimpleNamespace(
        platform=platform,
        client=types.SimpleNamespace(platform_version=version),
        compute_capability=capability,
    )


@pytest.mark.parametrize(
    ("description", "available"),
    [
        (("gpu", "PJRT C API\ncuda 12090", "8.0"), True),
        (("gpu", "PJRT C API\ncuda 12090", "7.5"), False),
        (("gpu", "PJRT C API\nrocm 60000", "gfx942"), False),
        (("cpu", "cpu", None), False),
    ],
)
def test_cudnn_needs_a_recent_nvidia_gpu(description, available, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [device(*description)])
    assert decisions.is_cudnn_available() == available
