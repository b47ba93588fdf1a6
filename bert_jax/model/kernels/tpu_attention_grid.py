"""Grid of the TPU's attention kernel: its programs, and their blocks of the arrays.

`tpu_attention.py` has an overview. A program has one row of the batch and some heads, a
block of columns. In long rows it has one piece of the queries and one of the keys.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.model.kernels import tpu_attention_passes as passes
from bert_jax.model.kernels import tpu_attention_scores as scores_lib
from bert_jax.model.kernels import tpu_distances, tpu_rotations
from bert_jax.model.kernels.block_sizes import LANES, MAX_LENGTH_IN_16_MIB
from bert_jax.model.kernels.per_device import device_kind

# Names of the tables of distances.
DISTANCES = "key_distances", "query_distances"

# Positions times columns of a program: a few of such arrays fit the chip's memory.
_BLOCK = 96 * 1024


def run(options, *arrays):
    """Run the forward pass for all rows and heads, or the backward pass.

    Args:
      options: Static options of the kernel, followed by the names of the arrays.
      *arrays: Query [B, P, D], key and value [B, L, D]; `queries` [B, P] and `keys` [B,
        L], the document of each; `counters` [B, H] of each head's first word; rotations
        [R, 2, P or L, 128], if any; tables of distances [D, 2 L], if any. In the
        backward pass also output [B, P, D], log `sums` [B, blocks, heads, P], and the
        gradient of the output.

    Returns:
      Output and log sums. In the backward pass the gradients of query, key, value, of
      the biases [B, 3, D], and of the tables [1, D, 2 L], if any.
    """
    options, *names = options
    inputs = dict(zip(names, arrays, strict=True))
    counters = inputs.pop("counters")
    for name in ("queries", "keys"):
        inputs[name] = inputs[name][:, None, :]  # [B, 1, P], [B, 1, L]
    grid = _Grid(options, inputs)
    if grid.is_backward:
        kernel, outputs, scratch = passes.backward, *grid.backward()
    else:
        kernel, outputs, scratch = passes.forward, *grid.forward()
    specs = grid.input_specs(inputs)
    scratch = grid.scratch_of_inputs(inputs) | scratch
    names = *inputs, *outputs, *scratch
    out_shape, out_specs = zip(*outputs.values(), strict=True)
    return pl.pallas_call(
        functools.partial(_run_program, grid, kernel, names),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid.shape,
            in_specs=[specs[name] for name in inputs],
            out_specs=out_specs,
            scratch_shapes=tuple(scratch.values()),
        ),
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=grid.semantics,
            vmem_limit_bytes=_memory_limit(grid.length, grid.dtype),
        ),
        cost_estimate=grid.cost((*inputs.values(), *out_shape)),
        name=f"attention_{kernel.__name__}",
    )(counters.reshape(-1), *inputs.values())


class _Grid:
    """Programs of a pass, and their blocks.

    Attributes:
      options: Static options of the kernel.
      length: Number of queries in a row.
      dtype: Type of queries and keys.
      is_backward: Whether the pass is the backward pass.
      has_distances: Whether the scores of DeBERTa's distances are added.
      pieces: Numbers of pieces of queries and of keys in a row.
      is_whole: Whether a row is one piece of queries and one of keys.
    """

    def __init__(self, options, inputs):
        query = inputs["query"]
        self.options, self.dtype = options, query.dtype
        self._batch, self.length, self._size = query.shape
        self._key_length = inputs["key"].shape[1]
        self.is_backward = "gradient" in inputs
        self.has_distances = DISTANCES[0] in inputs
        self.pieces = (
            self.length // options.query_piece,
            self._key_length // options.key_piece,
        )
        self.is_whole = self.pieces == (1, 1)
        self._width = LANES  # columns of a program
        if self.is_whole and not self.has_distances:
            self._width = _block_width(options.key_piece, self._size)
        self._heads = self._width // options.head_size  # of a program
        self._blocks = self._size // self._width

    @property
    def shape(self):
        """Numbers of programs along the dimensions of the grid."""
        if self.has_distances:
            return self._blocks, self._batch, 1, 1
        outer, inner = self.pieces[::-1] if self.is_backward else self.pieces
        return self._batch, self._blocks, outer, inner

    @property
    def semantics(self):
        """Semantics of the dimensions: "arbitrary" if programs depend on each other."""
        # With distances, rows add to the gradients of tables, one after another.
        second = "arbitrary" if self.has_distances else "parallel"
        return ["parallel", second, "arbitrary", "arbitrary"]

    def place(self, first, second, outer, inner):
        """Return row, block of columns, and pieces q and k, at an index of the grid."""
        b, i = (second, first) if self.has_distances else (first, second)
        q, k = (inner, outer) if self.is_backward else (outer, inner)
        return b, i, q, k

    def input_specs(self, inputs):
        """Return the specs of the inputs, by name."""
        query, key = self.options.query_piece, self.options.key_piece
        key_spec = self._spec((1, key, self._width), lambda b, i, q, k: (b, k, i))
        specs = dict.fromkeys(inputs, self._query_spec) | {
            "key": key_spec,
            "value": key_spec,
            "queries": self._spec((1, 1, query), lambda b, i, q, k: (b, 0, q)),
            "keys": self._spec((1, 1, key), lambda b, i, q, k: (b, 0, k)),
            "sums": self._sums_spec,
        }
        if self.has_distances:
            shape = self._width, 2 * self.length
            table_spec = self._spec(shape, lambda b, i, q, k: (i, 0))
            specs |= dict.fromkeys(DISTANCES, table_spec)
        if "key_rotations" in inputs:
            # Rows of a batch after which the rotations repeat.
            query_repeats = len(inputs["query_rotations"])
            key_repeats = len(inputs["key_rotations"])
            specs["query_rotations"] = self._spec(
                (1, 2, query, LANES), lambda b, i, q, k: (b % query_repeats, 0, q, 0)
            )
            # In the backward pass of long rows, one block serves all pieces of queries.
            # With two buffers, rows of 8,192 would not fit the memory of a v4 core.
            specs["key_rotations"] = self._spec(
                (1, 2, key, LANES),
                lambda b, i, q, k: (b % key_repeats, 0, k, 0),
                buffers=1 if self.is_backward and not self.is_whole else 2,
            )
        return specs

    def scratch_of_inputs(self, inputs):
        """Return the scratch memory, by name, that some inputs need in both passes."""
        scratch = {}
        if self.has_distances:
            shape = self._heads, self.length, self.length
            scratch["key_scores"] = pltpu.VMEM(shape, jnp.float32)
        if "key_rotations" in inputs:
            for name, piece in (
                ("rotated_query", self.options.query_piece),
                ("rotated_key", self.options.key_piece),
            ):
                scratch[name] = pltpu.VMEM((1, piece, self._width), self.dtype)
        return scratch

    def forward(self):
        """Return shapes and specs of the outputs, and the scratch memory, by name."""
        rows = jax.ShapeDtypeStruct((self._batch, self.length, self._size), self.dtype)
        sums = jax.ShapeDtypeStruct(
            (self._batch, self._blocks, self._heads, self.length), jnp.float32
        )
        outputs = {"output": (rows, self._query_spec), "sums": (sums, self._sums_spec)}
        scratch = {}
        if not self.is_whole:
            piece = self.options.query_piece
            running = pltpu.VMEM((self._heads, piece), jnp.float32)
            scratch |= {"highest": running, "total": running}
            scratch["context"] = pltpu.VMEM((LANES, piece), jnp.float32)
        return outputs, scratch

    def backward(self):
        """Return shapes and specs of the outputs, and the scratch memory, by name."""
        batch, size, width = self._batch, self._size, self._width
        query_piece, key_piece = self.options.query_piece, self.options.key_piece
        last = self.pieces[1] - 1
        queries = jax.ShapeDtypeStruct((batch, self.length, size), self.dtype)
        # Each block must be visited once: pieces of queries are written with the last
        # piece of keys.
        d_query_spec = self._spec(
            (1, query_piece, width),
            lambda b, i, q, k: (b, jnp.where(k == last, q, 0), i),
        )
        outputs = {"d_query": (queries, d_query_spec)}
        keys = jax.ShapeDtypeStruct((batch, self._key_length, size), self.dtype)
        key_spec = self._spec((1, key_piece, width), lambda b, i, q, k: (b, k, i))
        outputs |= {"d_key": (keys, key_spec), "d_value": (keys, key_spec)}
        biases = jax.ShapeDtypeStruct((batch, 3, size), jnp.float32)
        biases_spec = self._spec((1, 3, width), lambda b, i, q, k: (b, 0, i))
        outputs["d_biases"] = biases, biases_spec
        if self.has_distances:
            columns = 2 * self.length
            table = jax.ShapeDtypeStruct((1, size, columns), jnp.float32)
            table_spec = self._spec((1, width, columns), lambda b, i, q, k: (0, i, 0))
            outputs |= {f"d_{name}": (table, table_spec) for name in DISTANCES}
        total = pltpu.VMEM((LANES, key_piece), jnp.float32)
        return outputs, {
            "total_d_query": pltpu.VMEM((LANES, self.length), jnp.float32),
            "total_d_key": total,
            "total_d_value": total,
        }

    def cost(self, arrays):
        """Return the compiler's estimate of a pass that reads or writes the arrays."""
        products = 5 if self.is_backward else 2
        if self.has_distances:
            products += (6 if self.is_backward else 2) * (1 + LANES / self.length)
        heads = self._size // self.options.head_size
        scores = self._batch * heads * self.length * self._key_length
        return pl.CostEstimate(
            flops=int(2 * products * scores * self.options.head_size),
            transcendentals=scores,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in arrays),
        )

    @property
    def _query_spec(self):
        shape = 1, self.options.query_piece, self._width
        return self._spec(shape, lambda b, i, q, k: (b, q, i))

    @property
    def _sums_spec(self):
        shape = 1, 1, self._heads, self.options.query_piece
        return self._spec(shape, lambda b, i, q, k: (b, i, 0, q))

    def _spec(self, shape, index, buffers=2):
        """Return the spec of blocks; `index` takes the results of `place`."""

        def index_of_program(first, second, outer, inner, counters):
            del counters
            return index(*self.place(first, second, outer, inner))

        mode = pl.Buffered(buffers)
        return pl.BlockSpec(shape, index_of_program, pipeline_mode=mode)


def _run_program(grid, kernel, names, counters, *references):
    """Run a program of the grid: rotate queries and keys, and apply a pass to them."""
    by_name = dict(zip(names, references, strict=True))
    pieces = (0, 0) if grid.is_whole else (pl.program_id(2), pl.program_id(3))
    row, block, *at = grid.place(pl.program_id(0), pl.program_id(1), *pieces)
    index = row * pl.num_programs(0 if grid.has_distances else 1) + block
    if "rotated_query" in by_name:
        # The outer piece is rotated once for all inner pieces.
        is_new = {"query": grid.is_backward or at[1] == 0}
        is_new["key"] = not grid.is_backward or at[0] == 0
        for name, is_needed in is_new.items():
            source, target = by_name[name], by_name.pop(f"rotated_{name}")
            rotations = by_name[f"{name}_rotations"]
            rotate = functools.partial(
                tpu_rotations.rotate, grid.options.head_size, rotations, source, target
            )
            pl.when(is_needed)(rotate)
            by_name[name] = target
        if not grid.is_backward:
            del by_name["query_rotations"], by_name["key_rotations"]
    documents = by_name.pop("queries"), by_name.pop("keys")
    program = scores_lib.Program(
        grid.options,
        index,
        tuple(at),
        grid.pieces,
        counters,
        by_name["query"],
        *documents,
    )
    if grid.has_distances:
        tables = (by_name.pop(name) for name in DISTANCES)
        program.distance_scores = tpu_distances.DistanceScores(
            program, by_name["key"], *tables, by_name.pop("key_scores")
        )
        if grid.is_backward:

            @pl.when(row == 0)
            def _():
                for name in DISTANCES:
                    total = by_name[f"d_{name}"]
                    total[:] = jnp.zeros_like(total)

    kernel(program, **by_name)


def _memory_limit(length, dtype):
    """Return the memory limit of a kernel in bytes; None: the default."""
    is_float32 = dtype == jnp.float32
    is_long = length > MAX_LENGTH_IN_16_MIB
    if not is_long and (not is_float32 or device_kind() == "TPU v4"):
        return None
    limit = 2**25 if is_float32 else 2**24
    return limit + 4 * LANES * max(0, length - MAX_LENGTH_IN_16_MIB)


def _block_width(length, size):
    """Return the columns of a program: as many windows of 128 as fit."""
    windows = size // LANES
    fitting = [
        n
        for n in range(1, windows + 1)
        if windows % n == 0 and n * LANES * length <= _BLOCK
    ]
    return LANES * max(fitting, default=1)
