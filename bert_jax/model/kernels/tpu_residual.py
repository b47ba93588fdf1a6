"""Dropout, residual connection and norm as one TPU kernel.

The plain path (`residual.py`) passes over memory several times, since a row's mean must
be known before the row is normalised. Here a block of rows stays on the chip, and only
what the backward pass reads is stored in between. Dropout masks equal the plain
path's bit for bit. The backward pass also computes sums that would need further
passes over memory: the gradient of the bias, the sum of the gradients of all consumers,
and in pre-norm blocks the gradient of the residual connection.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, UInt32

from bert_jax.model import dropout, randomness
from bert_jax.model.kernels import per_device
from bert_jax.model.kernels.block_sizes import ROW_CHUNK

# Numbers in a block of one array: a few such blocks fit the chip's memory.
_BLOCK = 192 * 1024

# Names of the dimensions of arrays: hidden states, scale and offset, keys, sums.
_ROWS = ("batch", "length", "hidden")
_COLUMNS = ("hidden",)
_KEYS = ("batch",)
_SUMS = ("batch", None, "hidden")


@dataclasses.dataclass(frozen=True)
class Options:
    """Static options of a kernel, besides shapes."""

    rate: float  # of dropout; 0 for none
    epsilon: float  # added to the variance
    is_centered: bool  # whether the mean is subtracted: layer norm, not RMS norm
    keeps_sum: bool  # whether the sum is a result, rounded before it is normalised
    consumers: int  # number of copies of the normalised sum; one with `keeps_sum`


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def add_and_normalise(
    x: Float[Array, "B L D"],
    product: Float[Array, "B L D"] | None,
    bias: Float[Array, " D"],
    scale: Float[Array, " D"],
    offset: Float[Array, " D"],
    keys: UInt32[Array, " B"],
    options: Options,
) -> tuple[Float[Array, "B L D"], ...]:
    """Return the norm of x + dropout(product + bias), once for each consumer.

    The sum of the float32 product and its bias is rounded to the type of `x`. Without a
    product, the norm of x is returned. `scale` and `offset` belong to the norm.
    There is a key for each row. With `keeps_sum`, the sum comes before its norm.
    """
    return _normalise_forward(x, product, bias, scale, offset, keys, options)[0]


def _normalise_forward(x, product, bias, scale, offset, keys, options):
    addends = [x]
    if product is not None:
        # In rows [B L, D] like the product, so that the compiler fuses the two.
        rows = product.reshape(-1, bias.size)
        addends.append((rows + bias).astype(x.dtype).reshape(x.shape))  # [B, L, D]
    # Without a product, x itself is the sum.
    writes_sum = options.keeps_sum and product is not None
    inputs = _KEYS, _COLUMNS, _COLUMNS, *[_ROWS] * len(addends)
    outputs = [_ROWS] * (1 + writes_sum)
    *total, result = per_device.apply(
        _run_forward, options, inputs, outputs, keys, scale, offset, *addends
    )
    addends = total or addends
    results = (result,) * options.consumers
    if options.keeps_sum:
        results = (addends[0], *results)
    return results, (keys, scale, addends, product is not None)


def _normalise_backward(options, residuals, gradients):
    keys, scale, addends, has_product = residuals
    inputs = _KEYS, _COLUMNS, *[_ROWS] * (len(addends) + len(gradients))
    outputs = *[_ROWS] * (1 + (options.rate > 0)), _SUMS, _SUMS, _SUMS
    *rows, d_bias, d_scale, d_offset = per_device.apply(
        _run_backward, options, inputs, outputs, keys, scale, *addends, *gradients
    )
    d_bias, d_scale, d_offset = (
        jnp.sum(x, (0, 1)) for x in (d_bias, d_scale, d_offset)
    )
    if not has_product:
        return rows[0], None, None, d_scale, d_offset, None
    # Without dropout, the gradients of x and of the product are equal.
    return rows[0], rows[-1].astype(jnp.float32), d_bias, d_scale, d_offset, None


add_and_normalise.defvjp(_normalise_forward, _normalise_backward)


def _run_forward(options, keys, scale, offset, *addends):
    num_arrays = 1 + (options.keeps_sum and len(addends) > 1)
    return _run(_forward, options, keys, (scale, offset), addends, num_arrays, 0)


def _run_backward(options, keys, scale, *arrays):
    return _run(_backward, options, keys, (scale,), arrays, 1 + (options.rate > 0), 3)


def _run(kernel, options, keys, vectors, arrays, num_arrays, num_sums):
    """Run a kernel for all rows.

    Args:
      kernel: `_forward` or `_backward`.
      options: Static options.
      keys: [B].
      vectors: Arrays [D].
      arrays: Arrays [B, L, D].
      num_arrays: Number of results [B, L, D], of the type of the first array.
      num_sums: Number of results that are partial sums, [programs, 8, D].
    """
    batch, length, size = arrays[0].shape
    rows, positions = _block(batch, length, size)
    grid = batch // rows, pl.cdiv(length, positions)
    block = pl.BlockSpec((rows, positions, size), lambda i, j, _: (i, j, 0))
    vector = pl.BlockSpec((1, size), lambda i, j, _: (0, 0))
    sums = pl.BlockSpec((1, 8, size), lambda i, j, _: (i * grid[1] + j, 0, 0))
    result = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    partial = jax.ShapeDtypeStruct((grid[0] * grid[1], 8, size), jnp.float32)
    out_shape = [result] * num_arrays + [partial] * num_sums
    return pl.pallas_call(
        functools.partial(kernel, options, length),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[[vector] * len(vectors), [block] * len(arrays)],
            out_specs=[block] * num_arrays + [sums] * num_sums,
        ),
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel")
        ),
        cost_estimate=pl.CostEstimate(
            flops=20 * arrays[0].size,
            transcendentals=batch * length,
            bytes_accessed=sum(
                x.size * x.dtype.itemsize for x in (*arrays, *out_shape)
            ),
        ),
        name=f"residual{kernel.__name__}",
    )(keys, [x[None] for x in vectors], list(arrays))


def _block(batch, length, size):
    """Return rows and positions of a block, as many as fit.

    Positions are a multiple of 16. If `length` is not, the last block of each row
    extends beyond the row.
    """
    limit = max(ROW_CHUNK, _BLOCK // size)

    def largest(total, step, limit):
        fitting = (n for n in range(step, limit + 1, step) if total % n == 0)
        return max(fitting, default=step)

    padded = pl.cdiv(length, ROW_CHUNK) * ROW_CHUNK
    positions = largest(padded, ROW_CHUNK, limit)
    return largest(batch, 1, _BLOCK // (size * positions)), positions


class _Chunks:
    """The positions of a block, 16 at a time, with their dropout and norm."""

    def __init__(self, options, length, keys, addends):
        self._options, self._length, self._keys = options, length, keys
        self._addends = addends
        self._shape = addends[0].shape
        if options.rate:
            self._size = dropout.num_words(self._shape[2])
            shape = ROW_CHUNK, self._size
            row = lax.broadcasted_iota(jnp.uint32, shape, 0)
            column = lax.broadcasted_iota(jnp.uint32, shape, 1)
            index = row * jnp.uint32(self._size) + column
            self._words = randomness.advance(jnp.uint32(0), index)

    def __iter__(self):
        """Yield the index of the row and the slice of positions of each chunk."""
        rows, positions, _ = self._shape
        for row in range(rows):
            for start in range(0, positions, ROW_CHUNK):
                yield row, slice(start, start + ROW_CHUNK)

    def dropped(self, at):
        """Return the dropout masks of the left and right half of a chunk, or None."""
        if not self._options.rate:
            return None
        rows, positions, _ = self._shape
        row = pl.program_id(0) * rows + at[0]
        first = (pl.program_id(1) * positions + at[1].start) * self._size
        begin = randomness.advance(self._keys[row], first.astype(jnp.uint32))
        return dropout.mask_pairs(self._words + begin, self._options.rate)

    def mask_beyond_row(self, at, x):
        """Zero the positions of a chunk that are beyond the end of the row."""
        positions = self._shape[1]
        if self._length % positions == 0:
            return x
        first = pl.program_id(1) * positions + at[1].start
        position = first + lax.broadcasted_iota(jnp.int32, x.shape, 0)
        return jnp.where(position < self._length, x, 0.0)

    def apply_dropout(self, dropped, y):
        """Zero the dropped values of `y`, float32, and scale the others."""
        if dropped is None:
            return y
        y = y * (1 / (1 - self._options.rate))
        halves = y[:, : self._size], y[:, self._size :]
        halves = [jnp.where(x, 0.0, y) for x, y in zip(dropped, halves, strict=True)]
        return jnp.concatenate(halves, axis=1)

    def total(self, at, dropped):
        """Return the sum of a chunk, float32."""
        x, *y = (addend[at].astype(jnp.float32) for addend in self._addends)
        if not y:
            return x
        total = x + self.apply_dropout(dropped, *y)
        if self._options.keeps_sum:
            total = total.astype(self._addends[0].dtype).astype(jnp.float32)
        return total

    def normalised(self, total):
        """Normalise a sum, without scale and offset; return also 1 / its deviation."""
        if self._options.is_centered:
            total = total - jnp.mean(total, axis=1, keepdims=True)
        variance = jnp.mean(jnp.square(total), axis=1, keepdims=True)
        inverse = lax.rsqrt(variance + self._options.epsilon)
        return total * inverse, inverse


def _forward(options, length, keys, vectors, addends, *results):
    """Write the sum of a block, if it is a result, and its norm."""
    (scale, offset), (*sums, out) = vectors, results
    chunks = _Chunks(options, length, keys, addends)
    for at in chunks:
        total = chunks.total(at, chunks.dropped(at))
        for ref in sums:
            ref[at] = total.astype(ref.dtype)
        normalised, _ = chunks.normalised(total)
        out[at] = (normalised * scale[...] + offset[...]).astype(out.dtype)


def _backward(options, length, keys, vectors, arrays, *results):
    """Write the gradients of a block, and partial sums for bias, scale and offset.

    `arrays` are one or two addends, and the gradients of the forward pass's results.
    The gradient of x is written first, and with dropout the gradient of the product.
    """
    (scale,), (*written, d_bias_sums, d_scale_sums, d_offset_sums) = vectors, results
    num_gradients = options.keeps_sum + options.consumers
    addends, gradients = arrays[:-num_gradients], arrays[-num_gradients:]
    chunks = _Chunks(options, length, keys, addends)
    d_bias = d_scale = d_offset = jnp.zeros(d_bias_sums.shape[1:], jnp.float32)
    for at in chunks:
        dropped = chunks.dropped(at)
        normalised, inverse = chunks.normalised(chunks.total(at, dropped))
        # With `keeps_sum`, the first gradient belongs to the sum, the last to the norm.
        # Otherwise, all belong to the norm.
        *others, d = (g[at].astype(jnp.float32) for g in gradients)
        if not options.keeps_sum:
            d, others = sum(others, d), []
        d_scale += _partial_sum(chunks.mask_beyond_row(at, d * normalised))
        d_offset += _partial_sum(chunks.mask_beyond_row(at, d))
        d = d * scale[...]
        along = jnp.mean(d * normalised, axis=1, keepdims=True)
        if options.is_centered:
            d = d - jnp.mean(d, axis=1, keepdims=True)
        d = sum(others, (d - normalised * along) * inverse)
        written[0][at] = d.astype(written[0].dtype)
        if options.rate:
            d = chunks.apply_dropout(dropped, d)
            written[1][at] = d.astype(written[1].dtype)
        d_bias += _partial_sum(chunks.mask_beyond_row(at, d))
    sums = d_bias_sums, d_scale_sums, d_offset_sums
    for ref, x in zip(sums, (d_bias, d_scale, d_offset), strict=True):
        ref[0] = x


def _partial_sum(x):
    """Sum every eighth row, [16, D] to [8, D], which adds whole registers."""
    return jnp.sum(x.reshape(-1, 8, x.shape[1]), axis=0)
