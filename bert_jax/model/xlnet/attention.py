"""Self-attention over distances and segments instead of positions.

Source: Yang et al. 2019, 2.3 to 2.5; Dai et al. 2019, Transformer-XL, 3.3;
zihangdai/xlnet, modeling.py.
"""

import dataclasses
import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import linear, plain_attention, products
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.inputs import at_positions


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativePattern(AttentionPattern):
    """Attention pattern of tokens and targets, with positions, segments and ranks.

    The `vectors` of a row are its L tokens, then its P targets, which no vector sees.
    """

    # Sinusoids of the vectors' positions (Vaswani et al. 2017, 3.5).
    sines: Float[Array, "B vectors half_D"]
    cosines: Float[Array, "B vectors half_D"]
    segment_ids: Int[Array, "B vectors"]
    # Order of prediction: vectors see tokens of their own or a lower rank. None: they
    # see all tokens.
    ranks: Int[Array, "B vectors"] | None

    def mask(
        self, query_positions: Int[Array, "B Q"] | None = None
    ) -> Bool[Array, "B _ L"]:
        """Return the mask, [B, Q or 1, L]: True where vector q sees token l."""
        mask = self.is_token[:, None, :]
        if self.ranks is None:
            return mask
        query_ranks = at_positions(self.ranks, query_positions)
        token_ranks = self.ranks[:, : self.is_token.shape[1]]  # [B, L]
        return mask & (token_ranks[:, None, :] <= query_ranks[:, :, None])


class _Relative(NamedTuple):
    """Parameters of scores besides queries and keys; the last two need segments."""

    distance_kernel: Float[Array, "D H K"]
    content_bias: Float[Array, "H K"]
    position_bias: Float[Array, "H K"]
    segment_bias: Float[Array, "H K"] | None
    segment_embedding: Float[Array, "2 H K"] | None


class RelativeAttention(nn.Module):
    """Multi-head attention with scores of distances and segments.

    The score of query i and key j is
        (q_i + content_bias) k_j
        + (q_i + position_bias) r_(i - j)
        + (q_i + segment_bias) s_ij
    divided by sqrt(K). r is a projection of sinusoids of the distance. s is one of two
    vectors, for tokens of the same segment or of different segments. Each layer has its
    own biases (the original's `untie_r`).

    The original also drops out the sinusoids, differently in each row.
    """

    config: config_lib.EncoderConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B vectors D"],
        pattern: RelativePattern,
        dropout_keys: UInt32[Array, " B"] | None,
        *,
        query_positions: Int[Array, "B Q"] | None = None,
        return_probabilities: bool = False,
    ) -> tuple[Float[Array, "B Q D"], None, Float[Array, "B H Q L"] | None]:
        """Compute the attention of some or all vectors to the tokens.

        Arguments and results as in `SelfAttention`; `query_positions` are indices of
        vectors.
        """
        c = self.config
        length = pattern.is_token.shape[1]
        queries = at_positions(x, query_positions)  # [B, Q, D]
        tokens = x[:, :length]
        heads = (("heads", c.num_heads), ("head", c.head_size))
        project = functools.partial(linear.Linear, c, heads, has_bias=False)
        query = project(name="query")(queries)  # [B, Q, H, K]
        key = project(name="key")(tokens)  # [B, L, H, K]
        value = project(name="value")(tokens)  # [B, L, H, K]
        relative = self._parameters()
        mask = pattern.mask(query_positions)[:, None]  # [B, 1, Q or 1, L]
        waves = pattern.sines, pattern.cosines
        query_waves = [at_positions(wave, query_positions) for wave in waves]
        sinusoids = *query_waves, *(wave[:, :length] for wave in waves)
        segments = at_positions(pattern.segment_ids, query_positions)  # [B, Q]
        token_segments = pattern.segment_ids[:, None, :length]
        is_other = segments[:, :, None] != token_segments  # [B, Q, L]
        keys = plain_attention.dropout_keys(
            c, dropout_keys, x.shape[1], length, query_positions
        )

        def prepare(query, key, relative):
            """Return queries, keys, and the scores that are added to their products."""
            added = _relative_scores(query, relative, sinusoids, is_other)
            query = (query + relative.content_bias).astype(c.dtype)
            return query.swapaxes(1, 2), key.swapaxes(1, 2), added  # [B, H, ...]

        projections = query, key, relative
        context, probabilities = plain_attention.attend_with_scores(
            c, prepare, projections, value, mask, keys, return_probabilities
        )
        output = linear.attention_output(c, has_bias=False)
        return *output.product_and_bias(context), probabilities

    def _parameters(self):
        c = self.config

        def make(name, *dimensions):
            dimensions = *dimensions, ("heads", c.num_heads), ("head", c.head_size)
            names, shape = zip(*dimensions, strict=True)
            init = linear.initializer(c.initializer_range, names)
            return self.param(name, init, shape)

        has_segments = bool(c.type_vocab_size)
        return _Relative(
            make("distance_kernel", ("embed", c.hidden_size)),
            make("content_bias"),
            make("position_bias"),
            make("segment_bias") if has_segments else None,
            make("segment_embedding", ("segment", 2)) if has_segments else None,
        )


def _relative_scores(
    query: Float[Array, "B Q H K"],
    relative: _Relative,
    sinusoids: tuple[Float[Array, "B _ half_D"], ...],
    is_other: Bool[Array, "B Q L"],
) -> Float[Array, "B H Q L"]:
    """Return the scores that distances and segments add to products with keys.

    `sinusoids` are as in `distance_scores`. `is_other` is True where query and token
    are in different segments.
    """
    # Intermediates are large, and cheap to recompute in the backward pass.
    scores = jax.checkpoint(distance_scores)(
        (query + relative.position_bias).astype(query.dtype),
        relative.distance_kernel,
        *sinusoids,
    )
    if relative.segment_embedding is None:
        return scores
    by_segment = products.einsum(
        "bqhk,shk->bhqs",
        query + relative.segment_bias,
        relative.segment_embedding,
        query.dtype,
    )
    same, other = by_segment[..., :1], by_segment[..., 1:]  # [B, H, Q, 1]
    return scores + jnp.where(is_other[:, None], other, same)


def distance_scores(
    query: Float[Array, "B Q H K"],
    kernel: Float[Array, "D H K"],
    sine: Float[Array, "B Q half_D"],
    cosine: Float[Array, "B Q half_D"],
    token_sine: Float[Array, "B L half_D"],
    token_cosine: Float[Array, "B L half_D"],
) -> Float[Array, "B H Q L"]:
    """Return products of queries and projected sinusoids of their distances to tokens.

    `kernel` is the projection from sinusoids to keys. `sine` and `cosine` belong to the
    queries' positions, `token_sine` and `token_cosine` to the tokens'.

    The original projects the sinusoids of all 2 L distances, multiplies queries with
    them, and shifts the products of each query by its position. Here queries are
    multiplied with the projection itself, and the sine and cosine of a difference are
    expanded into sines and cosines of the query's and the token's position. This takes
    H / 2 times the arithmetic for these products, more than half of a layer's at 512
    tokens, but needs no shift, which takes far longer on a TPU (docs/log.md).
    """
    # Sines come first. The halves stay apart, because joining them would copy them.
    query_by_sine, query_by_cosine = (
        products.einsum("bqhk,dhk->bhqd", query, half, query.dtype)
        for half in jnp.split(kernel, 2)
    )  # [B, H, Q, D / 2] each
    sine, cosine = sine[:, None], cosine[:, None]  # [B, 1, Q, D / 2]

    def with_tokens(x, y):  # [B, H, Q, D / 2] and [B, L, D / 2] to [B, H, Q, L]
        return products.einsum("bhqd,bld->bhql", x, y, query.dtype)

    by_cosine = with_tokens(
        query_by_sine * sine + query_by_cosine * cosine, token_cosine
    )
    return by_cosine + with_tokens(
        query_by_cosine * sine - query_by_sine * cosine, token_sine
    )
