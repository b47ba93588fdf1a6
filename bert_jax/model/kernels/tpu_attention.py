"""Self-attention over at most 512 positions, as one TPU kernel.

Scores, softmax, mask and dropout of a head never leave the chip's memory. The forward
pass stores the output and, for each query, the logarithm of the sum of exponentials;
the backward pass recomputes the rest. Dropout masks equal those of
`attention.dot_product_attention` bit for bit, so a run may change between the two. The
biases of queries, keys and values are added inside, because the backward pass then sums
their gradients while it has those of queries, keys and values at hand.

JAX ships two such kernels, `pallas.ops.tpu.flash_attention` and `splash_attention`.
Neither has dropout, and both want heads before positions. Here inputs and outputs stay
[B, L, D]: a program of the grid has one row and some heads, that is some columns of D,
and works on windows of 128 columns, the width of the chip's registers. With at most 512
positions all keys of a head are at hand, so the softmax needs one pass only.

Scores are transposed, keys by queries: sums over keys are then sums of registers, and
three of the five products of the backward pass need no transposed factor. Heads that
share a window are not sliced out of it: one factor of each product has zeros in the
other heads' columns, which costs nothing, since a product is as wide as the window.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, UInt32

from bert_jax.model import dropout, randomness
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.kernels import per_device
from bert_jax.model.kernels import tpu_attention_passes as passes
from bert_jax.model.kernels.decisions import LANES

# Positions times columns of a program: a few of such arrays fit the chip's memory.
_BLOCK = 96 * 1024

# Names of the dimensions of arrays: rows, document ids, counters, log sums, biases.
_ROWS = ("batch", "length", "heads")
_IDS = ("batch", "length")
_COUNTERS = ("batch", "heads")
_SUMS = ("batch", "heads", None, "length")
_BIASES = ("batch", None, "heads")
_INPUTS = _ROWS, _ROWS, _ROWS, _IDS, _IDS, _COUNTERS


def attend(
    query: Float[Array, "B L D"],
    key: Float[Array, "B L D"],
    value: Float[Array, "B L D"],
    biases: tuple[Float[Array, " D"], ...],
    pattern: AttentionPattern,
    dropout_keys: UInt32[Array, " B"] | None,
    *,
    dtype: jnp.dtype,
    head_size: int,
    rate: float,
    interpret: bool = False,
) -> Float[Array, "B L D"]:
    """Return softmax(Q K^T / sqrt(K)) V of each head, with dropout.

    Args:
      query: Queries; each head has `head_size` adjacent columns. L and D are multiples
        of 128.
      key: Keys, likewise.
      value: Values, likewise.
      biases: Biases that are still to be added to queries, keys and values.
      pattern: Rules for which keys each query sees.
      dropout_keys: A key for each row; None for no dropout.
      dtype: Type that the sums with the biases are rounded to.
      head_size: One of `decisions.HEAD_SIZES`.
      rate: Rate of dropout of the probabilities.
      interpret: Whether to interpret the kernel, on any backend.
    """
    batch, length, size = query.shape
    options = passes.Options(
        head_size=head_size,
        rate=0.0 if dropout_keys is None else rate,
        causal=pattern.causal,
        window=pattern.window,
        packed=pattern.documents is not None,
        interpret=interpret,
    )
    if dropout_keys is None:
        dropout_keys = jnp.zeros(batch, jnp.uint32)
    # The counter of each head's first word among the words of the row, as
    # `dropout.mask` numbers them for [H, L, L].
    heads = jnp.arange(size // head_size, dtype=jnp.uint32)
    first = heads * jnp.uint32(length * dropout.words(length))
    counters = randomness.advance(dropout_keys[:, None], first)  # [B, H]
    queries = pattern.documents
    if queries is None:
        queries = jnp.zeros(pattern.is_token.shape, jnp.int32)
    keys = jnp.where(pattern.is_token, queries, passes.NO_DOCUMENT)
    # Rotated queries and keys are no products: their type may differ from the values'.
    sources = tuple(x.astype(jnp.float32) for x in (query, key, value))
    return _attend(sources, biases, queries, keys, counters, jnp.dtype(dtype), options)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(sources, biases, queries, keys, counters, dtype, options):
    return _forward(sources, biases, queries, keys, counters, dtype, options)[0]


def _forward(sources, biases, queries, keys, counters, dtype, options):
    # Outside the kernel, so that the compiler fuses it into the products.
    inputs = tuple(
        (x + bias).astype(dtype) for x, bias in zip(sources, biases, strict=True)
    )
    arrays = *inputs, queries, keys, counters
    y, sums = per_device.apply(_run, options, _INPUTS, (_ROWS, _SUMS), *arrays)
    return y, (*arrays, y, sums)


def _backward(dtype, options, residuals, g):
    inputs = *_INPUTS, _ROWS, _SUMS, _ROWS
    outputs = _ROWS, _ROWS, _ROWS, _BIASES
    *gradients, sums = per_device.apply(_run, options, inputs, outputs, *residuals, g)
    gradients = tuple(x.astype(jnp.float32) for x in gradients)
    return gradients, tuple(jnp.sum(sums, axis=0)), None, None, None


_attend.defvjp(_forward, _backward)


def _run(options, query, key, value, queries, keys, counters, *backward):
    """Run the forward pass for all rows and heads, or the backward pass.

    Args:
      options: Static options of the kernel.
      query: [B, L, D], like key and value.
      key: [B, L, D].
      value: [B, L, D].
      queries: [B, L]; document of each query.
      keys: [B, L]; document of each key.
      counters: [B, H]; counter of each head's first word.
      *backward: In the backward pass: output [B, L, D], log sums [B, blocks, heads, L],
        and the gradient of the output.
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
    if backward:
        kernel, products = passes.backward, 5
        in_specs += [row, sums, row]
        of_biases = jax.ShapeDtypeStruct((batch, 3, size), jnp.float32)
        out_specs = [row] * 3 + [pl.BlockSpec((1, 3, width), lambda b, i, _: (b, 0, i))]
        out_shape = [rows] * 3 + [of_biases]
    else:
        kernel, products = passes.forward, 2
        out_specs = [row, sums]
        shape = batch, blocks, heads, length
        out_shape = [rows, jax.ShapeDtypeStruct(shape, jnp.float32)]
    arrays = query, key, value, *backward, *out_shape
    scores = batch * size // options.head_size * length**2
    return pl.pallas_call(
        functools.partial(kernel, options),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, blocks),
            in_specs=in_specs,
            out_specs=out_specs,
        ),
        out_shape=tuple(out_shape),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel")
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * scores * options.head_size,
            transcendentals=scores,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in arrays),
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
        *backward,
    )


def _block_width(length, size):
    """Return the columns of a program: as many windows of 128 as fit."""
    windows = size // LANES
    fitting = [
        n
        for n in range(1, windows + 1)
        if windows % n == 0 and n * LANES * length <= _BLOCK
    ]
    return LANES * max(fitting, default=1)
