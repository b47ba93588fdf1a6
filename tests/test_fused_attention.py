"""Attention by cuDNN: what it is asked for, when, and on a GPU what it gives."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import config
from bert_jax.model import attention, fused_attention
from bert_jax.model.inputs import Inputs

ROWS, LENGTH, HEADS, HEAD_SIZE = 3, 128, 4, 64
needs_gpu = pytest.mark.skipif(
    not fused_attention.is_available(), reason="no NVIDIA GPU"
)


def encoder(**fields):
    return config.EncoderConfig(
        **{"hidden_size": HEADS * HEAD_SIZE, "num_heads": HEADS} | fields
    )


def make_inputs(*, packed):
    """A full row, one that is half padding, and one that is all padding."""
    columns = np.arange(LENGTH)
    mask = columns < np.array([LENGTH, LENGTH // 2, 0])[:, None]
    documents = np.broadcast_to(columns // 40, mask.shape)
    return Inputs(
        jnp.zeros(mask.shape, jnp.int32),
        jnp.asarray(mask),
        documents=jnp.asarray(documents, jnp.int32) if packed else None,
    )


def output_and_gradients(attend, inputs, dtype):
    """Of the positions that are no padding: nobody reads what others get."""
    rng = np.random.default_rng(0)
    shape = ROWS, LENGTH, HEADS, HEAD_SIZE
    query, key, value, g = (jnp.asarray(rng.normal(size=shape), dtype) for _ in "qkvg")
    is_read = inputs.attention_mask[..., None, None]

    def read(*arrays):
        return jnp.where(is_read, attend(*arrays, inputs, None), 0)

    @jax.jit
    def run(*arrays):
        context, pullback = jax.vjp(read, *arrays)
        return context, *pullback(g)

    return [np.asarray(x, np.float32) for x in run(query, key, value)]


def assert_equals_plain(dtype, tolerance, *, packed, causal, implementation):
    inputs = make_inputs(packed=packed)

    def fused(query, key, value, inputs, keys):
        return fused_attention.attend(
            query,
            key,
            value,
            inputs.attention_mask,
            inputs.documents,
            causal=causal,
            implementation=implementation,
        )

    plain = functools.partial(attention._plain, encoder(causal=causal, dtype=dtype))
    ours = output_and_gradients(fused, inputs, dtype)
    for a, b in zip(ours, output_and_gradients(plain, inputs, dtype), strict=True):
        assert np.isfinite(a).all()
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()


masks = pytest.mark.parametrize(
    ("packed", "causal"),
    [(False, False), (True, False), (False, True), (True, True)],
    ids=["padding", "packed", "causal", "packed-causal"],
)


@masks
def test_it_is_asked_for_what_the_plain_path_computes(packed, causal):
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
def test_programs_for_gpus_have_it(packed, causal, call, mask, monkeypatch):
    """Lowered without a GPU: all that tracing asks for is the version of cuDNN."""
    version = "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version"
    monkeypatch.setattr(version, lambda: 91_300)
    monkeypatch.setattr(fused_attention, "is_available", lambda: True)
    shape = ROWS, LENGTH, HEADS, HEAD_SIZE
    c = encoder(causal=causal)
    inputs = make_inputs(packed=packed)

    def total(query, key, value):
        context = attention.attend(c, query, key, value, inputs, None)
        return jnp.sum(context.astype(jnp.float32))

    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    traced = jax.jit(jax.grad(total, argnums=(0, 1, 2))).trace(x, x, x)
    cuda, cpu = (
        traced.lower(lowering_platforms=(name,)).as_text() for name in ("cuda", "cpu")
    )
    assert set(re.findall(r"__cudnn\$(\w+)", cuda)) == {call, f"{call}Backward"}
    assert set(re.findall(r"mask_type\\22: \\22(\w+)", cuda)) == {mask}
    assert "cudnn" not in cpu


def platforms(length=LENGTH, rate=0.0, **fields):
    """Platforms that have a path of their own."""
    c = encoder(**fields)
    shape = ROWS, length, c.num_heads, c.head_size
    return sorted(attention._paths(c, shape, jnp.dtype(c.dtype), rate)[0])


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({}, ["cuda", "tpu"]),
        ({"rate": 0.1}, ["tpu"]),
        ({"dtype": "float32"}, ["tpu"]),
        ({"length": 100}, ["cuda"]),
        ({"hidden_size": 160}, ["cuda"]),
        ({"hidden_size": 176}, []),
        ({"hidden_size": 1024}, []),
        ({"attention": "plain"}, []),
        ({"attention": "kernel"}, ["tpu"]),
    ],
    ids=str,
)
def test_auto_takes_what_suits(case, expected, monkeypatch):
    monkeypatch.setattr(fused_attention, "is_available", lambda: True)
    assert platforms(**case) == expected


class Client:
    def __init__(self, version):
        self.platform_version = version


class Device:
    def __init__(self, platform, version, capability):
        self.platform, self.client = platform, Client(version)
        self.compute_capability = capability


@pytest.mark.parametrize(
    ("device", "available"),
    [
        (Device("gpu", "PJRT C API\ncuda 13000", "9.0"), True),
        (Device("gpu", "PJRT C API\ncuda 12090", "8.0"), True),
        (Device("gpu", "PJRT C API\ncuda 12090", "7.5"), False),
        (Device("gpu", "PJRT C API\nrocm 60000", "gfx942"), False),
        (Device("tpu", "PJRT C API", None), False),
        (Device("cpu", "cpu", None), False),
    ],
    ids=lambda x: "",
)
def test_only_where_the_devices_have_it(device, available, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert fused_attention.is_available() == available
