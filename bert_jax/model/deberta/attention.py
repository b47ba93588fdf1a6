"""Disentangled self-attention: separate scores for content and for distance.

Source: He et al. 2020, DeBERTa, 3.1; `DebertaV2Model` of `transformers`, for the
buckets of distances and the projections that content and distances share.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import plain_attention, products
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.inputs import at_positions
from bert_jax.model.kernels import decisions, tpu_attention
from bert_jax.model.linear import Linear, attention_output


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class DistancePattern(AttentionPattern):
    """Attention pattern with the embeddings of distances."""

    distances: Float[Array, "R D"]  # of the R buckets, normalised


class DisentangledAttention(nn.Module):
    """Multi-head attention with scores of contents and of distances.

    The score of query i and key j is
        q_i k_j + q_i k'_r + q'_r k_j
    divided by sqrt(3 K). r is the bucket of the distance i - j; q'_r and k'_r are the
    query and key projections of its embedding.

    The original also drops out the embeddings of distances in each layer, with one mask
    for all rows.
    """

    config: config_lib.EncoderConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        pattern: DistancePattern,
        dropout_keys: UInt32[Array, " B"] | None,
        *,
        query_positions: Int[Array, "B P"] | None = None,
        return_probabilities: bool = False,
    ) -> tuple[
        Float[Array, "B P D"], Float[Array, " D"], Float[Array, "B H P L"] | None
    ]:
        """Compute the attention of some or all positions.

        Arguments and results are as in `SelfAttention`. Scores of distances need the
        queries of all positions, also if `query_positions` are given.
        """
        c = self.config
        heads = ("heads", c.num_heads), ("head", c.head_size)
        to_query, to_key, to_value = (
            Linear(c, heads, name=name) for name in ("query", "key", "value")
        )

        def project(to, source, scale=1.0):
            projected = products.add_bias(*to.product_and_bias(source))
            return (projected * scale).astype(c.dtype)

        # All queries are divided by sqrt(3), and attention divides scores by sqrt(K).
        projections = (
            project(to_query, x, 3**-0.5),  # [B, L, H, K]
            project(to_key, x),
            project(to_query, pattern.distances, 3**-0.5),  # [R, H, K]
            project(to_key, pattern.distances),
            project(to_value, x),  # [B, L, H, K]
        )
        arrays = projections, pattern, dropout_keys, query_positions
        if return_probabilities:
            context, probabilities = plain(c, *arrays, return_probabilities=True)
        else:
            context = _attend(c, *arrays)  # [B, P, H, K]
            probabilities = None
        output = attention_output(c, has_bias=True)
        return *output.product_and_bias(context), probabilities


def _attend(config, projections, pattern, dropout_keys, query_positions):
    """Return contexts, by the TPU's kernel where `decisions` allows it."""
    decision = decisions.attention(
        config,
        "tpu",
        *projections[0].shape[:2],
        is_local=False,
        has_dropout=dropout_keys is not None,
    )
    kernels = {}
    if decision.implementation == decisions.TPU_KERNEL:
        kernels["tpu"] = functools.partial(by_kernel, config)
    arrays = projections, pattern, dropout_keys, query_positions
    return lax.platform_dependent(
        *arrays, **kernels, default=lambda *arrays: plain(config, *arrays)[0]
    )


def plain(
    config,
    projections,
    pattern,
    dropout_keys,
    query_positions,
    return_probabilities=False,
):
    """Return contexts [B, P, H, K], and the probabilities [B, H, P, L] or None.

    The projections are queries and keys [B, L, H, K], queries and keys of the buckets
    of distances [R, H, K], and values [B, L, H, K].
    """
    *to_prepare, value = projections
    length = value.shape[1]
    position = np.arange(length)
    buckets = buckets_of(position[:, None] - position, config)  # [L, L]
    # Intermediates are large, and the backward pass needs none of them.
    added_scores = jax.checkpoint(functools.partial(distance_scores, buckets=buckets))

    def prepare(query, key, query_of_distance, key_of_distance):
        """Return queries, keys, and the scores that are added to their products."""
        added = added_scores(query, key, query_of_distance, key_of_distance)
        query, key = query.swapaxes(1, 2), key.swapaxes(1, 2)  # [B, H, L, K]
        if query_positions is not None:
            at = query_positions[:, None, :, None]  # [B, 1, P, 1]
            query = jnp.take_along_axis(query, at, axis=2)  # [B, H, P, K]
            added = jnp.take_along_axis(added, at, axis=2)  # [B, H, P, L]
        return query, key, added

    mask = pattern.mask(query_positions)[:, None]  # [B, 1, P or 1, L]
    keys = plain_attention.dropout_keys(
        config, dropout_keys, length, length, query_positions
    )
    return plain_attention.attend_with_scores(
        config, prepare, to_prepare, value, mask, keys, return_probabilities
    )


def by_kernel(config, projections, pattern, dropout_keys, query_positions):
    """Return the contexts of `plain`, by the TPU's attention kernel.

    It computes all positions, also if only some are returned.
    """
    query, key, query_of_distance, key_of_distance, value = projections
    length = value.shape[1]
    # Position of the other token minus the content's.
    offset = np.arange(-length, length)

    def table_of(of_bucket, distance):
        """Return a column for each distance, [D, 2 L]."""
        columns = products.transpose(of_bucket.reshape(len(of_bucket), -1))  # [D, R]
        is_bucket = jax.nn.one_hot(buckets_of(distance, config), len(of_bucket), axis=0)
        # Unlike a gather's, the gradient of this product adds up in float32.
        return products.linear(columns, is_bucket, columns.dtype)

    context = tpu_attention.attend(
        config,
        tuple(x.reshape(*x.shape[:2], -1) for x in (query, key, value)),
        (jnp.zeros(config.hidden_size),) * 3,
        pattern,
        dropout_keys,
        # Distances are the query's position minus the key's. The content is the query
        # in the first table, and the key in the second one.
        distances=(
            table_of(key_of_distance, -offset),
            table_of(query_of_distance, offset),
        ),
    ).reshape(value.shape)
    return at_positions(context, query_positions)


def distance_scores(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B L H K"],
    query_of_distance: Float[Array, "R H K"],
    key_of_distance: Float[Array, "R H K"],
    buckets: Int[np.ndarray, "L L"],
) -> Float[Array, "B H L L"]:
    """Return the scores of contents with distances: q_i k'_r + q'_r k_j.

    Contents are multiplied with all buckets that occur. A product with a one-hot array
    then selects the bucket of each pair of tokens. This takes R / K times the
    arithmetic of a product of queries and keys. Outside of a kernel, a TPU gathers
    single numbers one by one, and takes twice as long to shift each row by its position
    (docs/log.md).

    `buckets` holds r for each pair i, j.
    """
    lowest, highest = buckets.min(), buckets.max()
    is_bucket = buckets[..., None] == jnp.arange(lowest, highest + 1)  # [L, L, R]
    dtype = query.dtype

    def pair_scores(content, distance, spec):
        distance = distance[lowest : highest + 1]
        scores = products.einsum("blhk,rhk->bhlr", content, distance, dtype)
        # XLA on CPUs has no bfloat16 product for the gradient if `is_bucket` is second.
        return products.einsum(spec, is_bucket.astype(dtype), scores, dtype)

    return pair_scores(query, key_of_distance, "ijr,bhir->bhij") + pair_scores(
        key, query_of_distance, "ijr,bhjr->bhij"
    )


def buckets_of(
    distance: Int[np.ndarray, "*shape"], config: config_lib.EncoderConfig
) -> Int[np.ndarray, "*shape"]:
    """Return the buckets of distances i - j between a query i and a key j.

    In each direction, half of the buckets hold one short distance each. The other half
    cover ranges that grow exponentially, and the last one ends before `max_distance`.
    Keys that come `max_distance` or more after the query have bucket 0, as in
    `transformers`. In da_utils.py of microsoft/DeBERTa they share bucket 1 with nearer
    keys.
    """
    count = config.distance_buckets
    middle = count // 2
    # Float32, as `transformers` has it, where rounding decides between two buckets.
    far = np.float32(np.maximum(abs(distance), middle)) / np.float32(middle)
    last = np.float32((config.max_distance - 1) / middle)
    power = np.ceil(np.log(far) / np.log(last) * np.float32(middle - 1)) + middle
    signed = np.where(abs(distance) <= middle, distance, np.sign(distance) * power)
    return np.clip(signed.astype(np.int32) + count, 0, 2 * count - 1)
