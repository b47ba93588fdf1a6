"""DeBERTa's attention by the TPU's kernel, against plain operations and NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import relative_distance
from tpu_compiler import assert_kernels_compile, count_kernels, needs_compiler

from bert_jax import config
from bert_jax.model import randomness
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.deberta import attention as deberta_attention
from bert_jax.model.kernels import decisions, tpu_distances
from bert_jax.training import sharding

pytestmark = pytest.mark.usefixtures("checked_shapes")


def encoder(heads=2, head_size=64, rate=0.1):
    return config.EncoderConfig(
        positions="disentangled",
        type_vocab_size=0,
        hidden_size=heads * head_size,
        num_heads=heads,
        attention_dropout_rate=rate,
        dtype="bfloat16",
        distance_buckets=32,
        max_distance=200,
    )


def make_arrays(c, length=256, rows=2):
    """Return the projections of attention, and the gradient of the output."""
    rng = np.random.default_rng(0)
    of_head = c.num_heads, c.head_size
    tokens, distances = (rows, length, *of_head), (2 * c.distance_buckets, *of_head)
    shapes = tokens, tokens, distances, distances, tokens, tokens
    return [jnp.asarray(rng.normal(size=s), jnp.bfloat16) for s in shapes]


def pattern_and_keys(arrays):
    """Return a pattern of packed rows, of all and of 100 tokens in turn, and keys."""
    rows, length = arrays[0].shape[:2]
    lengths = np.resize([length, 100], rows)
    documents = np.sort(np.random.default_rng(1).integers(0, 3, (rows, length)), axis=1)
    is_token = jnp.asarray(np.arange(length) < lengths[:, None])
    keys = randomness.row_keys(3, "dropout", jnp.int32(5), jnp.arange(rows))
    return AttentionPattern(is_token, jnp.asarray(documents, jnp.int32)), keys


def output_and_gradients(c, attend, arrays, positions=None):
    """Return output and gradients of tokens. The output of padding has no gradient."""
    *projections, g = arrays
    pattern, keys = pattern_and_keys(arrays)
    is_read = pattern.is_token
    if positions is not None:
        is_read = jnp.take_along_axis(is_read, positions, axis=1)
        g = g[:, : positions.shape[1]]

    @jax.jit
    def run(projections, g):
        def read(*projections):
            context = attend(c, projections, pattern, keys, positions)
            return jnp.where(is_read[..., None, None], context, 0)

        context, pull_back = jax.vjp(read, *projections)
        return context, *pull_back(g)

    return run(projections, g)


def plain(*arguments):
    return deberta_attention.plain(*arguments)[0]


def assert_equals_plain(got, c, arrays, positions=None):
    """Compare with plain operations in float32."""
    exact = dataclasses.replace(c, dtype="float32")
    arrays = [array.astype("float32") for array in arrays]
    expected = output_and_gradients(exact, plain, arrays, positions)
    for a, b in zip(got, expected, strict=True):
        assert relative_distance(a, b) < 0.01


@pytest.mark.parametrize(
    ("heads", "head_size", "length"),
    [
        (4, 64, 256),  # in two programs for each row
        pytest.param(4, 32, 128, marks=pytest.mark.runs),
        pytest.param(1, 128, 384, marks=pytest.mark.runs),
    ],
)
def test_kernel_equals_plain_operations(heads, head_size, length, simulated_kernels):
    c = encoder(heads, head_size)
    arrays = make_arrays(c, length)
    got = output_and_gradients(c, deberta_attention.by_kernel, arrays)
    assert_equals_plain(got, c, arrays)


def test_kernel_adds_up_gradients_of_distances_over_devices(interpreted_kernels):
    """Of four devices, two have other rows, and two have other heads."""
    c = encoder(heads=4, rate=0.0)
    positions = jnp.asarray(np.random.default_rng(2).integers(0, 256, (4, 7)))
    arrays = make_arrays(c, rows=4)
    mesh = sharding.make_mesh(config.MeshConfig(data=2, tensor=2), jax.devices()[:4])
    with sharding.use(mesh):
        got = output_and_gradients(c, deberta_attention.by_kernel, arrays, positions)
    assert_equals_plain(got, c, arrays, positions)


def test_packed_scores_are_rounded():
    x = np.random.default_rng(0).normal(size=(128, 256)).astype(np.float32)
    got = tpu_distances._unpack(tpu_distances._pack(jnp.asarray(x), 1), 1, 256)
    expected = x.astype(jnp.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(got, expected)


def tpu_decision(c, length=256):
    """Return the decision for TPUs, after a check with the program for them."""
    *projections, _ = arrays = make_arrays(c, length)

    def total(projections):
        rows = pattern_and_keys(arrays)
        context = deberta_attention._attend(c, projections, *rows, None)
        return jnp.sum(context.astype(jnp.float32))

    traced = jax.jit(jax.grad(total)).trace(tuple(projections))
    decided = decisions.attention(c, "tpu", 2, length, is_local=False, has_dropout=True)
    calls = {decisions.TPU_KERNEL: 2, decisions.PLAIN: 0}
    assert count_kernels(traced) == calls[decided.implementation]
    return str(decided)


def test_tpus_use_the_kernel_where_shapes_allow():
    assert tpu_decision(encoder()) == "TPU kernel"
    assert tpu_decision(encoder(), length=128) == "TPU kernel"
    assert "rows of more than 512 tokens" in tpu_decision(encoder(), length=640)
    exact = dataclasses.replace(encoder(), dtype="float32")
    assert "distances are float32, not bfloat16" in tpu_decision(exact)
    on_gpu = decisions.attention(
        encoder(), "cuda", 2, 256, is_local=False, has_dropout=False
    )
    assert "platform cuda has disentangled positions" in str(on_gpu)


@needs_compiler
@pytest.mark.parametrize(
    "name", ["v4:2x2x1", pytest.param("v5e:1x1", marks=pytest.mark.slow)]
)
def test_kernels_compile_for_the_longest_rows(name):
    """Four heads share a window: no other head size needs more memory."""
    c = encoder(heads=4, head_size=32)

    def run(*arrays):
        return output_and_gradients(c, deberta_attention.by_kernel, arrays)

    arrays = make_arrays(c, decisions.MAX_LENGTH_WITH_DISTANCES)
    assert_kernels_compile(name, "attention", run, arrays)
