"""Attention by a kernel, or by `plain_attention`, which defines the result."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import plain_attention, products, rotary
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.kernels import (
    block_sizes,
    decisions,
    overlapping_pieces,
    per_device,
    tpu_attention,
)

# Names of the dimensions of queries, keys, values and contexts [B, L, H, K].
_HEADS = ("batch", "length", "heads", None)


def attend(
    config: config_lib.EncoderConfig,
    projections: tuple[Float[Array, "B _ _ K"], ...],
    biases: tuple[Float[Array, "_ K"] | None, ...],
    pattern: AttentionPattern,
    dropout_keys: UInt32[Array, " B"] | None,
    query_positions: Int[Array, "B P"] | None = None,
) -> Float[Array, "B P H K"]:
    """Return softmax(Q K^T / sqrt(K)) V of each head, in `config.dtype`.

    Args:
      config: Encoder.
      projections: Queries [B, P, H, K], keys [B, L, G, K] and values [B, L, G, K]. A
        head of keys and values serves H / G adjacent heads of queries. They may be
        float32 products whose bias is still to be added.
      biases: Biases of queries, keys and values; None for no bias. The sums are rounded
        to `config.dtype`.
      pattern: Rules for which keys each query sees, and rotations.
      dropout_keys: Keys of the rows for dropout of the probabilities, or None.
      query_positions: Positions of the queries in their rows; None: all, and P is L.
    """
    arrays = projections, biases, pattern, dropout_keys
    if query_positions is not None:
        arrays = *arrays, query_positions
    kernels = {}
    for platform in ("tpu", "cuda"):
        decision = decisions.attention(
            config,
            platform,
            *projections[1].shape[:2],
            queries=None if query_positions is None else projections[0].shape[1],
            is_local=pattern.window is not None,
            has_dropout=dropout_keys is not None and config.attention_dropout_rate > 0,
        )
        if decision.implementation != decisions.PLAIN:
            kernel = _KERNELS[decision.implementation]
            kernels[platform] = functools.partial(kernel, config)
    plain = functools.partial(_plain, config)
    return lax.platform_dependent(*arrays, **kernels, default=plain)


def _tpu(config, projections, biases, pattern, dropout_keys, query_positions=None):
    biases = [
        jnp.zeros(x.shape[2:]) if b is None else b
        for x, b in zip(projections, biases, strict=True)
    ]
    query, key, value = (
        _repeat_for_heads(config, x).reshape(*x.shape[:2], -1) for x in projections
    )  # [B, L, H K]
    if query_positions is not None:
        padding = 0, -query.shape[1] % block_sizes.QUERY_CHUNK
        query = jnp.pad(query, ((0, 0), padding, (0, 0)))
        query_positions = jnp.pad(query_positions, ((0, 0), padding))
    # `remat="attention"` changes nothing: the kernel recomputes scores anyway.
    context = tpu_attention.attend(
        config,
        (query, key, value),
        tuple(_repeat_for_heads(config, bias).reshape(-1) for bias in biases),
        pattern,
        dropout_keys,
        query_positions,
    )
    shape = projections[0].shape
    return context[:, : shape[1]].reshape(shape)


def _tpu_pieces(config, projections, biases, pattern, dropout_keys):
    del dropout_keys  # there is no dropout
    cut = functools.partial(overlapping_pieces.cut, window=pattern.window)
    projections = tuple(
        cut(products.add_bias(x, bias).astype(config.dtype))
        for x, bias in zip(projections, biases, strict=True)
    )
    # Positions outside of the row are padding.
    pieces = jax.tree.map(cut, pattern)
    context = _tpu(config, projections, (None,) * 3, pieces, None)
    return overlapping_pieces.join(context, len(pattern.is_token), pattern.window)


def _cudnn(
    config, projections, biases, pattern, dropout_keys, *, implementation="cudnn"
):
    """Apply cuDNN's fused kernel, which like the TPU kernel stores no [L, L] array.

    JAX's interface to it has no usable dropout: the seed is a constant of the compiled
    program, so that each step would draw the same mask. It therefore serves models
    without dropout of attention probabilities, and all evaluation and prediction. Tests
    choose the implementation "xla", which computes the same on any platform.
    """
    del dropout_keys  # there is no dropout
    # cuDNN's softmax of no key is not finite. So rows of padding see their first
    # position, which nothing reads. Queries of packed rows without a key are zeroed
    # below.
    lengths = jnp.maximum(jnp.sum(pattern.is_token, axis=1, dtype=jnp.int32), 1)
    arrays = *_add_biases_and_rotate(config, projections, biases, pattern), lengths
    names = _HEADS, _HEADS, _HEADS, ("batch",)
    if pattern.documents is not None:
        arrays, names = (*arrays, pattern.documents), (*names, ("batch", "length"))
    # JAX's own partitioning of the call fails inside a `shard_map` over some of the
    # axes, such as the one in `sharding.sum_over_replicas`.
    options = pattern.causal, implementation
    (context,) = per_device.apply(_run_cudnn, options, names, (_HEADS,), *arrays)
    if pattern.documents is None:
        return context
    sees_key = jnp.any(pattern.mask(), axis=2)[:, :, None, None]  # [B, L or 1, 1, 1]
    return jnp.where(sees_key, context, 0)


def _run_cudnn(options, query, key, value, lengths, documents=None):
    causal, implementation = options
    same = None
    if documents is not None:
        same = (documents[:, :, None] == documents[:, None, :])[:, None]  # [B, 1, L, L]
    context = jax.nn.dot_product_attention(
        query,
        key,
        value,
        mask=same,
        is_causal=causal,
        key_value_seq_lengths=lengths,
        implementation=implementation,
    )
    return (context,)


_KERNELS = {
    decisions.TPU_KERNEL: _tpu,
    decisions.TPU_KERNEL_ON_PIECES: _tpu_pieces,
    decisions.CUDNN: _cudnn,
}


def _plain(config, projections, biases, pattern, dropout_keys, query_positions=None):
    query, key, value = _heads_first(
        config, projections, biases, pattern, query_positions
    )
    mask = pattern.mask(query_positions)[:, None]  # [B, 1, P, L]
    keys = plain_attention.dropout_keys(
        config, dropout_keys, key.shape[2], key.shape[2], query_positions
    )
    attend = functools.partial(
        plain_attention.attend, rate=config.attention_dropout_rate
    )
    if config.remat == "attention":
        attend = jax.checkpoint(attend)
    return attend(query, key, value, mask, keys).swapaxes(1, 2)


def probabilities(
    config: config_lib.EncoderConfig,
    projections: tuple[Float[Array, "B _ _ K"], ...],
    biases: tuple[Float[Array, "_ K"] | None, ...],
    pattern: AttentionPattern,
    query_positions: Int[Array, "B P"] | None = None,
) -> Float[Array, "B H P L"]:
    """Return the probabilities before dropout, with arguments as in `attend`."""
    query, key, _ = _heads_first(config, projections, biases, pattern, query_positions)
    mask = pattern.mask(query_positions)[:, None]  # [B, 1, P, L]
    return plain_attention.probabilities(query, key, mask)


def _heads_first(config, projections, biases, pattern, query_positions):
    """Return the arrays of `_add_biases_and_rotate` transposed to [B, H, L, K]."""
    arrays = _add_biases_and_rotate(
        config, projections, biases, pattern, query_positions
    )
    return tuple(x.swapaxes(1, 2) for x in arrays)


def _add_biases_and_rotate(config, projections, biases, pattern, query_positions=None):
    """Add biases, rotate queries and keys, and repeat keys and values for all heads."""
    query, key, value = (
        products.add_bias(x, bias).astype(config.dtype)
        for x, bias in zip(projections, biases, strict=True)
    )
    if pattern.rotations is not None:
        query = rotary.rotate(query, pattern.rotations.at(query_positions))
        key = rotary.rotate(key, pattern.rotations)
    return query, _repeat_for_heads(config, key), _repeat_for_heads(config, value)


def _repeat_for_heads(config, x):
    """Repeat keys, values or their biases, [..., G, K], for all heads, [..., H, K]."""
    shared_by = config.num_heads // x.shape[-2]
    return x if shared_by == 1 else jnp.repeat(x, shared_by, axis=-2)
