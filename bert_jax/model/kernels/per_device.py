"""Kernels on a mesh: each device runs one on its part of the arrays.

The compiler cannot split kernels. As everywhere in the model, names of dimensions say
how arrays are split.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax

# Names of the dimensions of an array; None for a dimension that is never split.
Names = tuple[str | None, ...]


def parts(dimension: str) -> int:
    """Return the number of parts that mesh and rules split a dimension into."""
    axes = nn.logical_to_mesh_axes((dimension,))[0] or ()
    mesh = jax.sharding.get_abstract_mesh()
    axes = (axes,) if isinstance(axes, str) else axes
    return math.prod(mesh.shape.get(axis, 1) for axis in axes)


def on_each_device(
    function: Callable[..., Any], inputs: Sequence[Names], outputs: Sequence[Names]
) -> Callable[..., Any]:
    """Wrap a function so that each device applies it to its parts of the arrays.

    Args:
      function: Function from arrays to a tuple of arrays.
      inputs: Names of the dimensions of its arguments.
      outputs: Names of the dimensions of its results.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function
    return jax.shard_map(
        function,
        in_specs=tuple(map(nn.logical_to_mesh_axes, inputs)),
        out_specs=tuple(map(nn.logical_to_mesh_axes, outputs)),
        check_vma=False,
    )
