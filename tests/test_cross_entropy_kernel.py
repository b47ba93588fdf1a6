"""The TPU kernels of the cross entropy: equal to a restatement, and compiled."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from toy import assert_trees_close
from tpu_compiler import assert_kernels_compile, count_kernels, needs_compiler

from bert_jax import config
from bert_jax.model import cross_entropy
from bert_jax.model.kernels import block_sizes, tpu_cross_entropy
from bert_jax.objectives import metric_sums
from bert_jax.training import sharding

pytestmark = pytest.mark.usefixtures("checked_shapes")

# Several blocks of rows and of the vocabulary, whose last ones are not full.
SHAPE, VOCAB_SIZE, PADDED_SIZE = (8, 75), 2200, 2304


def arrays_of(shape=SHAPE, columns=128):
    """Return vectors, table, bias, labels, and gradients of the loss."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(*shape, columns)).astype(np.float32)
    table = 0.3 * rng.normal(size=(PADDED_SIZE, columns)).astype(np.float32)
    bias = rng.normal(size=PADDED_SIZE).astype(np.float32)
    labels = rng.integers(VOCAB_SIZE, size=shape).astype(np.int32)
    gradient = rng.normal(size=shape) * (rng.random(shape) < 0.8)
    # Two equal vectors in blocks 0 and 1: the logits of these tokens tie.
    table[1500], bias[1500] = table[7], bias[7] = 0.2 * x[0, 0], 0.0
    labels[0, :2] = 7, 1500
    x[0, 1] = x[0, 0]
    # Padding beyond the vocabulary would win if it were not masked out.
    bias[VOCAB_SIZE:] = 1e4
    return x, table, bias, labels, gradient.astype(np.float32)


def restated(x, table, bias, labels, gradient, vocab_size=VOCAB_SIZE):
    """Return loss, correctness and gradients in float64."""
    rows, table, bias = (
        array.astype(np.float64) for array in (x.reshape(-1, x.shape[-1]), table, bias)
    )
    at = np.arange(len(rows)), labels.reshape(-1)
    logits = (rows @ table.T + bias)[:, :vocab_size]
    odds = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = odds / odds.sum(1, keepdims=True)
    d = probabilities.copy()
    d[at] -= 1.0
    d *= gradient.reshape(-1, 1)
    d = np.pad(d, ((0, 0), (0, len(table) - vocab_size)))
    is_correct = logits.argmax(1) == at[1]
    values = -np.log(probabilities[at]), is_correct
    values = [value.reshape(labels.shape) for value in values]
    return *values, (d @ table).reshape(x.shape), d.T @ rows, d.sum(0)


def with_gradients(run, x, table, bias, labels, gradient):
    """Return loss, correctness and gradients of a function of vectors to labels."""
    values, pullback = jax.vjp(lambda *x: run(*x, labels), x, table, bias)
    return *values, *pullback((gradient, jnp.ones_like(gradient)))


def by_kernel(*arrays, vocab_size=VOCAB_SIZE):
    run = functools.partial(tpu_cross_entropy.cross_entropy, vocab_size=vocab_size)
    return with_gradients(run, *arrays)


def test_kernels_equal_a_restatement(simulated_kernels):
    arrays = arrays_of()
    expected = restated(*arrays)
    assert expected[1][0, :2].tolist() == [True, False]  # the first of equals
    assert_trees_close(jax.jit(by_kernel)(*arrays), expected, 4e-6)


def test_a_table_of_less_than_a_block_equals_a_restatement(simulated_kernels):
    """Its rows need not be a multiple of the 128 columns of a register."""
    x, table, bias, labels, gradient = arrays_of()
    arrays = x, table[:104], bias[:104], labels % 100, gradient
    run = jax.jit(functools.partial(by_kernel, vocab_size=100))
    assert_trees_close(run(*arrays), restated(*arrays, vocab_size=100), 4e-6)


def test_blocks_of_wide_embeddings_are_smaller(simulated_kernels):
    sizes = [
        block_sizes.cross_entropy_columns(size) for size in (1792, 2304, 3712, 3840)
    ]
    assert sizes == [1024, 512, 256, None]
    arrays = arrays_of((2, 8), columns=2304)
    # Logits of hundreds have errors of 3e-5 in float32.
    assert_trees_close(jax.jit(by_kernel)(*arrays), restated(*arrays), 1e-4)


def test_kernels_round_factors_and_gradients_once(simulated_kernels):
    """In bfloat16, gradients of the table and the bias are float32."""
    x, *others = arrays_of()
    x = jnp.asarray(x, jnp.bfloat16)
    got = jax.jit(by_kernel)(x, *others)
    assert got[2].dtype == jnp.bfloat16
    assert {a.dtype for a in (*got[:2], *got[3:])} == {jnp.dtype("float32")}
    table = np.asarray(jnp.asarray(others[0], jnp.bfloat16), np.float32)
    expected = restated(np.asarray(x, np.float32), table, *others[1:])
    assert_trees_close(got, expected, 0.01)


def test_kernels_run_on_the_rows_of_a_device(interpreted_kernels):
    arrays = arrays_of()
    mesh = sharding.make_mesh(config.MeshConfig(data=2, fsdp=2), jax.devices()[:4])
    rows = NamedSharding(mesh, P(("data", "fsdp")))
    table = NamedSharding(mesh, P(None, "fsdp"))
    places = rows, table, NamedSharding(mesh, P()), rows, rows
    with sharding.use(mesh):
        split = map(jax.device_put, arrays, places)
        got = jax.jit(by_kernel)(*split)
    assert_trees_close(got, restated(*arrays), 4e-6)


def test_logits_have_the_loss_of_the_kernel():
    """The plain path of `VocabularyLogits` is exact against the same restatement."""
    encoder = config.EncoderConfig(vocab_size=VOCAB_SIZE, dtype="float32")

    def run(x, table, bias, labels):
        logits = cross_entropy.VocabularyLogits(x, table, bias, encoder)
        return cross_entropy.loss_and_accuracy(logits, labels)

    got = with_gradients(run, *map(jnp.asarray, arrays_of()))
    assert_trees_close(got, restated(*arrays_of()), 4e-6)


def shapes_of(shape, size, columns):
    """Return the shapes of the arguments of `by_kernel`."""
    types = [jnp.bfloat16, jnp.float32, jnp.float32, jnp.int32, jnp.float32]
    shapes = [(*shape, columns), (size, columns), (size,), shape, shape]
    return list(map(jax.ShapeDtypeStruct, shapes, types))


def kernels(shape=(8, 250), columns=128, tensor=1, bias=True, **fields):
    """Return the number of kernels; by default, 116 MiB of logits on each device."""
    encoder = config.EncoderConfig(vocab_size=30522, hidden_size=columns)
    encoder = dataclasses.replace(encoder, **fields)
    mesh = config.MeshConfig(data=2, tensor=tensor)
    mesh = sharding.make_mesh(mesh, jax.devices()[: 2 * tensor])

    def loss(x, table, offsets, labels, weights):
        logits = cross_entropy.VocabularyLogits(
            x, table, offsets if bias else None, encoder
        )
        sums = metric_sums.loss_and_accuracy("mlm", logits, labels, weights)
        return sums["mlm_loss"].sum

    with sharding.use(mesh):
        traced = jax.jit(jax.grad(loss)).trace(*shapes_of(shape, 30592, columns))
        return count_kernels(traced)


def test_tpus_use_the_kernels_where_shapes_allow():
    assert kernels() == kernels(bias=False) == 2
    assert kernels(shape=(7, 250)) == 0
    assert kernels(shape=(8, 230)) == 0  # 107 MiB
    assert kernels(columns=192) == 0
    assert kernels(tensor=2) == 0
    assert kernels(dtype="float32") == 0
    assert kernels(kernels="off") == 0


@needs_compiler
@pytest.mark.parametrize(
    ("name", "shape", "size", "columns"),
    [
        pytest.param("v6e:1x1", (9, 308), 50432, 1024, marks=pytest.mark.slow),
        ("v5e:1x1", (8, 20), 30592, 768),
        ("v4:2x2x1", (2, 85), 8192, 2304),  # EuroBERT-2.1B
        ("v5e:1x1", (2, 85), 104, 128),
    ],
)
def test_kernels_compile(name, shape, size, columns):
    arrays = shapes_of(shape, size, columns)
    assert_kernels_compile(name, "cross_entropy", by_kernel, arrays)
