"""The speedrun and the comparison of objectives: recipes, and short runs of both."""

import dataclasses
import json
import re

import compare_objectives
import pytest
import recipes
import saved
import speedrun

from bert_jax import config
from bert_jax.errors import UserError
from bert_jax.objectives import masked_lm


def test_each_row_has_its_change_only(corpus, tmp_path):
    """The recipe is a row of the table."""
    encoder = dataclasses.replace(
        recipes.build("speedrun").encoder, vocab_size=corpus.tokenizer.vocab_size
    )
    saved.save(tmp_path, masked_lm.MaskedLm(encoder), corpus.tokenizer)
    values = speedrun.parse(
        [f"--corpus={corpus.folder}", "--output=none", f"--teacher={tmp_path}"]
    )
    built = {
        name: speedrun.recipe_of(
            name, [100] * len(speedrun.changes_of(name)["phases"]), 0, values
        )
        for name in speedrun.ROWS
    }
    for name, (parent, changes) in speedrun.ROWS.items():
        if parent and "phases" not in changes:
            lines = config.differences(built[parent], built[name], free=False)
            assert {line.split(":")[0] for line in lines} == changes.keys()
    phase = built["short rows first"].phases[0]
    assert (phase.length, phase.batch_size) == (32, 32)
    recipe, winner = recipes.build("speedrun"), built[speedrun.WINNER]
    assert recipe.optimizer == winner.optimizer
    assert recipe.objective == winner.objective
    assert recipe.encoder == dataclasses.replace(winner.encoder, vocab_size=0)
    phases = tuple(dataclasses.replace(phase, steps=100) for phase in recipe.phases)
    assert phases == winner.phases


def test_runs_in_a_folder_share_their_settings(tmp_path, monkeypatch):
    pairs = tmp_path / "blimp.jsonl"
    pairs.write_text('{"sentence_good": "a", "sentence_bad": "b"}')
    machine = {"seconds": 1.0}
    monkeypatch.setattr(speedrun, "timed", lambda *_: lambda: machine["seconds"])

    def seconds(*flags, names=("BERT",)):
        flags = "--corpus=corpus", f"--output={tmp_path}", *flags
        return speedrun.measure(names, lambda name: [None], speedrun.parse(flags))

    assert seconds("--steps=40", "--rows=BERT") == {"BERT": [1.0]}
    taught = "BERT", "with a teacher"
    machine["seconds"] = 2.0  # slower: times are scaled to those that are known
    measured = seconds("--steps=40", "--teacher=one", names=taught)
    assert measured == {"BERT": [1.0], "with a teacher": [1.0]}
    assert seconds("--steps=40", "--rows=", "--seeds=3").keys() == {*taught}
    for flag in ("--steps=41", "--smoke", f"--pairs={pairs}", "--teacher=other"):
        name = flag.removeprefix("--").split("=")[0]
        with pytest.raises(UserError, match=rf"--{name}=.*; give another --output$"):
            seconds("--steps=40", flag)


def test_a_picture_needs_a_row(capsys):
    with pytest.raises(SystemExit, match="2"):
        speedrun.parse(["--corpus=c", "--output=o", "--rows=", "--picture=p.png"])
    assert "--picture shows --rows" in capsys.readouterr().err


def test_encoders_differ_only_where_the_objective_requires():
    assert set(compare_objectives.OBJECTIVES) == set(recipes.COMPARED)
    bert = recipes.build("comparison:bert")
    assert bert.encoder.positions == "rotary"
    for name in recipes.COMPARED:
        built = recipes.build(f"comparison:{name}")
        assert (built.phases, built.optimizer) == (bert.phases, bert.optimizer)
        own = {
            "absolute": ("positions",),
            "left_to_right": ("causal",),
            "albert": ("embedding_size", "num_layer_groups"),
            "xlnet": ("positions",),
        }.get(name, ())
        for field, value in vars(bert.encoder).items():
            assert (getattr(built.encoder, field) != value) == (field in own), field


# ---- from a corpus to the tables


@pytest.fixture
def run_twice(corpus, tmp_path, capsys):
    """Return a function that calls a program twice; the second call repeats nothing."""
    pair = {"sentence_good": "the cat sat", "sentence_bad": "the sat cat"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    output = tmp_path / "out"

    def run(program, *flags):
        given = [
            f"--corpus={corpus.folder}",
            f"--output={output}",
            f"--pairs={tmp_path / 'pairs.jsonl'}",
            f"--picture={tmp_path / 'picture.png'}",
            *("--rounds=1", "--timed_steps=1", "--smoke"),
            *flags,
        ]
        program.main(given)
        printed = capsys.readouterr().out
        before = {path: path.stat().st_mtime_ns for path in output.glob("**/*")}
        program.main(given)
        assert capsys.readouterr().out == printed
        after = {path: path.stat().st_mtime_ns for path in output.glob("**/*")}
        assert after == before
        assert (tmp_path / "picture.png").stat().st_size > 10_000
        return printed

    return run


@pytest.mark.slow
def test_two_objectives(run_twice, tmp_path):
    flags = "--objectives=bert,xlnet", "--minutes=0.001"
    printed = run_twice(compare_objectives, *flags)
    seconds = json.loads((tmp_path / "out/step_seconds.json").read_text())["seconds"]
    for name, title in (("bert", "BERT"), ("xlnet", "XLNet")):
        steps = max(1, round(0.06 / seconds[name][0]))
        assert re.search(rf"\| {title} \| {steps:,} \| [\d.]+ \([\d.]+\) \| ", printed)


@pytest.mark.slow
def test_two_rows_of_the_speedrun(run_twice):
    printed = run_twice(speedrun, "--rows=BERT,short rows first", "--steps=4")
    rows = [line.split(" | ")[0] for line in printed.splitlines()[2:]]
    assert rows == ["| BERT", "| short rows first"]
