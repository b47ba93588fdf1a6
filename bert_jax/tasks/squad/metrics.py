"""Exact match and F1 of answers, as the official scripts of SQuAD define them.

Names of scores are theirs, and so is the scale: per cent.

Source: Rajpurkar et al. 2016, 6.1, and 2018, 5; evaluate-v1.1.py, evaluate-v2.0.py.
"""

import collections
import re
import string
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tasks.squad.reader import Example

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation (of ASCII), articles and superfluous space."""
    text = _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION))
    return " ".join(text.split())


def exact(gold: str, predicted: str) -> float:
    """1.0 if two answers are equal when normalised."""
    return float(normalise(gold) == normalise(predicted))


def f1(gold: str, predicted: str) -> float:
    """Harmonic mean of precision and recall of words; 0.0 if none is common."""
    a, b = normalise(gold).split(), normalise(predicted).split()
    common = (collections.Counter(a) & collections.Counter(b)).total()
    return 2 * common / (len(a) + len(b)) if common else 0.0


def evaluate(
    examples: Sequence[Example], predictions: Mapping[str, str]
) -> dict[str, float]:
    """exact_match and f1 of version 1.1: means over questions of the best over golds.

    Args:
      examples: Questions that have answers.
      predictions: Answers by id of the question.

    Raises:
      UserError: A question has no prediction.
    """
    _check_complete(examples, predictions)
    golds = [[gold.text for gold in example.golds] for example in examples]
    return {
        name: 100 * float(_scores(examples, golds, predictions, measure).mean())
        for name, measure in (("exact_match", exact), ("f1", f1))
    }


def evaluate_v2(
    examples: Sequence[Example], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Scores of version 2.0: of all questions, of those with and those without answers.

    Args:
      examples: Questions.
      predictions: Answers by id of the question; "" for no answer.

    Returns:
      exact, f1 and total; and with HasAns_ or NoAns_ before them, if there are any.

    Raises:
      UserError: A question has no prediction.
    """
    _check_complete(examples, predictions)
    golds = _golds_or_empty(examples)
    measured = {
        "exact": _scores(examples, golds, predictions, exact),
        "f1": _scores(examples, golds, predictions, _f1_or_empty),
    }
    has_answer = _has_answer(examples)
    results: dict[str, float] = {}
    for prefix, rows in (
        ("", np.ones(len(examples), bool)),
        ("HasAns_", has_answer),
        ("NoAns_", ~has_answer),
    ):
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
    """How good the scores would be with the best threshold, and where that is.

    A question is answered if its odds do not exceed the threshold. Chosen by the very
    answers that it is measured on, it flatters a little.

    Args:
      examples: Questions.
      predictions: The best answers that are not empty, by id of the question.
      null_odds: How much speaks for no answer, by id of the question.

    Returns:
      best_exact, best_exact_thresh, best_f1, best_f1_thresh. Where it is best to answer
      nothing, the threshold is below all odds (the official script says 0).

    Raises:
      UserError: A question has no prediction, or no odds.
    """
    _check_complete(examples, predictions)
    _check_complete(examples, null_odds)
    odds = np.array([null_odds[example.id] for example in examples], np.float64)
    has_answer = _has_answer(examples)
    says_something = np.array([predictions[e.id] != "" for e in examples])
    order = np.argsort(odds, kind="stable")
    ordered = odds[order]
    # A threshold lies behind the last of equal odds.
    is_threshold = np.append(ordered[1:] > ordered[:-1], True)
    results = {}
    for name, measure in (("exact", exact), ("f1", _f1_or_empty)):
        scores = _scores(examples, _golds_or_empty(examples), predictions, measure)
        # What answering a question, instead of saying that it has no answer, gains.
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


def _f1_or_empty(gold: str, predicted: str) -> float:
    """F1 of version 2.0: where one of the two is empty, whether both are."""
    if normalise(gold) and normalise(predicted):
        return f1(gold, predicted)
    return exact(gold, predicted)


def _golds_or_empty(examples: Sequence[Example]) -> list[list[str]]:
    """Answers that are something when normalised; [""] where there are none."""
    texts = [[gold.text for gold in example.golds] for example in examples]
    return [[text for text in some if normalise(text)] or [""] for some in texts]


def _has_answer(examples: Sequence[Example]) -> np.ndarray:
    return np.array([bool(example.golds) for example in examples])


def _scores(
    examples: Sequence[Example],
    golds: Sequence[Sequence[str]],
    predictions: Mapping[str, str],
    measure: Callable[[str, str], float],
) -> np.ndarray:
    """The best score of each prediction over the answers of its question."""
    return np.array(
        [
            max(measure(text, predictions[example.id]) for text in texts)
            for example, texts in zip(examples, golds, strict=True)
        ]
    )


def _check_complete(examples: Sequence[Example], values: Mapping[str, object]) -> None:
    missing = [example.id for example in examples if example.id not in values]
    if missing:
        raise UserError(
            f"there is no prediction for {len(missing)} of {len(examples)} questions; "
            f"the first is {missing[0]}"
        )
