"""Notebooks run from top to bottom, and show correct values."""

import base64
import dataclasses
import pydoc_data.topics
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import runs
import stored_notebooks as notebooks
from sklearn.metrics import accuracy_score, pairwise

from bert_jax import finetuning
from bert_jax.demo import small_model

NAMES = sorted(path.name for path in notebooks.FOLDER.iterdir())
MAX_PNG_BYTES = 60_000


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Return the model that notebooks train, after a few steps."""
    return small_model.pretrain(tmp_path_factory.mktemp("small"), steps=4)


@pytest.fixture
def run(checkpoint, tmp_path, monkeypatch):
    """Return a function that runs a notebook and returns its variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(small_model, "pretrain", lambda folder: checkpoint)
    plt.switch_backend("agg")

    def run(name):
        got = {}
        exec(notebooks.source(notebooks.read(name)), got)
        return got

    yield run
    plt.close("all")


@pytest.mark.slow
def test_an_untrained_model_has_the_loss_of_guessing(run, capsys):
    got = run("look_inside.ipynb")
    vocabulary = got["config"].encoder.padded_vocab_size
    assert got["logits"].mlm.compute().shape == (8, 20, vocabulary)
    expected = np.log(2 * got["corpus"].tokenizer.vocab_size)
    assert float(got["value"]) == pytest.approx(expected, abs=0.3)
    assert "[CLS]" in capsys.readouterr().out


@pytest.mark.runs
def test_each_masking_has_its_batch(run):
    got = run("masking.ipynb")
    assert len(got["masked"]) == len(got["MASKINGS"]) == 6


@pytest.mark.runs
def test_attention_is_computed_from_queries_and_keys(run, checkpoint):
    got = run("attention.ipynb")
    params = runs.params(checkpoint)
    [embedded] = got["model"].features([got["SENTENCE"]], layers=[0])
    assert embedded.tokens == got["tokens"]

    scale = np.asarray(params["encoder/layers/attention_norm/scale"])[0]
    inputs = embedded.values[:, 0]
    inputs = inputs - inputs.mean(-1, keepdims=True)
    inputs *= scale / inputs.std(-1, keepdims=True)

    def project(name):
        """Return queries or keys, whose pairs of columns rotate with the position."""
        kernel = np.asarray(params[f"encoder/layers/attention/{name}/kernel"])[0]
        projected = np.einsum("ld,dhk->hlk", inputs, kernel)
        first, second = np.split(projected, 2, axis=-1)
        exponents = np.arange(first.shape[-1]) / first.shape[-1]
        angles = np.arange(len(inputs))[:, None] * 10_000.0**-exponents
        rotated = (first + 1j * second) * np.exp(1j * angles)
        return np.concatenate([rotated.real, rotated.imag], axis=-1)

    query, key = project("query"), project("key")
    scores = np.einsum("hlk,hmk->hlm", query, key) / np.sqrt(query.shape[-1])
    expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(got["attention"][0], expected, atol=1e-5)
    assert np.ptp(expected) > 0.05


@pytest.mark.runs
def test_nearest_sentences_and_words(run, monkeypatch, capsys):
    topics = dict(list(pydoc_data.topics.topics.items())[:20])
    monkeypatch.setattr(pydoc_data.topics, "topics", topics)
    got = run("features.ipynb")
    layers = [got["LAYER"]]
    made = list(got["model"].features(got["everything"], layers, length=64))
    means = np.stack([features.values[:, 0].mean(axis=0) for features in made])
    means -= means.mean(axis=0)
    count = len(got["texts"])
    expected = pairwise.cosine_similarity(means[count:], means[:count])
    np.testing.assert_allclose(got["cosines"], expected, atol=1e-4)
    shown = capsys.readouterr().out
    for row in expected:
        assert f"{row.max():.2f}  {got['texts'][row.argmax()]}" in shown
    assert "class" in got["words"]


@pytest.mark.slow
@pytest.mark.runs
def test_answers_of_the_classifier_agree_with_its_evaluation(run, monkeypatch):
    finetune = finetuning.finetune

    def finetune_for_less(config, folder):
        return finetune(dataclasses.replace(config, epochs=0.5), folder)

    monkeypatch.setattr(finetuning, "finetune", finetune_for_less)
    got = run("finetuning.ipynb")
    labels = [example.label for example in got["examples"]]
    predicted = [answer.label for answer in got["answers"]]
    assert set(labels) == set(got["CHAPTERS"])
    accuracy = accuracy_score(labels, predicted)
    assert accuracy == pytest.approx(got["results"]["accuracy"])
    lines = (got["folder"] / "classifier/predictions.tsv").read_text().splitlines()
    assert [line.split("\t")[1] for line in lines[1:]] == predicted
    train = (got["folder"] / "train.tsv").read_text().splitlines()[1:]
    assert not {line.split("\t")[0] for line in train} & {
        example.text_a for example in got["examples"]
    }


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_small_and_reproducible(name):
    cells = [c for c in notebooks.read(name)["cells"] if c["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in cells]
    assert counts == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    for output in outputs:
        assert output["output_type"] in ("stream", "display_data")
        if output["output_type"] == "stream":
            assert output["name"] == "stdout"
            shown = "".join(output["text"])
        else:
            picture = base64.b64decode(output["data"]["image/png"])
            assert picture.startswith(b"\x89PNG")
            assert len(picture) <= MAX_PNG_BYTES
            assert output["data"].keys() == {"image/png", "text/plain"}
            shown = "".join(output["data"]["text/plain"])
        # No path, time or address of an object.
        assert not re.search(r"(?<!\w)/\w+/|\d\d:\d\d|20\d\d-|0x[0-9a-f]{6}", shown)
