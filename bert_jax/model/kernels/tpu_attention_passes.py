"""Forward and backward pass of the TPU's attention kernel, for one program of the grid.

See `tpu_attention.py` for the whole. A program has one row of the batch and some heads.
It works on windows of 128 columns and chunks of 128 queries; arrays of scores are
[M, N], the M keys that the chunk meets by its N queries.
"""

import dataclasses
import math

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from bert_jax.model import dropout, randomness
from bert_jax.model.kernels import tpu_rotations
from bert_jax.model.kernels.decisions import LANES, QUERY_CHUNK

# Document of padding, which no query sees.
NO_DOCUMENT = -(2**31)

# Score of a key that a query does not see, as on the plain path.
_HIDDEN_SCORE = -1e9


@dataclasses.dataclass(frozen=True)
class Options:
    """Static options of a kernel, besides shapes.

    Attributes:
      head_size: Columns of a head.
      rate: Rate of dropout; 0 for none.
      causal: Whether queries see no later keys.
      window: Largest distance at which queries see keys; None: any.
      packed: Whether queries see keys of their own document only.
      interpret: Whether to interpret the kernel, on any backend.
    """

    head_size: int
    rate: float
    causal: bool
    window: int | None
    packed: bool
    interpret: bool

    @property
    def exponent(self) -> float:
        """Factor that turns scores into exponents of two."""
        return self.head_size**-0.5 * math.log2(math.e)

    def met_by(self, queries: slice, length: int) -> slice:
        """Return the keys, whole blocks, that some of a chunk of queries may see.

        With dropout, all keys: the bits of a key depend on a key of the other half.
        """
        begin, end = 0, length
        if not self.rate:
            if self.window is not None:
                begin = queries.start - self.window
                end = queries.stop + self.window
            if self.causal:
                end = queries.stop
        first = max(0, begin // QUERY_CHUNK)
        last = min(length // QUERY_CHUNK, -(-end // QUERY_CHUNK))
        return slice(first * QUERY_CHUNK, last * QUERY_CHUNK)


@dataclasses.dataclass(frozen=True)
class _Step:
    """A head and a chunk of its queries.

    Attributes:
      columns: Window of 128 columns that holds the head.
      chunk: Positions of the queries.
      keys: Positions of the keys that they meet.
      head: Index of the head in the program.
      part: Columns of the head in the window.
      first: Whether it is the first head of its window.
      last: Whether it is the last head of its window.
    """

    columns: slice
    chunk: slice
    keys: slice
    head: int
    part: slice
    first: bool
    last: bool


class _Program:
    """State that the heads of a program share, and steps that both passes share."""

    def __init__(self, options, counters, query, queries, keys):
        _, length, width = query.shape
        self._options = options
        self._queries = queries
        # [M, N] like the scores: a register would hold one row of [1, M].
        self._keys = jnp.broadcast_to(keys[0], (QUERY_CHUNK, length)).T
        self._counters = counters
        self._heads = width // options.head_size
        if options.rate:
            # [M / 2, N]: one word for two keys.
            self._size = size = dropout.words(length)
            key_index, query_index = _indices(size)
            index = query_index * size + key_index
            zero = jnp.uint32(0)
            self._words = randomness.advance(zero, index.astype(jnp.uint32))
        self._length, self._width = length, width

    def steps(self, begin):
        """Yield each step with the results of `begin(step)`.

        Each step begins before the previous one continues. The compiler keeps this
        order, so that the products of one run beside the softmax of the other.
        """
        ahead = None
        for step in self._steps():
            begun = begin(step)
            if ahead:
                yield ahead
            ahead = step, *begun
        yield ahead

    def _steps(self):
        size = self._options.head_size
        for start in range(0, self._width, LANES):
            columns = slice(start, start + LANES)
            parts = range(0, LANES, size)
            for first in range(0, self._length, QUERY_CHUNK):
                chunk = slice(first, first + QUERY_CHUNK)
                for part in parts:
                    yield _Step(
                        columns=columns,
                        chunk=chunk,
                        keys=self._options.met_by(chunk, self._length),
                        head=(start + part) // size,
                        part=slice(part, part + size),
                        first=part == 0,
                        last=part == parts[-1],
                    )

    def only(self, step, x):
        """Zero the columns of other heads in a window [N, 128]."""
        if step.first and step.last:
            return x
        column = lax.broadcasted_iota(jnp.int32, x.shape, 1)
        own = (column >= step.part.start) & (column < step.part.stop)
        return jnp.where(own, x.astype(jnp.float32), 0.0).astype(x.dtype)

    def scores(self, step, key, query):
        """Return K Q^T, [M, N], of keys [M, 128] and queries [N, 128].

        Keys that a query does not see have `_HIDDEN_SCORE`.
        """
        options = self._options
        scores = _dot_transposed(key, query)
        queries = self._queries[0, :, step.chunk] if options.packed else 0
        visible = self._keys[step.keys] == queries
        if options.causal or options.window is not None:
            key_index, query_index = _indices(len(scores))
            distance = key_index - query_index + (step.keys.start - step.chunk.start)
        if options.causal:
            visible &= distance <= 0
        if options.window is not None:
            visible &= jnp.abs(distance) <= options.window
        return jnp.where(visible, scores, _HIDDEN_SCORE)

    def dropping(self, step):
        """Return a function that zeroes dropped entries of [M, N], without scaling."""
        if not self._options.rate:
            return lambda x: x
        block = pl.program_id(0) * pl.num_programs(1) + pl.program_id(1)
        first = randomness.advance(
            self._counters[block * self._heads + step.head],
            jnp.uint32(step.chunk.start * self._size),
        )
        upper, lower = dropout.pairs(self._words + first, self._options.rate)

        def dropped(x):
            first = jnp.where(upper, 0.0, x[: self._size])
            second = jnp.where(lower, 0.0, x[self._size :])
            return jnp.concatenate([first, second])

        return dropped


def forward(
    options,
    counters,
    query,
    key,
    value,
    queries,
    keys,
    output,
    sums,
    rotations=None,
):
    """Write outputs and log sums of a program's heads.

    Counters are [B H], one for each head's first word; queries, keys, values and
    outputs [1, L, columns]; documents of queries and of keys [1, 1, L]. `sums`, [1, 1,
    heads, L], are the logarithms, to the base of 2, of the sums of exponentials of
    scores; they are infinite for queries that see no key.
    """
    del rotations  # queries and keys have been rotated
    program = _Program(options, counters, query, queries, keys)

    def begin(step):
        q = program.only(step, query[0, step.chunk, step.columns])
        return (program.scores(step, key[0, step.keys, step.columns], q),)

    for step, scores in program.steps(begin):
        if step.first:
            outputs = []
            v_transposed = value[0, step.keys, step.columns].T  # [128, M]
        highest = jnp.max(scores, axis=0, keepdims=True)  # [1, N]
        p = jnp.exp2((scores - highest) * options.exponent)
        total = jnp.sum(p, axis=0, keepdims=True)
        total = jnp.where(highest < 0.5 * _HIDDEN_SCORE, jnp.inf, total)
        logs = highest * options.exponent + jnp.log2(total)
        sums[0, 0, step.head : step.head + 1, step.chunk] = logs
        p = program.dropping(step)(p).astype(value.dtype)
        y = _dot(v_transposed[step.part], p)  # [K, N]
        outputs.append(y / (total * (1 - options.rate)))
        if step.last:
            y = jnp.concatenate(outputs, axis=0).T  # [N, 128]
            output[0, step.chunk, step.columns] = y.astype(output.dtype)


def backward(
    options,
    counters,
    query,
    key,
    value,
    queries,
    keys,
    output,
    sums,
    gradient,
    d_query,
    d_key,
    d_value,
    d_biases,
    total_d_key,
    total_d_value,
    rotations=None,
):
    """Write the gradients of a program's queries, keys and values.

    Arguments are those of `forward`, and `output` and `sums` its results. `gradient`,
    of the output, and the gradients that are written are [1, L, columns]. `d_biases`,
    [1, 3, columns], are the sums of the three gradients over positions. Gradients of
    the keys and values of a window are added up in two float32 arrays [L, 128].
    `rotations` are those that queries and keys have been rotated by, [1, 2, L, 128].
    """
    program = _Program(options, counters, query, queries, keys)
    kept = 1 - options.rate
    scale = options.head_size**-0.5 / kept
    length = query.shape[1]

    def unrotate(x, rows):
        if rotations is None:
            return x
        cosine, sine = rotations[0, 0, rows], rotations[0, 1, rows]
        return tpu_rotations.rotated(options.head_size, x, cosine, -sine)

    def begin(step):
        q = program.only(step, query[0, step.chunk, step.columns])
        g = program.only(step, gradient[0, step.chunk, step.columns])
        logs = sums[0, 0, step.head : step.head + 1, step.chunk]
        k, v = (x[0, step.keys, step.columns] for x in (key, value))
        return q, g, program.scores(step, k, q), logs, _dot_transposed(v, g)

    for step, q, g, scores, logs, dp in program.steps(begin):
        columns, chunk = step.columns, step.chunk
        if step.first and chunk.start == 0:
            k_transposed = key[0, :, columns].T
            of_query = jnp.zeros((1, LANES), jnp.float32)
            total_d_key[:] = jnp.zeros_like(total_d_key)
            total_d_value[:] = jnp.zeros_like(total_d_value)
        if step.first:
            dqs = []
            # For each query, the sums of p * dp and of output * gradient are equal.
            inner = output[0, chunk, columns].astype(jnp.float32)
            inner = inner * gradient[0, chunk, columns].astype(jnp.float32) * kept
            inner = inner.T  # [128, N]
        p = jnp.exp2(scores * options.exponent - logs)
        dropped = program.dropping(step)
        ds = dropped(dp) - jnp.sum(inner[step.part], 0, keepdims=True)
        ds = (p * ds).astype(q.dtype)
        p = dropped(p).astype(g.dtype)
        total_d_value[step.keys] += _dot(p, g)  # [M, 128]
        total_d_key[step.keys] += _dot(ds, q)
        dqs.append(_dot(k_transposed[step.part, step.keys], ds))  # [K, N]
        if step.last:
            dq = unrotate(jnp.concatenate(dqs, axis=0).T * scale, chunk)
            d_query[0, chunk, columns] = dq.astype(d_query.dtype)
            of_query += jnp.sum(dq, axis=0, keepdims=True)
        if step.last and chunk.stop == length:
            dk = unrotate(total_d_key[:] * scale, slice(0, length))
            dv = total_d_value[:] / kept
            d_key[0, :, columns] = dk.astype(d_key.dtype)
            d_value[0, :, columns] = dv.astype(d_value.dtype)
            d_biases[0, 0:1, columns] = of_query
            d_biases[0, 1:2, columns] = jnp.sum(dk, axis=0, keepdims=True)
            d_biases[0, 2:3, columns] = jnp.sum(dv, axis=0, keepdims=True)


def _indices(num_keys):
    """Return indices of keys and of queries, [M, N]."""
    shape = num_keys, QUERY_CHUNK
    return tuple(lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))


def _dot(x, y):
    """Return x @ y in float32."""
    return _product(x, y, 0)


def _dot_transposed(x, y):
    """Return x @ y.T in float32."""
    return _product(x, y, 1)


def _product(x, y, contracted):
    return lax.dot_general(
        x,
        y,
        (((1,), (contracted,)), ((), ())),
        # Otherwise the TPU would round float32 factors to bfloat16.
        precision=lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
