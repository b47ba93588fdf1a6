"""Multi-head self-attention (Vaswani et al. 2017, 3.2; BERT paper, 3)."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import (
    attention_kernel,
    fused_attention,
    layers,
    products,
)
from bert_jax.model import dropout as dropout_lib
from bert_jax.model.inputs import Inputs

# Score of a position that is not attended to. exp(-1e9) is 0 in float32 whatever the
# other scores.
_HIDDEN_SCORE = -1e9


class SelfAttention(nn.Module):
    """Queries, keys, values, and the projection of what comes of them.

    Attributes:
      config: Shape of the encoder.
      adds_bias: Whether to add the bias of that projection; see `layers.Linear`.
    """

    config: config_lib.EncoderConfig
    adds_bias: bool = True

    @nn.compact
    def __call__(
        self,
        queries: Float[Array, "B P D"],
        x: Float[Array, "B L D"],
        inputs: Inputs,
        dropout_keys: UInt32[Array, " B"] | None,
        *,
        read_at: Int[Array, "B P"] | None = None,
        return_probabilities: bool = False,
    ) -> tuple[Float[Array, "B P D"] | products.Biased, Float[Array, "B H P L"] | None]:
        """What some positions, or all, take from those that they attend to.

        Args:
          queries: Hidden states of those that attend.
          x: Hidden states.
          inputs: Which positions attend to which.
          dropout_keys: Keys for dropout of the probabilities; None for no dropout.
          read_at: Where the queries are; None: everywhere, and P is L.
          return_probabilities: Whether to return the probabilities, too, before
            dropout, in float32; None otherwise.
        """
        c = self.config
        heads = (("heads", c.num_heads), ("head", c.head_size))
        linear = functools.partial(
            layers.Linear, dtype=c.dtype, stddev=c.initializer_range
        )
        sources = {"query": queries, "key": x, "value": x}
        biased = {  # B P H K, B L H K, B L H K
            name: linear(inputs=("embed",), outputs=heads, adds_bias=False, name=name)(
                source
            )
            for name, source in sources.items()
        }
        (query, key, value), biases = zip(*biased.values(), strict=True)
        arrays = query, key, value, inputs, dropout_keys, read_at
        if self.is_initializing():
            # Initial values do not depend on it, and come from a batch of one row.
            context = _plain(c, *arrays)
        else:
            context = attend(c, *arrays, biases)
        y = linear(
            inputs=("heads", "head"),
            outputs=(("embed", c.hidden_size),),
            adds_bias=self.adds_bias,
            name="output",
        )(context)
        if not return_probabilities:
            return y, None
        mask = attention_mask(inputs, read_at, causal=c.causal)
        query, key = (
            biased[name].total().astype(c.dtype).swapaxes(1, 2)
            for name in ("query", "key")
        )
        return y, attention_probabilities(query, key, mask)


def attention_mask(
    inputs: Inputs, read_at: Int[Array, "B P"] | None = None, *, causal: bool
) -> Bool[Array, "B 1 #P L"]:
    """Which positions (last dimension) each position (the one before) attends to.

    Args:
      inputs: Where there is padding, and which document each token is of.
      read_at: Which positions attend; None: all, and P is L.
      causal: Whether a position attends only to itself and those before it.
    """
    mask = inputs.attention_mask[:, None, None, :]
    all_positions = jnp.arange(inputs.attention_mask.shape[1])[None]
    if causal:
        attending = all_positions if read_at is None else read_at
        mask = mask & (attending[:, None, :, None] >= all_positions[:, None, None, :])
    if (documents := inputs.documents) is not None:
        attending = documents
        if read_at is not None:
            attending = jnp.take_along_axis(documents, read_at, axis=1)
        mask = mask & (attending[:, None, :, None] == documents[:, None, None, :])
    return mask


def attend(
    config: config_lib.EncoderConfig,
    query: Float[Array, "B P H K"],
    key: Float[Array, "B L H K"],
    value: Float[Array, "B L H K"],
    inputs: Inputs,
    dropout_keys: UInt32[Array, " B"] | None,
    read_at: Int[Array, "B P"] | None = None,
    biases: tuple[Float[Array, "H K"], ...] | None = None,
) -> Float[Array, "B P H K"]:
    """softmax(Q K^T / sqrt(K)) V, computed as `config.attention` says.

    Queries at some positions are few; the kernel never computes them.

    Args:
      config: Shapes, dropout, and the choice.
      query: Query of each position that attends.
      key: Key of each.
      value: Value of each.
      inputs: Which positions attend to which.
      dropout_keys: Keys for dropout of the probabilities; None for no dropout.
      read_at: Where the queries are; None: everywhere, and P is L.
      biases: What is still to be added to queries, keys and values, before they are
        rounded to `config.dtype`; None: nothing.
    """
    if read_at is not None:
        query, key, value = _with_biases(config, (query, key, value), biases)
        return _plain(config, query, key, value, inputs, dropout_keys, read_at)
    arrays = query, key, value, inputs, dropout_keys, biases
    rate = 0.0 if dropout_keys is None else config.attention_dropout_rate
    dtype = query.dtype if biases is None else jnp.dtype(config.dtype)
    fast, elsewhere = _paths(config, query.shape, dtype, rate)
    if not fast:
        return elsewhere(*arrays)
    return lax.platform_dependent(*arrays, **fast, default=elsewhere)


def _paths(config, shape, dtype, rate):
    """Functions of the arrays: those of some platforms, and that of all others."""

    def behind_biases(path):
        def run(query, key, value, inputs, dropout_keys, biases):
            sums = _with_biases(config, (query, key, value), biases)
            return path(config, *sums, inputs, dropout_keys)

        return run

    kernel = functools.partial(_by_kernel, config, interpret=False)
    if config.attention == "kernel":
        return {"tpu": kernel}, functools.partial(_by_kernel, config, interpret=True)
    fast = {}
    if config.attention == "auto":
        if attention_kernel.suits(shape):
            fast["tpu"] = kernel
        suits_cudnn = fused_attention.suits(config.head_size, dtype, rate)
        if suits_cudnn and fused_attention.is_available():
            fast["cuda"] = behind_biases(_fused)
    return fast, behind_biases(_plain)


def _with_biases(config, arrays, biases):
    """Queries, keys and values with their biases, if those are still to be added."""
    if biases is None:
        return arrays
    biased = map(products.Biased, arrays, biases)
    return tuple(x.total().astype(config.dtype) for x in biased)


def _by_kernel(
    config, query, key, value, inputs, dropout_keys, biases=None, *, interpret
):
    dtype = jnp.dtype(config.dtype)
    if biases is None:
        biases, dtype = (jnp.zeros(query.shape[2:]),) * 3, query.dtype
    # Not recomputed by `config.remat == "attention"`: there is nothing to save.
    flat = (*query.shape[:2], config.hidden_size)
    context = attention_kernel.attend(
        query.reshape(flat),
        key.reshape(flat),
        value.reshape(flat),
        tuple(bias.reshape(-1) for bias in biases),
        inputs.attention_mask,
        inputs.documents,
        dropout_keys,
        dtype=dtype,
        head_size=config.head_size,
        rate=config.attention_dropout_rate,
        causal=config.causal,
        interpret=interpret,
    )
    return context.reshape(query.shape)


def _fused(config, query, key, value, inputs, dropout_keys):
    del dropout_keys  # there is none
    mask, documents = inputs.attention_mask, inputs.documents
    return fused_attention.attend(
        query, key, value, mask, documents, causal=config.causal
    )


def _plain(config, query, key, value, inputs, dropout_keys, read_at=None):
    rate = config.attention_dropout_rate
    if dropout_keys is None:
        rate = 0.0
        dropout_keys = jnp.zeros(query.shape[0], jnp.uint32)
    elif read_at is not None:
        # Of the probabilities [H, L, L] of a row, those at the positions.
        length = key.shape[1]
        first = jnp.arange(config.num_heads) * length
        parts = first[:, None] + read_at[:, None, :]  # B H P
        dropout_keys = dropout_lib.of_parts(dropout_keys, parts, length)
    dot_product = functools.partial(scaled_dot_product, rate=rate)
    if config.remat == "attention":
        dot_product = jax.checkpoint(dot_product)
    # Heads go before positions so that each is a matrix.
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    mask = attention_mask(inputs, read_at, causal=config.causal)
    return dot_product(query, key, value, mask, dropout_keys).swapaxes(1, 2)


def attention_probabilities(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H M K"],
    mask: Bool[Array, "B 1 #L M"],
    more: Float[Array, "B H L M"] | None = None,
) -> Float[Array, "B H L M"]:
    """softmax((Q K^T + more) / sqrt(K)) over what the mask lets through."""
    scores = products.dot("bhlk,bhmk->bhlm", query, key)
    if more is not None:
        scores = scores + more
    scores = scores * query.shape[-1] ** -0.5
    return jax.nn.softmax(jnp.where(mask, scores, _HIDDEN_SCORE), axis=-1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def scaled_dot_product(
    query: Float[Array, "B H L K"],
    key: Float[Array, "B H M K"],
    value: Float[Array, "B H M K"],
    mask: Bool[Array, "B 1 #L M"],
    dropout_keys: UInt32[Array, "B ..."],
    rate: float,
    more: Float[Array, "B H L M"] | None = None,
) -> Float[Array, "B H L K"]:
    """softmax((Q K^T + more) / sqrt(K)) V with dropout on the probabilities.

    Scores and softmax are float32. Of the L x M intermediates only the probabilities
    are kept for the backward pass, in the type of the values; JAX's own derivative
    keeps them in float32 and once more after dropout, three times as much.

    Args:
      query: Query of each position.
      key: Key of each position that may be attended to.
      value: Value of each, likewise.
      mask: Which positions are attended to.
      dropout_keys: A key for each row, or for each query: [B] or [B, H, L].
      rate: Rate of dropout; 0 for none.
      more: What is added to the products of queries and keys, in float32; None: 0.
    """
    return _forward(query, key, value, mask, dropout_keys, rate, more)[0]


def _forward(query, key, value, mask, dropout_keys, rate, more):
    probabilities = attention_probabilities(query, key, mask, more).astype(value.dtype)
    dropped = dropout_lib.dropout(probabilities, rate, dropout_keys)
    context = products.dot("bhlm,bhmk->bhlk", dropped, value)
    like_more = None if more is None else more[:0]
    residuals = query, key, value, probabilities, dropout_keys, like_more
    return context.astype(value.dtype), residuals


def _backward(rate, residuals, g):
    query, key, value, probabilities, dropout_keys, like_more = residuals
    dropped = dropout_lib.dropout(probabilities, rate, dropout_keys)
    d_value = products.dot("bhml,bhlk->bhmk", products.transpose(dropped), g)
    d_dropped = products.dot("bhlk,bhmk->bhlm", g, value)
    d_probabilities = dropout_lib.dropout(d_dropped, rate, dropout_keys)
    # The derivative of softmax: p * (dp - sum(p * dp)). Where the mask hides, p is 0.
    p = probabilities.astype(jnp.float32)
    inner = jnp.sum(d_probabilities * p, axis=-1, keepdims=True)
    d_scores = p * (d_probabilities - inner) * query.shape[-1] ** -0.5
    d_more = None if like_more is None else d_scores
    d_scores = d_scores.astype(query.dtype)
    d_query = products.dot("bhlm,bhmk->bhlk", d_scores, key)
    d_key = products.dot("bhml,bhlk->bhmk", products.transpose(d_scores), query)
    return (
        d_query.astype(query.dtype),
        d_key.astype(key.dtype),
        d_value.astype(value.dtype),
        None,
        None,
        d_more,
    )


scaled_dot_product.defvjp(_forward, _backward)
