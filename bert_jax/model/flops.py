"""How much arithmetic the parts of the model are, as formulas.

Analytic, because a compiler's own count misses loops (JAX's cost analysis counts the
body of a scan once). A product of [m, k] and [k, n] is 2 m k n operations. Only
products count, and only the forward pass is here; see `training`.
"""

from bert_jax import config as config_lib


def encoder(config: config_lib.EncoderConfig, length: int) -> float:
    """Operations of the layers for one sequence."""
    d, f = config.hidden_size, config.intermediate_size
    projections = 2.0 * length * (4 * d * d + 2 * d * f)
    attention = 2 * 2 * length * length * d
    return config.num_layers * (projections + attention)


def pooler(config: config_lib.EncoderConfig) -> float:
    """Operations of the pooler for one sequence."""
    return 2.0 * config.hidden_size**2


def language_model_head(config: config_lib.EncoderConfig, predictions: int) -> float:
    """Operations to predict some tokens of one sequence."""
    d, v = config.hidden_size, config.vocab_size
    return 2.0 * predictions * (d * d + d * v)


def classifier(config: config_lib.EncoderConfig, num_classes: int) -> float:
    """Operations of a linear classifier on one vector."""
    return 2.0 * config.hidden_size * num_classes


def training(forward: float) -> float:
    """Operations of forward and backward pass together.

    The backward pass has two products for each of the forward pass. Recomputation is
    not counted, for it is no progress.
    """
    return 3.0 * forward
