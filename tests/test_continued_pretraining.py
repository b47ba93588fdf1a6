"""Pretraining that goes on from a checkpoint, of ours or of another project."""

import json

import numpy as np
import published
import pytest
import saved

from bert_jax import config, knobs, pretraining, variants
from bert_jax.errors import UserError
from bert_jax.interop import convert, sources
from bert_jax.training import stored


def make_config(corpus, init_from, **changes):
    cfg = knobs.to_configdict(config.PretrainConfig())
    variants.shrink_pretraining(cfg)
    cfg.data.corpus = str(corpus.folder)
    cfg.init_from = str(init_from)
    cfg.encoder.dtype = "float32"
    cfg.update(changes)
    return knobs.from_configdict(config.PretrainConfig, cfg)


def test_the_corpus_has_to_be_of_its_tokenizer(corpus, tmp_path):
    source = published.write("pretraining", tmp_path / "theirs")
    asked = make_config(corpus, source)
    with pytest.raises(UserError, match="build the corpus with the tokenizer that"):
        pretraining.pretrain(asked, str(tmp_path / "run"))
    with pytest.raises(UserError, match="nowhere is no folder"):
        pretraining.pretrain(make_config(corpus, "/nowhere"), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.runs
def test_either_format_is_the_same_beginning(corpus, pretrained, tmp_path):
    """Bit for bit; and the encoder is that of the checkpoint, not of the recipe."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    convert.convert(str(pretrained), str(theirs))
    convert.convert(str(theirs), str(ours))
    ended, reported = [], []
    for number, source in enumerate((theirs, ours)):
        folder = tmp_path / f"run{number}"
        asked = make_config(corpus, source, seed=5)
        state, resolved = pretraining.pretrain(asked, str(folder))
        encoder = sources.read_metadata(sources.find(source)).encoder
        assert resolved.encoder == encoder
        assert resolved.init_fingerprint == sources.fingerprint(sources.find(source))
        ended.append(saved.parameters_of(folder))
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        reported.append([r.get("mlm_loss") for r in records])
        assert int(state.step) == int(stored.find(folder).name)
    assert reported[0] == reported[1]
    for path, array in ended[0].items():
        np.testing.assert_array_equal(array, ended[1][path])
    # The same command again has nothing left to do, even without its beginning.
    theirs.rename(tmp_path / "away")
    again = make_config(corpus, theirs, seed=5)
    pretraining.pretrain(again, str(tmp_path / "run0"))
