"""Self-attention as one TPU kernel.

Scores, softmax, mask and dropout of a head never leave the chip's memory. The forward
pass stores the output and, for each query, the logarithm of the sum of exponentials;
the backward pass recomputes the rest. Dropout masks equal the masks of
`plain_attention.attend` bit for bit, so a run may change between the two. The backward
pass also sums the gradients of queries, keys and values over positions, which are the
gradients of their biases. The kernel applies rotations itself, because the halves of a
head would fill a quarter of a register outside, and computes the scores of DeBERTa's
distances (`tpu_distances`).

JAX ships two such kernels, `pallas.ops.tpu.flash_attention` and `splash_attention`.
Neither has dropout, and both want heads before positions. Here inputs and outputs stay
[B, L, D]: a program of the grid has one row and some heads, that is some columns of D,
and works on windows of 128 columns, the width of the chip's registers. Up to 1,024
positions, a program has all keys of a head, so the softmax needs one pass only. In
local and causal attention, a chunk of 128 queries skips the blocks of 128 keys that
none of them sees. Longer rows are cut into pieces: a program has a piece of the queries
and a piece of the keys, and the softmax is rescaled from piece to piece (Milakov and
Gimelshein 2018; Dao et al. 2022, FlashAttention). Pieces of keys that no query sees, by
window or causal mask, are skipped.

Scores are transposed, keys by queries: sums over keys are then sums of registers.
Heads that share a window are not sliced out of its keys and values: the queries, or the
gradients, have zeros in the other heads' columns, which costs nothing, since a product
is as wide as the window. Two heads share such a product, side by side, which fills the
256 columns of a newer core. The output and all gradients are transposed, too: their
products then stream the K rows of one head through the matrix unit. The 128 rows of a
window would take twice the time.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, randomness
from bert_jax.model.attention_pattern import AttentionPattern
from bert_jax.model.inputs import at_positions
from bert_jax.model.kernels import (
    block_sizes,
    per_device,
    tpu_attention_grid,
    tpu_rotations,
)
from bert_jax.model.kernels import tpu_attention_scores as scores_lib
from bert_jax.model.kernels.tpu_attention_grid import DISTANCES

# Names of the dimensions of arrays: rows, document ids, counters, log sums, biases.
_ROWS = ("batch", "length", "heads")
_IDS = ("batch", "length")
_COUNTERS = ("batch", "heads")
_SUMS = ("batch", "heads", None, "length")
_BIASES = ("batch", None, "heads")
# Tables of distances, and their gradients on each device.
_TABLE = ("heads", None)
_TABLE_GRADIENTS = ("batch", "heads", None)
# Rotations differ between the rows, or repeat after some rows.
_ROTATIONS = ("batch", None, "length", None)
_REPEATED_ROTATIONS = (None, None, "length", None)


def attend(
    config: config_lib.EncoderConfig,
    projections: tuple[Float[Array, "B _ D"], ...],
    biases: tuple[Float[Array, " D"], ...],
    pattern: AttentionPattern,
    dropout_keys: UInt32[Array, " B"] | None,
    query_positions: Int[Array, "B P"] | None = None,
    distances: tuple[Float[Array, "D _"], ...] = (),
) -> Float[Array, "B P D"]:
    """Return softmax(Q K^T / sqrt(K)) V of each head, with dropout.

    Args:
      config: Encoder.
      projections: Queries [B, P, D], keys [B, L, D] and values [B, L, D] of all heads.
        L, P and D are multiples of 128.
      biases: Biases that are still to be added to them, before they are rounded to the
        encoder's type.
      pattern: Rules for which keys each query sees, and rotations. If these have fewer
        rows than the batch, they repeat.
      dropout_keys: A key for each row; None for no dropout.
      query_positions: Positions of the queries in their rows, for patterns that are not
        causal, without window and without dropout; None: all, and P is L.
      distances: Keys and queries of distances, [D, 2 L], for DeBERTa: column c is for
        the distance to the token c - L positions after the content. They need all
        positions as queries.
    """
    batch, length, size = projections[1].shape
    head_size = config.head_size
    options = scores_lib.Options(
        head_size=head_size,
        rate=0.0 if dropout_keys is None else config.attention_dropout_rate,
        causal=pattern.causal,
        window=pattern.window,
        packed=pattern.documents is not None,
        query_piece=_piece_size(projections[0].shape[1], pattern.window),
        key_piece=_piece_size(length, pattern.window),
    )
    if dropout_keys is None:
        dropout_keys = jnp.zeros(batch, jnp.uint32)
    # The counter of each head's first word among the words of the row, as
    # `dropout.mask` numbers them for [H, L, L].
    heads = jnp.arange(size // head_size, dtype=jnp.uint32)
    first = heads * jnp.uint32(length * dropout.num_words(length))
    counters = randomness.advance(dropout_keys[:, None], first)  # [B, H]
    queries = pattern.documents
    if queries is None:
        queries = jnp.zeros(pattern.is_token.shape, jnp.int32)
    keys = jnp.where(pattern.is_token, queries, scores_lib.NO_DOCUMENT)
    queries = at_positions(queries, query_positions)
    inputs = {"queries": queries, "keys": keys, "counters": counters}
    if (rotations := pattern.rotations) is not None:
        of_queries = rotations.at(query_positions)
        inputs["query_rotations"] = tpu_rotations.factors(of_queries, head_size)
        inputs["key_rotations"] = tpu_rotations.factors(rotations, head_size)
    projections = tuple(x.astype(jnp.float32) for x in projections)
    distances = tuple(x.astype(jnp.float32) for x in distances)
    dtype = jnp.dtype(config.dtype)
    return _attend(projections, biases, distances, inputs, dtype, options)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(projections, biases, distances, inputs, dtype, options):
    return _forward(projections, biases, distances, inputs, dtype, options)[0]


def _forward(projections, biases, distances, inputs, dtype, options):
    # Outside the kernel, so that the compiler fuses it into the products.
    query, key, value = (
        (x + bias).astype(dtype) for x, bias in zip(projections, biases, strict=True)
    )
    inputs = {"query": query, "key": key, "value": value, **inputs}
    if distances:
        tables = (x.astype(dtype) for x in distances)
        inputs |= zip(DISTANCES, tables, strict=True)
    output, sums = _apply(options, inputs, (_ROWS, _SUMS))
    return output, {**inputs, "output": output, "sums": sums}


def _backward(dtype, options, residuals, g):
    outputs = _ROWS, _ROWS, _ROWS, _BIASES
    if DISTANCES[0] in residuals:
        outputs += _TABLE_GRADIENTS, _TABLE_GRADIENTS
    inputs = {**residuals, "gradient": g}
    results = _apply(options, inputs, outputs)
    gradients, (sums, *distances) = results[:3], results[3:]
    gradients = tuple(x.astype(jnp.float32) for x in gradients)
    scale = options.head_size**-0.5 / (1 - options.rate)
    distances = tuple(jnp.sum(x, axis=0) * scale for x in distances)
    return gradients, tuple(jnp.sum(sums, axis=0)), distances, None


_attend.defvjp(_forward, _backward)


def _apply(options, inputs, outputs):
    """Run a pass on each device, for its part of the arrays."""
    names = dict.fromkeys(inputs, _ROWS)
    names |= {"queries": _IDS, "keys": _IDS, "counters": _COUNTERS, "sums": _SUMS}
    names |= dict.fromkeys(DISTANCES, _TABLE)
    for name in ("query_rotations", "key_rotations"):
        if name in inputs:
            repeat = len(inputs[name]) < len(inputs["query"])
            names[name] = _REPEATED_ROTATIONS if repeat else _ROTATIONS
    return per_device.apply(
        tpu_attention_grid.run,
        (options, *inputs),
        [names[name] for name in inputs],
        outputs,
        *inputs.values(),
    )


def _piece_size(length, window):
    """Return the largest size of equal pieces of a row.

    With a window, pieces from `overlapping_pieces` stay whole. Cut again, they would
    have scores of keys that no query sees.
    """
    longest = block_sizes.MAX_LENGTH + 2 * block_sizes.MAX_WINDOW
    if window is not None and length <= longest:
        return length
    return block_sizes.piece_size(length)
