"""Every recipe that ships, as it is and shrunk to seconds."""

import json

import pytest
from recipes import GOLDEN, NAMES, PRETRAINING, load, resolved

from bert_jax import config, knobs
from bert_jax.errors import UserError
from bert_jax.run import pretrain


@pytest.mark.parametrize("name", NAMES)
def test_recipes_resolve_to_what_is_on_record(name):
    """A changed default shows up as a changed line of a file."""
    assert resolved(name) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_recipes_say_source_command_and_cost(name):
    text = load(name).__doc__
    for word in ("Source:", "Run:", "Cost:", "Smoke:", f"configs/{name}.py"):
        assert word in text
    with pytest.raises(UserError, match="unknown argument 'tiny'"):
        load(name).get_config("tiny")


def test_recipes_of_other_programs():
    cfg = load("demo").get_config()
    with pytest.raises(UserError, match="config for 'demo', not 'pretraining'"):
        knobs.from_configdict(config.PretrainConfig, cfg)


def test_base_and_large_are_the_papers():
    for name in ("bert_base", "bert_large"):
        built = knobs.from_configdict(config.PretrainConfig, load(name).get_config())
        assert built.total_steps == 1_000_000
        assert [p.length for p in built.phases] == [128, 512]
        assert built.phases[0].steps == 900_000
        assert {p.batch_size for p in built.phases} == {256}
        warmup = built.optimizer.warmup_fraction * built.total_steps
        assert warmup == pytest.approx(10_000)
        assert built.optimizer.learning_rate == 1e-4


@pytest.mark.parametrize("name", PRETRAINING)
def test_recipes_run(name, corpus, tmp_path):
    """All phases, with evaluation and checkpoints, on eight devices."""
    cfg = load(f"bert_{name}").get_config("smoke")
    cfg.data.corpus = str(corpus.folder)
    built = knobs.from_configdict(config.PretrainConfig, cfg)
    state, resolved = pretrain.pretrain(built, str(tmp_path))
    assert int(state.step) == resolved.total_steps == 6
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert records[-1]["split"] == "eval"
    assert 6 < records[-1]["loss"] < 9
