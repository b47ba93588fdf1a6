"""Self-attention that knows distances, not positions, and has two streams (XLNet).

Source: Yang et al. 2019, 2.3 to 2.5; Dai et al. 2019, Transformer-XL, 3.3;
zihangdai/xlnet, modeling.py.
"""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import attention, dropout, layers, products
from bert_jax.model.inputs import Inputs


class _Parameters(NamedTuple):
    """What scores are made of, besides queries and keys.

    `segment_bias` and `segments` are None where there are no segments.
    """

    distance_kernel: Float[Array, "D H K"]
    content_bias: Float[Array, "H K"]
    position_bias: Float[Array, "H K"]
    segment_bias: Float[Array, "H K"] | None
    segments: Float[Array, "2 H K"] | None


class _Asking(NamedTuple):
    """Where the queries are, their segments, and the last place that each attends to.

    `ranks` is None where all tokens are attended to.
    """

    positions: Int[Array, "B Q"]
    segment_ids: Int[Array, "B Q"]
    ranks: Int[Array, "B Q"] | None


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

    Memory, if there is any, stands before the tokens, in the first segment, and all of
    it is attended to but padding.

    Differs from the original: there, each row of a batch drops other parts of the
    sinusoids. Here nothing is dropped of them.
    """

    config: config_lib.EncoderConfig
    adds_bias: bool = True

    @nn.compact
    def __call__(
        self,
        queries: Float[Array, "B Q D"],
        x: Float[Array, "B rows D"],
        inputs: Inputs,
        dropout_keys: UInt32[Array, " B"] | None,
        *,
        memory: Float[Array, "B M D"] | None = None,
        read_at: Int[Array, "B Q"] | None = None,
        return_probabilities: bool = False,
    ) -> tuple[Float[Array, "B Q D"] | products.Biased, Float[Array, "B H Q L"] | None]:
        """What some rows of hidden states, or all, take from the tokens.

        Arguments and results are those of `attention.SelfAttention`. Memory has hidden
        states of `inputs.memory_ids`; probabilities are those of the tokens alone.
        """
        c = self.config
        tokens = x[:, : inputs.input_ids.shape[1]]
        remembered = 0
        if memory is not None:
            remembered = memory.shape[1]
            tokens = jnp.concatenate([memory.astype(tokens.dtype), tokens], axis=1)
        heads = (("heads", c.num_heads), ("head", c.head_size))
        linear = functools.partial(
            layers.Linear, dtype=c.dtype, stddev=c.initializer_range, has_bias=False
        )
        sources = {"query": queries, "key": tokens, "value": tokens}
        query, key, value = (
            linear(inputs=("embed",), outputs=heads, name=name)(source)
            for name, source in sources.items()
        )
        own = self._parameters()
        asking = _asking(inputs, read_at)
        mask = _mask(inputs, asking, remembered)
        of_keys = jnp.pad(inputs.segment_ids, ((0, 0), (remembered, 0)))
        rate, keys = c.attention_dropout_rate, dropout_keys
        if keys is None:
            rate, keys = 0.0, jnp.zeros(len(x), jnp.uint32)
        elif read_at is not None:
            # Of the probabilities [H, rows, M + L] of a row, those of what is read.
            first = jnp.arange(c.num_heads) * x.shape[1]
            parts = first[:, None] + read_at[:, None, :]  # B H Q
            keys = dropout.of_parts(keys, parts, tokens.shape[1])

        def sides(query, key, own):
            """What scores are made of: queries, keys, and what is added."""
            more = _more_scores(query, own, asking, of_keys, remembered)
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
            inputs=("heads", "head"),
            outputs=(("embed", c.hidden_size),),
            adds_bias=self.adds_bias,
            name="output",
        )(attend(query, key, value, own))
        if not return_probabilities:
            return y, None
        query, key, more = sides(query, key, own)
        probabilities = attention.attention_probabilities(query, key, mask, more)
        return y, probabilities[..., remembered:]

    def _parameters(self):
        c = self.config
        names, shape = ("heads", "head"), (c.num_heads, c.head_size)

        def make(name, *more):
            init = nn.with_logical_partitioning(
                layers.initializer(c.initializer_range),
                (*(name for name, _ in more), *names),
            )
            return self.param(name, init, (*(size for _, size in more), *shape))

        has_segments = bool(c.type_vocab_size)
        return _Parameters(
            make("distance_kernel", ("embed", c.hidden_size)),
            make("content_bias"),
            make("position_bias"),
            make("segment_bias") if has_segments else None,
            make("segment_embedding", ("segment", 2)) if has_segments else None,
        )


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
        return _Asking(positions, segment_ids, ranks)
    return jax.tree.map(
        lambda x: jnp.take_along_axis(x, read_at, axis=1),
        _Asking(positions, segment_ids, ranks),
    )


def _mask(
    inputs: Inputs, asking: _Asking, remembered: int
) -> Bool[Array, "B 1 #Q keys"]:
    mask = inputs.attention_mask[:, None, None, :]
    if inputs.ranks is not None:
        is_before = inputs.ranks[:, None, :] <= asking.ranks[:, :, None]
        mask = mask & is_before[:, None]
    if not remembered:
        return mask
    of_memory = inputs.memory_mask[:, None, None, :]
    of_memory = jnp.broadcast_to(of_memory, (*mask.shape[:3], remembered))
    return jnp.concatenate([of_memory, mask], axis=3)


def _more_scores(
    query: Float[Array, "B Q H K"],
    own: _Parameters,
    asking: _Asking,
    segment_ids: Int[Array, "B keys"],
    remembered: int,
) -> Float[Array, "B H Q keys"]:
    """What distances and segments add to the products of queries and keys."""
    # What is between is large, and soon computed again in the backward pass.
    scores = jax.checkpoint(distance_scores, static_argnums=(3, 4))(
        (query + own.position_bias).astype(query.dtype),
        own.distance_kernel,
        asking.positions,
        -remembered,
        segment_ids.shape[1],
    )
    if own.segments is None:
        return scores
    of_segments = products.einsum(
        "bqhk,shk->bhqs", query + own.segment_bias, own.segments, query.dtype
    )
    is_other = asking.segment_ids[:, :, None] != segment_ids[:, None, :]
    same, other = of_segments[..., :1], of_segments[..., 1:]
    return scores + jnp.where(is_other[:, None], other, same)


def distance_scores(
    query: Float[Array, "B Q H K"],
    kernel: Float[Array, "D H K"],
    positions: Int[Array, "B Q"],
    first: int,
    count: int,
) -> Float[Array, "B H Q keys"]:
    """Products of queries and projected sinusoids of their distances to all keys.

    The original projects the sinusoids of all 2 L distances, multiplies queries with
    them, and shifts each row of products by the position of its query. Here queries go
    back through the projection, and sines and cosines of a difference are those of
    query and key multiplied. That is H / 2 times the arithmetic for these products,
    more than half of a layer's at 512 tokens, and no shift, which takes far longer on a
    TPU (docs/log.md).

    Args:
      query: Queries with their bias.
      kernel: From sinusoids to keys.
      positions: Where the queries are.
      first: Where the first key is; the others follow one by one.
      count: Number of keys.
    """
    size = kernel.shape[0]
    frequencies = 1e4 ** -(jnp.arange(0, size, 2, dtype=jnp.float32) / size)
    # Sines come first. Halves stay apart, for to join them would copy them.
    of_sine, of_cosine = (
        products.einsum("bqhk,dhk->bhqd", query, half, query.dtype)
        for half in jnp.split(kernel, 2)
    )
    angles = positions[:, None, :, None] * frequencies
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    angles = jnp.arange(first, first + count)[:, None] * frequencies
    return products.einsum(
        "bhqd,ld->bhql",
        of_sine * sine + of_cosine * cosine,
        jnp.cos(angles),
        query.dtype,
    ) + products.einsum(
        "bhqd,ld->bhql",
        of_cosine * sine - of_sine * cosine,
        jnp.sin(angles),
        query.dtype,
    )
