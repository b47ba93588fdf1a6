"""Sums and counts of losses and metrics, and the cross entropy."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Term(NamedTuple):
    """Sum and count of a metric, before division: float32 scalars."""

    sum: Float[Array, ""]
    count: Float[Array, ""]


Terms = dict[str, Term]


def zeros(names: Iterable[str]) -> Terms:
    """Return terms with sum and count 0."""
    return {name: Term(jnp.zeros(()), jnp.zeros(())) for name in names}


def weighted(
    values: Float[Array, "*rows"] | Bool[Array, "*rows"], weights: Float[Array, "*rows"]
) -> Term:
    """Return the term of a weighted mean."""
    return Term(jnp.sum(values * weights), jnp.sum(weights))


def predictions(
    name: str,
    logits: Float[Array, "*rows V"],
    labels: Int[Array, "*rows"],
    weights: Float[Array, "*rows"],
) -> Terms:
    """Return the terms NAME_loss and NAME_accuracy of predicted classes."""
    loss, correct = cross_entropy(logits, labels), is_correct(logits, labels)
    return {
        f"{name}_loss": weighted(loss, weights),
        f"{name}_accuracy": weighted(correct, weights),
    }


def padding_fraction(attention_mask: Bool[Array, "*rows L"]) -> Term:
    """Return the term of the share of padding."""
    is_padding = 1.0 - attention_mask
    return Term(jnp.sum(is_padding), jnp.float32(is_padding.size))


def total(losses: Mapping[str, float], values: Mapping[str, Any]) -> Any:
    """Return the weighted sum of the losses."""
    return sum(weight * values[name] for name, weight in losses.items())


def mean(sum: Float[Array, ""], count: Float[Array, ""]) -> Float[Array, ""]:
    """Divide a sum by its count. A count of 0 gives 0, not NaN.

    With class weights, a count may be between 0 and 1.
    """
    return sum / jnp.where(count == 0, 1.0, count)


def ratio(term: Term) -> float:
    """Return the value to report, as `mean` on the host."""
    return float(term.sum) / (float(term.count) or 1.0)


def report(losses: Mapping[str, float], terms: Terms) -> dict[str, float]:
    """Return the values to report: the loss, and the mean of each term."""
    values = {name: ratio(term) for name, term in sorted(terms.items())}
    return {"loss": total(losses, values), **values}


def is_correct(
    logits: Float[Array, "*rows V"], labels: Int[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """Return 1.0 where the label is the argmax (the first on ties), else 0.0.

    It uses the reductions of `cross_entropy` and one more. With `jnp.argmax`, the head
    for masked tokens takes a quarter more cycles on a TPU (docs/log.md).
    """
    index = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    is_earlier = index < labels[..., None]
    earlier = jnp.max(jnp.where(is_earlier, logits, -jnp.inf), axis=-1)
    chosen = jnp.sum(jnp.where(_is_label(logits, labels), logits, 0.0), axis=-1)
    highest = jnp.max(logits, axis=-1)
    return ((chosen >= highest) & (chosen > earlier)).astype(jnp.float32)


@jax.custom_vjp
def cross_entropy(
    logits: Float[Array, "*rows V"], labels: Int[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """Return -log softmax(logits)[label], in nats.

    The custom derivative, softmax minus one-hot, is one loop over the logits. The
    derivative that JAX generates scatters into a second array of their size.
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
