"""Devices of a mesh, each of which runs a kernel on its part of the arrays.

The compiler cannot split kernels. As everywhere in the model, names of dimensions say
how arrays are split.
"""

import functools
import math
from collections.abc import Callable, Hashable, Sequence

import flax.linen as nn
import jax

# Names of the dimensions of an array; None for a dimension that is never split.
Names = tuple[str | None, ...]


def device_kind() -> str:
    """Return the kind of the devices in use, such as "TPU v5 lite".

    Call it with the mesh in use if its devices are absent.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
    return device.device_kind


def num_shards(dimension: str) -> int:
    """Return the number of parts that mesh and rules split a dimension into."""
    axes = nn.logical_to_mesh_axes((dimension,))[0] or ()
    mesh = jax.sharding.get_abstract_mesh()
    axes = (axes,) if isinstance(axes, str) else axes
    return math.prod(mesh.shape.get(axis, 1) for axis in axes)


def apply(
    function: Callable[..., tuple[jax.Array, ...]],
    options: Hashable,
    inputs: Sequence[Names],
    outputs: Sequence[Names],
    *arrays: jax.Array,
) -> tuple[jax.Array, ...]:
    """Apply a function on each device to its parts of the arrays.

    Args:
      function: Function of options and arrays, declared at the top of a module.
      options: First argument of the function.
      inputs: Names of the dimensions of each array.
      outputs: Names of the dimensions of each result.
      *arrays: The function's other arguments.
    """
    specs = None
    if not jax.sharding.get_abstract_mesh().empty:
        specs = tuple(
            tuple(map(nn.logical_to_mesh_axes, names)) for names in (inputs, outputs)
        )
    return _apply(function, options, specs, *arrays)


# Jitted, so that a kernel is traced once instead of in every layer. JAX's trace cache
# ignores Flax's rules for names, so the caller reads them. Inlined, because the TPU
# compiler aborts if a function with a `shard_map` is called twice inside another
# `shard_map`, such as the one in `sharding.sum_over_replicas`.
@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _apply(function, options, specs, *arrays):
    run = functools.partial(function, options)
    if specs is not None:
        in_specs, out_specs = specs
        run = jax.shard_map(
            run, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
    return run(*arrays)
