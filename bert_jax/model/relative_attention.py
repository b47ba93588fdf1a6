"""Self-attention that knows distances, not positions, and has two streams (XLNet).

Source: Yang et al. 2019, 2.3 to 2.5; Dai et al. 2019, Transformer-XL, 3.3;
zihangdai/xlnet, modeling.py. Without memory.
"""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import attention, layers, products, randomness
from bert_jax.model.inputs import Inputs


class _Parameters(NamedTuple):
    """What scores are made of, besides queries and keys. `segments` may be None."""

    distances: Float[Array, "R H K"]
    content_bias: Float[Array, "H K"]
    position_bias: Float[Array, "H K"]
    segment_bias: Float[Array, "H K"] | None
    segments: Float[Array, "2 H K"] | None


class _Asking(NamedTuple):
    """Where the queries are, their segments, and the last place that each attends to.

    `ranks` is None where all tokens are attended to. The first `aligned` queries are at
    0, 1, 2 and so on.
    """

    positions: Int[Array, "B Q"]
    segment_ids: Int[Array, "B Q"]
    ranks: Int[Array, "B Q"] | None
    aligned: int


class RelativeAttention(nn.Module):
    """Queries, keys, values, distances, and the projection of what comes of them.

    The score of query i and key j is
        (q_i + content_bias) k_j
        + (q_i + position_bias) r_(i - j)
        + (q_i + segment_bias) s_ij
    over sqrt(K): r is a projection of sinusoids of the distance, and s one of two
    vectors, for two tokens of one segment or not. Each layer has its own biases (the
    original's `untie_r`).

    A second stream, if there is one, stands behind the tokens: row L + p of the hidden
    states is at `inputs.target_positions[:, p]`. Nothing attends to it.

    Differs from the original: there, each row of a batch drops other parts of the
    sinusoids, which makes their projection one for each row. Here nothing is dropped.
    """

    config: config_lib.EncoderConfig

    @nn.compact
    def __call__(
        self,
        queries: Float[Array, "B Q D"],
        x: Float[Array, "B rows D"],
        inputs: Inputs,
        dropout_keys: UInt32[Array, " B"] | None,
        *,
        read_at: Int[Array, "B Q"] | None = None,
        return_probabilities: bool = False,
    ) -> tuple[Float[Array, "B Q D"], Float[Array, "B H Q L"] | None]:
        """What some rows of hidden states, or all, take from the tokens.

        Arguments and results are those of `attention.SelfAttention`.
        """
        c = self.config
        length = inputs.input_ids.shape[1]
        tokens = x[:, :length]
        heads = (("heads", c.num_heads), ("head", c.head_size))
        linear = functools.partial(
            layers.Linear, dtype=c.dtype, stddev=c.initializer_range, has_bias=False
        )
        sources = {"query": queries, "key": tokens, "value": tokens}
        sources["distance"] = distance_sinusoids(length, c.hidden_size)
        query, key, value, distances = (
            linear(inputs=("embed",), outputs=heads, name=name)(source)
            for name, source in sources.items()
        )
        own = self._parameters(distances)
        asking = _asking(inputs, read_at)
        mask = _mask(inputs, asking)
        rate, keys = c.attention_dropout_rate, dropout_keys
        if keys is None:
            rate, keys = 0.0, jnp.zeros(len(x), jnp.uint32)
        elif read_at is not None:
            # Of the probabilities [H, rows, L] of a row, those of what is read.
            first = jnp.arange(c.num_heads) * x.shape[1]
            parts = first[:, None] + read_at[:, None, :]  # B H Q
            keys = randomness.of_parts(keys, parts, length)

        def sides(query, key, own):
            """What scores are made of: queries, keys, and what is added."""
            more = _more_scores(query, own, asking, inputs.segment_ids)
            query = (query + own.content_bias).astype(c.dtype)
            return query.swapaxes(1, 2), key.swapaxes(1, 2), more

        def attend(query, key, value, own):
            query, key, more = sides(query, key, own)
            context = attention.scaled_dot_product(
                query, key, value.swapaxes(1, 2), mask, keys, rate, more
            )
            return context.swapaxes(1, 2)

        if c.remat == "attention":
            attend = jax.checkpoint(attend)
        y = linear(
            inputs=("heads", "head"), outputs=(("embed", c.hidden_size),), name="output"
        )(attend(query, key, value, own))
        if not return_probabilities:
            return y, None
        query, key, more = sides(query, key, own)
        return y, attention.attention_probabilities(query, key, mask, more)

    def _parameters(self, distances):
        c = self.config
        names, shape = ("heads", "head"), (c.num_heads, c.head_size)
        normal = layers.initializer(c.initializer_range)
        init = nn.with_logical_partitioning(normal, names)
        content, position = (
            self.param(f"{name}_bias", init, shape) for name in ("content", "position")
        )
        if not c.type_vocab_size:
            return _Parameters(distances, content, position, None, None)
        of_segments = nn.with_logical_partitioning(normal, ("segment", *names))
        return _Parameters(
            distances,
            content,
            position,
            self.param("segment_bias", init, shape),
            self.param("segment_embedding", of_segments, (2, *shape)),
        )


def distance_sinusoids(length: int, size: int) -> Float[Array, "R D"]:
    """Sines and cosines of all distances between two tokens of a row.

    Args:
      length: Tokens in a row: L.
      size: Columns: D, an even number.

    Returns:
      float32 [2 L, D]; row r is of the distance L - r, from L down to 1 - L.
    """
    frequencies = 1e4 ** -(jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    distances = length - jnp.arange(2 * length, dtype=jnp.float32)
    angles = distances[:, None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)


def _asking(inputs: Inputs, read_at: Int[Array, "B Q"] | None) -> _Asking:
    shape = inputs.input_ids.shape
    positions = jnp.broadcast_to(jnp.arange(shape[1]), shape)
    segment_ids, ranks = inputs.segment_ids, inputs.ranks
    if (targets := inputs.target_positions) is not None:
        # At a place just before its own, so that a target does not attend to itself.
        of_targets = jnp.take_along_axis(ranks, targets, axis=1) - 1
        ranks = jnp.concatenate([ranks, of_targets], axis=1)
        of_targets = jnp.take_along_axis(segment_ids, targets, axis=1)
        segment_ids = jnp.concatenate([segment_ids, of_targets], axis=1)
        positions = jnp.concatenate([positions, targets], axis=1)
    if read_at is None:
        return _Asking(positions, segment_ids, ranks, aligned=shape[1])
    read = (positions, segment_ids, ranks)
    read = jax.tree.map(lambda x: jnp.take_along_axis(x, read_at, axis=1), read)
    return _Asking(*read, aligned=0)


def _mask(inputs: Inputs, asking: _Asking) -> Bool[Array, "B 1 #Q L"]:
    mask = inputs.attention_mask[:, None, None, :]
    if inputs.ranks is None:
        return mask
    is_before = inputs.ranks[:, None, :] <= asking.ranks[:, :, None]
    return mask & is_before[:, None]


def _more_scores(
    query: Float[Array, "B Q H K"],
    own: _Parameters,
    asking: _Asking,
    segment_ids: Int[Array, "B L"],
) -> Float[Array, "B H Q L"]:
    """What distances and segments add to the products of queries and keys."""
    dtype = query.dtype
    scores = products.einsum(
        "bqhk,rhk->bhqr", query + own.position_bias, own.distances, dtype
    )
    scores = _shift(scores, asking.positions, asking.aligned)
    if own.segments is None:
        return scores
    of_segments = products.einsum(
        "bqhk,shk->bhqs", query + own.segment_bias, own.segments, dtype
    )
    is_other = asking.segment_ids[:, :, None] != segment_ids[:, None, :]
    same, other = of_segments[..., :1], of_segments[..., 1:]
    return scores + jnp.where(is_other[:, None], other, same)


def _shift(
    scores: Float[Array, "B H Q R"], positions: Int[Array, "B Q"], aligned: int
) -> Float[Array, "B H Q L"]:
    """From scores of distances to scores of keys.

    The query at position i finds key j at the distance i - j, in column L - i + j.

    Args:
      scores: Of each query, for distances from L down to 1 - L.
      positions: Where the queries are.
      aligned: How many of the first of them are at 0, 1, 2 and so on; L or none.
    """
    length = scores.shape[3] // 2
    parts = []
    if aligned:
        # Diagonals of a matrix become columns when each row loses a value to the next.
        first = scores[:, :, :aligned]
        shape = *first.shape[:3], 2 * length - 1
        first = jax.lax.collapse(first, 2)[..., length:].reshape(shape)
        parts.append(first[..., :length])
    if aligned < scores.shape[2]:

        def one(scores, position):  # H R
            return lax.dynamic_slice_in_dim(scores, length - position, length, axis=1)

        of_row = jax.vmap(one, in_axes=(1, 0), out_axes=1)
        parts.append(jax.vmap(of_row)(scores[:, :, aligned:], positions[:, aligned:]))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=2)
