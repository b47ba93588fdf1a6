"""Forward and backward pass of the TPU's attention kernel, for one program of the grid.

See `tpu_attention.py` for the whole. A program has some heads of one row of the batch:
all queries and keys of the row, or in long rows a piece of the queries and a piece of
the keys. Arrays of scores are [M, N]: the N queries of a chunk, and the M keys that
they may see.
"""

import jax.numpy as jnp
from jax.experimental import pallas as pl

from bert_jax.model.attention_pattern import MASKED_SCORE
from bert_jax.model.kernels import tpu_rotations
from bert_jax.model.kernels.block_sizes import LANES, QUERY_CHUNK
from bert_jax.model.kernels.per_device import device_kind
from bert_jax.model.kernels.tpu_attention_scores import dot, dot_transposed, split


def forward(
    program, query, key, value, output, sums, highest=None, total=None, context=None
):
    """Write outputs and log sums of a program's heads.

    `program` is a `tpu_attention_scores.Program`. Queries, keys, values and outputs are
    [1, L, columns]. `sums`, [1, 1, heads, L], are the logarithms, to the base of 2, of
    the sums of exponentials of scores; they are infinite for queries that see no key.

    In long rows, L is the size of a piece. The pieces of keys come one after another,
    and each overwrites the results of the previous one. Running values are kept in
    float32: the `highest` score and the `total` of exponentials, [heads, L], and the
    sum of values, `context` [128, L].
    """
    options, is_whole = program.options, program.is_whole

    def first_stage(step):
        q = program.for_each_head(step.heads, query[0, step.chunk, step.columns])
        return (program.scores(step, key[0, step.keys, step.columns], q),)

    if not is_whole:

        @pl.when(program.at[1] == 0)
        def _():
            highest[:] = jnp.full_like(highest, MASKED_SCORE)
            total[:] = jnp.zeros_like(total)
            context[:] = jnp.zeros_like(context)

    @pl.when(program.sees_keys())
    def _():
        heads_at_once = _heads_at_once(query)
        for step, scores_of_heads in program.steps(first_stage, heads_at_once):
            chunk = step.chunk
            if step.is_first:
                outputs = []
                v_transposed = value[0, step.keys, step.columns].T  # [128, M]
            for head, scores in zip(step.heads, scores_of_heads, strict=True):
                row = slice(head.index, head.index + 1)
                top = jnp.max(scores, axis=0, keepdims=True)  # [1, N]
                if not is_whole:
                    before = highest[row, chunk]
                    top = jnp.maximum(before, top)
                p = jnp.exp2((scores - top) * options.exponent)
                count = jnp.sum(p, axis=0, keepdims=True)
                p = program.make_dropout(step, head)(p).astype(value.dtype)
                y = dot(v_transposed[head.columns], p)  # [K, N]
                if not is_whole:
                    shrunk = jnp.exp2((before - top) * options.exponent)
                    count += shrunk * total[row, chunk]
                    y += shrunk * context[head.columns, chunk]
                    highest[row, chunk], total[row, chunk] = top, count
                    context[head.columns, chunk] = y
                count = jnp.where(top < 0.5 * MASKED_SCORE, jnp.inf, count)
                sums[0, 0, row, chunk] = top * options.exponent + jnp.log2(count)
                outputs.append(y / (count * (1 - options.rate)))
            if step.is_last:
                y = jnp.concatenate(outputs, axis=0).T  # [N, 128]
                output[0, chunk, step.columns] = y.astype(output.dtype)


def backward(
    program,
    query,
    key,
    value,
    output,
    sums,
    gradient,
    d_query,
    d_key,
    d_value,
    d_biases,
    total_d_query,
    total_d_key,
    total_d_value,
    query_rotations=None,
    key_rotations=None,
    d_key_distances=None,
    d_query_distances=None,
):
    """Write the gradients of a program's queries, keys and values.

    `output` and `sums` are results of `forward`, which also describes the arguments
    before them. `gradient`, of the output, and the written gradients are [1, L,
    columns]. `d_biases`, [1, 3, columns], are the sums of the three gradients over
    positions. Gradients of a window are added up in three float32 arrays [128, L]. The
    array for queries has all positions of the row, since each piece of keys adds to the
    gradients of all queries. Rotations of queries and of keys are [1, 2, L, 128].
    Gradients of distances, [1, 128, 2 L], are added to, since rows share the distances.
    """
    options, is_whole = program.options, program.is_whole
    distance_scores = program.distance_scores
    query_piece, key_piece = program.at
    query_pieces, key_pieces = program.pieces
    kept = 1 - options.rate
    scale = options.head_size**-0.5 / kept
    length = query.shape[1]
    total_d_query = total_d_query.at[:, program.rows()]

    def first_stage(step):
        q, g = (
            program.for_each_head(step.heads, x[0, step.chunk, step.columns])
            for x in (query, gradient)
        )
        k, v = (x[0, step.keys, step.columns] for x in (key, value))
        return program.scores(step, k, q), split(dot_transposed(v, g))

    def clear():
        @pl.when(key_piece == 0)
        def _():
            total_d_query[:] = jnp.zeros((LANES, length), jnp.float32)

        @pl.when(query_piece == 0)
        def _():
            total_d_key[:] = jnp.zeros_like(total_d_key)
            total_d_value[:] = jnp.zeros_like(total_d_value)

    def write(columns):
        def write_one(index, target, total, factor, rotations):
            of_bias = jnp.zeros((1, LANES), jnp.float32)
            for start in range(0, target.shape[1], QUERY_CHUNK):
                chunk = slice(start, start + QUERY_CHUNK)
                x = total[:, chunk].T * factor
                if rotations is not None:
                    cosine, sine = rotations[0, 0, chunk], rotations[0, 1, chunk]
                    x = tpu_rotations.rotated(options.head_size, x, cosine, -sine)
                target[0, chunk, columns] = x.astype(target.dtype)
                of_bias += jnp.sum(x, axis=0, keepdims=True)
            d_biases[0, index : index + 1, columns] += of_bias

        @pl.when(key_piece == key_pieces - 1)
        def _():
            write_one(0, d_query, total_d_query, scale, query_rotations)

        @pl.when(query_piece == query_pieces - 1)
        def _():
            write_one(1, d_key, total_d_key, scale, key_rotations)
            write_one(2, d_value, total_d_value, 1 / kept, None)

    def add_up():
        # Two heads are slower on v4, and with dropout in long rows; they do not fit
        # beside pieces.
        is_slow = device_kind() == "TPU v4" or (options.rate and length >= 512)
        heads_at_once = 1 if is_slow or not is_whole else _heads_at_once(query)
        for step, *of_heads in program.steps(first_stage, heads_at_once):
            columns, chunk = step.columns, step.chunk
            opens_window = step.is_first and chunk.start == 0
            if opens_window and is_whole:
                clear()
            if opens_window:
                k_transposed = key[0, :, columns].T
            if step.is_first:
                q_transposed = query[0, chunk, columns].T  # [128, N]
                g_transposed = gradient[0, chunk, columns].T
                # For each query, the sums of p * dp and of output * gradient are equal.
                inner = output[0, chunk, columns].astype(jnp.float32)
                inner = inner * gradient[0, chunk, columns].astype(jnp.float32) * kept
                inner = inner.T
            for head, scores, dp in zip(step.heads, *of_heads, strict=True):
                own = head.columns
                logs = sums[0, 0, head.index : head.index + 1, chunk]
                p = jnp.exp2(scores * options.exponent - logs)
                drop = program.make_dropout(step, head)
                ds = drop(dp) - jnp.sum(inner[own], axis=0, keepdims=True)
                ds = p * ds
                if distance_scores is not None:
                    distance_scores.add_query_gradients(
                        step, head, ds, q_transposed, total_d_query, d_key_distances
                    )
                ds = ds.astype(query.dtype)
                p = drop(p).astype(gradient.dtype)
                total_d_value[own, step.keys] += dot_transposed(g_transposed[own], p)
                total_d_key[own, step.keys] += dot_transposed(q_transposed[own], ds)
                total_d_query[own, chunk] += dot(k_transposed[own, step.keys], ds)
            if step.is_last and chunk.stop == length and is_whole:
                if distance_scores is not None:
                    distance_scores.add_key_gradients(
                        k_transposed, total_d_key, d_query_distances
                    )
                write(columns)

    @pl.when(query_piece + key_piece == 0)
    def _():
        d_biases[:] = jnp.zeros_like(d_biases)

    if is_whole:
        add_up()
    else:
        clear()
        pl.when(program.sees_keys())(add_up)
        write(slice(0, LANES))


def _heads_at_once(query):
    """Return the number of heads in a step; two in float32 exceed a core of v4."""
    return 1 if query.dtype == jnp.float32 else 2
