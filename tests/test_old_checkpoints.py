"""Checkpoints of an earlier version: read, queried and continued.

`fixtures/old_checkpoints/README.md` says what they are and how they were made.
"""

import json
import pathlib
import zipfile

import numpy as np
import pytest
import tensorflow as tf

from bert_jax import config, prediction, pretraining
from bert_jax.config import migrations
from bert_jax.corpus import shards
from bert_jax.data import segments
from bert_jax.errors import UserError
from bert_jax.training import metrics_file

FIXTURES = pathlib.Path(__file__).parent / "fixtures" / "old_checkpoints"
TEXTS = ["the cat sees a red house.", "no dog runs, and an old tree is near the sea."]
BLANK = "the [MASK] sees a red house."


@pytest.fixture
def unpacked(tmp_path):
    """Return a function that unpacks one of the files and returns its folder."""

    def unpack(name):
        with zipfile.ZipFile(FIXTURES / f"{name}.zip") as archive:
            archive.extractall(tmp_path)
        return tmp_path / name

    return unpack


def expected_of(folder):
    return json.loads((folder / "expected.json").read_text())


@pytest.mark.parametrize("name", ["bert", "xlnet", "xlnet_memory", "classifier"])
def test_predictions_are_the_same(name, unpacked):
    """Only pretraining used memory, so the encoder of `xlnet_memory` can be read."""
    folder = unpacked(name)
    expected = expected_of(folder)
    model = prediction.load(str(folder / "run"))
    # Exports and fine-tuned checkpoints are saved in today's form.
    saved = model.metadata.config
    cls = config.FinetuneConfig if name == "classifier" else config.PretrainConfig
    assert config.from_dict(cls, saved).kind == saved["kind"]
    features = [f.values[:, 0] for f in model.features(TEXTS)]
    for got, wanted in zip(features, expected["features"], strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    if "blank" in expected:
        ((guesses,),) = model.fill([BLANK], top=5)
        got = {guess.word: guess.probability for guess in guesses}
        assert got == pytest.approx(expected["blank"], abs=1e-6)
        assert model.next_probability(*TEXTS) == pytest.approx(
            expected["next"], abs=1e-6
        )
    if "classes" in expected:
        for got, wanted in zip(model.classify(TEXTS), expected["classes"], strict=True):
            assert got.probabilities == pytest.approx(wanted, abs=1e-6)


def saved_config(folder):
    """Return the config of a pretraining run, with the corpus where it is now."""
    values = json.loads((folder / "run" / "config.json").read_text())
    values["data"]["corpus"] = str(folder.parent / "corpus")
    return config.from_dict(config.PretrainConfig, migrations.upgrade(values))


def test_a_corpus_keeps_its_tokenizer(unpacked):
    """Its manifest has a fingerprint of the legacy format."""
    assert shards.open_corpus(unpacked("corpus")).tokenizer.legacy_fingerprint


@pytest.mark.runs
@pytest.mark.parametrize(("name", "tolerance"), [("bert", 1e-5), ("xlnet", 1e-4)])
def test_a_run_continues(name, tolerance, unpacked, monkeypatch):
    """The remaining steps report the losses of the version that began the run.

    XLNet has other dropout masks since [CLS] is not moved. Short rows had the beginning
    of their chunk.
    """
    monkeypatch.setattr(
        segments.Segments,
        "_draw_takes_end",
        lambda self, target, key: tf.zeros_like(target, tf.bool),
    )
    folder = unpacked(name)
    unpacked("corpus")
    pretraining.pretrain(saved_config(folder), str(folder / "run"))
    records = metrics_file.read(folder / "run")
    expected = expected_of(folder)["later"]
    for got, wanted in zip(records[-len(expected) :], expected, strict=True):
        assert got["split"] == wanted.pop("split")
        found = {key: got[key] for key in wanted}
        assert found == pytest.approx(wanted, rel=tolerance)


def test_a_run_with_memory_is_not_continued(unpacked):
    folder = unpacked("xlnet_memory")
    unpacked("corpus")
    before = (folder / "run" / "config.json").read_bytes()
    message = r"config\.json: objective\.memory_length=4: .* was removed"
    with pytest.raises(UserError, match=message):
        pretraining.pretrain(saved_config(folder), str(folder / "run"))
    assert (folder / "run" / "config.json").read_bytes() == before


def test_kinds_of_attention_are_kernels_on_or_off():
    for saved, today in (("auto", "auto"), ("plain", "off"), ("kernel", "auto")):
        values = {"encoder": {"attention": saved, "num_layers": 3}, "seed": 1}
        expected = {"encoder": {"kernels": today, "num_layers": 3}, "seed": 1}
        assert migrations.upgrade(values, for_resume=True) == expected
        assert migrations.upgrade(expected) == expected


def test_a_run_with_several_masking_rates_is_read_and_not_continued():
    def saved(rate):
        return {"objective": {"masking": {"rate": rate, "unit": "word"}}}

    for rate in ([0.2], 0.2):
        assert migrations.upgrade(saved(rate), for_resume=True) == saved(0.2)
    assert migrations.upgrade(saved([0.3, 0.2, 0.1])) == saved(0.1)
    message = r"objective\.masking\.rate=\[0\.3, 0\.15\]: a list .* was removed"
    with pytest.raises(UserError, match=message):
        migrations.upgrade(saved([0.3, 0.15]), for_resume=True)


@pytest.mark.parametrize("values", [None, [], {"objective": 3}, {"encoder": None}])
def test_what_is_no_config_stays_for_others_to_refuse(values):
    assert migrations.upgrade(values, for_resume=True) == values
