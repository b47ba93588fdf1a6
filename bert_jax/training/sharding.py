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
import jax.numpy as jnp
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
    ("embed", "fsdp"),  # the D of kernels [D, F], [D, H, K], the E of [V, E]
    ("mlp", "tensor"),  # feed-forward kernels [D, F], [F, D]
    ("heads", "tensor"),  # attention kernels [D, H, K], [H, K, D]
    ("head", None),
    ("vocab", "tensor"),  # token embedding [V, E], output bias [V]
    ("position", None),
    ("segment", None),
    ("class", None),
    ("layers", None),  # the N or G that stacked parameters begin with
)


def make_mesh(
    config: config_lib.MeshConfig, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Lay out devices; by default, all of them.

    Where devices are in several slices, with a slower network between them, the slices
    are the outermost parts of `data`, and `fsdp` and `tensor` stay inside of one: what
    crosses the slow network is the sum of gradients, once a step.

    Raises:
      UserError: The axes do not multiply to the number of devices, or `data` cannot be
        cut into slices.
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
    slices = num_slices(devices)
    if shape[0] % slices:
        raise UserError(
            f"mesh.data={shape[0]} is not a multiple of the {slices} slices here; "
            "mesh.fsdp and mesh.tensor must fit in one"
        )
    if slices == 1:
        grid = mesh_utils.create_device_mesh(
            shape, devices, allow_split_physical_axes=True
        )
    else:
        grid = mesh_utils.create_hybrid_device_mesh(
            (shape[0] // slices, *shape[1:]),
            (slices, *[1] * (len(shape) - 1)),
            devices,
            allow_split_physical_axes=True,
        )
    # Explicit axes, the default of `jax.make_mesh`, refuse the model's constraints.
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def num_slices(devices: Sequence[jax.Device]) -> int:
    """Parts that the devices fall into, with a slower network between them."""
    return len({getattr(device, "slice_index", 0) for device in devices})


def check_encoder(
    mesh: Mesh, encoder: config_lib.EncoderConfig, name: str = "encoder."
) -> None:
    """Check that the model can be split as the mesh asks.

    Args:
      mesh: Devices to train on.
      encoder: Shape of the encoder.
      name: What comes before its fields in messages.

    Raises:
      UserError: A dimension does not divide.
    """
    for field, size, axis in (
        ("hidden_size", encoder.hidden_size, "fsdp"),
        ("embedding_size", encoder.embedding_columns, "fsdp"),
        ("num_heads", encoder.num_heads, "tensor"),
        ("num_key_value_heads", encoder.key_value_heads, "tensor"),
        ("intermediate_size", encoder.intermediate_size, "tensor"),
        ("vocab_multiple", encoder.padded_vocab_size, "tensor"),
    ):
        if size % mesh.shape[axis]:
            raise UserError(
                f"mesh.{axis}={mesh.shape[axis]} does not divide {name}{field}={size}"
            )


def check_batch(mesh: Mesh, where: str, batch_size: int, micro_batches: int) -> None:
    """Check that a batch can be split evenly.

    Raises:
      UserError: The rows do not divide.
    """
    parts = batch_parts(mesh)
    if batch_size % (parts * micro_batches):
        pieces = f" times {micro_batches} micro-batches" if micro_batches > 1 else ""
        raise UserError(
            f"{where}batch_size={batch_size} is not a multiple of the {parts} parts "
            f"that mesh.data and mesh.fsdp cut it into{pieces}; mesh.tensor=N makes "
            "fewer parts"
        )


def batch_parts(mesh: Mesh) -> int:
    """Pieces that the rows of a batch are dealt out in."""
    return math.prod(mesh.shape[axis] for axis in _BATCH)


@contextlib.contextmanager
def use(mesh: Mesh) -> Iterator[None]:
    """Within this, names of dimensions mean axes of the mesh."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        yield


def state_shapes(init: Callable[[jax.Array], Any], mesh: Mesh) -> Any:
    """Shapes, types and shardings of what `init(key)` makes, without making it.

    Args:
      init: Function of a key. It returns a tree whose arrays are boxed with the names
        of their dimensions where they are to be split.
      mesh: Mesh to split them over.

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


def sum_over_copies(
    differentiate: Callable[..., Any], mesh: Mesh, dtype: jnp.dtype
) -> Callable[..., Any]:
    """Differentiate on the rows of each copy of the model, and add up in a type.

    Otherwise the compiler chooses where to add up: in float32, and for each micro-batch
    (docs/sharding.md). Here it is once in a step. What concerns the parts of a copy,
    over `fsdp` and `tensor`, stays with the compiler.

    Args:
      differentiate: Function from parameters, a batch, what else has a row for each of
        the batch, and what is the same for all rows, to a pair: sums over rows, and
        gradients.
      mesh: Devices.
      dtype: Type of the gradients that devices send to each other.
    """
    if mesh.shape["data"] == 1:
        return differentiate  # and the compiler fails at such a sum
    # Each copy knows nothing of the others.
    rules = [(name, "fsdp" if axes == _BATCH else axes) for name, axes in RULES]

    def of_copy(params, batch, rows, shared):
        with nn.logical_axis_rules(rules):
            sums, grads = differentiate(params, batch, rows, shared)
        return jax.lax.psum(sums, "data"), jax.tree.map(add_up, grads)

    def add_up(gradient):
        addend = gradient.astype(dtype)
        if mesh.devices.flat[0].platform == "cpu":
            # XLA's compiler for processors adds up in float32 in any case, and crashes
            # when it has to change such a program into that.
            addend = addend.astype(jnp.float32)
        return jax.lax.psum(addend, "data").astype(dtype).astype(gradient.dtype)

    copies = PartitionSpec("data")
    return jax.shard_map(
        of_copy,
        mesh=mesh,
        in_specs=(PartitionSpec(), copies, copies, PartitionSpec()),
        out_specs=PartitionSpec(),
        axis_names={"data"},
        check_vma=False,
    )


def split_over_data(shapes: Any) -> Any:
    """The same shapes, each array split over `data` too, if a dimension allows it.

    For the state of the optimizer (ZeRO-1; Rajbhandari et al. 2020, 5.1): the copies of
    the model need its updates, not its moments. The compiler then adds up gradients so
    that each device gets its part, and collects the updated parameters.

    Args:
      shapes: Tree of `jax.ShapeDtypeStruct` with shardings.
    """

    def split(leaf):
        mesh = leaf.sharding.mesh
        spec = [*leaf.sharding.spec, *[None] * leaf.ndim][: leaf.ndim]
        axes = [() if s is None else s if isinstance(s, tuple) else (s,) for s in spec]
        parts = [math.prod(mesh.shape[axis] for axis in names) for names in axes]
        # The largest dimension that can be cut; of equal ones, the first.
        for i in sorted(range(leaf.ndim), key=lambda i: -leaf.shape[i] // parts[i]):
            if leaf.shape[i] % (parts[i] * mesh.shape["data"]) == 0:
                spec[i] = (*axes[i], "data")
                break
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(split, shapes)


def map_layers(function: Callable[..., Any], *stacked: Any) -> Any:
    """Compute a function of stacked layers, with the layers split over `data`.

    The copies of the model, which would otherwise all repeat the computation, share it
    out, and then gather the results. Other dimensions stay split as they are.

    Args:
      function: Function from trees of arrays [N, ...] to a tree of arrays [N, ...]. It
        treats each layer by itself, and layers of zeros without error.
      *stacked: Its arguments, of one structure.

    Returns:
      What `function(*stacked)` returns. Each device has all layers.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:  # outside of `use`
        return function(*stacked)

    def constrain(x, axis):
        free = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
        return jax.lax.with_sharding_constraint(x, PartitionSpec(axis, *free))

    def split(x):
        # What this array is made from, and what else is made from it, stays whole.
        x = constrain(x, None)
        # Compiled for TPUs, layers that do not divide go through many more exchanges.
        padding = -len(x) % mesh.shape["data"]
        x = jnp.pad(x, [(0, padding), *[(0, 0)] * (x.ndim - 1)])
        return constrain(x, "data")

    result = function(*(jax.tree.map(split, tree) for tree in stacked))
    return jax.tree.map(
        lambda x, like: constrain(x, None)[: len(like)], result, stacked[0]
    )


def bytes_of_device(shapes: Any) -> int:
    """What one device holds of a tree of `jax.ShapeDtypeStruct` with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(shapes)
    )


def batch_shapes(
    mesh: Mesh, shapes: dict[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a batch, with their shardings."""
    return {
        name: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=batch_sharding(mesh))
        for name, s in shapes.items()
    }


def describe(mesh: Mesh) -> str:
    """The sizes of the axes, for people."""
    return ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())


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
    """Each device holds all of an array."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows split over devices, for every array of a batch."""
    return NamedSharding(mesh, PartitionSpec(_BATCH))


def device_sharding(mesh: Mesh) -> NamedSharding:
    """One row for each device."""
    return NamedSharding(mesh, PartitionSpec(AXES))


def from_each_process(mesh: Mesh, values: np.ndarray) -> jax.Array:
    """[devices, ...]: each row is what the process of that device gave."""
    shape = (mesh.size, *values.shape)
    return jax.make_array_from_callback(
        shape,
        device_sharding(mesh),
        lambda index: np.broadcast_to(
            values, (len(range(*index[0].indices(shape[0]))), *values.shape)
        ),
    )


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
      mesh: Mesh of the run.
      batch: Arrays with `len(rows)` rows.
      rows: Numbers of these rows, from `local_rows`.
      batch_size: Number of rows over all processes.
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
