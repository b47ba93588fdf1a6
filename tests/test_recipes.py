"""Every recipe that ships, as it is and shrunk to seconds."""

import dataclasses

import pytest
from commands import assert_refused, call
from recipes import (
    ABLATIONS,
    FILES,
    NAMES,
    build,
    differences,
    load,
    module,
    read_record,
    record,
)
from runs import metrics

from bert_jax import config, knobs, pretraining
from bert_jax.errors import UserError


def test_recipes_resolve_to_what_is_on_record():
    """A changed default shows up as a changed line of the file."""
    made, stored = record(), read_record()
    for name, lines in made.items():
        assert lines == stored.get(name), name
    assert made.keys() == stored.keys()
    assert {name.partition(":")[0] for name in NAMES} == FILES.keys()


def test_a_new_field_touches_no_recipe():
    """And a field that a recipe sets, whatever its type, is on record."""
    base = build("bert_base")
    extended = dataclasses.make_dataclass(
        "PretrainConfig",
        [("new", int, 7)],
        bases=(config.PretrainConfig,),
        frozen=True,
        kw_only=True,
    )
    fields = {f.name: getattr(base, f.name) for f in dataclasses.fields(base)}
    assert differences(extended(**fields)) == differences(base)
    assert differences(extended(**fields, new=8)) == [*differences(base), "new: 8"]
    mixed = config.DataConfig(weights=(0.5, 1.0))
    tokens = config.ReplacedTokensConfig(generator_size=0.5)
    default = config.PhaseConfig()
    changed = dataclasses.replace(
        config.PretrainConfig(), objective=tokens, data=mixed, phases=(default,)
    )
    assert differences(changed) == [
        "kind: 'pretraining'",
        "objective: ReplacedTokensConfig",
        "objective.generator_size: 0.5",
        "data.weights: (0.5, 1.0)",
        "phases[0]: PhaseConfig",
    ]


@pytest.mark.parametrize("file", FILES)
def test_recipes_say_source_command_and_cost(file):
    text = module(file).__doc__
    for word in ("Source:", "Run:", "Cost:", "Smoke:", FILES[file].name):
        assert word in text
    with pytest.raises(UserError, match="argument 'huge' of the recipe: "):
        module(file).get_config("huge")


def test_variants_of_recipes():
    with pytest.raises(UserError, match="argument '' of .* one of tiny, mini, small, "):
        load("bert_miniature")
    assert load("bert_miniature", "smoke") == load("bert_miniature:tiny", "smoke")
    assert load("bert_miniature:small").encoder.hidden_size == 512
    with pytest.raises(UserError, match="argument 'x' of .* there is only 'smoke'"):
        load("bert_base:x")
    text = module("bert_ablations").__doc__
    assert all(f"        {variant} " in text for variant in ABLATIONS)


def test_recipes_of_other_programs():
    with pytest.raises(UserError, match="config for 'demo', not 'pretraining'"):
        knobs.from_configdict(config.PretrainConfig, load("demo"))


def test_base_and_large_are_the_papers():
    for name in ("bert_base", "bert_large"):
        built = build(name)
        assert built.total_steps == 1_000_000
        assert [p.length for p in built.phases] == [128, 512]
        assert built.phases[0].steps == 900_000
        assert {p.batch_size for p in built.phases} == {256}
        warmup = built.optimizer.warmup_fraction * built.total_steps
        assert warmup == pytest.approx(10_000)
        assert built.optimizer.learning_rate == 1e-4
        masking = built.objective.masking
        assert [masking.predictions(p.length) for p in built.phases] == [20, 77]


def test_xlnets_are_the_papers():
    for size, like in (("base", "bert_base"), ("large", "bert_large")):
        built, bert = build(f"xlnet:{size}"), build(like)
        shape = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
        for field in shape:
            assert getattr(built.encoder, field) == getattr(bert.encoder, field)
        assert built.encoder.positions == "relative"
        assert [p.length for p in built.phases] == [512]
        assert built.objective.predictions(512) == 85
    warmup = built.optimizer.warmup_fraction * built.total_steps
    assert (built.total_steps, warmup) == (500_000, pytest.approx(40_000))
    assert built.phases[0].batch_size == 8192


@pytest.mark.parametrize(
    ("variant", "steps", "sequences"),
    [("64k", 8_599, 65_536 * 7_813), ("32k", 20_313, 32_768 * 15_625)],
)
def test_lamb_sees_the_sequences_of_its_authors(variant, steps, sequences):
    """And nine tenths of them are short."""
    built = build(f"bert_large_lamb:{variant}")
    assert built.total_steps == steps
    seen = [phase.steps * phase.batch_size for phase in built.phases]
    assert sum(seen) == pytest.approx(sequences, rel=1e-2)
    assert seen[0] / sum(seen) == pytest.approx(0.9, abs=2e-3)
    large = build("bert_large")
    assert built.encoder == large.encoder and built.objective == large.objective


def test_roberta_is_the_paper_s():
    """Liu et al. 2019, table 9; and what fairseq has that the paper does not say."""
    table = {"base": (12, 768, 12, 3072, 24e3, 6e-4),
             "large": (24, 1024, 16, 4096, 30e3, 4e-4)}  # fmt: skip
    for variant, (*shape, warmup, rate) in table.items():
        built = build(f"roberta:{variant}")
        e, o, (phase,) = built.encoder, built.optimizer, built.phases
        assert shape == [e.num_layers, e.hidden_size, e.num_heads, e.intermediate_size]
        assert (e.dropout_rate, e.attention_dropout_rate) == (0.1, 0.1)
        assert (e.activation, e.layer_norm_epsilon) == ("gelu_erf", 1e-5)
        assert e.type_vocab_size == 0
        assert (phase.steps, phase.batch_size, phase.length) == (500_000, 8192, 512)
        assert phase.micro_batches > 1
        assert o.warmup_fraction * phase.steps == pytest.approx(warmup)
        assert (o.learning_rate, o.weight_decay, o.epsilon) == (rate, 0.01, 1e-6)
        assert (o.beta1, o.beta2, o.clip_norm) == (0.9, 0.98, 0.0)
        assert (o.schedule, o.bias_correction) == ("linear", True)
        assert built.objective == build("bert_ablations:fairseq").objective


def test_multilingual_is_the_authors():
    """BERT-Base on corpora whose sizes count to the power of 0.7."""
    built, base = build("multilingual"), build("bert_base")
    lines = knobs.differences(base, built, free=False)
    assert lines == ["data.weight_exponent: was 1.0, is now 0.7"]


@pytest.mark.slow
def test_roberta_runs(byte_bpe_corpus, tmp_path):
    """On a corpus of its kind of tokenizer, with accumulation, and fills blanks."""
    cfg = load("roberta:base", "smoke")
    cfg.data.corpus = str(byte_bpe_corpus.folder)
    built = knobs.from_configdict(config.PretrainConfig, cfg)
    assert built.phases[0].micro_batches == 2
    state, resolved_config = pretraining.pretrain(built, str(tmp_path))
    assert int(state.step) == resolved_config.total_steps == 3
    assert resolved_config.encoder.vocab_size == byte_bpe_corpus.tokenizer.vocab_size
    assert 6 < metrics(tmp_path)[-1]["loss"] < 8
    for blank in ("<mask>", "[MASK]"):
        done = call("fill_mask", f"--init_from={tmp_path}", f"The {blank} is not.")
        assert done.returncode == 0, done.stderr
        first, *guesses = done.stdout.splitlines()
        assert first == f"The {blank} is not." and len(guesses) == 5
        assert all(line.split()[0].isalpha() for line in guesses)
    done = call("fill_mask", f"--init_from={tmp_path}", "The end is not.")
    assert_refused(done, "there is no [MASK] in 'The end is not.'")
    done = call("convert", f"--input={tmp_path}", f"--output={tmp_path / 'out'}")
    assert "RobertaForMaskedLM, 42 arrays; missing: 0, ignored: 0" in done.stderr
    assert {"vocab.json", "merges.txt"} <= {
        p.name for p in (tmp_path / "out").iterdir()
    }


def test_ablations_differ_in_what_they_say():
    base = build("bert_base")
    for variant in ABLATIONS:
        lines = knobs.differences(base, build(f"bert_ablations:{variant}"), free=False)
        paths = {line.split(":")[0].split(".")[0] for line in lines}
        changed = "phases" if variant == "mask_falling" else "objective"
        assert changed in paths
        assert paths <= {changed, "encoder"}, lines
    falling = build("bert_ablations:mask_falling")
    assert falling.total_steps == base.total_steps
    rates = [phase.masking_rate for phase in falling.phases]
    assert rates == [0.3, 0.25, 0.2, 0.0]


# The miniatures, Base and Large differ in their shape alone, which smoke replaces, and
# `test_golden.py` runs Base, in both of its phases. `test_relatives_runs.py` and
# `test_mixtures.py` run others.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"bert_ablations:{variant}", marks=pytest.mark.slow)
        for variant in ABLATIONS
    ],
)
def test_recipes_run(name, corpus, tmp_path):
    """The first phase, with evaluation and checkpoints, on eight devices."""
    cfg = load(name, "smoke")
    cfg.data.corpus = str(corpus.folder)
    cfg.phases = cfg.phases[:1]
    built = knobs.from_configdict(config.PretrainConfig, cfg)
    state, resolved_config = pretraining.pretrain(built, str(tmp_path))
    assert int(state.step) == resolved_config.total_steps == 3
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"2", "3"}
    records = metrics(tmp_path)
    assert [(r["split"], r["step"]) for r in records] == [
        ("train", 1),
        ("train", 2),
        ("eval", 2),
        ("train", 3),
        ("eval", 3),
    ]
    (loss,) = (value for key, value in records[-1].items() if key.endswith("lm_loss"))
    assert 5.3 < loss < 8.3


def test_shapes_differ_in_nothing_that_smoke_keeps():
    small = [load(f"bert_miniature:{size}", "smoke") for size in ("tiny", "medium")]
    for cfg in (*small, load("bert_large", "smoke")):
        assert cfg == load("bert_base", "smoke")
