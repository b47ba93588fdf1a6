"""Meshes, and the sharding of parameters, batches and gradients over them.

The only module that maps dimensions to mesh axes. The model names the dimensions of its
parameters and activations. `RULES` maps each name to the axis that it is split over. In
the notation of the scaling book, W[embed, mlp] of a feed-forward kernel becomes
W[D_fsdp, F_tensor].
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import bert_jax
from bert_jax import config as config_lib
from bert_jax.errors import UserError

AXES = ("data", "fsdp", "tensor")
_BATCH = ("data", "fsdp")

# Dimension name, mesh axis. The comments list arrays with this dimension.
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
    """Arrange devices in a mesh; by default, all of them.

    If devices are in several slices, with a slower network between them, `data` spans
    the slices, and `fsdp` and `tensor` stay within a slice. So only sums of gradients
    cross the slow network, unless optimizers shard their work over `data`.

    Raises:
      UserError: The product of the axes is not the number of devices, `data` is not a
        multiple of the number of slices, or JAX is set to float64.
    """
    if jax.config.jax_enable_x64:
        raise UserError("jax_enable_x64 is set; bert_jax computes in float32: unset it")
    devices = jax.devices() if devices is None else devices
    sizes = {axis: getattr(config, axis) for axis in AXES}
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if -1 in sizes.values() and len(devices) % fixed == 0:
        fill = len(devices) // fixed
        sizes = {axis: fill if size == -1 else size for axis, size in sizes.items()}
    shape = tuple(sizes.values())
    if math.prod(shape) != len(devices):
        asked = ", ".join(f"mesh.{axis}={getattr(config, axis)}" for axis in AXES)
        raise UserError(
            f"{asked}: the product of the sizes must be the number of devices here, "
            f"{len(devices)}; -1 stands for the rest"
        )
    slices = num_slices(devices)
    if shape[0] % slices:
        raise UserError(
            f"mesh.data={shape[0]} is not a multiple of the {slices} slices here "
            "(TPU slices or GPU nodes); mesh.fsdp and mesh.tensor must fit in one"
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
    """Return the number of slices: groups of devices with a slow network between.

    XLA counts each host of GPUs as a slice (xla/pjrt/distributed/topology_util.cc).
    """
    return len({getattr(device, "slice_index", 0) for device in devices})


def check_encoder(
    mesh: Mesh, encoder: config_lib.EncoderConfig, where: str = "encoder."
) -> None:
    """Check that the mesh axes divide the dimensions of an encoder.

    `where` comes before the names of its fields in messages.
    """
    for field, size, axis in (
        ("hidden_size", encoder.hidden_size, "fsdp"),
        ("embedding_size", encoder.embedding_columns, "fsdp"),
        ("num_heads", encoder.num_heads, "tensor"),
        ("num_key_value_heads", encoder.key_value_heads, "tensor"),
        ("intermediate_size", encoder.intermediate_size, "tensor"),
        ("prediction_head.width", encoder.prediction_head.width, "fsdp"),
    ):
        if size % mesh.shape[axis]:
            raise UserError(
                f"mesh.{axis}={mesh.shape[axis]} does not divide {where}{field}={size}"
            )
    tensor, tokens = mesh.shape["tensor"], encoder.padded_vocab_size
    if tokens % tensor:
        raise UserError(
            f"mesh.tensor={tensor} does not divide the padded vocabulary of {tokens} "
            f"tokens; set another mesh.tensor, or pretrain with {where}vocab_multiple "
            f"set to a multiple of {tensor}"
        )


def check_batch(mesh: Mesh, where: str, batch_size: int, micro_batches: int) -> None:
    """Check that a batch can be split evenly over devices and micro-batches."""
    parts = num_batch_shards(mesh)
    rows, rest = divmod(batch_size, parts)
    if rest == 0 and rows % micro_batches:
        raise UserError(
            f"{where}micro_batches={micro_batches} must divide {rows}, the rows in "
            f"each of {parts} parts into which mesh.data and mesh.fsdp cut "
            f"{where}batch_size={batch_size}; use fewer, or a larger batch"
        )
    if rest:
        pieces = f", each in {micro_batches} micro-batches" if micro_batches > 1 else ""
        raise UserError(
            f"{where}batch_size={batch_size} must be a multiple of "
            f"{parts * micro_batches}: mesh.data and mesh.fsdp cut a batch into "
            f"{parts} parts{pieces}; mesh.tensor=N makes fewer parts"
        )


def num_batch_shards(mesh: Mesh) -> int:
    """Return the number of shards that the rows of a batch are split into."""
    return math.prod(mesh.shape[axis] for axis in _BATCH)


@contextlib.contextmanager
def use(mesh: Mesh) -> Iterator[None]:
    """Context in which the names of dimensions refer to axes of the mesh."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        yield


def compiler_options(mesh: Mesh) -> Mapping[str, int | str]:
    """Return XLA's options for a model's programs on a mesh.

    On CPUs, they avoid the faulty fusions of jaxlib 0.10.2 (`bert_jax/__init__.py`).

    With parameters sharded over `fsdp`, the TPU compiler may split a product into one
    for each shard ("windowed einsum"), which is up to three times as slow by its own
    estimate as gathering the parameters (docs/sharding.md). A threshold that no array
    reaches prevents that.
    """
    platform = mesh.devices.flat[0].platform
    if platform == "cpu":
        return bert_jax.CPU_COMPILER_OPTIONS
    if platform == "tpu" and mesh.shape["fsdp"] > 1:
        return {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000}
    return {}


def state_shapes(init: Callable[[jax.Array], Any], mesh: Mesh) -> Any:
    """Return the shapes, dtypes and shardings of `init(key)` without computing it.

    Arrays to be sharded are boxed with the names of their dimensions. The result is a
    tree of `jax.ShapeDtypeStruct`, without boxes.
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


def sum_over_replicas(
    differentiate: Callable[..., Any], mesh: Mesh, dtype: jnp.dtype | str
) -> Callable[..., Any]:
    """Differentiate on each replica of the model, and all-reduce gradients in a dtype.

    Left to itself, the compiler all-reduces in float32 for each micro-batch and each
    use of a shared layer (docs/sharding.md). Here gradients are all-reduced once per
    step. The compiler still shards within a replica, over `fsdp` and `tensor`.

    `differentiate` is a function of parameters, a batch, other arrays with the rows of
    the batch, and values shared by all rows. It returns sums over rows, and gradients.
    """
    if mesh.shape["data"] == 1:
        return differentiate  # the compiler fails on an all-reduce over one replica
    # Inside `shard_map`, a replica has only its own rows.
    rules = [(name, "fsdp" if axes == _BATCH else axes) for name, axes in RULES]

    def differentiate_replica(params, batch, rows, shared):
        with nn.logical_axis_rules(rules):
            sums, grads = differentiate(params, batch, rows, shared)
        return jax.lax.psum(sums, "data"), jax.tree.map(all_reduce, grads)

    def all_reduce(gradient):
        addend = gradient.astype(dtype)
        if mesh.devices.flat[0].platform == "cpu":
            # XLA for CPUs all-reduces in float32 anyway, and crashes when it has to
            # convert a bfloat16 all-reduce.
            addend = addend.astype(jnp.float32)
        return jax.lax.psum(addend, "data").astype(dtype).astype(gradient.dtype)

    replicas = PartitionSpec("data")
    return jax.shard_map(
        differentiate_replica,
        mesh=mesh,
        in_specs=(PartitionSpec(), replicas, replicas, PartitionSpec()),
        out_specs=PartitionSpec(),
        axis_names={"data"},
        check_vma=False,
    )


def split_over_data(shapes: Any) -> Any:
    """Shard each array over `data` as well, if a dimension is divisible.

    For the optimizer state (ZeRO-1; Rajbhandari et al. 2020, 5.1): replicas of the
    model need its updates, not its moments. On TPUs, the compiler then all-reduces
    gradients and updated parameters whole (docs/sharding.md).
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
        return leaf.update(sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    return jax.tree.map(split, shapes)


def map_layers(function: Callable[..., Any], *stacked: Any) -> Any:
    """Compute a function of stacked layers, with the layers sharded over `data`.

    Replicas of the model, which would otherwise repeat the computation, each compute
    some layers, and then all-gather the results. Other dimensions keep their sharding.
    The function maps trees of arrays [N, ...] of one structure to such a tree. It
    treats layers independently, and accepts layers of zeros.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.axis_names != AXES:  # outside of `use`
        return function(*stacked)

    def constrain(x, axis):
        free = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
        return jax.lax.with_sharding_constraint(x, PartitionSpec(axis, *free))

    def split(x):
        # Keep the inputs of this array, and its other consumers, unsharded.
        x = constrain(x, None)
        # If layers do not divide evenly, the TPU compiler adds many collectives.
        padding = -len(x) % mesh.shape["data"]
        x = jnp.pad(x, [(0, padding), *[(0, 0)] * (x.ndim - 1)])
        return constrain(x, "data")

    result = function(*(jax.tree.map(split, tree) for tree in stacked))
    return jax.tree.map(
        lambda x, like: constrain(x, None)[: len(like)], result, stacked[0]
    )


def bytes_per_device(shapes: Any) -> int:
    """Return the bytes of a tree of `jax.ShapeDtypeStruct` on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(shapes)
    )


def shardings_of(shapes: Any) -> Any:
    """Return the shardings in a tree of `jax.ShapeDtypeStruct`."""
    return jax.tree.map(lambda leaf: leaf.sharding, shapes)


def initialise(init: Callable[[jax.Array], Any], shapes: Any, key: jax.Array) -> Any:
    """Compute `init(key)`, sharded as in `shapes`."""
    make = jax.jit(lambda key: _unbox(init(key)), out_shardings=shardings_of(shapes))
    return make(key)


def _unbox(tree: Any) -> Any:
    # `nn.unbox` would also constrain the values, which fails for shapes.
    is_box = lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)  # noqa: E731
    return jax.tree.map(
        lambda leaf: leaf.value if is_box(leaf) else leaf, tree, is_leaf=is_box
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array that all devices hold."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of the arrays of a batch: by rows."""
    return NamedSharding(mesh, PartitionSpec(_BATCH))


def device_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array with a row for each device."""
    return NamedSharding(mesh, PartitionSpec(AXES))


def from_each_process(mesh: Mesh, values: np.ndarray) -> jax.Array:
    """Build an array [devices, ...] of the values of each device's process."""
    shape = (len(mesh.local_devices), *values.shape)
    local = np.broadcast_to(values, shape)
    return jax.make_array_from_process_local_data(
        device_sharding(mesh), local, (mesh.size, *values.shape)
    )


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Return the rows of a batch that devices of this process hold, ascending.

    They come from the sharding: the order of processes does not determine them.
    """
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    rows = [np.arange(batch_size)[index[0]] for index in indices.values()]
    return np.unique(np.concatenate(rows))


def to_devices(
    mesh: Mesh, batch: dict[str, np.ndarray], batch_size: int
) -> dict[str, jax.Array]:
    """Put a batch on the devices of all processes, from its `local_rows`."""
    shapes = {name: (batch_size, *x.shape[1:]) for name, x in batch.items()}
    return jax.make_array_from_process_local_data(batch_sharding(mesh), batch, shapes)
