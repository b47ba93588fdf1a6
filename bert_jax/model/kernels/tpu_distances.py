"""Scores of contents with distances inside the TPU's attention kernel (DeBERTa).

Between a chunk of 128 contents and the L tokens of their row there are L + 127
distances. The chunk is multiplied with the embeddings of all of them, and row n of the
product is shifted left by 128 - n columns, so that column j has the score with token j.
A shift permutes the columns of each register and chooses between two of them. Outside
of kernels, products with one-hot arrays select the scores, with L / K times as much
arithmetic.

Before a shift, products are rounded to bfloat16, as they are outside of kernels, and
two of them share each 32-bit word of a register: this halves the permutations.

A table of distances is [128, 2 L] for the columns of a window. Column c holds the
distance to the token c - L positions after the content.
"""

import itertools

import jax.numpy as jnp
from jax import lax

from bert_jax.model.kernels.block_sizes import LANES, QUERY_CHUNK
from bert_jax.model.kernels.tpu_attention_scores import dot, dot_transposed


class DistanceScores:
    """Scores with distances of a program's heads, and their gradients.

    The scores of keys, which are keys times the queries of distances, are computed for
    all queries at once, and kept in the chip's memory. The scores of queries are
    computed in each step. A step overwrites the scores of keys that it has read with
    the gradients of its scores. After the last step, these give the keys' gradients.
    """

    def __init__(self, program, key, key_distances, query_distances, key_scores):
        """Compute the scores of keys.

        Args:
          program: The `tpu_attention_scores.Program`, with one window of a whole row.
          key: Keys [1, L, 128].
          key_distances: Keys of distances, [128, 2 L], to multiply with queries.
          query_distances: Queries of distances, likewise, to multiply with keys.
          key_scores: Scratch for the scores of keys, [heads, L, L].
        """
        self._key_scores = key_scores
        self._key_distances, self._query_distances = key_distances, query_distances
        self._length = length = key.shape[1]
        self._heads = program.heads_of_window(0)
        for chunk in self._chunks():
            content = program.for_each_head(self._heads, key[0, chunk])
            products = self._products(content, query_distances, chunk)
            for head, product in zip(self._heads, products, strict=True):
                key_scores[head.index, chunk] = _unpack(_shift(product), 1, length)

    def scores_of_step(self, step, query):
        """Return the scores of each head of a step, [L, N].

        `query` is a result of `Program.for_each_head`.
        """
        products = self._products(query, self._key_distances, step.chunk)
        return [
            _unpack(_shift(product).T, 0, self._length)
            + self._key_scores[head.index, :, step.chunk]
            for head, product in zip(step.heads, products, strict=True)
        ]

    def add_query_gradients(
        self, step, head, d_scores, q_transposed, total_d_query, d_key_distances
    ):
        """Add to the gradients of queries and of keys of distances.

        The gradients of scores are stored for `add_key_gradients`.

        Args:
          step: The step.
          head: One of its heads.
          d_scores: Gradients of its scores, float32 [L, N].
          q_transposed: Queries [128, N].
          total_d_query: Sums of the gradients of queries, [128, L].
          d_key_distances: Sums of the gradients of keys of distances, [1, 128, 2 L].
        """
        self._key_scores[head.index, :, step.chunk] = d_scores
        factors = q_transposed[head.columns], self._key_distances
        packed = _pack(d_scores, axis=0).T  # [N, L / 2]
        totals = total_d_query, d_key_distances
        self._add_gradients(head, step.chunk, packed, factors, totals)

    def add_key_gradients(self, k_transposed, total_d_key, d_query_distances):
        """Add the gradients of keys and of queries of distances, after all steps."""
        for head, chunk in itertools.product(self._heads, self._chunks()):
            factors = k_transposed[head.columns, chunk], self._query_distances
            d_scores = self._key_scores[head.index, chunk]  # [N, L]
            packed = _pack(d_scores, axis=1)
            totals = total_d_key, d_query_distances
            self._add_gradients(head, chunk, packed, factors, totals)

    def _add_gradients(self, head, chunk, packed, factors, totals):
        """Add the gradients of both factors, given the gradients of the scores."""
        content, table = factors  # [K, N], [128, 2 L]
        d_content, d_table = totals
        own, columns = head.columns, self._columns(chunk)
        d_product = _shift_back(packed, self._length).astype(content.dtype)
        d_content[own, chunk] += dot_transposed(table[own, columns], d_product)
        d_table[0, own, columns] += dot(content, d_product)

    def _products(self, content, table, chunk):
        """Return a product [N, L + 128] for each head of contents [heads N, 128]."""
        products = dot(content, table[:, self._columns(chunk)])
        return jnp.split(products, len(content) // QUERY_CHUNK)

    def _columns(self, chunk):
        """Return the L + 128 columns of a table that a chunk is multiplied with.

        In the first one, the token is `chunk.stop` positions before the content: one
        more than the first token is before the chunk's last content.
        """
        start = self._length - chunk.stop
        return slice(start, start + self._length + QUERY_CHUNK)

    def _chunks(self):
        starts = range(0, self._length, QUERY_CHUNK)
        return [slice(start, start + QUERY_CHUNK) for start in starts]


def _shift(x):
    """Shift row n of [N, L + 128] left by 128 - n columns. Return [N, L], packed."""
    packed = _pack(x, axis=1, shared=LANES)
    return _shift_rows(packed, lambda row, column: column + LANES - row)


def _shift_back(packed, length):
    """Apply the transpose of the linear map `_shift` to a packed [N, L]."""

    def surround(blocks):
        # Each word holds a column of both halves. Zeros come before the first half, and
        # the second half follows its end.
        return [blocks[-1] << 16, *blocks, blocks[0] >> 16]

    shifted = _shift_rows(packed, lambda row, column: column + row, surround)
    return _unpack(shifted, 1, length + LANES, shared=LANES)


def _shift_rows(x, source, surround=lambda blocks: blocks):
    """Shift the rows of x, [N, columns], within pairs of neighbouring blocks.

    A block [N, 128] of the result is read from two blocks of x. `source` maps a row and
    a column of it to the column of the pair. The blocks of x are permuted first; then
    `surround` may add blocks before the first and after the last.
    """
    shape = QUERY_CHUNK, LANES
    row, column = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    index = source(row, column)
    permuted = [
        jnp.take_along_axis(
            x[:, first : first + LANES],
            index & (LANES - 1),
            axis=1,
            mode="promise_in_bounds",
        )
        for first in range(0, x.shape[1], LANES)
    ]
    pairs = itertools.pairwise(surround(permuted))
    chosen = [jnp.where(index < LANES, *pair) for pair in pairs]
    return jnp.concatenate(chosen, axis=1)


def _pack(x, axis, shared=0):
    """Round x to bfloat16 and join the bits of its first and second half, in uint32.

    The halves overlap in `shared` columns. If the rest is an odd number of registers,
    they overlap in another register.
    """
    size = -(-(x.shape[axis] - shared) // (2 * LANES)) * LANES + shared
    first = lax.slice_in_dim(x, 0, size, axis=axis)
    second = lax.slice_in_dim(x, x.shape[axis] - size, None, axis=axis)
    first, second = (
        lax.bitcast_convert_type(half, jnp.uint32) + jnp.uint32(0x8000)
        for half in (first, second)
    )
    return (first >> 16) | (second & jnp.uint32(0xFFFF0000))


def _unpack(packed, axis, length, shared=0):
    """Undo `_pack`: return the float32 array, of size `length` along the axis."""
    halves = packed << 16, packed & jnp.uint32(0xFFFF0000)
    first, second = (lax.bitcast_convert_type(half, jnp.float32) for half in halves)
    middle, end = packed.shape[axis] - shared, packed.shape[axis]
    first = lax.slice_in_dim(first, 0, middle, axis=axis)
    if middle == length:
        return first
    second = lax.slice_in_dim(second, end - (length - middle), end, axis=axis)
    return jnp.concatenate([first, second], axis=axis)
