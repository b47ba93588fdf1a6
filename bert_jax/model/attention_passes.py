"""The two passes of the attention kernel: what a program of the grid does.

See `attention_kernel` for the whole. A program has one row of the batch and some heads.
It works on windows of 128 columns and on chunks of 128 queries; arrays of scores are
[M, N], the M keys of the row by the N queries of a chunk.
"""

import dataclasses
import math

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from bert_jax.model import dropout, randomness

LANES = 128
CHUNK = 128
# Identifier of a key that no query attends to.
NO_DOCUMENT = -(2**31)

# Score of a position that is not attended to, as on the plain path.
_HIDDEN_SCORE = -1e9


@dataclasses.dataclass(frozen=True)
class Options:
    """What a kernel is compiled for, besides shapes.

    Attributes:
      head_size: Columns of a head.
      length: Number of positions, without those that pad to a multiple of 128.
      rate: Rate of dropout; 0 for none.
      causal: Whether a position attends only to itself and those before it.
      packed: Whether positions attend only to those with their own identifier.
      interpret: Whether to interpret the kernel, on any backend.
    """

    head_size: int
    length: int
    rate: float
    causal: bool
    packed: bool
    interpret: bool

    @property
    def exponent(self) -> float:
        """Factor of the scores in the power of two that is their exponential."""
        return self.head_size**-0.5 * math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class _Step:
    """A head and a chunk of its queries.

    Attributes:
      window: Columns that the head is in.
      chunk: Positions of the queries.
      head: Number of the head in the program.
      part: Columns of the head in the window.
      first: Whether it is the first head of its window.
      last: Whether it is the last.
    """

    window: slice
    chunk: slice
    head: int
    part: slice
    first: bool
    last: bool


class _Program:
    """What the heads of a program have in common, and what both passes do with them."""

    def __init__(self, options, counters, query, queries, keys):
        _, length, width = query.shape
        self._options = options
        self._queries = queries
        # [M, N], as scores: of queries and keys by themselves a register has one row.
        self._keys = jnp.broadcast_to(keys[0], (CHUNK, length)).T
        self._key_index = lax.broadcasted_iota(jnp.int32, (length, CHUNK), 0)
        self._query_index = lax.broadcasted_iota(jnp.int32, (length, CHUNK), 1)
        self._counters = counters
        self._heads = width // options.head_size
        if options.rate:
            # Words for as many keys as have the upper bits of one, or the lower bits if
            # those are more, as where a row is padded.
            self._size = dropout.words(options.length)
            rows = max(self._size, length - self._size)
            index = self._query_index[:rows] * self._size + self._key_index[:rows]
            zero = jnp.uint32(0)
            self._words = randomness.advance(zero, index.astype(jnp.uint32))
        self._length, self._width = length, width

    def steps(self, begin):
        """What there is to do, each step with what `begin` makes of it.

        The next step is begun before this one goes on: the compiler keeps the order
        of what it is given, and the products of the one run beside the softmax of the
        other.
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
            window = slice(start, min(start + LANES, self._width))
            parts = range(0, window.stop - start, size)
            for first in range(0, self._length, CHUNK):
                for part in parts:
                    yield _Step(
                        window=window,
                        chunk=slice(first, first + CHUNK),
                        head=(start + part) // size,
                        part=slice(part, part + size),
                        first=part == 0,
                        last=part == parts[-1],
                    )

    def only(self, step, x):
        """A window with zeros in the columns of other heads."""
        if step.first and step.last:
            return x
        column = lax.broadcasted_iota(jnp.int32, x.shape, 1)
        own = (column >= step.part.start) & (column < step.part.stop)
        return jnp.where(own, x.astype(jnp.float32), 0.0).astype(x.dtype)

    def scores(self, step, key, query, hidden):
        """Products of keys and queries, or `hidden` where there is no attention."""
        options = self._options
        scores = _dot_transposed(key, query)
        queries = self._queries[0, :, step.chunk] if options.packed else 0
        visible = self._keys == queries
        if options.causal:
            visible &= self._key_index <= self._query_index + step.chunk.start
        scores = jnp.where(visible, scores, hidden)
        if options.length < self._length:
            scores = jnp.where(self._key_index < options.length, scores, -jnp.inf)
        return scores

    def dropping(self, step):
        """A function that zeroes what is dropped; it does not scale."""
        if not self._options.rate:
            return lambda x: x
        block = pl.program_id(0) * pl.num_programs(1) + pl.program_id(1)
        first = randomness.advance(
            self._counters[block * self._heads + step.head],
            jnp.uint32(step.chunk.start * self._size),
        )
        upper, lower = dropout.pairs(self._words + first, self._options.rate)
        size = self._size

        def dropped(x):
            first = jnp.where(upper[:size], 0.0, x[:size])
            second = jnp.where(lower[: len(x) - size], 0.0, x[size:])
            return jnp.concatenate([first, second])

        return dropped


def forward(options, counters, query, key, value, queries, keys, output, sums):
    """Output and sums of a program's heads.

    Args:
      options: What the kernel is compiled for.
      counters: [B H]; where the words of each head begin.
      query: [1, M, columns], as key and value.
      key: See `query`.
      value: See `query`.
      queries: [1, 1, M]; identifiers of documents, as keys.
      keys: See `queries`.
      output: [1, M, columns]; written.
      sums: [1, 1, heads, M]; written: to the base of 2, the logarithm of the sum of
        exponentials of scores.
    """
    program = _Program(options, counters, query, queries, keys)

    def begin(step):
        q = program.only(step, query[0, step.chunk, step.window])
        return (program.scores(step, key[0, :, step.window], q, _HIDDEN_SCORE),)

    for step, scores in program.steps(begin):
        if step.first:
            outputs = []
            v_transposed = value[0, :, step.window].T
        highest = jnp.max(scores, axis=0, keepdims=True)
        p = jnp.exp2((scores - highest) * options.exponent)
        total = jnp.sum(p, axis=0, keepdims=True)
        logs = highest * options.exponent + jnp.log2(total)
        sums[0, 0, step.head : step.head + 1, step.chunk] = logs
        p = program.dropping(step)(p).astype(value.dtype)
        y = _dot(v_transposed[step.part], p)
        outputs.append(y / (total * (1 - options.rate)))
        if step.last:
            y = jnp.concatenate(outputs, axis=0).T
            output[0, step.chunk, step.window] = y.astype(output.dtype)


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
):
    """Gradients of a program's queries, keys and values.

    Args:
      options: See `forward`, as for all until `sums`.
      counters: See `forward`.
      query: See `forward`.
      key: See `forward`.
      value: See `forward`.
      queries: See `forward`.
      keys: See `forward`.
      output: Read here, as `sums`.
      sums: See `output`.
      gradient: [1, M, columns]; that of the output.
      d_query: [1, M, columns]; written, as all gradients.
      d_key: See `d_query`.
      d_value: See `d_query`.
      d_biases: [1, 3, columns]; the sums of these three over positions.
    """
    program = _Program(options, counters, query, queries, keys)
    kept = 1 - options.rate
    scale = options.head_size**-0.5 / kept

    def begin(step):
        q = program.only(step, query[0, step.chunk, step.window])
        g = program.only(step, gradient[0, step.chunk, step.window])
        logs = sums[0, 0, step.head : step.head + 1, step.chunk]
        # Where a query attends to nothing, its probabilities are equal.
        nothing = logs < 0.5 * _HIDDEN_SCORE * options.exponent
        logs = jnp.where(nothing, math.log2(options.length), logs)
        hidden = jnp.where(nothing, 0.0, _HIDDEN_SCORE)
        scores = program.scores(step, key[0, :, step.window], q, hidden)
        return q, g, scores, logs, _dot_transposed(value[0, :, step.window], g)

    for step, q, g, scores, logs, dp in program.steps(begin):
        window, chunk = step.window, step.chunk
        if step.first and chunk.start == 0:
            k = key[0, :, window]
            k_transposed = k.T
            dk = dv = jnp.zeros(k.shape, jnp.float32)
            of_query = jnp.zeros((1, k.shape[1]), jnp.float32)
        if step.first:
            dqs = []
            # For each query the sum of p * dp, which is that of output * gradient.
            inner = output[0, chunk, window].astype(jnp.float32)
            inner = (inner * gradient[0, chunk, window].astype(jnp.float32) * kept).T
        p = jnp.exp2(scores * options.exponent - logs)
        dropped = program.dropping(step)
        ds = dropped(dp) - jnp.sum(inner[step.part], 0, keepdims=True)
        ds = (p * ds).astype(q.dtype)
        p = dropped(p).astype(g.dtype)
        dv += _dot(p, g)
        dk += _dot(ds, q)
        dqs.append(_dot(k_transposed[step.part], ds))
        if step.last:
            dq = jnp.concatenate(dqs, axis=0).T * scale
            d_query[0, chunk, window] = dq.astype(d_query.dtype)
            of_query += jnp.sum(dq, axis=0, keepdims=True)
        if step.last and chunk.stop == query.shape[1]:
            dk, dv = dk * scale, dv / kept
            d_key[0, :, window] = dk.astype(d_key.dtype)
            d_value[0, :, window] = dv.astype(d_value.dtype)
            d_biases[0, 0:1, window] = of_query
            d_biases[0, 1:2, window] = jnp.sum(dk, axis=0, keepdims=True)
            d_biases[0, 2:3, window] = jnp.sum(dv, axis=0, keepdims=True)


def _dot(x, y):
    """X @ y in float32."""
    return _product(x, y, 0)


def _dot_transposed(x, y):
    """X @ y.T in float32."""
    return _product(x, y, 1)


def _product(x, y, contracted):
    return lax.dot_general(
        x,
        y,
        (((1,), (contracted,)), ((), ())),
        # float32 means float32; of bfloat16 there is one precision only.
        precision=lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
