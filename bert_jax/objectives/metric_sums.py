"""Sums and counts of losses and metrics."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.model import cross_entropy


class MetricSum(NamedTuple):
    """Sum and count of a metric, before division: float32 scalars."""

    sum: Float[Array, ""]
    count: Float[Array, ""]


MetricSums = dict[str, MetricSum]


def zeros(names: Iterable[str]) -> MetricSums:
    """Return sums and counts of 0."""
    return {name: MetricSum(jnp.zeros(()), jnp.zeros(())) for name in names}


def weighted_sum(
    values: Float[Array, "*rows"] | Bool[Array, "*rows"], weights: Float[Array, "*rows"]
) -> MetricSum:
    """Return sum and count of a weighted mean."""
    return MetricSum(jnp.sum(values * weights), jnp.sum(weights))


def loss_and_accuracy(
    name: str,
    logits: Float[Array, "*rows V"] | cross_entropy.VocabularyLogits,
    labels: Int[Array, "*rows"],
    weights: Float[Array, "*rows"],
) -> MetricSums:
    """Return NAME_loss and NAME_accuracy of predicted classes."""
    loss, correct = cross_entropy.loss_and_accuracy(logits, labels)
    return {
        f"{name}_loss": weighted_sum(loss, weights),
        f"{name}_accuracy": weighted_sum(correct, weights),
    }


def token_weights(batch: Mapping[str, Any]) -> Float[Array, "B L"]:
    """Return 1 for tokens in rows with a prediction, and 0 for all other positions."""
    has_prediction = jnp.max(batch["mlm_weights"], axis=1, keepdims=True)
    return batch["attention_mask"] * has_prediction


def padding_fraction(attention_mask: Bool[Array, "*rows L"]) -> MetricSum:
    """Return sum and count of the share of padding."""
    is_padding = 1.0 - attention_mask
    return MetricSum(jnp.sum(is_padding), jnp.float32(is_padding.size))


def total(weights: Mapping[str, float], losses: Mapping[str, Any]) -> Any:
    """Return the weighted sum of the losses."""
    return sum(weight * losses[name] for name, weight in weights.items())


def mean(sum: Float[Array, ""], count: Float[Array, ""]) -> Float[Array, ""]:
    """Divide a sum by its count. A count of 0 gives 0, not NaN.

    With class weights, a count may be between 0 and 1.
    """
    return sum / jnp.where(count == 0, 1.0, count)


def ratio(metric: MetricSum) -> float:
    """Return the mean to report, computed on the host; 0 for a count of 0."""
    return float(metric.sum) / (float(metric.count) or 1.0)


def report(weights: Mapping[str, float], sums: MetricSums) -> dict[str, float]:
    """Return the values to report: the loss, and the mean of each metric."""
    values = {name: ratio(metric) for name, metric in sorted(sums.items())}
    return {"loss": total(weights, values), **values}
