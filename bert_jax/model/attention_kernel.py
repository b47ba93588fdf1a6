"""Self-attention of up to 512 positions as one kernel for TPUs.

Scores, softmax, mask and dropout of a head never leave the chip's memory. Only the
output and, for each query, the logarithm of the sum of exponentials are kept; the
backward pass computes the rest again. The masks of dropout are those of
`attention.scaled_dot_product`, bit for bit, so a run may change between the two. The
backward pass has the gradients of queries, keys and values at hand, and sums them up
over positions, for the biases: nothing has to read them again for that.

JAX ships two such kernels, `pallas.ops.tpu.flash_attention` and `splash_attention`.
Neither has dropout, and both want heads before positions. Here, inputs and outputs
stay [B, L, D]: a program of the grid has a row and some heads, that is some columns of
D, and works on windows of 128 columns, the width of the chip's registers. With at most
512 positions, all keys of a head are at hand, and the softmax needs no second look.

Scores are transposed, keys by queries: sums over keys are then sums of registers, and
three of the five products of the backward pass need no transposed factor. Heads that
share a window are not cut out of it: one factor of a product has zeros in the columns
of the other heads, which costs nothing, for the product has the width of the window.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax import config
from bert_jax.model import attention_passes as passes
from bert_jax.model import dropout, per_device, randomness
from bert_jax.model.attention_passes import CHUNK, LANES, NO_DOCUMENT

# Positions times columns of a program: a few of such arrays fit the chip's memory.
_BLOCK = 96 * 1024


def suits(shape: tuple[int, int, int, int]) -> bool:
    """Whether the kernel is the better choice on a TPU, and possible at all.

    Other lengths would be padded, and other widths waste a part of each register.

    Args:
      shape: [B, L, H, K] of the queries, over all devices.
    """
    batch, length, heads, head_size = shape
    rows, columns = per_device.parts("batch"), per_device.parts("heads")
    return (
        length % CHUNK == 0
        and length <= config.KERNEL_MAX_LENGTH
        and head_size in config.KERNEL_HEAD_SIZES
        and batch % rows == 0
        and heads % columns == 0
        and heads // columns * head_size % LANES == 0
    )


def attend(
    query: Float[Array, "B L D"],
    key: Float[Array, "B L D"],
    value: Float[Array, "B L D"],
    biases: tuple[Float[Array, " D"], ...],
    mask: Bool[Array, "B L"],
    documents: Int[Array, "B L"] | None,
    dropout_keys: UInt32[Array, " B"] | None,
    *,
    dtype: jnp.dtype,
    head_size: int,
    rate: float,
    causal: bool,
    interpret: bool = False,
) -> Float[Array, "B L D"]:
    """softmax(Q K^T / sqrt(K)) V of each head, with dropout on the probabilities.

    Args:
      query: Queries, those of a head in `head_size` columns.
      key: Keys, likewise.
      value: Values, likewise.
      biases: What is still to be added to queries, keys and values.
      mask: Which positions are not padding.
      documents: Document of each position, at least 0; None: all are of one.
      dropout_keys: A key for each row; None for no dropout.
      dtype: Type that the sums are rounded to.
      head_size: One of `config.KERNEL_HEAD_SIZES`.
      rate: Rate of dropout.
      causal: Whether a position attends only to itself and those before it.
      interpret: Whether to interpret the kernel, on any backend.
    """
    batch, length, size = query.shape
    options = passes.Options(
        head_size=head_size,
        length=length,
        rate=0.0 if dropout_keys is None else rate,
        causal=causal,
        packed=documents is not None,
        interpret=interpret,
    )
    if dropout_keys is None:
        dropout_keys = jnp.zeros(batch, jnp.uint32)
    # Where the words of a head begin among those of the row, as `dropout.mask`
    # has them for [H, L, L].
    heads = jnp.arange(size // head_size, dtype=jnp.uint32)
    first = heads * jnp.uint32(length * dropout.words(length))
    counters = randomness.advance(dropout_keys[:, None], first)
    queries = jnp.zeros(mask.shape, jnp.int32) if documents is None else documents
    keys = jnp.where(mask, queries, NO_DOCUMENT)
    pad = -length % CHUNK
    if pad:
        query, key, value, queries, keys = (
            jnp.pad(x, ((0, 0), (0, pad), *[(0, 0)] * (x.ndim - 2)))
            for x in (query, key, value, queries, keys)
        )
    sources = query, key, value
    y = _attend(sources, biases, queries, keys, counters, jnp.dtype(dtype), options)
    return y[:, :length] if pad else y


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(sources, biases, queries, keys, counters, dtype, options):
    return _forward(sources, biases, queries, keys, counters, dtype, options)[0]


def _forward(sources, biases, queries, keys, counters, dtype, options):
    # Part of the products before it, for the compiler.
    inputs = tuple(
        (x + bias).astype(dtype) for x, bias in zip(sources, biases, strict=True)
    )
    inputs = *inputs, queries, keys, counters
    y, sums = _call_forward(*inputs, options)
    return y, (*inputs, y, sums, sources[0][:0])


def _backward(dtype, options, residuals, g):
    *residuals, like_sources = residuals
    *gradients, sums = _call_backward(*residuals, g, options)
    gradients = tuple(x.astype(like_sources.dtype) for x in gradients)
    return gradients, tuple(jnp.sum(sums, axis=0)), None, None, None


_attend.defvjp(_forward, _backward)


_ROWS = ("batch", "length", "heads")
_IDS = ("batch", "length")
_COUNTERS = ("batch", "heads")
_SUMS = ("batch", "heads", None, "length")
_BIASES = ("batch", None, "heads")


# Compiled functions of their own, so that they are traced once, not in every layer.
@functools.partial(jax.jit, static_argnums=6)
def _call_forward(query, key, value, queries, keys, counters, options):
    return per_device.on_each_device(
        functools.partial(_run, passes.forward, options),
        (_ROWS, _ROWS, _ROWS, _IDS, _IDS, _COUNTERS),
        (_ROWS, _SUMS),
    )(query, key, value, queries, keys, counters)


@functools.partial(jax.jit, static_argnums=9)
def _call_backward(query, key, value, queries, keys, counters, y, sums, g, options):
    return per_device.on_each_device(
        functools.partial(_run, passes.backward, options),
        (_ROWS, _ROWS, _ROWS, _IDS, _IDS, _COUNTERS, _ROWS, _SUMS, _ROWS),
        (_ROWS, _ROWS, _ROWS, _BIASES),
    )(query, key, value, queries, keys, counters, y, sums, g)


def _run(kernel, options, query, key, value, queries, keys, counters, *more):
    """Run a kernel for all rows and heads.

    Args:
      kernel: `passes.forward` or `passes.backward`.
      options: What it is compiled for.
      query: [B, L, D], as key and value.
      key: See `query`.
      value: See `query`.
      queries: [B, L]; identifiers of documents, as keys.
      keys: See `queries`.
      counters: [B, H]; where the words of each head begin.
      *more: For the backward pass: output, sums, gradient of the output.
    """
    batch, length, size = query.shape
    width = _block_width(length, size)
    heads = width // options.head_size
    blocks = size // width
    row = pl.BlockSpec((1, length, width), lambda b, i, _: (b, 0, i))
    ids = pl.BlockSpec((1, 1, length), lambda b, i, _: (b, 0, 0))
    sums = pl.BlockSpec((1, 1, heads, length), lambda b, i, _: (b, i, 0, 0))
    rows = jax.ShapeDtypeStruct(query.shape, query.dtype)
    in_specs = [row, row, row, ids, ids]
    if more:
        in_specs += [row, sums, row]
        of_biases = jax.ShapeDtypeStruct((batch, 3, size), jnp.float32)
        out_specs = [row] * 3 + [pl.BlockSpec((1, 3, width), lambda b, i, _: (b, 0, i))]
        out_shape = [rows] * 3 + [of_biases]
    else:
        out_specs = [row, sums]
        shape = batch, blocks, heads, length
        out_shape = [rows, jax.ShapeDtypeStruct(shape, jnp.float32)]
    results = pl.pallas_call(
        functools.partial(kernel, options),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, blocks),
            in_specs=in_specs,
            out_specs=out_specs,
        ),
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel")
        ),
        cost_estimate=_cost(
            options,
            products=5 if more else 2,
            arrays=(query, key, value, *more, *out_shape),
        ),
        interpret=options.interpret,
        name=f"attention_{kernel.__name__}",
    )(
        counters.reshape(-1),
        query,
        key,
        value,
        queries[:, None, :],
        keys[:, None, :],
        *more,
    )
    return tuple(results)


def _block_width(length, size):
    """Columns of a program of the grid: as many as fit, in windows of 128."""
    windows = size // LANES
    if size % LANES:
        return size
    fitting = [
        n
        for n in range(1, windows + 1)
        if windows % n == 0 and n * LANES * length <= _BLOCK
    ]
    return LANES * max(fitting, default=1)


def _cost(options, *, products, arrays):
    """What the kernel is, for a compiler that cannot look into it."""
    batch, length, size = arrays[0].shape
    scores = batch * size // options.head_size * length**2
    return pl.CostEstimate(
        flops=2 * products * scores * options.head_size,
        transcendentals=scores,
        bytes_accessed=sum(x.size * x.dtype.itemsize for x in arrays),
    )
