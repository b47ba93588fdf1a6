"""All recipes, in full and shrunk to seconds."""

import re

import pytest
from recipes import ABLATIONS, FILES, NAMES, build, load, module, read_record, record
from runs import assert_smoke_run

from bert_jax import config, pretraining
from bert_jax.errors import UserError


def test_recipes_equal_the_record():
    """A changed default shows up as a changed line of the file."""
    made, stored = record(), read_record()
    for name, lines in made.items():
        assert lines == stored.get(name), name
    assert made.keys() == stored.keys()


@pytest.mark.parametrize("file", FILES)
def test_docstrings_of_recipes_are_complete(file):
    text = module(file).__doc__
    for word in ("Source:", "Run:", "Cost:", FILES[file].name):
        assert word in text
    with pytest.raises(UserError, match="argument 'huge' of the recipe; "):
        module(file).get_config("huge")


def test_variants_of_recipes():
    with pytest.raises(UserError, match="argument '' of .* one of tiny, mini, small, "):
        load("bert_miniature")
    assert load("bert_miniature", "smoke") == load("bert_miniature:tiny", "smoke")
    with pytest.raises(UserError, match="argument 'x' of .* expected 'smoke'"):
        load("bert_base:x")
    text = module("bert_ablations").__doc__
    assert all(f"        {variant} " in text for variant in ABLATIONS)
    with pytest.raises(UserError, match="config for 'demo', not 'pretraining'"):
        config.from_dict(config.PretrainConfig, load("demo"))


@pytest.mark.parametrize(
    ("variant", "steps", "sequences"),
    [("64k", 8_599, 65_536 * 7_813), ("32k", 20_313, 32_768 * 15_625)],
)
def test_lamb_recipes_have_the_sequences_of_the_paper(variant, steps, sequences):
    """Nine tenths of the sequences are short."""
    built = build(f"bert_large_lamb:{variant}")
    assert built.total_steps == steps
    seen = [phase.steps * phase.batch_size for phase in built.phases]
    assert sum(seen) == pytest.approx(sequences, rel=1e-2)
    assert seen[0] / sum(seen) == pytest.approx(0.9, abs=2e-3)


@pytest.mark.parametrize(
    ("name", "tokens", "billions"),
    [
        # Table 2.
        ("nomicbert", 4_096 * 2_048, [839]),
        # Table 4, and 2.2.
        ("eurobert:210m", 9_437_184, [4_800, 200]),
        # Section 3.3, "Scale".
        ("neobert", 2**21, [2_097, 104.9]),
    ],
)
def test_steps_have_the_tokens_of_the_papers(name, tokens, billions):
    phases = build(name).phases
    assert {phase.batch_size * phase.length for phase in phases} == {tokens}
    seen = [phase.steps * tokens / 1e9 for phase in phases]
    assert seen == pytest.approx(billions, rel=1e-3)


def test_rows_of_one_segment_leave_out_no_text():
    """A short row drops the rest of its chunk."""
    for name in NAMES:
        objective = load(name).get("objective", {})
        if objective.get("segments") in config.SINGLE_SEGMENTS:
            assert objective.short_sequence_rate == 0, name


def test_ablations_change_their_objective_only():
    base = build("bert_base")
    for variant in ABLATIONS:
        lines = config.differences(base, build(f"bert_ablations:{variant}"), free=False)
        paths = {re.match(r"(number of )?\w+", line)[0] for line in lines} - {"phases"}
        changed = "number of phases" if variant == "mask_falling" else "objective"
        assert changed in paths
        assert paths <= {changed, "encoder"}, lines
    falling = build("bert_ablations:mask_falling")
    assert falling.total_steps == base.total_steps


# `test_golden.py` runs BERT-Base, and `test_relatives_runs.py` and `test_mixtures.py`
# other recipes. Miniatures and BERT-Large differ from BERT-Base in their shape only.
@pytest.mark.slow
@pytest.mark.parametrize("name", [f"bert_ablations:{name}" for name in ABLATIONS])
def test_recipes_run(name, corpus, tmp_path):
    cfg = load(name, "smoke")
    cfg.data.corpus = str(corpus.folder)
    cfg.phases = cfg.phases[:1]
    built = config.from_dict(config.PretrainConfig, cfg)
    pretraining.pretrain(built, str(tmp_path))
    assert_smoke_run(tmp_path)


def test_small_recipes_of_all_shapes_are_equal():
    small = [load(f"bert_miniature:{size}", "smoke") for size in ("tiny", "medium")]
    for cfg in (*small, load("bert_large", "smoke")):
        assert cfg == load("bert_base", "smoke")
