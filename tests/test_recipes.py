"""Every recipe that ships, as it is and shrunk to seconds."""

import importlib.util
import json
import pathlib

import pytest

from bert_jax import config
from bert_jax.errors import UserError
from bert_jax.run import pretrain

ROOT = pathlib.Path(__file__).parents[1]
GOLDEN = pathlib.Path(__file__).parent / "fixtures/recipes"
PRETRAINING = ["tiny", "mini", "small", "medium", "base", "large"]
RECIPES = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"configs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kind(cfg):
    if "pretrain" in cfg:
        return config.DemoConfig
    return config.PretrainConfig if "phases" in cfg else config.ClassifierConfig


def flat(values, prefix=""):
    """`path: value` lines of nested dicts and lists."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for name, value in items:
        path = f"{prefix}[{name}]" if isinstance(name, int) else f"{prefix}.{name}"
        if isinstance(value, (dict, list)):
            yield from flat(value, path)
        else:
            yield f"{path.lstrip('.')}: {value!r}"


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_resolve_to_what_is_on_record(name):
    """A changed default shows up as a changed line of a file."""
    cfg = load(name).get_config()
    rebuilt = config.from_dict(kind(cfg), json.loads(cfg.to_json_best_effort()))
    lines = "\n".join(flat(config.to_dict(rebuilt))) + "\n"
    assert lines == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_say_source_command_and_cost(name):
    text = load(name).__doc__
    for word in ("Source:", "Run:", "Cost:", "Smoke:", f"configs/{name}.py"):
        assert word in text
    with pytest.raises(UserError, match="unknown argument 'tiny'"):
        load(name).get_config("tiny")


def test_recipes_of_other_programs():
    cfg = load("demo").get_config()
    with pytest.raises(UserError, match=r"config for run\.demo, not for run\.pretrain"):
        config.from_configdict(config.PretrainConfig, cfg)


def test_base_and_large_are_the_papers():
    for name in ("bert_base", "bert_large"):
        built = config.from_configdict(config.PretrainConfig, load(name).get_config())
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
    built = config.from_configdict(config.PretrainConfig, cfg)
    state, resolved = pretrain.pretrain(built, str(tmp_path))
    assert int(state.step) == resolved.total_steps == 6
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert records[-1]["split"] == "eval"
    assert 6 < records[-1]["loss"] < 9
