"""Scaled dot-product attention (Vaswani et al. 2017, 3.2.1).

`attend` chooses between the kernels and `dot_product_attention`, the plain path, which
defines the result.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, products, rotary
from bert_jax.model.attention_pattern import HIDDEN_SCORE, AttentionPattern
from bert_jax.model.kernels import decisions, overlapping_pieces, tpu_attention


def attend(
    config: config_lib.EncoderConfig,
    query: Float[Array, "B P H K"],
    key: Float[Array, "B L G K"],
    value: Float[Array, "B L G K"],
    biases: tuple[Float[Array, "_ K"] | None, ...],
    pattern: AttentionPattern,
    rotations: rotary.Rotations | None,
    dropout_keys: UInt32[Array, " B"] | None,
    query_positions: Int[Array, "B P"] | None = None,
) -> Float[Array, "B P H K"]:
    """Return softmax(Q K^T / sqrt(K)) V of each head, in `config.dtype`.

    Args:
      config: Encoder.
      query: Queries; like keys and values they may be float32 products whose bias is
        still to be added, and are rounded to `config.dtype` afterwards.
      key: Keys; each serves H / G adjacent heads of queries.
      value: Values, likewise.
      biases: Biases of queries, keys and values; None for no bias.
      pattern: Rules for which keys each query sees.
      rotations: Rotations of all positions; None without rotary positions.
      dropout_keys: Keys of the rows for dropout of the probabilities; None for none.
      query_positions: Positions of the queries in their rows; None: all, and P is L.
    """
    arrays = (query, key, value), biases, pattern, rotations, dropout_keys
    if query_positions is not None:
        arrays = *arrays, query_positions
    kernels = {}
    for platform in ("tpu", "cuda"):
        decision = decisions.attention(
            config,
            platform,
            *key.shape[:2],
            queries=None if query_positions is None else query.shape[1],
            is_local=pattern.window is not None,
            has_dropout=dropout_keys is not None and config.attention_dropout_rate > 0,
        )
        if decision.implementation != decisions.PLAIN:
            kernel = _KERNELS[decision.implementation]
            kernels[platform] = functools.partial(kernel, config)
    plain = functools.partial(_plain, config)
    return lax.platform_dependent(*arrays, **kernels, default=plain)


def _tpu(
    config, sources, biases, pattern, rotations, dropout_keys, query_positions=None
):
    biases = [
        jnp.zeros(x.shape[2:]) if b is None else b
        for x, b in zip(sources, biases, strict=True)
    ]
    query, key, value = (
        _of_all_heads(config, x).reshape(*x.shape[:2], -1) for x in sources
    )  # [B, L, H K]
    if query_positions is not None:
        more = -query.shape[1] % decisions.QUERY_CHUNK
        query = jnp.pad(query, ((0, 0), (0, more), (0, 0)))
        query_positions = jnp.pad(query_positions, ((0, 0), (0, more)))
    # There is nothing that `remat="attention"` could recompute.
    context = tpu_attention.attend(
        query,
        key,
        value,
        tuple(_of_all_heads(config, bias).reshape(-1) for bias in biases),
        pattern,
        rotations,
        dropout_keys,
        query_positions,
        dtype=jnp.dtype(config.dtype),
        head_size=config.head_size,
        rate=config.attention_dropout_rate,
    )
    shape = sources[0].shape
    return context[:, : shape[1]].reshape(shape)


def _tpu_pieces(config, sources, biases, pattern, rotations, dropout_keys):
    del dropout_keys  # there is no dropout
    cut = functools.partial(overlapping_pieces.cut, window=pattern.window)
    sources = tuple(
        cut(products.add_bias(x, bias).astype(config.dtype))
        for x, bias in zip(sources, biases, strict=True)
    )
    # Positions outside of the row are padding.
    pieces = dataclasses.replace(
        pattern,
        is_token=cut(pattern.is_token),
        documents=None if pattern.documents is None else cut(pattern.documents),
    )
    if rotations is not None:
        rotations = rotary.Rotations(*map(cut, rotations))
    context = _tpu(config, sources, (None,) * 3, pieces, rotations, None)
    return overlapping_pieces.join(context, len(pattern.is_token), pattern.window)


def _cudnn(
    config,
    sources,
    biases,
    pattern,
    rotations,
    dropout_keys,
    *,
    implementation="cudnn",
):
    """Apply cuDNN's fused kernel, which like the TPU kernel stores no [L, L] array.

    JAX's interface to it has no usable dropout: the seed is a constant of the compiled
    program, so that each step would draw the same mask. It therefore serves models
    without dropout of attention probabilities, and all evaluation and prediction. Tests
    choose the implementation "xla", which computes the same on any platform.
    """
    del dropout_keys  # there is no dropout
    # cuDNN's softmax of no key is not finite: rows of padding see their first position,
    # and queries without a key are zeroed below.
    lengths = jnp.maximum(jnp.sum(pattern.is_token, axis=1, dtype=jnp.int32), 1)
    documents, same = pattern.documents, None
    if documents is not None:
        same = (documents[:, :, None] == documents[:, None, :])[:, None]  # [B, 1, L, L]
    context = jax.nn.dot_product_attention(
        *_finish(config, sources, biases, rotations),
        mask=same,
        is_causal=pattern.causal,
        key_value_seq_lengths=lengths,
        implementation=implementation,
    )
    sees_key = jnp.any(pattern.mask(), axis=2)[:, :, None, None]  # [B, L or 1, 1, 1]
    return jnp.where(sees_key, context, 0)


_KERNELS = {
    decisions.TPU_KERNEL: _tpu,
    decisions.TPU_KERNEL_ON_PIECES: _tpu_pieces,
    decisions.CUDNN: _cudnn,
}


def _plain(
    config, sources, biases, pattern, rotations, dropout_keys, query_positions=None
):
    query, key, value = _heads_first(
        config, sources, biases, rotations, query_positions
    )
    mask = pattern.mask(query_positions)[:, None]  # [B, 1, P, L]
    keys = probability_keys(
        config, dropout_keys, key.shape[2], key.shape[2], query_positions
    )
    attend = functools.partial(
        dot_product_attention, rate=config.attention_dropout_rate
    )
    if config.remat == "attention":
        attend = jax.checkpoint(attend)
    return attend(query, key, value, mask, keys).swapaxes(1, 2)


def probabilities(
    config: config_lib.EncoderConfig,
    sources: tuple[Float[Array, "B _ _ K"], ...],
    biases: tuple[Float[Array, "_ K"] | None, ...],
    pattern: AttentionPattern,
    rotations: rotary.Rotations | None,
    query_positions: Int[Array, "B P"] | None = None,
) -> Float[Array, "B H P L"]:
    """Return the probabilities before dropout, of the arguments of `attend`."""
    query, key, _ = _heads_first(config, sources, biases, rotations, query_positions)
    mask = pattern.mask(query_positions)[:, None]  # [B, 1, P, L]
    return attention_probabilities(query, key, mask)


def _heads_first(config, sources, biases, rotations, query_positions):
    """Apply `_finish`, and return [B, H, L, K], with one matrix for each head."""
    arrays = _finish(config, sources, biases, rotations, query_positions)
    return tuple(x.swapaxes(1, 2) for x in arrays)


def _finish(config, sources, biases, rotations, query_positions=None):
    """Add biases, rotate queries and keys, and repeat keys and values for all heads."""
    query, key, value = (
        products.add_bias(x, bias).astype(config.dtype)
        for x, bias in zip(sources, biases, strict=True)
    )
    if rotations is not None:
        of_queries = rotations
        if query_positions is not None:
            of_queries = rotations.at(query_positions)
        query, key = rotary.rotate(query, of_queries), rotary.rotate(key, rotations)
    return query, _of_all_heads(config, key), _of_all_heads(config, value)


def _of_all_heads(config, x):
    """Repeat keys, values or their biases [..., G, K] to [..., H, K]."""
    shared_by = config.num_heads // x.shape[-2]
    return x if shared_by == 1 else jnp.repeat(x, shared_by, axis=-2)


def probability_keys(
    config: config_lib.EncoderConfig,
    dropout_keys: UInt32[Array, " B"] | None,
    num_queries: int,
    num_keys: int,
    query_positions: Int[Array, "B P"] | None,
) -> UInt32[Array, "B ..."] | None:
    """Return keys for dropout of the probabilities of some queries, or None.

    A key for each row [B]; or, if `query_positions` are given, one for each query [B,
    H, P], which draws the same mask as in the full row's probabilities [H, queries,
    keys].
    """
    if dropout_keys is None or query_positions is None:
        return dropout_keys
    first = jnp.arange(config.num_heads) * num_queries
    index = first[:, None] + query_positions[:, None, :]  # [B, H, P]
    return dropout.keys_at(dropout_keys, index, num_keys)


def attention_probabilities(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H M K"],
    mask: Bool[Array, "#B 1 #L M"],
    added_scores: Float[Array, "B H L M"] | None = None,
) -> Float[Array, "B H L M"]:
    """Return softmax((Q K^T + added scores) / sqrt(K)) over the keys in the mask.

    Queries that see no key have probabilities 0.
    """
    scores = products.dot("bhlk,bhmk->bhlm", query, key)  # [B, H, L, M]
    if added_scores is not None:
        scores = scores + added_scores
    scores = jnp.where(mask, scores * query.shape[-1] ** -0.5, HIDDEN_SCORE)
    highest = jnp.max(scores, axis=-1, keepdims=True)  # [B, H, L, 1]
    exponentials = jnp.exp(scores - highest)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    sees_nothing = highest < 0.5 * HIDDEN_SCORE
    return exponentials / jnp.where(sees_nothing, jnp.inf, total)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def dot_product_attention(
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
    probabilities = attention_probabilities(query, key, mask, added_scores)
    probabilities = probabilities.astype(value.dtype)
    dropped = dropout.dropout(probabilities, rate, dropout_keys)
    context = products.dot("bhlm,bhmk->bhlk", dropped, value)  # [B, H, L, K]
    like_added = None if added_scores is None else added_scores[:0]
    residuals = query, key, value, probabilities, dropout_keys, like_added
    return context.astype(value.dtype), residuals


def _backward(rate, residuals, g):
    query, key, value, probabilities, dropout_keys, like_added = residuals
    dropped = dropout.dropout(probabilities, rate, dropout_keys)
    d_dropped = products.dot("bhlk,bhmk->bhlm", g, value)  # [B, H, L, M]
    d_probabilities = dropout.dropout(d_dropped, rate, dropout_keys)
    # The derivative of softmax, p (dp - sum(p dp)), is 0 where p is 0.
    p = probabilities.astype(jnp.float32)
    inner = jnp.sum(d_probabilities * p, axis=-1, keepdims=True)
    d_scores = p * (d_probabilities - inner) * query.shape[-1] ** -0.5
    d_added = None if like_added is None else d_scores
    d_scores = d_scores.astype(query.dtype)
    d_query = products.dot("bhlm,bhmk->bhlk", d_scores, key)
    if query.shape[2] == 1:
        # XLA fuses a product over one query with what makes its factors, and would
        # compute mask and softmax anew for each column of keys and values. On
        # processors, that loop can take minutes to compile.
        padding = (0, 0), (0, 0), (0, 1), (0, 0)
        factors = dropped, g, d_scores, query
        dropped, g, d_scores, query = (jnp.pad(x, padding) for x in factors)
    d_value = products.dot("bhml,bhlk->bhmk", products.transpose(dropped), g)
    d_key = products.dot("bhml,bhlk->bhmk", products.transpose(d_scores), query)
    return (
        d_query.astype(query.dtype),
        d_key.astype(key.dtype),
        d_value.astype(value.dtype),
        None,
        None,
        d_added,
    )


dot_product_attention.defvjp(_forward, _backward)
