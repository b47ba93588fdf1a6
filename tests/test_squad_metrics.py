"""Exact match and F1, by hand and by the figures of the official script."""

import gzip
import json
import math
import pathlib

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.squad import metrics, reader

DATA = pathlib.Path(__file__).parents[2] / "shared/data/squad"


def example(name, *texts):
    return reader.Example(name, "", "", tuple(reader.Gold(text, 0) for text in texts))


def test_the_official_script_scores_an_ensemble_alike():
    """Which it gives EM 86.2062 and F1 92.1956."""
    if not DATA.exists():
        pytest.skip("needs the development set of SQuAD 1.1")
    examples = reader.read(DATA / "dev-v1.1.json.gz", no_answers=False)
    path = DATA / "predictions-v1.1-bert-ensemble.json.gz"
    predictions = json.loads(gzip.decompress(path.read_bytes()))
    got = metrics.evaluate(examples, predictions)
    assert {name: round(value, 4) for name, value in got.items()} == {
        "exact_match": 86.2062,
        "f1": 92.1956,
    }


@pytest.mark.parametrize(
    ("gold", "predicted", "exact", "f1"),
    [
        ("The  Cat's\nhat!", "cats hat", 1, 1),
        ("an apple", "Theatre apple", 0, 2 / 3),  # articles are whole words
        ("a-b", "ab", 1, 1),
        ("5\N{EN DASH}6", "56", 0, 0),  # this dash is no punctuation of ASCII
        ("x y y", "y y y z", 0, 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3)),
        ("x", "y", 0, 0),
        ("the", "a", 1, 0),  # nothing is left, and nothing is common
    ],
)
def test_answers_by_hand(gold, predicted, exact, f1):
    assert metrics.exact(gold, predicted) == exact
    assert metrics.f1(gold, predicted) == pytest.approx(f1)
    assert metrics.f1(predicted, gold) == pytest.approx(f1)


def test_the_best_of_several_answers_counts():
    examples = [example("p", "x", "x y"), example("q", "z")]
    got = metrics.evaluate(examples, {"p": "x y w", "q": "z", "other": "x"})
    assert got == {"exact_match": 50.0, "f1": pytest.approx(100 * (0.8 + 1) / 2)}


V2 = [example("p", "x y"), example("q"), example("r", "z"), example("s")]


def test_questions_with_and_without_answers():
    got = metrics.evaluate_v2(V2, {"p": "x", "q": "", "r": "", "s": "w"})
    assert got == {
        "exact": 25.0,
        "f1": pytest.approx(100 * (2 / 3 + 1) / 4),
        "total": 4,
        "HasAns_exact": 0.0,
        "HasAns_f1": pytest.approx(100 * (2 / 3) / 2),
        "HasAns_total": 2,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
    }
    one_kind = metrics.evaluate_v2(V2[:1], {"p": "x y"})
    assert one_kind.keys() == {
        *("exact", "f1", "total"),
        *("HasAns_exact", "HasAns_f1", "HasAns_total"),
    }


def test_thresholds_by_hand():
    predictions = {"p": "x", "q": "w", "r": "z", "s": "w"}
    odds = {"p": -3.0, "q": 2.0, "r": -1.0, "s": -2.0}
    # In this order: p is half as good as an answer, s costs one, r gains one.
    got = metrics.best_thresholds(V2, predictions, odds)
    assert got["best_exact"] == 50.0
    assert got["best_f1"] == pytest.approx(100 * (2 + 2 / 3) / 4)
    assert got["best_f1_thresh"] == -3.0
    # To answer up to -1 is no better than to answer nothing.
    assert got["best_exact_thresh"] == pytest.approx(-3.0)
    assert got["best_exact_thresh"] < -3.0


@pytest.mark.parametrize("seed", range(5))
def test_no_threshold_is_better(seed):
    """Each of them is tried, with odds of which some are equal."""
    rng = np.random.default_rng(seed)
    words = ["x", "y", "x y", "x y z"]
    examples = [
        example(str(i), *(rng.choice(words, 2) if rng.random() < 0.6 else ()))
        for i in range(40)
    ]
    predictions = {e.id: str(rng.choice(words)) for e in examples}
    odds = {e.id: float(rng.integers(-9, 10)) for e in examples}

    def scores_at(threshold):
        answered = {
            n: t if odds[n] <= threshold else "" for n, t in predictions.items()
        }
        return metrics.evaluate_v2(examples, answered)

    tried = [scores_at(threshold) for threshold in (-math.inf, *odds.values())]
    got = metrics.best_thresholds(examples, predictions, odds)
    for name in ("exact", "f1"):
        best = max(scores[name] for scores in tried)
        assert got[f"best_{name}"] == pytest.approx(best)
        assert scores_at(got[f"best_{name}_thresh"])[name] == pytest.approx(best)


def test_every_question_needs_a_prediction():
    with pytest.raises(UserError, match="no prediction for 3 of 4 .* the first is q"):
        metrics.evaluate(V2, {"p": "x"})
    with pytest.raises(UserError, match="no prediction for 4 of 4"):
        metrics.evaluate_v2(V2, {})
    with pytest.raises(UserError, match="no prediction for 1 of 4 .* the first is s"):
        answered = {e.id: "x" for e in V2}
        metrics.best_thresholds(V2, answered, {"p": 0.0, "q": 0.0, "r": 0.0})
