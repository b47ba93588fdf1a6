"""Classes and numbers: labels, rows, metrics, files and the picture."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import colormaps, image
from toy import TINY, batch_of, params_of, sums_of

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.objectives import classification as objectives
from bert_jax.objectives import metric_sums
from bert_jax.tasks import (
    classification,
    classification_scores,
    confusion,
    labelled_texts,
    token_rows,
)
from bert_jax.tasks.labelled_texts import Example


def labelled(*labels):
    return [
        Example("a", "", label, f"a.tsv, line {i}") for i, label in enumerate(labels)
    ]


# ---- labels


def test_labels_become_classes():
    examples = labelled("y", "x", "x")
    assert classification.label_names(examples) == ["x", "y"]
    probabilities = classification.to_probabilities(examples, ["x", "y"])
    assert probabilities.tolist() == [[0, 1], [1, 0], [1, 0]]
    for names in (
        ["0", "1"],
        ["-1", "1"],
        ["१", "२", "१०"],
        ["0.0", "1.0"],
        ["0", "999"],
        ["0.5", "x"],
    ):
        assert classification.label_names(labelled(*names)) == names
    with pytest.raises(UserError, match="training labels 1, 1.0 repeat numbers"):
        classification.label_names(labelled("1", "2", "1.0"))
    with pytest.raises(
        UserError, match=r"a.tsv, line 1: the label 'nan' is not finite, and"
    ):
        classification.label_names(labelled("1", "nan", "0"))
    with pytest.raises(UserError, match="have the label 'x', from a.tsv, line 1 on"):
        classification.label_names(examples[1:])
    message = "a.tsv, line 2: unknown label 'z'; the labels of .* are 'x', 'y'"
    with pytest.raises(UserError, match=message):
        classification.to_probabilities(labelled("x", "y", "z"), ["x", "y"])


def test_labels_may_be_distributions(tmp_path):
    path = tmp_path / "train.jsonl"
    given = [{"y": 0.25, "x": 0.75}, "z", {"y": 1}, {"x": 0.4998, "z": 0.4998}]
    lines = [json.dumps({"text": "a", "label": label}) + "\n" for label in given]
    path.write_text("".join(lines))
    examples = labelled_texts.read(path)
    labels = classification.label_names(examples)
    assert labels == ["x", "y", "z"]
    expected = [[0.75, 0.25, 0], [0, 0, 1], [0, 1, 0], [0.5, 0, 0.5]]
    assert classification.to_probabilities(examples, labels).tolist() == expected
    # A run does not continue with other probabilities.
    assert '{"x": 0.75, "y": 0.25}' in repr(examples[0])
    for label, message in (
        ({"y": 0.5, "x": 0.4}, "line 1: the probabilities in label add up to 0.9, not"),
        ({}, "add up to 0, not to 1"),
        ({"y": 1.5, "x": -0.5}, "expected a probability between 0 and 1 for each"),
        ({"y": "0.5", "x": 0.5}, "expected a probability between 0 and 1 for each"),
    ):
        path.write_text(json.dumps({"text": "a", "label": label}) + "\n")
        with pytest.raises(UserError, match=message):
            labelled_texts.read(path)


@pytest.mark.parametrize("labels", ["3.8 5.000", "1 1000", "-2.5 2"])
def test_numbers_to_predict_are_no_classes(labels):
    with pytest.raises(UserError, match=r"pass --config.task.target=number; classes"):
        classification.label_names(labelled(*labels.split()))


def test_classes_are_no_numbers_to_predict():
    numbers = classification.to_numbers(labelled("3.800", "-1e3", "7"))
    assert numbers.dtype == np.float32
    assert numbers.tolist() == [np.float32(3.8), -1000, 7]
    for wrong in ("yes", "nan", "inf", "1e39", "1,5", "1_5"):
        with pytest.raises(UserError, match=f"line 1: the label '{wrong}' is not a"):
            classification.to_numbers(labelled("1", wrong))


def test_balanced_weights_are_inverse_frequencies():
    labels = np.array([0, 0, 0, 2, 2, 0])
    weights = classification.balanced_weights(labels, 3)
    assert weights == pytest.approx((6 / (3 * 4), 0, 6 / (3 * 2)))


# ---- losses


@pytest.mark.parametrize("has_probabilities", [False, True])
def test_the_loss_with_weights_and_smoothing_is_the_formula(has_probabilities):
    """Against NumPy in float64: mean over classes of -q log p, weighted by labels."""
    e, w = 0.3, (0.5, 2.0, 1.5)
    objective = objectives.Classification(TINY, 3, w, e, has_probabilities)
    batch = batch_of(objective, 6) | {
        "labels": jnp.array([0, 1, 2, 2, 0, 1], jnp.int32),
        "weights": jnp.array([1, 1, 1, 1, 1, 0], jnp.float32),
    }
    given = np.eye(3)[batch["labels"]]
    if has_probabilities:
        given = 0.6 * given + 0.4 * np.random.default_rng(0).dirichlet(np.ones(3), 6)
        batch["probabilities"] = jnp.asarray(given, jnp.float32)
    params = params_of(objective.init, scale=0.2)
    got = sums_of(objective, params, batch)
    outputs = jax.jit(objective.outputs)(params, batch)
    logits = np.asarray(outputs["logits"], np.float64)
    assert np.ptp(logits) > 1
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    total = count = hits = 0.0
    for i in range(5):
        y = int(batch["labels"][i])
        q = [(1 - e) * given[i, c] + e / 3 for c in range(3)]
        total -= w[y] * sum(q[c] * log_p[i, c] for c in range(3))
        count += w[y]
        hits += logits[i].argmax() == y
    assert got["classification_loss"].sum == pytest.approx(total, rel=1e-5)
    assert got["classification_loss"].count == pytest.approx(count)
    assert metric_sums.ratio(got["accuracy"]) == pytest.approx(hits / 5)


# ---- rows


def test_truncation_is_that_of_a_loop():
    sizes = itertools.product(range(12), range(12), (5, 8, 9))
    for a_length, b_length, limit in sizes:
        a, b = list(range(a_length)), list(range(b_length))
        got = token_rows.truncate(a, b, limit)
        while len(a) + len(b) > limit:
            (a if len(a) > len(b) else b).pop()
        assert got == (a, b)


@pytest.mark.parametrize("target", ["class", "number"])
def test_rows_without_labels_have_the_same_tokens(target, wordpiece, tmp_path):
    pairs = [("the value", ""), ("a name", "an object")]
    lines = [f"{a}\t{b}\t{i}" for i, (a, b) in enumerate(pairs)]
    path = tmp_path / "a.tsv"
    path.write_text("\n".join(["text_a\ttext_b\tlabel", *lines]))
    unlabelled = tmp_path / "unlabelled.tsv"
    unlabelled.write_text(path.read_text().replace("label", "number"))
    config = config_lib.ClassificationConfig(
        train=str(path), eval=str(path), test=str(unlabelled), target=target, length=12
    )
    task = classification.Classification(config, wordpiece)
    assert task.scores("test", np.eye(2)) == {}
    test = task.held_out["test"]
    assert test.keys() == task.train.keys() and task.train["weights"].all()
    for name, values in test.items():
        assert values.dtype == task.train[name].dtype
        if name in ("labels", "weights"):
            assert not values.any()
        else:
            assert np.array_equal(values, task.train[name])
    # A test file with labels is scored.
    config = dataclasses.replace(config, test=str(path))
    changed = classification.Classification(config, wordpiece)
    assert changed.held_out["test"]["weights"].all()
    right = np.arange(2.0) if target == "number" else np.eye(2)
    wrong = right[::-1]
    metric = "pearson" if target == "number" else "accuracy"
    assert changed.scores("test", right)[metric] == 1
    assert changed.scores("test", wrong)[metric] == (-1 if target == "number" else 0)


def test_pairs_and_single_texts_do_not_mix(wordpiece, tmp_path):
    (tmp_path / "pairs.tsv").write_text("text_a\ttext_b\tlabel\nx\ty\t1\nz\t\t0\n")
    (tmp_path / "texts.tsv").write_text("text\tlabel\nx\t1\nz\t0\n")
    for train, held_out in (("pairs", "texts"), ("texts", "pairs")):
        config = config_lib.ClassificationConfig(
            train=str(tmp_path / f"{train}.tsv"), eval=str(tmp_path / f"{held_out}.tsv")
        )
        message = f"{held_out}.tsv has .*texts, but .*{train}.tsv has .*; name the col"
        with pytest.raises(UserError, match=message):
            classification.Classification(config, wordpiece)


# ---- metrics


def test_metrics_of_classes_by_hand():
    predicted, labels = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    got = classification_scores.score_classes(predicted, labels, 2)
    assert got["f1"] == pytest.approx(2 * 1 * 0.5 / 1.5)  # of the second class
    alone = classification_scores.score_classes(labels[:1], labels[:1], 2)
    assert alone["accuracy"] == 1 and alone["matthews"] == 0  # and no warning
    constant = classification_scores.score_classes(np.zeros(4, int), labels, 2)
    assert constant["matthews"] == constant["f1"] == 0.0
    # 0 is never taken for itself; precision 1/2 and recall 1 for 1; 2 is always met.
    # The fourth class is neither a label nor predicted, and does not count.
    predicted, labels = np.array([1, 1, 2, 2]), np.array([0, 1, 2, 2])
    got = classification_scores.score_classes(predicted, labels, 4)
    assert got["accuracy"] == 3 / 4
    assert got["macro_f1"] == pytest.approx((0 + 2 / 3 + 1) / 3)
    # Gorodkin: (c s - p.t) / sqrt((s^2 - p.p) (s^2 - t.t)) = (12 - 6) / sqrt(8 * 10).
    assert got["matthews"] == pytest.approx(6 / np.sqrt(80))


def test_metrics_of_numbers_by_hand():
    labels = np.array([0, 1, 2, 3], np.float32)
    got = classification_scores.score_numbers(
        np.array([0, 1, 8, 27], np.float32), labels
    )
    # Deviations -1.5 -0.5 0.5 1.5 and -9 -8 -1 18.
    assert got["pearson"] == pytest.approx(44 / np.sqrt(5 * 470))
    assert got["spearman"] == pytest.approx(1.0)
    constant = classification_scores.score_numbers(np.ones(4, np.float32), labels)
    assert np.isnan([constant["pearson"], constant["spearman"]]).all()


# ---- the picture


def test_a_confusion_matrix_has_labels_in_rows(tmp_path):
    # Text that looks like mathematics, and letters that the font lacks.
    names = ["$a", "b$", "Ж漢" * 30]
    confusion.draw(tmp_path / "a.png", np.full(9, 2), np.zeros(9, int), names)
    pixels = image.imread(tmp_path / "a.png")[..., :3]
    pixels = pixels[:, : int(0.85 * pixels.shape[1])]  # without the colour bar
    full = np.array(colormaps["Blues"](1.0)[:3])
    rows, columns = np.nonzero((np.abs(pixels - full) < 0.01).all(-1))
    # The only full cell is at the upper right.
    assert rows.max() < 0.5 * pixels.shape[0] and columns.min() > 0.5 * pixels.shape[1]
    many = np.arange(25)
    confusion.draw(tmp_path / "b.png", many, many, list(map(str, many)))
    with pytest.raises(UserError, match="cannot write to .*nowhere"):
        confusion.draw(tmp_path / "nowhere/c.png", many, many, list(map(str, many)))
