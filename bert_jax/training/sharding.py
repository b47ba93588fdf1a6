"""How a run is spread over devices: the mesh, and what lies where on it.

The only module that knows mesh axes. The model names the dimensions of its parameters
and activations; `RULES` says which axis each name is split over. In the notation of the
scaling book, W[embed, mlp] of a feed-forward kernel becomes W[D_fsdp, F_tensor].
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax import config as config_lib
from bert_jax.errors import UserError

AXES = ("data", "fsdp", "tensor")
_BATCH = ("data", "fsdp")

# Dimension name, mesh axis. The comment has the arrays that the rule is about.
RULES = (
    ("batch", _BATCH),  # every array of a batch, hidden states [B, L, D]
    ("length", None),
    ("hidden", None),  # hidden states, layer norms [D]
    ("embed", "fsdp"),  # the D of kernels [D, F], [D, H, K], [V, D]
    ("mlp", "tensor"),  # feed-forward kernels [D, F], [F, D]
    ("heads", "tensor"),  # attention kernels [D, H, K], [H, K, D]
    ("head", None),
    ("vocab", "tensor"),  # token embedding [V, D], output bias [V]
    ("position", None),
    ("segment", None),
    ("class", None),
    ("layers", None),  # the N that stacked parameters begin with
)


def make_mesh(
    config: config_lib.MeshConfig, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Lay out devices, all of them unless told otherwise.

    Raises:
      UserError: the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = {axis: getattr(config, axis) for axis in AXES}
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if -1 in sizes.values() and len(devices) % fixed == 0:
        fill = len(devices) // fixed
        sizes = {axis: fill if size == -1 else size for axis, size in sizes.items()}
    shape = tuple(sizes.values())
    if math.prod(shape) != len(devices):
        asked = ", ".join(f"mesh.{axis}={getattr(config, axis)}" for axis in AXES)
        raise UserError(f"{asked} do not multiply to the {len(devices)} devices here")
    grid = mesh_utils.create_device_mesh(shape, devices)
    # Explicit axes, the default of `jax.make_mesh`, refuse the model's constraints.
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def check_encoder(mesh: Mesh, encoder: config_lib.EncoderConfig) -> None:
    """Whether the model can be cut as the mesh asks.

    Raises:
      UserError: a dimension does not divide.
    """
    for field, size, axis in (
        ("hidden_size", encoder.hidden_size, "fsdp"),
        ("num_heads", encoder.num_heads, "tensor"),
        ("intermediate_size", encoder.intermediate_size, "tensor"),
        ("vocab_multiple", encoder.padded_vocab_size, "tensor"),
    ):
        if size % mesh.shape[axis]:
            raise UserError(
                f"mesh.{axis}={mesh.shape[axis]} does not divide encoder.{field}={size}"
            )


def check_batch(mesh: Mesh, where: str, batch_size: int, micro_batches: int) -> None:
    """Whether a batch can be dealt out evenly.

    Raises:
      UserError: it cannot.
    """
    parts = math.prod(mesh.shape[axis] for axis in _BATCH)
    if batch_size % (parts * micro_batches):
        pieces = f" times {micro_batches} micro-batches" if micro_batches > 1 else ""
        raise UserError(
            f"{where}batch_size={batch_size} is not a multiple of the {parts} parts "
            f"that mesh.data and mesh.fsdp cut it into{pieces}"
        )


@contextlib.contextmanager
def use(mesh: Mesh) -> Iterator[None]:
    """Within this, names of dimensions mean axes of the mesh."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        yield


def state_shapes(init: Callable[[jax.Array], Any], mesh: Mesh) -> Any:
    """Shapes, types and shardings of what `init(key)` makes, without making it.

    Args:
      init: to a tree whose arrays are boxed with names where they are to be split.
      mesh: to split them over.

    Returns:
      A tree of `jax.ShapeDtypeStruct`, without boxes.
    """
    boxed = jax.eval_shape(init, jax.random.key(0))
    specs = nn.get_partition_spec(boxed)
    shardings = nn.logical_to_mesh_sharding(specs, mesh, RULES)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding
        ),
        _unbox(boxed),
        shardings,
    )


def shardings_of(shapes: Any) -> Any:
    """The shardings in a tree of `jax.ShapeDtypeStruct`."""
    return jax.tree.map(lambda leaf: leaf.sharding, shapes)


def initialise(init: Callable[[jax.Array], Any], shapes: Any, key: jax.Array) -> Any:
    """Make the tree that `shapes` describes, each device its own parts."""
    make = jax.jit(lambda key: _unbox(init(key)), out_shardings=shardings_of(shapes))
    return make(key)


def _unbox(tree: Any) -> Any:
    # Flax's own would also constrain the values, which shapes cannot be.
    is_box = lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)  # noqa: E731
    return jax.tree.map(
        lambda leaf: leaf.value if is_box(leaf) else leaf, tree, is_leaf=is_box
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """Everything everywhere."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows dealt out, for every array of a batch."""
    return NamedSharding(mesh, PartitionSpec(_BATCH))


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """The rows of a batch that devices of this process hold, ascending.

    Asked of the sharding: the order of processes says nothing about rows.
    """
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    rows = [np.arange(batch_size)[index[0]] for index in indices.values()]
    return np.unique(np.concatenate(rows))


def to_devices(
    mesh: Mesh, batch: dict[str, np.ndarray], rows: np.ndarray, batch_size: int
) -> dict[str, jax.Array]:
    """A batch over all devices of all processes, from the rows that this one made.

    Args:
      mesh: of the run.
      batch: arrays with `len(rows)` rows.
      rows: from `local_rows`.
      batch_size: rows over all processes.
    """
    sharding = batch_sharding(mesh)

    def put(values):
        def part(index):
            start, stop, _ = index[0].indices(batch_size)
            first = np.searchsorted(rows, start)
            return values[first : first + stop - start]

        shape = (batch_size, *values.shape[1:])
        return jax.make_array_from_callback(shape, sharding, part)

    return {name: put(values) for name, values in batch.items()}
