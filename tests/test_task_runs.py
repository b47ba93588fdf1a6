"""Taggers, multiple choice and spans, fine-tuned by their commands and asked again."""

import json

import numpy as np
import pytest
import questions
from commands import ROOT, succeed

from bert_jax import prediction

pytestmark = [pytest.mark.slow, pytest.mark.runs]

WORDS = ["the", "a", "object", "value", "name", "is", "of", "to", "in"]


def tagged(rng):
    """Return a sentence in which the words class and statement are entities."""
    words = rng.choice([*WORDS, "class", "statement"], rng.integers(3, 40))
    kinds = {"class": "B-class", "statement": "B-other"}
    return "".join(f"{word}\t{kinds.get(word, 'O')}\n" for word in words) + "\n"


def asked(rng):
    """Return a question whose true answer is the one that says statement."""
    answer = int(rng.integers(4))
    choices = [" ".join(rng.choice(WORDS, 3)) for _ in range(4)]
    choices[answer] += " statement"
    question = " ".join(rng.choice(WORDS, 5))
    return ",".join([question, *choices, "ABCD"[answer]]) + "\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for suffix, make in (("conll", tagged), ("csv", asked)):
        for name, count in (("train", 200), ("eval", 40), ("test", 5)):
            text = "".join(make(rng) for _ in range(count))
            (folder / f"{name}.{suffix}").write_text(text)
    return folder


def fine_tune(name, recipe, pretrained, files, folder, *flags):
    """Return the results of a run, which are printed and stored."""
    done = succeed(
        f"finetune_{name}",
        f"--config={ROOT}/configs/{recipe}",
        *(f"--config.task.{part}={path}" for part, path in files.items()),
        f"--config.init_from={pretrained}",
        f"--workdir={folder}",
        *flags,
    )
    results = json.loads(done.stdout)
    assert json.loads((folder / "results.json").read_text()) == results
    return results


def learn(name, ending, pretrained, files, folder):
    """Return the results of a run that learns its task."""
    paths = {part: files / f"{part}.{ending}" for part in ("train", "eval", "test")}
    flags = ["--config.epochs=8", "--config.optimizer.learning_rate=3e-3"]
    flags += ["--config.loop.eval_every=0", "--config.loop.checkpoint_every=0"]
    results = fine_tune(name, f"{name}.py:smoke", pretrained, paths, folder, *flags)
    # Each word or question counts once in the loop's evaluation, windows or not.
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] == pytest.approx(results["accuracy"])
    return results


def test_a_tagger(pretrained, files, tmp_path):
    results = learn("tagger", "conll", pretrained, files, tmp_path)
    assert results["f1"] > 0.9 and results["test_f1"] > 0.9
    assert results["sentences_in_windows"]["eval"] > 0
    # The predictions file has all words, with the scored tags.
    text = (tmp_path / "predictions.conll").read_text()
    rows = [line.split("\t") for line in text.splitlines() if line]
    given = (files / "eval.conll").read_text().splitlines()
    assert ["\t".join(row[:2]) for row in rows] == [line for line in given if line]
    are_right = [row[1] == row[2] for row in rows]
    assert np.mean(are_right) == pytest.approx(results["accuracy"])
    sentences = [
        [line.split("\t") for line in sentence.splitlines()]
        for sentence in text.strip().split("\n\n")
    ]
    model = prediction.load(str(tmp_path))
    tagged = model.tag([[row[0] for row in sentence] for sentence in sentences])
    assert [each.tags for each in tagged] == [[r[2] for r in s] for s in sentences]


def test_a_choice(pretrained, files, tmp_path):
    results = learn("choice", "csv", pretrained, files, tmp_path)
    assert results["accuracy"] > 0.9
    lines = (tmp_path / "predictions.jsonl").read_text().splitlines()
    written = [json.loads(line) for line in lines]
    are_right = ["statement" in line["choice"] for line in written]
    assert np.mean(are_right) == pytest.approx(results["accuracy"])
    assert len((tmp_path / "test_predictions.jsonl").read_text().splitlines()) == 5
    rows = [row.split(",") for row in (files / "eval.csv").read_text().splitlines()]
    model = prediction.load(str(tmp_path))
    chosen = model.choose([row[0] for row in rows], [row[1:5] for row in rows])
    for each, line in zip(chosen, written, strict=True):
        assert (each.index, each.text) == (line["prediction"], line["choice"])
        assert each.probabilities == pytest.approx(line["probabilities"], abs=1e-4)


def test_spans_and_another_threshold(pretrained, tmp_path):
    """With a threshold that all questions exceed, the checkpoint answers none."""
    paths = questions.write_pair(tmp_path, no_answers=True)
    given = "squad", "squad.py:v2,smoke", pretrained, paths, tmp_path / "run"
    results = fine_tune(*given)
    assert (results["examples"], results["NoAns_total"]) == (8, 2)
    written = json.loads((tmp_path / "run/predictions.json").read_text())
    contexts = questions.CONTEXT, " ".join([questions.CONTEXT] * 3)
    asked = [(q, context) for context in contexts for q, _ in questions.QUESTIONS]
    answered = prediction.load(str(tmp_path / "run")).answer(*zip(*asked, strict=True))
    assert [answer.text for answer in answered] == list(written.values())
    again = fine_tune(*given, "--config.task.null_threshold=-1e6")
    written = json.loads((tmp_path / "run/predictions.json").read_text())
    assert list(written.values()) == [""] * 8
    assert again["best_f1"] == results["best_f1"]
