"""Whether a run is still where every language model is at first."""

from collections.abc import Iterable, Mapping

from bert_jax.training import metrics_file

# A run is asked at its first evaluation after so many of its steps, and then no more.
_SHARE = 1 / 5
# Nats below the loss without context that are not yet progress: as much as losses of
# some thousand held-out tokens differ by chance.
_MARGIN = 0.05


def describe(
    step: int, total_steps: int, values: Mapping[str, float], earlier: Iterable[int]
) -> str:
    """A line about a run that has learned nothing from context yet; "" if it has.

    It is a function of what the run reported, so that a restart does not repeat it.

    Args:
      step: Step of an evaluation.
      total_steps: Steps of the run.
      values: What was evaluated, with what to compare it with (`PhaseData.levels`).
      earlier: Steps that were evaluated before.
    """
    first = total_steps * _SHARE
    if step < first or any(first <= other < step for other in earlier):
        return ""
    for name, value in values.items():
        level = values.get(name + metrics_file.WITHOUT_CONTEXT)
        if level is None or not name.endswith("loss") or value < level - _MARGIN:
            continue
        return (
            f"step {step:,} of {total_steps:,}: the held-out {name}, {value:.2f}, is "
            f"not clearly below {level:.2f}, which a model has that knows how often "
            "each token occurs, and no context. Every BERT is there at first, and the "
            "steps may be too few yet; or the learning rate is too high or too low, "
            "there is no warmup, attention, positions or mask are broken, or tokenizer "
            "or token ids are wrong (docs/what_to_expect.md)"
        )
    return ""
