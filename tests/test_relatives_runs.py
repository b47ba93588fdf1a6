"""Families of models from the recipe to a task, and exported.

The recipes are shrunk to seconds, and each has a corpus of its kind of tokenizer.
`test_interop_live.py` has transformers read such folders.
"""

import functools
import json
import pathlib

import numpy as np
import pytest
import recipes
import runs
import saved
from commands import assert_refused, call, succeed
from corpora import build_reference

from bert_jax import config as config_lib
from bert_jax import prediction, pretraining

pytestmark = pytest.mark.runs

TEXTS = ["The value of the expression.", "A class is an object, and a name is not."]

each = pytest.mark.parametrize(
    "name",
    [
        # Other families run in `pytest -m slow` only.
        pytest.param(name, marks=[pytest.mark.slow] * (name != "xlnet"))
        for name in recipes.FAMILIES
    ],
)


@pytest.fixture(scope="module")
def corpus_of(tokenizer_of, text_file, tmp_path_factory):
    """Return a function that returns the folder of a corpus for a kind of tokenizer."""

    @functools.cache
    def folder(kind):
        output = tmp_path_factory.mktemp("corpora") / kind
        build_reference(text_file, tokenizer_of(kind), output)
        return output

    return folder


@pytest.fixture(scope="module")
def pretrained(corpus_of, tmp_path_factory):
    """Return a function that returns the workdir of a shrunk recipe's only run.

    The run has the first phase of the recipe, three steps.
    """

    @functools.cache
    def workdir(name):
        folder = tmp_path_factory.mktemp("pretrained") / name
        cfg = recipes.family(name)
        cfg.data.corpus = str(corpus_of(recipes.FAMILIES[name][1]))
        config = config_lib.from_dict(config_lib.PretrainConfig, cfg)
        state, resolved = pretraining.pretrain(config, str(folder))
        assert int(state.step) == resolved.total_steps == 3
        return folder

    return workdir


@each
def test_recipes_run(name, pretrained):
    runs.assert_smoke_run(pretrained(name))


# ---- what comes after pretraining


@pytest.mark.slow
@each
def test_a_task_features_and_export(name, pretrained, labelled_files, tmp_path):
    """The task is asked again as a user would."""
    source, tuned = pretrained(name), tmp_path / "tuned"
    succeed(
        "finetune_classifier",
        "--config=configs/classifier.py:smoke",
        f"--config.init_from={source}",
        *(f"--config.task.{part}={path}" for part, path in labelled_files.items()),
        f"--workdir={tuned}",
        "--nohuge_pages",
    )
    results = json.loads((tuned / "results.json").read_text())
    assert results["examples"] == 40 and results["truncated"]["eval"] == 0
    lines = pathlib.Path(labelled_files["eval"]).read_text().splitlines()[1:]
    model = prediction.load(str(tuned))
    classified = model.classify([line.split("\t")[0] for line in lines])
    written = (tuned / "predictions.tsv").read_text().splitlines()[1:]
    assert [c.label for c in classified] == [line.split("\t")[1] for line in written]

    before, after = mean_vectors(source), mean_vectors(tuned)
    assert np.abs(before - after).max() > 0
    for workdir, expected in ((source, before), (tuned, after)):
        exported = tmp_path / f"{workdir.name}-exported"
        done = succeed("convert", f"--input={workdir}", f"--output={exported}")
        assert "missing: 0" in done.stderr
        np.testing.assert_allclose(mean_vectors(exported), expected, atol=2e-5)
    saved.assert_came_back(exported, saved.parameters_of(tuned))


def mean_vectors(folder):
    """Return the mean vector of each text, [texts, D], from the last layer."""
    made = prediction.load(str(folder)).features(TEXTS, layers=(-1,), pool="mean")
    return np.concatenate([features.values for features in made])


@each
def test_blanks(name, pretrained):
    """ELECTRA's generator fills them, and XLNet says in a line that it has no head."""
    blank = "<mask>" if name == "roberta" else "[MASK]"
    done = call("fill_mask", f"--init_from={pretrained(name)}", f"The {blank} is not.")
    if name == "xlnet":
        assert_refused(done, "has no head to fill blanks: it was pretrained wi")
        return
    assert done.returncode == 0, done.stderr
    first, *guesses = done.stdout.splitlines()
    assert first == f"The {blank} is not." and len(guesses) == 5
