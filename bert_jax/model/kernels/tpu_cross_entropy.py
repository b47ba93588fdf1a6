"""Logits over the vocabulary and their cross entropy as TPU kernels.

The plain path writes float32 logits [N, V] and reads them four times. Here a block of
logits stays on the chip. The forward pass keeps a running maximum and sum for each row
(Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"). The backward
pass computes the logits again, and writes their gradient in the type of the factors,
for two products outside the kernel.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from bert_jax.model import products
from bert_jax.model.kernels import per_device
from bert_jax.model.kernels.block_sizes import (
    CROSS_ENTROPY_ROWS,
    LANES,
    cross_entropy_columns,
)

# Rows of a block of logits that are computed at once.
_CHUNK = 128

# Dimensions of logits [N, V], as arguments of `_run`.
_ROW, _COLUMN = "row", "column"

# Names of the dimensions of arrays: hidden states and gradients of logits, values of
# predictions, table, bias, partial sums for the bias.
_HIDDEN = ("batch", None, None)
_PREDICTIONS = ("batch", None)
_TABLE = (None, None)
_BIAS = (None,)
_SUMS = ("batch", None)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def cross_entropy(
    x: Float[Array, "B P E"],
    table: Float[Array, "V E"],
    bias: Float[Array, " V"],
    labels: Int[Array, "B P"],
    vocab_size: int,
) -> tuple[Float[Array, "B P"], Float[Array, "B P"]]:
    """Return cross entropies of x table^T + bias, and whether labels are the argmax.

    Factors have the type of `x`. The second result is 1.0 or 0.0; the argmax is the
    first maximum. Rows of the table beyond `vocab_size` are padding.
    """
    return _cross_entropy_forward(x, table, bias, labels, vocab_size)[0]


def _cross_entropy_forward(x, table, bias, labels, vocab_size):
    factor = table.astype(x.dtype)
    inputs = _HIDDEN, _TABLE, _BIAS, _PREDICTIONS
    loss, is_correct, log_normalizer = per_device.apply(
        _run_forward, vocab_size, inputs, [_PREDICTIONS] * 3, x, factor, bias, labels
    )
    return (loss, is_correct), (x, factor, bias, labels, log_normalizer)


def _cross_entropy_backward(vocab_size, residuals, gradients):
    x, table, *_ = residuals
    inputs = _HIDDEN, _TABLE, _BIAS, *[_PREDICTIONS] * 3
    d_logits, d_bias = per_device.apply(
        _run_backward, vocab_size, inputs, (_HIDDEN, _SUMS), *residuals, gradients[0]
    )  # [B, P, V], [8 parts, V]
    d_logits = d_logits.reshape(-1, table.shape[0])  # [B P, V]
    rows = x.reshape(-1, table.shape[1])  # [B P, E]
    dx = products.einsum_float32("rv,ve->re", d_logits, table).astype(x.dtype)
    d_table = products.einsum_float32("vr,re->ve", products.transpose(d_logits), rows)
    return dx.reshape(x.shape), d_table, jnp.sum(d_bias, axis=0), None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def _run_forward(vocab_size, x, table, bias, labels):
    rows = labels.size
    value = jax.ShapeDtypeStruct((rows, 1), jnp.float32)
    results = _run(
        functools.partial(_forward, vocab_size),
        "cross_entropy_forward",
        (_ROW, _COLUMN),
        (x.reshape(rows, -1), table, bias[None], labels.reshape(rows, 1)),
        {(_ROW, 1): [value] * 3},
        num_states=4,
    )
    return tuple(result.reshape(labels.shape) for result in results)


def _run_backward(vocab_size, x, table, bias, *values):
    rows, size = values[0].size, table.shape[0]
    d_logits, d_bias = _run(
        functools.partial(_backward, vocab_size, rows),
        "cross_entropy_backward",
        (_COLUMN, _ROW),
        (
            x.reshape(rows, -1),
            table,
            bias[None],
            *(value.reshape(rows, 1) for value in values),
        ),
        {
            (_ROW, _COLUMN): [jax.ShapeDtypeStruct((rows, size), x.dtype)],
            (8, _COLUMN): [jax.ShapeDtypeStruct((8, size), jnp.float32)],
        },
        num_states=0,
    )
    return d_logits.reshape(*x.shape[:2], size), d_bias


def _run(kernel, name, loops, arrays, results, num_states):
    """Run a kernel for each block of logits [N, V].

    Args:
      kernel: Function of references to blocks.
      name: Name of the kernel in the program.
      loops: `_ROW` and `_COLUMN`, the outer loop first.
      arrays: x [N, E], table [V, E], bias [1, V], and values of rows [N, 1].
      results: Shapes of the results, by their dimensions.
      num_states: Number of float32 arrays [rows, 128] kept through the inner loop.
    """
    x, table, _, *values = arrays
    rows = min(CROSS_ENTROPY_ROWS, pl.cdiv(x.shape[0], _CHUNK) * _CHUNK)
    columns = pl.cdiv(table.shape[0], LANES) * LANES
    block = {_ROW: rows, _COLUMN: min(cross_entropy_columns(x.shape[1]), columns)}
    blocks = {_ROW: pl.cdiv(x.shape[0], rows)}
    blocks[_COLUMN] = pl.cdiv(table.shape[0], block[_COLUMN])

    def spec(*dimensions):
        def index(*at):
            places = dict(zip(loops, at, strict=True))
            return tuple(places.get(dimension, 0) for dimension in dimensions)

        return pl.BlockSpec([block.get(size, size) for size in dimensions], index)

    in_specs = [spec(_ROW, x.shape[1]), spec(_COLUMN, x.shape[1]), spec(1, _COLUMN)]
    shapes = sum(results.values(), [])
    return pl.pallas_call(
        kernel,
        grid=tuple(blocks[dimension] for dimension in loops),
        in_specs=in_specs + [spec(_ROW, 1)] * len(values),
        out_specs=[spec(*sizes) for sizes, group in results.items() for _ in group],
        out_shape=shapes,
        scratch_shapes=[pltpu.VMEM((rows, LANES), jnp.float32)] * num_states,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary")
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * x.shape[0] * table.size,
            transcendentals=x.shape[0] * table.shape[0],
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays, *shapes)),
        ),
        name=name,
    )(*arrays)


def _chunks(vocab_size, block, x, table, bias, labels):
    """Yield the logits of a block by rows, [chunk, columns], and the label's column.

    Yields:
      The slice of rows; a list of float32 logits [chunk, 128]; the label minus the
      index of the column, for the first 128 columns, [chunk, 128].
    """
    size = table.shape[0]
    column = lax.broadcasted_iota(jnp.int32, (_CHUNK, LANES), 1) + block * size
    for start in range(0, x.shape[0], _CHUNK):
        at = slice(start, start + _CHUNK)
        logits = lax.dot_general(
            x[at],
            table[...],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )  # [chunk, columns]
        parts = []
        for first in range(0, size, LANES):
            part = logits[:, first : first + LANES] + bias[:, first : first + LANES]
            is_token = column < vocab_size - first
            parts.append(jnp.where(is_token, part, -1e9))
        yield at, parts, labels[at] - column


def _forward(
    vocab_size, x, table, bias, labels, loss, is_correct, log_normalizer, *state
):
    """Add a block of columns to the running values of its rows, by lane."""
    maxima, sums, chosen, earlier = state
    block = pl.program_id(1)

    @pl.when(block == 0)
    def _():
        maxima[...] = earlier[...] = jnp.full(maxima.shape, -1e30)
        sums[...] = chosen[...] = jnp.zeros(sums.shape)

    for at, parts, distance in _chunks(vocab_size, block, x, table, bias, labels):
        before = maxima[at]
        maximum = functools.reduce(jnp.maximum, parts, before)
        total = sums[at] * jnp.exp(before - maximum)
        found, highest = chosen[at], earlier[at]
        for i, part in enumerate(parts):
            total += jnp.exp(part - maximum)
            found += jnp.where(distance == i * LANES, part, 0.0)
            is_earlier = distance > i * LANES
            highest = jnp.maximum(highest, jnp.where(is_earlier, part, -1e30))
        maxima[at], sums[at], chosen[at], earlier[at] = maximum, total, found, highest

    @pl.when(block == pl.num_programs(1) - 1)
    def _():
        maximum = jnp.max(maxima[...], axis=1, keepdims=True)
        total = jnp.sum(sums[...] * jnp.exp(maxima[...] - maximum), 1, keepdims=True)
        found = jnp.sum(chosen[...], axis=1, keepdims=True)
        highest = jnp.max(earlier[...], axis=1, keepdims=True)
        log_normalizer[...] = maximum + jnp.log(total)
        loss[...] = log_normalizer[...] - found
        is_first = (found >= maximum) & (found > highest)
        is_correct[...] = is_first.astype(jnp.float32)


def _backward(
    vocab_size, rows, x, table, bias, labels, log_normalizer, gradient, d_logits, d_bias
):
    """Write the gradient of a block of logits, and add it up for the bias."""
    block = pl.program_id(0), pl.program_id(1)

    @pl.when(block[1] == 0)
    def _():
        d_bias[...] = jnp.zeros(d_bias.shape)

    row = lax.broadcasted_iota(jnp.int32, (_CHUNK, LANES), 0) + block[1] * x.shape[0]
    for at, parts, distance in _chunks(vocab_size, block[0], x, table, bias, labels):
        is_inside = row < rows - at.start
        normalizer, g = log_normalizer[at], gradient[at]
        for i, part in enumerate(parts):
            columns = slice(i * LANES, (i + 1) * LANES)
            probability = jnp.exp(part - normalizer)
            d = jnp.where(distance == i * LANES, probability - 1.0, probability) * g
            if rows % x.shape[0]:
                d = jnp.where(is_inside, d, 0.0)
            d_logits[at, columns] = d.astype(d_logits.dtype)
            d_bias[:, columns] += jnp.sum(d.reshape(-1, 8, LANES), axis=0)
