"""Dropout, residual and layer norm as one kernel for TPUs.

The plain path (`residual.py`) goes over memory several times, for the means of a row
have to be known before it is normalised. Here a block of rows stays on the chip until
it is done: the forward pass reads two arrays and writes one, the backward pass reads
three and writes two. Nothing but the inputs is kept between the two. The masks of
dropout are those of the plain path, bit for bit. What other operations would read
memory for, the kernel does on the way: it sums up the gradient of the bias before it,
and adds up the gradients of all who read the result.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, UInt32

from bert_jax.model import dropout, per_device, products, randomness

_LANES = 128
# Rows that are worked on at once: those of a register of bfloat16.
_CHUNK = 16
# Numbers in a block of one array: a few such blocks fit the chip's memory.
_BLOCK = 192 * 1024

_ROWS = ("batch", "length", "hidden")
_COLUMNS = ("hidden",)
_SUMS = ("batch", None, "hidden")


def suits(
    shape: tuple[int, int, int], dropout_keys: UInt32[Array, "B ..."] | None
) -> bool:
    """Whether the kernel is possible.

    Args:
      shape: [B, L, D] of the rows, over all devices.
      dropout_keys: Keys for dropout: the kernel has one for each row, or none.
    """
    batch, length, size = shape
    return (
        length % _CHUNK == 0
        and size % _LANES == 0
        and batch % per_device.parts("batch") == 0
        and (dropout_keys is None or dropout_keys.ndim == 1)
    )


@dataclasses.dataclass(frozen=True)
class Options:
    """What a kernel is compiled for, besides shapes.

    Attributes:
      rate: Rate of dropout; 0 for none.
      epsilon: What is added to the variance.
      readers: Number of results, which are all the same.
      interpret: Whether to interpret the kernel, on any backend.
    """

    rate: float
    epsilon: float
    readers: int
    interpret: bool


def add_and_normalise(
    x: Float[Array, "B L D"],
    y: products.Biased,
    scale: Float[Array, " D"],
    bias: Float[Array, " D"],
    keys: UInt32[Array, " B"] | None,
    *,
    rate: float,
    epsilon: float,
    readers: int = 1,
    interpret: bool = False,
) -> tuple[Float[Array, "B L D"], ...]:
    """The layer norm of x + dropout(y), as often as it is read.

    Args:
      x: What is added to; L is a multiple of 16.
      y: What is dropped out; its sum is rounded to the type of `x`.
      scale: Of the layer norm, as `bias`.
      bias: See `scale`.
      keys: A key for each row; None for no dropout.
      rate: Rate of dropout.
      epsilon: What is added to the variance.
      readers: Number of those who read the result.
      interpret: Whether to interpret the kernel, on any backend.
    """
    if keys is None:
        rate, keys = 0.0, jnp.zeros(x.shape[0], jnp.uint32)
    options = Options(rate, epsilon, readers, interpret)
    return _normalise(x, y, scale, bias, keys, options)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _normalise(x, y, scale, bias, keys, options):
    return _normalise_forward(x, y, scale, bias, keys, options)[0]


def _normalise_forward(x, y, scale, bias, keys, options):
    # In rows, as the product before it is, so that the compiler makes them one.
    like_y, rows = y.vectors[:0], y.vectors.reshape(-1, y.bias.size)
    y = (rows + y.bias).astype(x.dtype).reshape(x.shape)
    result = _call_forward(x, y, scale, bias, keys, options)
    return (result,) * options.readers, (x, y, scale, keys, like_y)


def _normalise_backward(options, residuals, gradients):
    *residuals, like_y = residuals
    dx, dy, *sums = _call_backward(*residuals, gradients, options)
    d_y_bias, d_scale, d_bias = (jnp.sum(x, (0, 1)) for x in sums)
    dy = products.Biased(dy.astype(like_y.dtype), d_y_bias)
    return dx, dy, d_scale, d_bias, None


_normalise.defvjp(_normalise_forward, _normalise_backward)


# Compiled functions of their own, so that they are traced once, not in every layer.
@functools.partial(jax.jit, static_argnums=5)
def _call_forward(x, y, scale, bias, keys, options):
    def run(x, y, scale, bias, keys):
        return _run(_forward, options, keys, (x, y), (scale, bias), 1, 0)

    inputs = _ROWS, _ROWS, _COLUMNS, _COLUMNS, ("batch",)
    return per_device.on_each_device(run, inputs, (_ROWS,))(x, y, scale, bias, keys)[0]


@functools.partial(jax.jit, static_argnums=5)
def _call_backward(x, y, scale, keys, gradients, options):
    def run(x, y, scale, keys, *gradients):
        return _run(_backward, options, keys, (x, y, *gradients), (scale,), 2, 3)

    inputs = _ROWS, _ROWS, _COLUMNS, ("batch",), *[_ROWS] * options.readers
    outputs = _ROWS, _ROWS, _SUMS, _SUMS, _SUMS
    run = per_device.on_each_device(run, inputs, outputs)
    return run(x, y, scale, keys, *gradients)


def _run(kernel, options, keys, arrays, vectors, num_arrays, num_sums):
    """Run a kernel for all rows.

    Args:
      kernel: `_forward` or `_backward`.
      options: What it is compiled for.
      keys: [B].
      arrays: Arrays [B, L, D].
      vectors: Arrays [D].
      num_arrays: Number of results [B, L, D], of the type of the first array.
      num_sums: Number of results that are to be summed up, [programs, 8, D].
    """
    batch, length, size = arrays[0].shape
    rows, positions = _block(batch, length, size)
    grid = batch // rows, length // positions
    block = pl.BlockSpec((rows, positions, size), lambda i, j, _: (i, j, 0))
    vector = pl.BlockSpec((1, size), lambda i, j, _: (0, 0))
    sums = pl.BlockSpec((1, 8, size), lambda i, j, _: (i * grid[1] + j, 0, 0))
    partial = jax.ShapeDtypeStruct((grid[0] * grid[1], 8, size), jnp.float32)
    out_shape = [arrays[0]] * num_arrays + [partial] * num_sums
    out_shape = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in out_shape]
    return pl.pallas_call(
        functools.partial(kernel, options),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[block] * len(arrays) + [vector] * len(vectors),
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
        interpret=options.interpret,
        name=f"residual{kernel.__name__}",
    )(keys, *arrays, *(x[None] for x in vectors))


def _block(batch, length, size):
    """Rows and positions of a block: as many as fit."""

    def largest(total, step, limit):
        fitting = (n for n in range(step, limit + 1, step) if total % n == 0)
        return max(fitting, default=step)

    positions = largest(length, _CHUNK, _BLOCK // size)
    return largest(batch, 1, _BLOCK // (size * positions)), positions


class _Chunks:
    """The rows of a block, a few at a time, with their dropout and layer norm."""

    def __init__(self, options, keys, x, y):
        self._options, self._keys = options, keys
        self._x, self._y = x, y
        if options.rate:
            self._size = dropout.words(x.shape[2])
            shape = _CHUNK, self._size
            row = lax.broadcasted_iota(jnp.uint32, shape, 0)
            column = lax.broadcasted_iota(jnp.uint32, shape, 1)
            index = row * jnp.uint32(self._size) + column
            self._words = randomness.advance(jnp.uint32(0), index)

    def __iter__(self):
        """Where each chunk is: index of the row, and slice of positions."""
        rows, positions, _ = self._x.shape
        for row in range(rows):
            for start in range(0, positions, _CHUNK):
                yield row, slice(start, start + _CHUNK)

    def dropped(self, at):
        """What is dropped of the left half of the chunk and of the right, or None."""
        if not self._options.rate:
            return None
        rows, positions, _ = self._x.shape
        row = pl.program_id(0) * rows + at[0]
        first = (pl.program_id(1) * positions + at[1].start) * self._size
        begin = randomness.advance(self._keys[row], first.astype(jnp.uint32))
        return dropout.pairs(self._words + begin, self._options.rate)

    def scaled(self, dropped, y):
        """`y` with dropout, in float32."""
        if dropped is None:
            return y
        y = y * (1 / (1 - self._options.rate))
        halves = y[:, : self._size], y[:, self._size :]
        halves = [jnp.where(x, 0.0, y) for x, y in zip(dropped, halves, strict=True)]
        return jnp.concatenate(halves, axis=1)

    def normalised(self, at, dropped):
        """The chunk before scale and bias, and the inverse of its deviation."""
        y = self.scaled(dropped, self._y[at].astype(jnp.float32))
        total = self._x[at].astype(jnp.float32) + y
        centered = total - jnp.mean(total, axis=1, keepdims=True)
        variance = jnp.mean(jnp.square(centered), axis=1, keepdims=True)
        inverse = lax.rsqrt(variance + self._options.epsilon)
        return centered * inverse, inverse


def _forward(options, keys, x, y, scale, bias, out):
    """The layer norm of a block."""
    chunks = _Chunks(options, keys, x, y)
    for at in chunks:
        normalised, _ = chunks.normalised(at, chunks.dropped(at))
        out[at] = (normalised * scale[...] + bias[...]).astype(out.dtype)


def _backward(options, keys, x, y, *more):
    """Gradients of a block; those of the three vectors in eight parts."""
    gradients, more = more[: options.readers], more[options.readers :]
    scale, dx, dy, *sums = more
    chunks = _Chunks(options, keys, x, y)
    of_y_bias = of_scale = of_bias = jnp.zeros(sums[0].shape[1:], jnp.float32)
    for at in chunks:
        dropped = chunks.dropped(at)
        normalised, inverse = chunks.normalised(at, dropped)
        d = sum(g[at].astype(jnp.float32) for g in gradients)
        of_scale += _eighths(d * normalised)
        of_bias += _eighths(d)
        d = d * scale[...]
        mean = jnp.mean(d, axis=1, keepdims=True)
        along = jnp.mean(d * normalised, axis=1, keepdims=True)
        d = (d - mean - normalised * along) * inverse
        dx[at] = d.astype(dx.dtype)
        d = chunks.scaled(dropped, d)
        dy[at] = d.astype(dy.dtype)
        of_y_bias += _eighths(d)
    for ref, x in zip(sums, (of_y_bias, of_scale, of_bias), strict=True):
        ref[0] = x


def _eighths(x):
    """Sums of every eighth row, which are sums of whole registers."""
    return jnp.sum(x.reshape(-1, 8, x.shape[1]), axis=0)
