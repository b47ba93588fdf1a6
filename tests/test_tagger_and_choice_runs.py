"""Taggers and multiple choice, fine-tuned by their commands."""

import json

import numpy as np
import pytest
from commands import ROOT, succeed

from bert_jax import prediction
from bert_jax.interop import convert
from bert_jax.training import restore

WORDS = ["the", "a", "object", "value", "name", "is", "of", "to", "in"]


def tagged(rng):
    """A sentence in which the words class and statement are entities."""
    words = rng.choice([*WORDS, "class", "statement"], rng.integers(3, 40))
    kinds = {"class": "B-class", "statement": "B-other"}
    return "".join(f"{word}\t{kinds.get(word, 'O')}\n" for word in words) + "\n"


def asked(rng):
    """A question whose true answer is the one that says statement."""
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


def fine_tune(recipe, ending, pretrained, files, folder):
    """Return the results of a run, which are printed and stored."""
    sets = ("train", "eval", "test")
    done = succeed(
        f"finetune_{recipe}",
        f"--config={ROOT}/configs/{recipe}.py:smoke",
        *(f"--config.task.{name}={files / name}.{ending}" for name in sets),
        "--config.epochs=8",
        "--config.loop.eval_every=0",
        "--config.loop.checkpoint_every=0",
        "--config.optimizer.learning_rate=3e-3",
        f"--config.init_from={pretrained}",
        f"--workdir={folder}",
    )
    results = json.loads(done.stdout)
    assert json.loads((folder / "results.json").read_text()) == results
    return results


@pytest.mark.slow
@pytest.mark.runs
def test_a_tagger(pretrained, files, tmp_path):
    results = fine_tune("tagger", "conll", pretrained, files, tmp_path)
    assert results["f1"] > 0.9 and results["test_f1"] > 0.9
    assert results["sentences_in_windows"]["eval"] > 0
    assert (results["examples"], results["train_examples"]) == (40, 200)
    # The predictions file has all words, with the scored tags.
    text = (tmp_path / "predictions.conll").read_text()
    rows = [line.split("\t") for line in text.splitlines() if line]
    given = (files / "eval.conll").read_text().splitlines()
    assert ["\t".join(row[:2]) for row in rows] == [line for line in given if line]
    assert np.mean([row[1] == row[2] for row in rows]) == pytest.approx(
        results["accuracy"]
    )
    # Each word counts once in the loop's evaluation, windows or not.
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] == pytest.approx(results["accuracy"])
    # `Model.tag` gives the same tags, also in `transformers`' format.
    sentences = [
        [line.split("\t") for line in sentence.splitlines()]
        for sentence in text.strip().split("\n\n")
    ]
    done = convert.convert(str(tmp_path), str(tmp_path / "exported"))
    assert done.name == "BertForTokenClassification"
    for folder in (tmp_path, tmp_path / "exported"):
        got = prediction.load(str(folder)).tag([[r[0] for r in s] for s in sentences])
        assert [each.tags for each in got] == [[r[2] for r in s] for s in sentences]
    settings = restore.read_metadata(restore.find(tmp_path)).task
    assert settings == {"tags": ["B-class", "B-other", "O"], "scheme": "IOB2"}


@pytest.mark.slow
@pytest.mark.runs
def test_a_choice(pretrained, files, tmp_path):
    results = fine_tune("choice", "csv", pretrained, files, tmp_path)
    assert results["accuracy"] > 0.9
    assert (results["examples"], results["choices"]) == (40, 4)
    lines = (tmp_path / "predictions.jsonl").read_text().splitlines()
    true = ["statement" in json.loads(line)["choice"] for line in lines]
    assert len(true) == 40
    assert np.mean(true) == pytest.approx(results["accuracy"])
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] == pytest.approx(results["accuracy"])
    assert len((tmp_path / "test_predictions.jsonl").read_text().splitlines()) == 5
    rows = [row.split(",") for row in (files / "eval.csv").read_text().splitlines()]
    done = convert.convert(str(tmp_path), str(tmp_path / "exported"))
    assert done.name == "BertForMultipleChoice"
    for folder in (tmp_path, tmp_path / "exported"):
        asked_again = [row[0] for row in rows], [row[1:5] for row in rows]
        chosen = prediction.load(str(folder)).choose(*asked_again)
        for each, line in zip(chosen, lines, strict=True):
            kept = json.loads(line)
            assert (each.index, each.text) == (kept["prediction"], kept["choice"])
            assert each.probabilities == pytest.approx(kept["probabilities"], abs=1e-4)
