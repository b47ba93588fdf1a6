"""Notice about a run whose loss stays at the unigram baseline."""

from collections.abc import Iterable, Mapping

from bert_jax.training import metrics_file

# The first evaluation after this share of the steps decides.
_SHARE = 1 / 5
# Nats. A smaller distance from the baseline is noise in a few thousand held-out tokens.
_MARGIN = 0.05


def describe(
    step: int, total_steps: int, values: Mapping[str, float], earlier: Iterable[int]
) -> str:
    """Return a line about a run that has learned nothing from context; "" otherwise.

    The line depends on reported values only, so that a restart does not repeat it.
    `values` are the metrics of the evaluation of a step, with their baselines
    (`PhaseData.baselines`), and `earlier` the steps of earlier evaluations.
    """
    first = total_steps * _SHARE
    if step < first or any(first <= other < step for other in earlier):
        return ""
    for name, value in values.items():
        level = values.get(name + metrics_file.WITHOUT_CONTEXT)
        if level is not None and name.endswith("loss") and value >= level - _MARGIN:
            return (
                f"step {step:,} of {total_steps:,}: the held-out {name}, {value:.2f}, "
                f"is not clearly below {level:.2f}, the loss of a model that sees no "
                "context. More steps may help. Otherwise check the learning rate and "
                "warmup, attention, positions and mask, tokenizer and token ids "
                "(docs/what_to_expect.md)"
            )
    return ""
