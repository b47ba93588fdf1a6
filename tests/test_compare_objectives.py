"""The comparison of objectives: its recipe, and two of them from text to tables."""

import json
import re

import compare_objectives as comparison
import pytest
import recipes


def test_encoders_differ_only_where_the_objective_requires():
    assert set(comparison.OBJECTIVES) == set(recipes.COMPARED)
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


@pytest.mark.runs
@pytest.mark.slow
def test_two_objectives_from_a_corpus_to_the_tables(corpus, tmp_path, capsys):
    """A second call repeats nothing."""
    pair = {"sentence_good": "the cat sat", "sentence_bad": "the sat cat"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    output = tmp_path / "out"
    flags = [
        f"--corpus={corpus.folder}",
        f"--output={output}",
        f"--pairs={tmp_path / 'pairs.jsonl'}",
        f"--picture={tmp_path / 'picture.png'}",
        "--objectives=bert,xlnet",
        *("--minutes=0.001", "--rounds=1", "--timed_steps=1", "--smoke"),
    ]
    comparison.main(flags)
    printed = capsys.readouterr().out
    seconds = json.loads((output / "step_seconds.json").read_text())["seconds"]
    for name, title in (("bert", "BERT"), ("xlnet", "XLNet")):
        steps = max(1, round(0.06 / seconds[name][0]))
        assert re.search(rf"\| {title} \| {steps:,} \| [\d.]+ \([\d.]+\) \| ", printed)
    before = {path: path.stat().st_mtime_ns for path in output.glob("**/*")}
    comparison.main(flags)
    assert capsys.readouterr().out == printed
    assert {path: path.stat().st_mtime_ns for path in output.glob("**/*")} == before
    assert (tmp_path / "picture.png").stat().st_size > 10_000
