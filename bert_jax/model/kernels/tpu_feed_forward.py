"""The gated feed-forward network as TPU kernels.

Between its products, the plain path writes and reads arrays [rows, F] several times. By
the compiler's estimate, this takes longer than the products on TPU v6e (docs/log.md).
Here the network's kernels and the sums of their gradients stay on the chip, and blocks
of rows pass through. For the backward pass, the forward pass writes both factors of the
gating: `gates`, before their activation, and `values`.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from bert_jax.model import activations
from bert_jax.model.kernels import block_sizes, per_device
from bert_jax.model.kernels.block_sizes import ROW_CHUNK

# Names of the dimensions of arrays: rows, kernels, and gradients of kernels, which are
# summed over the rows of a device.
_ROWS = ("batch", None, None)
_KERNEL = (None, None)
_SUM = ("batch", None, None)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def gated_feed_forward(
    x: Float[Array, "B L D"],
    gate: Float[Array, "D F"],
    intermediate: Float[Array, "D F"],
    output: Float[Array, "F D"],
    activation: str,
) -> Float[Array, "B L D"]:
    """Return (activation(x gate) * (x intermediate)) output, in the type of `x`.

    Kernels are rounded to the type of `x`. Their gradients are float32.
    """
    return _apply_forward(activation, 1, x, gate, intermediate, output)[0]


def _apply_forward(activation, num_results, x, *kernels):
    kernels = [kernel.astype(x.dtype) for kernel in kernels]
    inputs, results = [_ROWS, *[_KERNEL] * 3], [_ROWS] * num_results
    options = activation, num_results
    return per_device.apply(_run_forward, options, inputs, results, x, *kernels)


def _gated_forward(x, gate, intermediate, output, activation):
    kernels = gate, intermediate, output
    y, gates, values = _apply_forward(activation, 3, x, *kernels)
    return y, (x, gates, values, *(kernel.astype(x.dtype) for kernel in kernels))


def _gated_backward(activation, residuals, g):
    inputs = [_ROWS] * 4 + [_KERNEL] * 3
    dx, *sums = per_device.apply(
        _run_backward, activation, inputs, [_ROWS, *[_SUM] * 3], g, *residuals
    )
    return dx, *(jnp.sum(x, axis=0) for x in sums)


gated_feed_forward.defvjp(_gated_forward, _gated_backward)


def _run_forward(options, x, *kernels):
    activation, num_results = options
    sizes = x.shape[-1], *[kernels[0].shape[1]] * (num_results - 1)
    return _run(_forward, activation, [x], kernels, sizes)


def _run_backward(activation, *arrays):
    rows, kernels = arrays[:4], arrays[4:]
    return _run(_backward, activation, rows, kernels, rows[0].shape[-1:], has_sums=True)


def _run(kernel, activation, arrays, kernels, sizes, *, has_sums=False):
    """Run a kernel for each block of rows.

    Args:
      kernel: `_forward` or `_backward`.
      activation: Name of the activation.
      arrays: Arrays [B, L, columns].
      kernels: Kernels of the network: gate, intermediate and output.
      sizes: Columns of the results [B, L, columns], which have the arrays' type.
      has_sums: Whether sums over rows, float32 [1, D, F], [1, D, F] and [1, F, D], are
        results, too.
    """
    batch, length, _ = arrays[0].shape
    num_rows, dtype = batch * length, arrays[0].dtype
    block = block_sizes.feed_forward_block(*kernels[0].shape)
    block_rows = min(block.rows, pl.cdiv(num_rows, ROW_CHUNK) * ROW_CHUNK)

    def rows(size):
        return pl.BlockSpec((block_rows, size), lambda i: (i, 0))

    def whole(array):
        once = pl.Buffered(1)
        return pl.BlockSpec(array.shape, lambda i: (0, 0), pipeline_mode=once)

    results = [jax.ShapeDtypeStruct((num_rows, size), dtype) for size in sizes]
    sums, products = [], 1
    if has_sums:
        sums = [jax.ShapeDtypeStruct((1, *x.shape), jnp.float32) for x in kernels]
        products = 2
    results, sums = pl.pallas_call(
        functools.partial(kernel, activation, num_rows),
        grid=(pl.cdiv(num_rows, block_rows),),
        in_specs=[[rows(x.shape[-1]) for x in arrays], [whole(x) for x in kernels]],
        out_specs=(
            [rows(size) for size in sizes],
            [pl.BlockSpec(memory_space=pl.ANY) for _ in sums],
        ),
        out_shape=(results, sums),
        scratch_shapes=[pltpu.VMEM(x.shape[1:], x.dtype) for x in sums],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=block.memory
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * num_rows * sum(x.size for x in kernels),
            transcendentals=num_rows * kernels[0].shape[1],
            bytes_accessed=sum(
                x.size * x.dtype.itemsize for x in (*arrays, *kernels, *results, *sums)
            ),
        ),
        name=f"feed_forward{kernel.__name__}",
    )([x.reshape(num_rows, -1) for x in arrays], list(kernels))
    return *(x.reshape(batch, length, -1) for x in results), *sums


def _forward(activation, num_rows, arrays, kernels, results, no_sums):
    """Write the output of a block of rows and, if asked for, its gates and values."""
    del num_rows, no_sums
    (x,), (gate, intermediate, output), (y, *for_backward) = arrays, kernels, results
    gates, values = _dot(x, gate, 1, 0), _dot(x, intermediate, 1, 0)  # [rows, F]
    for ref, array in zip(for_backward, (gates, values), strict=False):
        ref[...] = array.astype(ref.dtype)
    inner = (_activate(activation, gates) * values).astype(x.dtype)
    y[...] = _dot(inner, output, 1, 0).astype(y.dtype)


def _backward(activation, num_rows, arrays, kernels, results, sums, *totals):
    """Write the gradients of a block of rows; accumulate those of the matrices."""
    step = pl.program_id(0)

    @pl.when(step == 0)
    def _():
        for total in totals:
            total[...] = jnp.zeros(total.shape, total.dtype)

    g, x, gates, values = (_masked(array[...], step, num_rows) for array in arrays)
    (gate, intermediate, output), (dx,) = kernels, results
    values = values.astype(jnp.float32)
    activate = functools.partial(_activate, activation)
    activated, pullback = jax.vjp(activate, gates.astype(jnp.float32))
    d = _dot(g, output, 1, 1)  # [rows, F]
    factors = activated * values, *pullback(d * values), d * activated
    inner, d_gates, d_values = (factor.astype(x.dtype) for factor in factors)
    d_rows = _dot(d_gates, gate, 1, 1) + _dot(d_values, intermediate, 1, 1)
    dx[...] = d_rows.astype(dx.dtype)
    products = (x, d_gates), (x, d_values), (inner, g)
    for total, (left, right) in zip(totals, products, strict=True):
        total[...] += _dot(left, right, 0, 0)

    @pl.when(step == pl.num_programs(0) - 1)
    def _():
        for total, result in zip(totals, sums, strict=True):
            pltpu.sync_copy(total, result.at[0])


def _activate(name, x):
    if name == "gelu_erf":  # JAX computes it by erfc, which Pallas lacks
        return x * (0.5 + 0.5 * lax.erf(math.sqrt(0.5) * x))
    return activations.FUNCTIONS[name](x)


def _masked(x, step, num_rows):
    """Zero the rows of a block that are beyond the last row."""
    if num_rows % x.shape[0] == 0:
        return x
    row = step * x.shape[0] + lax.broadcasted_iota(jnp.int32, x.shape, 0)
    return jnp.where(row < num_rows, x, 0)


def _dot(x, y, x_dimension, y_dimension):
    """Multiply two arrays or references, contracting one dimension of each."""
    contracted = (x_dimension,), (y_dimension,)
    return lax.dot_general(
        x[...], y[...], (contracted, ((), ())), preferred_element_type=jnp.float32
    )
