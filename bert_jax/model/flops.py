"""Formulas for the floating-point operations (FLOPs) of the parts of the model.

A product of [m, k] and [k, n] has 2 m k n operations. Only products count. All
functions except `training` count the forward pass alone. (JAX's own cost analysis is of
no use here: it counts the body of a scan once.)
"""

from bert_jax import config as config_lib


def encoder(
    config: config_lib.EncoderConfig,
    length: int,
    positions: int | None = None,
    targets: int = 0,
) -> float:
    """Return the operations of embedding projection and layers for one sequence.

    `positions` is the number of positions whose hidden states are wanted; None: all.
    The last layer computes keys and values of all tokens, and the rest at these
    positions (DeBERTa's also projects all queries, which do not count). All other
    layers have queries at the tokens and at the `targets`, XLNet's second stream.
    In left-to-right encoders, keys after the query count, too, although they are masked
    out.
    """
    last = config.num_layers - 1
    layers = sum(_layer(config, i, length, length + targets) for i in range(last))
    layers += _layer(config, last, length, length if positions is None else positions)
    e, d = config.embedding_columns, config.hidden_size
    return layers + (2.0 * length * e * d if e != d else 0.0)


def _layer(
    config: config_lib.EncoderConfig, layer: int, length: int, queries: int
) -> float:
    d, f = config.hidden_size, config.intermediate_size
    wide = 3 if config.feed_forward == "gated" else 2
    keys_and_values = 2.0 * length * 2 * d * config.key_value_heads * config.head_size
    queries_and_mlp = 2.0 * queries * (2 * d * d + wide * d * f)
    seen = length
    if not config.is_global(layer):
        # Mean number of keys in a window; windows at the ends of a row have fewer.
        window = min(config.attention_window, length - 1)
        seen = 2 * window + 1 - window * (window + 1) / length
    attention = 2 * 2.0 * queries * seen * d
    if config.positions == "relative":  # queries times all distances
        attention += 2.0 * queries * 2 * length * d
    if config.positions == "disentangled":  # queries and keys times all distances
        attention += 2 * 2.0 * length * 2 * config.distance_buckets * d
    return keys_and_values + queries_and_mlp + attention


def pooler(config: config_lib.EncoderConfig) -> float:
    """Return the operations of the pooler on one vector."""
    return 2.0 * config.hidden_size**2 * bool(config.pooler.activation)


def prediction_head(config: config_lib.EncoderConfig, predictions: int) -> float:
    """Return the operations to predict some tokens of one sequence."""
    d, e, head = config.hidden_size, config.embedding_columns, config.prediction_head
    dense = (0, d * e, (d + e) * (head.width or e))[head.num_layers]
    return 2.0 * predictions * dense + vocabulary(config, predictions)


def vocabulary(config: config_lib.EncoderConfig, predictions: int) -> float:
    """Return the operations of the product with the table of tokens."""
    return 2.0 * predictions * config.embedding_columns * config.vocab_size


def classifier(config: config_lib.EncoderConfig, num_classes: int) -> float:
    """Return the operations of a linear classifier on one vector."""
    return 2.0 * config.hidden_size * num_classes


def training(forward: float) -> float:
    """Return the operations of forward and backward pass together.

    The backward pass has two products for each of the forward pass. Recomputation does
    not count.
    """
    return 3.0 * forward
