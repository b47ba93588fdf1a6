"""Summary of several runs that differ in their seed."""

from typing import Any

import numpy as np


def summarise(scores: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Summarise the scores of several runs, which are named.

    Returns:
      The scores; for each its median, mean, standard deviation (of a sample), least and
      greatest value; and the run that is best by the first score.
    """
    values = {
        name: [run[name] for run in scores.values()]
        for name, value in next(iter(scores.values())).items()
        if isinstance(value, int | float)
    }
    first = next(iter(values))
    # A correlation may be NaN, which compares False with everything.
    best = max(scores, key=lambda run: np.nan_to_num(scores[run][first], nan=-np.inf))
    return {
        "runs": scores,
        "scores": {
            name: {
                "median": float(np.median(x)),
                "mean": float(np.mean(x)),
                "standard_deviation": float(np.std(x, ddof=1)),
                "least": float(np.min(x)),
                "greatest": float(np.max(x)),
            }
            for name, x in values.items()
        },
        "best": {"run": best, "by": first},
    }
