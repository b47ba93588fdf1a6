"""Exact match and F1 of answers, as the official scripts of SQuAD compute them.

The names of the scores and their scale, per cent, are the official ones.

Source: Rajpurkar et al. 2016, 6.1, and 2018, 5; evaluate-v1.1.py, evaluate-v2.0.py.
"""

import collections
import re
import string
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_jax.tasks.squad.reader import Example

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lowercase; remove ASCII punctuation, articles and superfluous space."""
    text = _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION))
    return " ".join(text.split())


def exact(gold: str, predicted: str) -> float:
    """Return 1.0 if two normalised answers are equal, and otherwise 0.0."""
    return float(normalise(gold) == normalise(predicted))


def f1(gold: str, predicted: str) -> float:
    """Return the harmonic mean of precision and recall of words."""
    a, b = normalise(gold).split(), normalise(predicted).split()
    common = (collections.Counter(a) & collections.Counter(b)).total()
    return 2 * common / (len(a) + len(b)) if common else 0.0


def evaluate(
    examples: Sequence[Example], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Return exact_match and f1 of version 1.1, from answers by id of the question."""
    golds = [[gold.text for gold in example.golds] for example in examples]
    return {
        name: 100 * float(_best(examples, golds, predictions, measure).mean())
        for name, measure in (("exact_match", exact), ("f1", f1))
    }


def evaluate_v2(
    examples: Sequence[Example], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Return the scores of version 2.0, in which "" is no answer.

    They are exact, f1 and total of all questions; and the same with the prefix HasAns_
    or NoAns_ of questions with and without answers, if there are any.
    """
    measured = _measure_v2(examples, predictions)
    has_answer = np.array([bool(example.golds) for example in examples])
    sets = {"": has_answer | True, "HasAns_": has_answer, "NoAns_": ~has_answer}
    results: dict[str, float] = {}
    for prefix, rows in sets.items():
        if rows.any():
            for name, scores in measured.items():
                results[prefix + name] = 100 * float(scores[rows].mean())
            results[f"{prefix}total"] = int(rows.sum())
    return results


def best_thresholds(
    examples: Sequence[Example],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
) -> dict[str, float]:
    """Find the null thresholds with the best scores.

    A question is answered if its odds do not exceed the threshold. The best scores are
    optimistic, because they are computed on the examples that choose the threshold.
    `predictions` are the best answers that are not empty.

    Returns:
      best_exact, best_exact_thresh, best_f1, best_f1_thresh. If it is best to answer
      nothing, the threshold is below all odds (the official script says 0). Questions
      with equal odds are all answered, or none; the official script may count some of
      them only, and report a score that no threshold has.
    """
    odds = np.array([null_odds[example.id] for example in examples], np.float64)
    has_answer = np.array([bool(example.golds) for example in examples])
    says_something = np.array([predictions[e.id] != "" for e in examples])
    order = np.argsort(odds, kind="stable")
    ordered = odds[order]
    # Of equal odds, only the last is a threshold.
    is_threshold = np.append(ordered[1:] > ordered[:-1], True)
    results = {}
    for name, scores in _measure_v2(examples, predictions).items():
        # Change of the total when a question is answered instead of left empty.
        gains = np.where(has_answer, scores, -1.0 * says_something)[order]
        totals = np.cumsum(gains)[is_threshold]
        best = int(np.argmax(totals))
        threshold = ordered[is_threshold][best]
        if totals[best] <= 0:
            threshold = np.nextafter(ordered[0], -np.inf)
        total = np.sum(~has_answer) + max(totals[best], 0.0)
        results[f"best_{name}"] = 100 * float(total) / len(examples)
        results[f"best_{name}_thresh"] = float(threshold)
    return results


def _measure_v2(
    examples: Sequence[Example], predictions: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Return `exact` and `f1` of each question. An empty text means no answer."""
    texts = [[gold.text for gold in example.golds] for example in examples]
    golds = [[text for text in some if normalise(text)] or [""] for some in texts]

    def f1_or_empty(gold: str, predicted: str) -> float:
        both = normalise(gold) and normalise(predicted)
        return f1(gold, predicted) if both else exact(gold, predicted)

    return {
        "exact": _best(examples, golds, predictions, exact),
        "f1": _best(examples, golds, predictions, f1_or_empty),
    }


def _best(
    examples: Sequence[Example],
    golds: Sequence[Sequence[str]],
    predictions: Mapping[str, str],
    measure: Callable[[str, str], float],
) -> np.ndarray:
    """Return the best score of each prediction over the answers of its question."""
    scores = [
        max(measure(text, predictions[example.id]) for text in texts)
        for example, texts in zip(examples, golds, strict=True)
    ]
    return np.array(scores)
