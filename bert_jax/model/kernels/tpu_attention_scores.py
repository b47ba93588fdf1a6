"""Steps and scores of a program of the TPU's attention kernel.

A program works on windows of 128 columns and chunks of 128 queries. Arrays of scores
are [M, N]: the N queries of a chunk, and the M keys that they may see.
"""

import dataclasses
import math

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from bert_jax.model import dropout, randomness
from bert_jax.model.attention_pattern import MASKED_SCORE
from bert_jax.model.kernels.block_sizes import LANES, QUERY_CHUNK

# Document of padding, which no query sees.
NO_DOCUMENT = -(2**31)


@dataclasses.dataclass(frozen=True)
class Options:
    """Static options of a kernel, besides shapes."""

    head_size: int  # columns of a head
    rate: float  # of dropout; 0 for none
    causal: bool  # whether queries see no later keys
    window: int | None  # largest distance at which queries see keys; None: any
    packed: bool  # whether queries see keys of their own document only
    query_piece: int  # queries of a piece of a row; all queries in short rows
    key_piece: int  # keys of a piece, likewise

    @property
    def exponent(self) -> float:
        """Factor that turns scores into exponents of two."""
        return self.head_size**-0.5 * math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Head:
    """A head of a program."""

    index: int  # in the program
    columns: slice  # of its window


@dataclasses.dataclass(frozen=True)
class Step:
    """One head, or two, and a chunk of their queries."""

    columns: slice  # window of 128 columns that holds the heads
    chunk: slice  # positions of the queries
    keys: slice  # positions of the keys that they may see
    heads: tuple[Head, ...]
    is_first: bool  # whether the heads are the first of their window
    is_last: bool  # whether the heads are the last of their window


class Program:
    """One program of the kernel's grid: state of all heads, and steps of both passes.

    Attributes:
      options: Static options.
      at: Indices, in the row, of the piece of queries and of the piece of keys; for
        whole rows, 0 as Python integers.
      pieces: Numbers of pieces of queries and of keys in a row.
      is_whole: Whether these are 1.
      distance_scores: `tpu_distances.DistanceScores` of DeBERTa, or None.
    """

    def __init__(self, options, index, at, pieces, counters, query, queries, keys):
        length = keys.shape[2]
        self.options, self.at, self.pieces = options, at, pieces
        self.distance_scores = None
        self._index = index  # among the programs of all rows
        self.is_whole = pieces == (1, 1)
        self._ahead = at[1] - at[0]  # pieces by which the keys are ahead of the queries
        self._queries = queries
        # [M, N] like the scores: a register would hold one row of [1, M].
        self._keys = jnp.broadcast_to(keys[0], (QUERY_CHUNK, length)).T
        self._counters = counters
        self._heads = query.shape[2] // options.head_size
        if options.rate:
            # [M / 2, N]: one word for two keys.
            self._size = size = dropout.num_words(length)
            key_index, query_index = _indices(size)
            index = query_index * size + key_index
            zero = jnp.uint32(0)
            self._words = randomness.advance(zero, index.astype(jnp.uint32))
        self._length = length  # of the keys, and of the queries of whole rows
        _, self._query_length, self._width = query.shape

    def steps(self, first_stage, heads_at_once):
        """Yield each step with the results of `first_stage(step)`.

        The steps are pipelined: the first stage of a step comes before the caller's
        work on the previous step. The compiler keeps this order, so that the products
        of one step overlap with the softmax of the other. A step has `heads_at_once`
        heads of a window, or all if these are fewer.
        """
        pending = None
        for step in self._steps(heads_at_once):
            results = first_stage(step)
            if pending:
                yield pending
            pending = step, *results
        yield pending

    def _steps(self, heads_at_once):
        for start in range(0, self._width, LANES):
            columns = slice(start, start + LANES)
            heads = self.heads_of_window(start)
            for first in range(0, self._query_length, QUERY_CHUNK):
                chunk = slice(first, first + QUERY_CHUNK)
                for i in range(0, len(heads), heads_at_once):
                    yield Step(
                        columns=columns,
                        chunk=chunk,
                        keys=self._keys_seen_by(chunk),
                        heads=tuple(heads[i : i + heads_at_once]),
                        is_first=i == 0,
                        is_last=i + heads_at_once >= len(heads),
                    )

    def heads_of_window(self, start):
        """Return the heads of the window of columns that begins at `start`."""
        size = self.options.head_size
        return [
            Head((start + first) // size, slice(first, first + size))
            for first in range(0, LANES, size)
        ]

    def _keys_seen_by(self, queries):
        """Return whole blocks of keys that contain all keys that a chunk may see.

        In pieces of long rows, and with dropout, these are all keys: with dropout, a
        key shares its random word with a key of the other half.
        """
        options = self.options
        begin, end = 0, self._length
        if not options.rate and self.is_whole:
            if options.window is not None:
                begin = queries.start - options.window
                end = queries.stop + options.window
            if options.causal:
                end = queries.stop
        first = max(0, begin // QUERY_CHUNK)
        last = min(self._length // QUERY_CHUNK, -(-end // QUERY_CHUNK))
        return slice(first * QUERY_CHUNK, last * QUERY_CHUNK)

    def rows(self):
        """Return the positions in the row of the program's queries."""
        start = self.at[0] * self._query_length
        if not self.is_whole:
            start = pl.multiple_of(start, QUERY_CHUNK)
        return pl.ds(start, self._query_length)

    def sees_keys(self):
        """Return whether any query of the program may see any of its keys."""
        window, sees = self.options.window, True
        if not self.is_whole and self.options.causal:
            sees = self._ahead <= 0
        if not self.is_whole and window is not None:
            sees &= jnp.abs(self._ahead) <= -(-window // self._length)
        return sees

    def for_each_head(self, heads, x):
        """Return a window [N, 128] once for each of some heads, [heads N, 128].

        The columns of other heads are zero.
        """
        if self.options.head_size == LANES:
            return x
        column = lax.broadcasted_iota(jnp.int32, x.shape, 1)
        copies = []
        for head in heads:
            own = (column >= head.columns.start) & (column < head.columns.stop)
            copies.append(jnp.where(own, x.astype(jnp.float32), 0.0).astype(x.dtype))
        return jnp.concatenate(copies)

    def scores(self, step, key, query):
        """Return the scores of each head, [M, N], of keys [M, 128] and its queries.

        Keys that a query does not see have `MASKED_SCORE`. `query` is a result of
        `for_each_head`.
        """
        options = self.options
        scores = split(dot_transposed(key, query))
        if self.distance_scores is not None:
            added = self.distance_scores.scores_of_step(step, query)
            scores = [x + y for x, y in zip(scores, added, strict=True)]
        queries = self._queries[0, :, step.chunk] if options.packed else 0
        visible = self._keys[step.keys] == queries
        if options.causal or options.window is not None:
            key_index, query_index = _indices(len(key))
            distance = key_index - query_index + (step.keys.start - step.chunk.start)
            distance += self._ahead * self._length
        if options.causal:
            visible &= distance <= 0
        if options.window is not None:
            visible &= jnp.abs(distance) <= options.window
        return [jnp.where(visible, x, MASKED_SCORE) for x in scores]

    def make_dropout(self, step, head):
        """Return a function that zeroes dropped entries of [M, N], without scaling."""
        if not self.options.rate:
            return lambda x: x
        first = randomness.advance(
            self._counters[self._index * self._heads + head.index],
            jnp.uint32(step.chunk.start * self._size),
        )
        upper, lower = dropout.mask_pairs(self._words + first, self.options.rate)

        def dropped(x):
            first = jnp.where(upper, 0.0, x[: self._size])
            second = jnp.where(lower, 0.0, x[self._size :])
            return jnp.concatenate([first, second])

        return dropped


def _indices(num_keys):
    """Return indices of keys and of queries, [M, N]."""
    shape = num_keys, QUERY_CHUNK
    return tuple(lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))


def split(x):
    """Return the [M, N] of each head of a product [M, heads N]."""
    starts = range(0, x.shape[1], QUERY_CHUNK)
    return [x[:, start : start + QUERY_CHUNK] for start in starts]


def dot(x, y):
    """Return x @ y in float32."""
    return _product(x, y, 0)


def dot_transposed(x, y):
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
