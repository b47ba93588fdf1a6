"""Sums and counts, and the cross entropy they mostly come from."""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Term(NamedTuple):
    """A metric before division: float32 scalars."""

    sum: Float[Array, ""]
    count: Float[Array, ""]


Terms = dict[str, Term]


def zeros(names: Iterable[str]) -> Terms:
    """Nothing measured yet."""
    return {name: Term(jnp.zeros(()), jnp.zeros(())) for name in names}


def weighted(values: Float[Array, "*rows"], weights: Float[Array, "*rows"]) -> Term:
    """The term of a weighted mean."""
    return Term(jnp.sum(values * weights), jnp.sum(weights))


def ratio(term: Term) -> float:
    """The value to report. A count of 0 gives 0, not NaN."""
    return float(term.sum) / max(float(term.count), 1.0)


def is_correct(
    logits: Float[Array, "*rows V"], labels: Int[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """1.0 where the label has the highest logit (a tie counts), else 0.0."""
    chosen = jnp.sum(jnp.where(_is_label(logits, labels), logits, 0.0), axis=-1)
    return (chosen >= jnp.max(logits, axis=-1)).astype(jnp.float32)


@jax.custom_vjp
def cross_entropy(
    logits: Float[Array, "*rows V"], labels: Int[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """-log softmax(logits)[label], in nats.

    The derivative, softmax minus one-hot, is spelled out so that it is one loop over
    the logits; JAX's own scatters into a second array of their size.
    """
    return _cross_entropy_forward(logits, labels)[0]


def _cross_entropy_forward(logits, labels):
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.sum(jnp.where(_is_label(logits, labels), logits, 0.0), axis=-1)
    return log_normalizer - chosen, (logits, log_normalizer, labels)


def _cross_entropy_backward(residuals, g):
    logits, log_normalizer, labels = residuals
    probabilities = jnp.exp(logits - log_normalizer[..., None])
    return (probabilities - _is_label(logits, labels)) * g[..., None], None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def _is_label(logits, labels):
    index = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    return index == labels[..., None]
