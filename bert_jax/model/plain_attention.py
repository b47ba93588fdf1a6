"""Scaled dot-product attention (Vaswani et al. 2017, 3.2.1) in plain operations.

It defines the result of the kernels, which `kernels/attention.py` chooses.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, products
from bert_jax.model.attention_pattern import MASKED_SCORE


def dropout_keys(
    config: config_lib.EncoderConfig,
    row_keys: UInt32[Array, " B"] | None,
    num_queries: int,
    num_keys: int,
    query_positions: Int[Array, "B P"] | None,
) -> UInt32[Array, "B ..."] | None:
    """Return keys for dropout of the probabilities of some queries, or None.

    A key for each row [B]; or, if `query_positions` are given, one for each query [B,
    H, P], which draws the same mask as in the full row's probabilities [H, queries,
    keys].
    """
    if row_keys is None or query_positions is None:
        return row_keys
    first = jnp.arange(config.num_heads) * num_queries
    index = first[:, None] + query_positions[:, None, :]  # [B, H, P]
    return dropout.keys_at(row_keys, index, num_keys)


def probabilities(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H M K"],
    mask: Bool[Array, "#B 1 #L M"],
    added_scores: Float[Array, "B H L M"] | None = None,
) -> Float[Array, "B H L M"]:
    """Return softmax((Q K^T + added scores) / sqrt(K)) over the keys in the mask.

    Queries that see no key have probabilities 0.
    """
    scores = products.einsum_float32("bhlk,bhmk->bhlm", query, key)  # [B, H, L, M]
    if added_scores is not None:
        scores = scores + added_scores
    scores = jnp.where(mask, scores * query.shape[-1] ** -0.5, MASKED_SCORE)
    highest = jnp.max(scores, axis=-1, keepdims=True)  # [B, H, L, 1]
    exponentials = jnp.exp(scores - highest)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    sees_nothing = highest < 0.5 * MASKED_SCORE
    return exponentials / jnp.where(sees_nothing, jnp.inf, total)


def attend_with_scores(
    config: config_lib.EncoderConfig,
    prepare: Callable[..., tuple[jax.Array, ...]],
    projections: Sequence[Any],
    value: Float[Array, "B M H K"],
    mask: Bool[Array, "#B 1 #L M"],
    dropout_keys: UInt32[Array, "B ..."] | None,
    return_probabilities: bool,
) -> tuple[Float[Array, "B L H K"], Float[Array, "B H L M"] | None]:
    """Return the result of `attend`, and the probabilities before dropout, or None.

    `prepare` maps the projections to queries [B, H, L, K], keys [B, H, M, K], and
    scores to add to their products. With `remat="attention"`, the backward pass calls
    it again.
    """

    def context(value, *projections):
        query, key, added = prepare(*projections)
        value, rate = value.swapaxes(1, 2), config.attention_dropout_rate
        result = attend(query, key, value, mask, dropout_keys, rate, added)
        return result.swapaxes(1, 2)

    if config.remat == "attention":
        context = jax.checkpoint(context)
    result = context(value, *projections)
    if not return_probabilities:
        return result, None
    query, key, added = prepare(*projections)
    return result, probabilities(query, key, mask, added)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def attend(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H M K"],
    value: Float[Array, "B H M K"],
    mask: Bool[Array, "#B 1 #L M"],
    dropout_keys: UInt32[Array, "B ..."] | None,
    rate: float,
    added_scores: Float[Array, "B H L M"] | None = None,
) -> Float[Array, "B H L K"]:
    """Return softmax((Q K^T + added scores) / sqrt(K)) V with dropout.

    The mask is True where a query sees a key. There is a dropout key for each row, [B],
    or for each query, [B, H, L]; None for no dropout.

    Scores and softmax are float32. Of the L x M intermediates only the probabilities
    are stored for the backward pass, in the type of the values. Automatic
    differentiation would store three times as much: float32 probabilities, before and
    after dropout.
    """
    return _forward(query, key, value, mask, dropout_keys, rate, added_scores)[0]


def _forward(query, key, value, mask, dropout_keys, rate, added_scores):
    p = probabilities(query, key, mask, added_scores).astype(value.dtype)
    dropped = dropout.dropout(p, rate, dropout_keys)
    context = products.einsum_float32("bhlm,bhmk->bhlk", dropped, value)  # [B, H, L, K]
    like_added = None if added_scores is None else added_scores[:0]
    residuals = query, key, value, p, dropout_keys, like_added
    return context.astype(value.dtype), residuals


def _backward(rate, residuals, g):
    query, key, value, p, dropout_keys, like_added = residuals
    dropped = dropout.dropout(p, rate, dropout_keys)
    d_dropped = products.einsum_float32("bhlk,bhmk->bhlm", g, value)  # [B, H, L, M]
    d_probabilities = dropout.dropout(d_dropped, rate, dropout_keys)
    # The derivative of softmax, p (dp - sum(p dp)), is 0 where p is 0.
    p = p.astype(jnp.float32)
    inner = jnp.sum(d_probabilities * p, axis=-1, keepdims=True)
    d_scores = p * (d_probabilities - inner) * query.shape[-1] ** -0.5
    d_added = None if like_added is None else d_scores
    d_scores = d_scores.astype(query.dtype)
    d_query = products.einsum_float32("bhlm,bhmk->bhlk", d_scores, key)
    if query.shape[2] == 1:
        # XLA fuses a product over one query with what makes its factors, and would
        # compute mask and softmax anew for each column of keys and values. On
        # CPUs, that loop can take minutes to compile.
        padding = (0, 0), (0, 0), (0, 1), (0, 0)
        factors = dropped, g, d_scores, query
        dropped, g, d_scores, query = (jnp.pad(x, padding) for x in factors)
    d_value = products.einsum_float32("bhml,bhlk->bhmk", products.transpose(dropped), g)
    d_key = products.einsum_float32(
        "bhml,bhlk->bhmk", products.transpose(d_scores), query
    )
    return (
        d_query.astype(query.dtype),
        d_key.astype(key.dtype),
        d_value.astype(value.dtype),
        None,
        None,
        d_added,
    )


attend.defvjp(_forward, _backward)
