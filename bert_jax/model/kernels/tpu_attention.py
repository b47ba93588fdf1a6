"""Self-attention as one TPU kernel.

Scores, softmax, mask and dropout of a head never leave the chip's memory. The forward
pass stores the output and, for each query, the logarithm of the sum of exponentials;
the backward pass recomputes the rest. Dropout masks equal those of
`plain_attention.attend` bit for bit, so a run may change between the two. The backward
pass also sums the gradients of queries, keys and values over positions, which are the
gradients of their biases. The kernel applies rotations itself, because the halves of a
head would fill a quarter of a register outside, and computes the scores of DeBERTa's
distances (`tpu_distances`).

JAX ships two such kernels, `pallas.ops.tpu.flash_attention` and `splash_attention`.
Neither has dropout, and both want heads before positions. Here inputs and outputs stay
[B, L, D]: a program of the grid has one row and some heads, that is some columns of D,
and works on windows of 128 columns, the width of the chip's registers. Up to 1,024
positions, a program has all keys of a head, so the softmax needs one pass only. In
local and causal attention, a chunk of 128 queries skips the blocks of 128 keys that
none of them sees. Longer rows are cut into pieces: a program has a piece of the queries
and a piece of the keys, and the softmax is rescaled from piece to piece (Milakov and
Gimelshein 2018; Dao et al. 2022, FlashAttention). Pieces of keys that no query sees, by
window or causal mask, are skipped.

Scores are transposed, keys by queries: sums over keys are then sums of registers.
Heads that share a window are not sliced out of its keys and values: the queries, or the
gradients, have zeros in the other heads' columns, which costs nothing, since a product
is as wide as the window. Two heads share such a product, side by side, which fills the
256 columns of a newer core. The output and all gradients are transposed, too: their
products move the rows of one head past the probabilities, and those of a window would
take twice the time.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, randomness, rotary
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.kernels import per_device, tpu_distances, tpu_rotations
from bert_jax.model.kernels import tpu_attention_passes as passes
from bert_jax.model.kernels import tpu_attention_scores as scores_lib
from bert_jax.model.kernels.decisions import (
    LANES,
    MAX_LENGTH,
    MAX_WINDOW,
    QUERY_CHUNK,
    device_kind,
)

# Positions times columns of a program: a few of such arrays fit the chip's memory.
_BLOCK = 96 * 1024

# Longest row whose float32 gradients of queries fit the default memory limit, which is
# all that a core of v4 has.
_MAX_LENGTH_BY_DEFAULT = 8192

# Names of the dimensions of arrays: rows, document ids, counters, log sums, biases.
_ROWS = ("batch", "length", "heads")
_IDS = ("batch", "length")
_COUNTERS = ("batch", "heads")
_SUMS = ("batch", "heads", None, "length")
_BIASES = ("batch", None, "heads")
# Tables of distances, and their gradients on each device.
_DISTANCES = "key_distances", "query_distances"
_TABLE = ("heads", None)
_TABLE_GRADIENTS = ("batch", "heads", None)
# Rotations differ between the rows, or repeat after some rows.
_ROTATIONS = ("batch", None, "length", None)
_REPEATED_ROTATIONS = (None, None, "length", None)


def attend(
    config: config_lib.EncoderConfig,
    sources: tuple[Float[Array, "B _ D"], ...],
    biases: tuple[Float[Array, " D"], ...],
    pattern: AttentionPattern,
    rotations: rotary.Rotations | None,
    dropout_keys: UInt32[Array, " B"] | None,
    query_positions: Int[Array, "B P"] | None = None,
    distances: tuple[Float[Array, "D _"], ...] = (),
) -> Float[Array, "B P D"]:
    """Return softmax(Q K^T / sqrt(K)) V of each head, with dropout.

    Args:
      config: Encoder.
      sources: Queries [B, P, D], keys [B, L, D] and values [B, L, D] of all heads. L, P
        and D are multiples of 128.
      biases: Biases that are still to be added to them, before they are rounded to the
        encoder's type.
      pattern: Rules for which keys each query sees.
      rotations: Rotations of queries and keys. If they have fewer rows than the batch,
        they repeat. None without rotary positions.
      dropout_keys: A key for each row; None for no dropout.
      query_positions: Positions of the queries in their rows, for patterns that are not
        causal, without window and without dropout; None: all, and P is L.
      distances: Keys and queries of distances, [D, 2 L], for DeBERTa: column c is for
        the distance to the token c - L positions after the content. They need all
        positions as queries.
    """
    batch, length, size = sources[1].shape
    head_size = config.head_size
    options = scores_lib.Options(
        head_size=head_size,
        rate=0.0 if dropout_keys is None else config.attention_dropout_rate,
        causal=pattern.causal,
        window=pattern.window,
        packed=pattern.documents is not None,
        query_piece=_piece_size(sources[0].shape[1], pattern.window),
        key_piece=_piece_size(length, pattern.window),
    )
    if dropout_keys is None:
        dropout_keys = jnp.zeros(batch, jnp.uint32)
    # The counter of each head's first word among the words of the row, as
    # `dropout.mask` numbers them for [H, L, L].
    heads = jnp.arange(size // head_size, dtype=jnp.uint32)
    first = heads * jnp.uint32(length * dropout.num_words(length))
    counters = randomness.advance(dropout_keys[:, None], first)  # [B, H]
    queries = pattern.documents
    if queries is None:
        queries = jnp.zeros(pattern.is_token.shape, jnp.int32)
    keys = jnp.where(pattern.is_token, queries, scores_lib.NO_DOCUMENT)
    rotated = dict.fromkeys(("query_rotations", "key_rotations"), rotations)
    if query_positions is not None:
        queries = jnp.take_along_axis(queries, query_positions, axis=1)
        if rotations is not None:
            rotated["query_rotations"] = rotations.at(query_positions)
    inputs = {"queries": queries, "keys": keys, "counters": counters}
    if rotations is not None:
        inputs |= {
            name: tpu_rotations.factors(x, head_size) for name, x in rotated.items()
        }
    sources = tuple(x.astype(jnp.float32) for x in sources)
    distances = tuple(x.astype(jnp.float32) for x in distances)
    dtype = jnp.dtype(config.dtype)
    return _attend(sources, biases, distances, inputs, dtype, options)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(sources, biases, distances, inputs, dtype, options):
    return _forward(sources, biases, distances, inputs, dtype, options)[0]


def _forward(sources, biases, distances, inputs, dtype, options):
    # Outside the kernel, so that the compiler fuses it into the products.
    query, key, value = (
        (x + bias).astype(dtype) for x, bias in zip(sources, biases, strict=True)
    )
    inputs = {"query": query, "key": key, "value": value, **inputs}
    if distances:
        tables = (x.astype(dtype) for x in distances)
        inputs |= zip(_DISTANCES, tables, strict=True)
    output, sums = _apply(options, inputs, (_ROWS, _SUMS))
    return output, {**inputs, "output": output, "sums": sums}


def _backward(dtype, options, residuals, g):
    outputs = _ROWS, _ROWS, _ROWS, _BIASES
    if _DISTANCES[0] in residuals:
        outputs += _TABLE_GRADIENTS, _TABLE_GRADIENTS
    inputs = {**residuals, "gradient": g}
    results = _apply(options, inputs, outputs)
    gradients, (sums, *distances) = results[:3], results[3:]
    gradients = tuple(x.astype(jnp.float32) for x in gradients)
    scale = options.head_size**-0.5 / (1 - options.rate)
    distances = tuple(jnp.sum(x, axis=0) * scale for x in distances)
    return gradients, tuple(jnp.sum(sums, axis=0)), distances, None


_attend.defvjp(_forward, _backward)


def _apply(options, inputs, outputs):
    """Run a pass on each device, for its part of the arrays."""
    names = dict.fromkeys(inputs, _ROWS)
    names |= {"queries": _IDS, "keys": _IDS, "counters": _COUNTERS, "sums": _SUMS}
    names |= dict.fromkeys(_DISTANCES, _TABLE)
    for name in ("query_rotations", "key_rotations"):
        if name in inputs:
            repeat = len(inputs[name]) < len(inputs["query"])
            names[name] = _REPEATED_ROTATIONS if repeat else _ROTATIONS
    return per_device.apply(
        _run,
        (options, *inputs),
        [names[name] for name in inputs],
        outputs,
        *inputs.values(),
    )


def _run(options, *arrays):
    """Run the forward pass for all rows and heads, or the backward pass.

    Args:
      options: Static options of the kernel, followed by the names of the arrays.
      *arrays: Query [B, P, D], key and value [B, L, D]; `queries` [B, P] and `keys` [B,
        L], the document of each; `counters` [B, H] of each head's first word; rotations
        [R, 2, P or L, 128], if any; tables of distances [D, 2 L], if any. In the
        backward pass also output [B, P, D], log `sums` [B, blocks, heads, P], and the
        gradient of the output.
    """
    options, *names = options
    inputs = dict(zip(names, arrays, strict=True))
    counters, query, key = inputs.pop("counters"), inputs["query"], inputs["key"]
    for name in ("queries", "keys"):
        inputs[name] = inputs[name][:, None, :]
    batch, length, size = query.shape
    query_piece, key_piece = options.query_piece, options.key_piece
    pieces = length // query_piece, key.shape[1] // key_piece
    is_whole = pieces == (1, 1)
    has_distances = _DISTANCES[0] in inputs
    width = LANES
    if is_whole and not has_distances:
        width = _block_width(key_piece, size)
    heads = width // options.head_size
    blocks = size // width
    is_backward = "gradient" in inputs

    def spec(shape, index, buffers=2):
        """Return a spec; `index` takes row, block of columns, and pieces q and k."""

        def index_of_program(first, second, outer, inner, _):
            b, i = (second, first) if has_distances else (first, second)
            q, k = (inner, outer) if is_backward else (outer, inner)
            return index(b, i, q, k)

        mode = pl.Buffered(buffers)
        return pl.BlockSpec(shape, index_of_program, pipeline_mode=mode)

    query_spec = spec((1, query_piece, width), lambda b, i, q, k: (b, q, i))
    key_spec = spec((1, key_piece, width), lambda b, i, q, k: (b, k, i))
    sums_spec = spec((1, 1, heads, query_piece), lambda b, i, q, k: (b, i, 0, q))
    specs = dict.fromkeys(inputs, query_spec) | {
        "key": key_spec,
        "value": key_spec,
        "queries": spec((1, 1, query_piece), lambda b, i, q, k: (b, 0, q)),
        "keys": spec((1, 1, key_piece), lambda b, i, q, k: (b, 0, k)),
        "sums": sums_spec,
    }
    query_shape = jax.ShapeDtypeStruct(query.shape, query.dtype)
    scratch = {}
    if has_distances:
        distances_spec = spec((width, 2 * length), lambda b, i, q, k: (i, 0))
        specs |= dict.fromkeys(_DISTANCES, distances_spec)
        scratch["key_scores"] = pltpu.VMEM((heads, length, length), jnp.float32)
    if "key_rotations" in inputs:
        # Rows of a batch after which the rotations repeat.
        query_repeats = len(inputs["query_rotations"])
        key_repeats = len(inputs["key_rotations"])
        specs["query_rotations"] = spec(
            (1, 2, query_piece, LANES), lambda b, i, q, k: (b % query_repeats, 0, q, 0)
        )
        # In the backward pass of long rows, one block serves all pieces of queries.
        # With two buffers, rows of 8,192 would not fit the memory of a v4 core.
        specs["key_rotations"] = spec(
            (1, 2, key_piece, LANES),
            lambda b, i, q, k: (b % key_repeats, 0, k, 0),
            buffers=1 if is_backward and not is_whole else 2,
        )
        scratch |= {
            "rotated_query": pltpu.VMEM((1, query_piece, width), query.dtype),
            "rotated_key": pltpu.VMEM((1, key_piece, width), query.dtype),
        }
    if is_backward:
        kernel, products = passes.backward, 5
        bias_sums_shape = jax.ShapeDtypeStruct((batch, 3, size), jnp.float32)
        bias_sums_spec = spec((1, 3, width), lambda b, i, q, k: (b, 0, i))
        key_shape = jax.ShapeDtypeStruct(key.shape, key.dtype)
        # Each block must be visited once: pieces of queries are written with the last
        # piece of keys.
        d_query_spec = spec(
            (1, query_piece, width),
            lambda b, i, q, k: (b, jnp.where(k == pieces[1] - 1, q, 0), i),
        )
        outputs = {"d_query": (query_shape, d_query_spec)}
        outputs |= {name: (key_shape, key_spec) for name in ("d_key", "d_value")}
        outputs["d_biases"] = bias_sums_shape, bias_sums_spec
        if has_distances:
            tables_shape = jax.ShapeDtypeStruct((1, size, 2 * length), jnp.float32)
            tables_spec = spec((1, width, 2 * length), lambda b, i, q, k: (0, i, 0))
            outputs |= {f"d_{name}": (tables_shape, tables_spec) for name in _DISTANCES}
        total = pltpu.VMEM((LANES, key_piece), jnp.float32)
        scratch["total_d_query"] = pltpu.VMEM((LANES, length), jnp.float32)
        scratch |= {"total_d_key": total, "total_d_value": total}
    else:
        kernel, products = passes.forward, 2
        sums_shape = jax.ShapeDtypeStruct((batch, blocks, heads, length), jnp.float32)
        outputs = {"output": (query_shape, query_spec), "sums": (sums_shape, sums_spec)}
        if not is_whole:
            running = pltpu.VMEM((heads, query_piece), jnp.float32)
            scratch |= {"highest": running, "total": running}
            scratch["context"] = pltpu.VMEM((LANES, query_piece), jnp.float32)
    names = *inputs, *outputs, *scratch
    memory = None
    is_float32 = query.dtype == jnp.float32
    if length > _MAX_LENGTH_BY_DEFAULT or (is_float32 and device_kind() != "TPU v4"):
        memory = 2**25 if is_float32 else 2**24
        memory += 4 * LANES * max(0, length - _MAX_LENGTH_BY_DEFAULT)
    run_program = functools.partial(
        _run_program, options, kernel, names, pieces, is_backward
    )
    grid = batch, blocks, *(pieces[::-1] if is_backward else pieces)
    semantics = ["parallel", "parallel", "arbitrary", "arbitrary"]
    if has_distances:
        # Rows come one after another, and add to the gradients of tables.
        grid = blocks, batch, 1, 1
        semantics[1] = "arbitrary"
        products += (6 if is_backward else 2) * (1 + LANES / length)
    out_shape, out_specs = zip(*outputs.values(), strict=True)
    scores = batch * size // options.head_size * length * key.shape[1]
    return pl.pallas_call(
        run_program,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[specs[name] for name in inputs],
            out_specs=out_specs,
            scratch_shapes=tuple(scratch.values()),
        ),
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=semantics,
            vmem_limit_bytes=memory,
        ),
        cost_estimate=pl.CostEstimate(
            flops=int(2 * products * scores * options.head_size),
            transcendentals=scores,
            bytes_accessed=sum(
                x.size * x.dtype.itemsize for x in (*inputs.values(), *out_shape)
            ),
        ),
        name=f"attention_{kernel.__name__}",
    )(counters.reshape(-1), *inputs.values())


def _run_program(options, kernel, names, pieces, is_backward, counters, *references):
    """Run a program of the grid: rotate queries and keys, and apply a pass to them."""
    by_name = dict(zip(names, references, strict=True))
    is_whole = pieces == (1, 1)
    outer, inner = (0, 0) if is_whole else (pl.program_id(2), pl.program_id(3))
    has_distances = "key_scores" in by_name
    row_axis, block_axis = (1, 0) if has_distances else (0, 1)
    row = pl.program_id(row_axis)
    index = row * pl.num_programs(block_axis) + pl.program_id(block_axis)
    at = (inner, outer) if is_backward else (outer, inner)
    if "rotated_query" in by_name:
        # The outer piece is rotated once for all inner pieces.
        is_new = {"query": is_backward or inner == 0}
        is_new["key"] = not is_backward or inner == 0
        for name, is_needed in is_new.items():
            source, target = by_name[name], by_name.pop(f"rotated_{name}")
            rotations = by_name[f"{name}_rotations"]
            rotate = functools.partial(
                tpu_rotations.rotate, options.head_size, rotations, source, target
            )
            pl.when(is_needed)(rotate)
            by_name[name] = target
        if not is_backward:
            del by_name["query_rotations"], by_name["key_rotations"]
    documents = by_name.pop("queries"), by_name.pop("keys")
    program = scores_lib.Program(
        options, index, at, pieces, counters, by_name["query"], *documents
    )
    if has_distances:
        tables = (by_name.pop(name) for name in _DISTANCES)
        program.distance_scores = tpu_distances.DistanceScores(
            program, by_name["key"], *tables, by_name.pop("key_scores")
        )
        if is_backward:

            @pl.when(row == 0)
            def _():
                for name in _DISTANCES:
                    total = by_name[f"d_{name}"]
                    total[:] = jnp.zeros_like(total)

    kernel(program, **by_name)


def _piece_size(length, window):
    """Return the largest size of equal pieces of a row.

    With a window, pieces from `overlapping_pieces` stay whole. Cut again, they would
    have scores of keys that no query sees.
    """
    most = MAX_LENGTH + (0 if window is None else 2 * MAX_WINDOW)
    sizes = range(QUERY_CHUNK, most + 1, QUERY_CHUNK)
    return max(size for size in sizes if length % size == 0)


def _block_width(length, size):
    """Return the columns of a program: as many windows of 128 as fit."""
    windows = size // LANES
    fitting = [
        n
        for n in range(1, windows + 1)
        if windows % n == 0 and n * LANES * length <= _BLOCK
    ]
    return LANES * max(fitting, default=1)
