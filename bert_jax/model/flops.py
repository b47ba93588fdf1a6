"""How much arithmetic the parts of the model are, as formulas.

Analytic, because a compiler's own count misses loops (JAX's cost analysis counts the
body of a scan once). A product of [m, k] and [k, n] is 2 m k n operations. Only
products count, and only the forward pass is here; see `training`.
"""

from bert_jax import config as config_lib


def encoder(
    config: config_lib.EncoderConfig, length: int, positions: int | None = None
) -> float:
    """Operations of the layers for one sequence, and to project its embeddings.

    Args:
      config: Shape of the encoder.
      length: Tokens of the sequence.
      positions: Number of those whose vectors are wanted; None: all. The last layer has
        keys and values of all tokens, and everything else of these.
    """
    last = length if positions is None else positions
    layers = (config.num_layers - 1) * _layer(config, length, length)
    layers += _layer(config, length, last)
    e, d = config.embedding_columns, config.hidden_size
    return layers + (2.0 * length * e * d if e != d else 0.0)


def _layer(config: config_lib.EncoderConfig, length: int, queries: int) -> float:
    d, f = config.hidden_size, config.intermediate_size
    keys_and_values = 2.0 * length * 2 * d * d
    of_queries = 2.0 * queries * (2 * d * d + 2 * d * f)
    attention = 2 * 2.0 * queries * length * d
    if config.is_relative:  # with all distances, however that is computed
        attention += 2.0 * queries * 2 * length * d
    return keys_and_values + of_queries + attention


def two_streams(
    config: config_lib.EncoderConfig, length: int, predictions: int, memory: int = 0
) -> float:
    """Operations of the layers for one sequence and a stream of predictions beside it.

    The last layer has that stream only. All attend to `memory` tokens more.
    """
    keys = length + memory
    layers = (config.num_layers - 1) * _layer(config, keys, length + predictions)
    return layers + _layer(config, keys, predictions)


def memory(config: config_lib.EncoderConfig, tokens: int) -> float:
    """Operations to make memory of some tokens, beside those of `two_streams`.

    Hidden states below each layer; without the gradients of these for keys and values,
    which `training` counts and nothing needs.
    """
    keys_and_values = 2.0 * tokens * 2 * config.hidden_size**2
    hidden = (config.num_layers - 1) * _layer(config, tokens, tokens)
    return hidden - config.num_layers * keys_and_values


def pooler(config: config_lib.EncoderConfig) -> float:
    """Operations of the pooler for one sequence."""
    return 2.0 * config.hidden_size**2


def language_model_head(config: config_lib.EncoderConfig, predictions: int) -> float:
    """Operations to predict some tokens of one sequence."""
    d, e = config.hidden_size, config.embedding_columns
    return 2.0 * predictions * d * e + tied_head(config, predictions)


def tied_head(config: config_lib.EncoderConfig, predictions: int) -> float:
    """Operations of the table of tokens on some vectors of its width."""
    return 2.0 * predictions * config.embedding_columns * config.vocab_size


def classifier(config: config_lib.EncoderConfig, num_classes: int) -> float:
    """Operations of a linear classifier on one vector."""
    return 2.0 * config.hidden_size * num_classes


def training(forward: float) -> float:
    """Operations of forward and backward pass together.

    The backward pass has two products for each of the forward pass. Recomputation is
    not counted, for it is no progress.
    """
    return 3.0 * forward
