"""Exact match and F1, by hand and compared with the official script."""

import gzip
import json
import math

import numpy as np
import pytest
from commands import shared_data

from bert_jax.tasks.squad import metrics, reader


def example(name, *texts):
    return reader.Example(name, "", "", tuple(reader.Gold(text, 0) for text in texts))


def test_scores_of_an_ensemble_match_the_official_script():
    folder = shared_data("squad")
    examples = reader.read(folder / "dev-v1.1.json.gz", no_answers=False)
    path = folder / "predictions-v1.1-bert-ensemble.json.gz"
    got = metrics.evaluate(examples, json.loads(gzip.decompress(path.read_bytes())))
    rounded = {name: round(value, 4) for name, value in got.items()}
    assert rounded == {"exact_match": 86.2062, "f1": 92.1956}


@pytest.mark.parametrize(
    ("gold", "predicted", "exact", "f1"),
    [
        ("The  Cat's\nhat!", "cats hat", 1, 1),
        ("an apple", "Theatre apple", 0, 2 / 3),  # articles are whole words
        ("a-b", "ab", 1, 1),
        ("5\N{EN DASH}6", "56", 0, 0),  # not ASCII
        ("x y y", "y y y z", 0, 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3)),
        ("x", "y", 0, 0),
        ("the", "a", 1, 0),  # both are empty when normalised
    ],
)
def test_answers_by_hand(gold, predicted, exact, f1):
    assert metrics.exact(gold, predicted) == exact
    assert metrics.f1(gold, predicted) == pytest.approx(f1)
    assert metrics.f1(predicted, gold) == pytest.approx(f1)


def test_the_best_gold_answer_counts():
    examples = [example("p", "x", "x y"), example("q", "z")]
    got = metrics.evaluate(examples, {"p": "x y w", "q": "z", "other": "x"})
    assert got == {"exact_match": 50.0, "f1": pytest.approx(100 * (0.8 + 1) / 2)}


V2 = [example("p", "x y"), example("q"), example("r", "z"), example("s")]


def test_questions_with_and_without_answers():
    got = metrics.evaluate_v2(V2, {"p": "x", "q": "", "r": "", "s": "w"})
    everything = {"exact": 25.0, "f1": pytest.approx(100 * (2 / 3 + 1) / 4), "total": 4}
    some = {"exact": 0.0, "f1": pytest.approx(100 * (2 / 3) / 2), "total": 2}
    none = {"exact": 50.0, "f1": 50.0, "total": 2}
    assert got == {
        **everything,
        **{f"HasAns_{name}": value for name, value in some.items()},
        **{f"NoAns_{name}": value for name, value in none.items()},
    }
    one_kind = metrics.evaluate_v2(V2[:1], {"p": "x y"})
    assert not any(name.startswith("NoAns_") for name in one_kind)


def test_thresholds_by_hand():
    predictions = {"p": "x", "q": "w", "r": "z", "s": "w"}
    odds = {"p": -3.0, "q": 2.0, "r": -1.0, "s": -2.0}
    # In the order of the odds: p gains 2/3 in F1, s costs 1, r gains 1.
    got = metrics.best_thresholds(V2, predictions, odds)
    assert got["best_exact"] == 50.0
    assert got["best_f1"] == pytest.approx(100 * (2 + 2 / 3) / 4)
    assert got["best_f1_thresh"] == -3.0
    # To answer up to -1 is no better than to answer nothing.
    assert -3.0 > got["best_exact_thresh"] == pytest.approx(-3.0)
    # It may be best to answer everything, and an empty answer costs nothing.
    answers = {"p": "x y", "q": "", "r": "z"}
    got = metrics.best_thresholds(V2[:3], answers, odds | {"q": -2.0})
    assert (got["best_exact"], got["best_exact_thresh"]) == (100.0, -1.0)


@pytest.mark.parametrize("seed", range(3))
def test_no_other_threshold_is_better(seed):
    rng = np.random.default_rng(seed)
    words = ["x", "y", "x y", "x y z"]
    examples = [
        example(str(i), *(rng.choice(words, 2) if rng.random() < 0.6 else ()))
        for i in range(40)
    ]
    predictions = {e.id: str(rng.choice(words)) for e in examples}
    odds = {e.id: float(rng.integers(-9, 10)) for e in examples}  # some are equal

    def scores_at(threshold):
        texts = {n: t if odds[n] <= threshold else "" for n, t in predictions.items()}
        return metrics.evaluate_v2(examples, texts)

    tried = [scores_at(threshold) for threshold in (-math.inf, *odds.values())]
    got = metrics.best_thresholds(examples, predictions, odds)
    for name in ("exact", "f1"):
        best = max(scores[name] for scores in tried)
        assert got[f"best_{name}"] == pytest.approx(best)
        assert scores_at(got[f"best_{name}_thresh"])[name] == pytest.approx(best)
