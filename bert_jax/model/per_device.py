"""What each device of a mesh does by itself.

For kernels, which the compiler cannot split. The names of dimensions say how arrays are
split, as everywhere in the model.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax

# Names of the dimensions of an array; None for one that is never split.
Names = tuple[str | None, ...]


def parts(dimension: str) -> int:
    """Parts that a dimension is split into, where the mesh and the rules say so."""
    axes = nn.logical_to_mesh_axes((dimension,))[0] or ()
    mesh = jax.sharding.get_abstract_mesh()
    axes = (axes,) if isinstance(axes, str) else axes
    return math.prod(mesh.shape.get(axis, 1) for axis in axes)


def on_each_device(
    function: Callable[..., Any], inputs: Sequence[Names], outputs: Sequence[Names]
) -> Callable[..., Any]:
    """The function on what a device has of each array.

    Args:
      function: Function from arrays to a tuple of arrays.
      inputs: Dimensions of its arguments.
      outputs: Dimensions of its results.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function
    return jax.shard_map(
        function,
        in_specs=tuple(map(nn.logical_to_mesh_axes, inputs)),
        out_specs=tuple(map(nn.logical_to_mesh_axes, outputs)),
        check_vma=False,
    )
