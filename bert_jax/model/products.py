"""Matrix products with explicit backward products.

Every product takes its factors in one type, float32 or bfloat16, and accumulates in
float32. Plain `jnp.einsum` would do the same forward; backward, JAX would multiply the
float32 cotangent with the bfloat16 factor, which no hardware does at full speed, and
would round gradients of float32 kernels to bfloat16. Here cotangents are rounded to the
type of the factors first, and gradients of kernels stay in float32.

Two functions depend on how XLA compiles for CPUs (docs/log.md has the numbers):
`transpose` and `sum_rows`. One depends on TPUs, `linear`, and one on GPUs,
`einsum_float32`. Other backends get the plain form.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import layout
from jaxtyping import Array, Float


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def linear(
    x: Float[Array, "R D"],
    kernel: Float[Array, "D F"] | Float[Array, "F D"],
    dtype: jnp.dtype,
    transposed: bool = False,
    may_round: bool = False,
) -> Float[Array, "R F"]:
    """Return `x @ kernel`, or `x @ kernel.T`, in float32, from factors of `dtype`.

    `may_round` is as in `einsum_float32`.
    """
    return _linear_forward(x, kernel, dtype, transposed, may_round)[0]


def _linear_forward(x, kernel, dtype, transposed, may_round):
    factors = x.astype(dtype), kernel.astype(dtype)
    spec = "rd,fd->rf" if transposed else "rd,df->rf"
    return einsum_float32(spec, *factors, may_round=may_round), (*factors, x[:0])


def _linear_backward(dtype, transposed, may_round, residuals, g):
    del may_round
    x, kernel, like_x = residuals
    g = g.astype(dtype)
    spec = "rf,fd->rd" if transposed else "rf,df->rd"
    is_rounded = like_x.dtype == dtype
    dx = einsum_float32(spec, g, kernel, may_round=is_rounded).astype(like_x.dtype)
    if transposed:
        return dx, einsum_float32("fr,rd->fd", transpose(g), x)
    # TPUs store attention's kernels [D, H, K] with D innermost. For a gradient in that
    # layout the compiler first copies a factor [R, D] into another layout; for a
    # row-major gradient it does not.
    return dx, _row_major(einsum_float32("dr,rf->df", transpose(x), g), "tpu")


linear.defvjp(_linear_forward, _linear_backward)


def _row_major(x, platform):
    """Constrain an array to row-major layout on one platform."""
    row_major = layout.Layout(tuple(range(x.ndim)))
    constrain = functools.partial(layout.with_layout_constraint, layouts=row_major)
    return lax.platform_dependent(x, **{platform: constrain}, default=lambda x: x)


def add_bias(
    x: Float[Array, "..."], bias: Float[Array, "..."] | None
) -> Float[Array, "..."]:
    """Add a bias [*dimensions] to x [*rows, *dimensions], unless it is None."""
    if bias is None:
        return x
    return _add_bias(x.reshape(-1, bias.size), bias.reshape(-1)).reshape(x.shape)


@jax.custom_vjp
def _add_bias(x, bias):
    return x + bias


_add_bias.defvjp(lambda x, bias: (x + bias, None), lambda _, g: (g, sum_rows(g)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def einsum(
    spec: str, x: Float[Array, "..."], y: Float[Array, "..."], dtype: jnp.dtype
) -> Float[Array, "..."]:
    """Return an einsum in float32, from factors of type `dtype`.

    Each letter of `spec` must be in at least two of the three terms.
    """
    return einsum_float32(spec, x.astype(dtype), y.astype(dtype))


def _einsum_forward(spec, x, y, dtype):
    factors = x.astype(dtype), y.astype(dtype)
    return einsum_float32(spec, *factors), (*factors, x[:0], y[:0])


def _einsum_backward(spec, dtype, residuals, g):
    x, y, like_x, like_y = residuals
    factors, result = spec.split("->")
    x_axes, y_axes = factors.split(",")
    g = g.astype(dtype)
    dx = einsum_float32(f"{result},{y_axes}->{x_axes}", g, y).astype(like_x.dtype)
    return dx, einsum_float32(f"{x_axes},{result}->{y_axes}", x, g).astype(like_y.dtype)


einsum.defvjp(_einsum_forward, _einsum_backward)


def einsum_float32(
    spec: str,
    x: Float[Array, "..."],
    y: Float[Array, "..."],
    *,
    may_round: bool = False,
) -> Float[Array, "..."]:
    """Return an einsum of two factors of one type, accumulated in float32.

    Args:
      spec: Specification of the einsum.
      x: First factor.
      y: Second factor.
      may_round: Whether the caller rounds the result, or its sum with a bias, to the
        factors' type. GPUs then round it themselves: unlike a TPU's, their products
        are written to memory before the next operation reads them.
    """

    # Without `precision`, TPUs and GPUs would round float32 factors.
    def product(x, y, dtype=jnp.float32):
        return jnp.einsum(spec, x, y, precision="highest", preferred_element_type=dtype)

    if not may_round or x.dtype == jnp.float32:
        return product(x, y)
    return lax.platform_dependent(
        x,
        y,
        cuda=lambda x, y: product(x, y, x.dtype).astype(jnp.float32),
        default=product,
    )


def transpose(x: Float[Array, "*stack R D"]) -> Float[Array, "*stack D R"]:
    """Swap the last two dimensions, with a copy in memory where that is faster.

    For the left factor of a gradient, which contracts over rows. XLA's products on
    CPUs are slow with a transposed bfloat16 factor: a copy halves their time.
    """
    transposed = jnp.swapaxes(x, -1, -2)
    return _row_major(transposed, "cpu") if x.dtype == jnp.bfloat16 else transposed


def sum_rows(x: Float[Array, "R F"]) -> Float[Array, " F"]:
    """Return the sum over rows, computed on CPUs as a product with ones.

    There, XLA's reduction over the first of two dimensions takes fifty times as long if
    the second is a vocabulary.
    """
    return lax.platform_dependent(
        x,
        cpu=lambda x: einsum_float32(
            "or,rf->of", jnp.ones((1, x.shape[0]), x.dtype), x
        )[0],
        default=lambda x: jnp.sum(x, axis=0),
    )
