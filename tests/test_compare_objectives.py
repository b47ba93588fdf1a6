"""Comparison of objectives, with models and tasks of the smallest size."""

import json
import pathlib
import re

import glue_files
import pytest
import questions
import recipes

ROOT = pathlib.Path(__file__).parents[1]
OBJECTIVES = "bert", "xlnet"


@pytest.fixture
def comparison(monkeypatch):
    """The script, and the module with its runs."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import compare_objectives
    import comparison_runs

    return compare_objectives, comparison_runs


def test_encoders_differ_only_where_the_objective_requires(comparison):
    assert tuple(comparison[1].OBJECTIVES) == recipes.COMPARED
    bert = recipes.build("comparison:bert")
    for name in recipes.COMPARED:
        built = recipes.build(f"comparison:{name}")
        assert (built.phases, built.optimizer) == (bert.phases, bert.optimizer)
        own = {
            "left_to_right": ("causal",),
            "albert": ("embedding_size", "num_layer_groups"),
            "xlnet": ("positions",),
        }.get(name, ())
        for field, value in vars(bert.encoder).items():
            assert (getattr(built.encoder, field) != value) == (field in own), field


def make_data(folder):
    """A task of GLUE and SQuAD, as they are published."""
    (folder / "glue").mkdir()
    glue_files.download(folder / "glue", "mrpc")
    (folder / "squad").mkdir()
    asked = questions.CONTEXT, questions.QUESTIONS[:3]
    articles = [
        {"title": title, "paragraphs": [questions.paragraph(*asked, prefix=title)]}
        for title in "abc"
    ]
    (folder / "squad/dev-v1.1.json").write_text(json.dumps({"data": articles}))


@pytest.mark.runs
@pytest.mark.slow
def test_two_objectives_from_text_to_tables(comparison, corpus, tmp_path, capsys):
    """A second call repeats nothing."""
    script, _ = comparison
    make_data(tmp_path)
    output = tmp_path / "out"
    flags = [f"--corpus={corpus.folder}", f"--data={tmp_path}", f"--output={output}"]
    flags += ["--smoke", "--seeds=1", "--steps=4", "--rounds=1", "--timed_steps=2"]
    flags += [f"--objectives={','.join(OBJECTIVES)}", "--tasks=MRPC"]
    flags += ["--examples=4", f"--picture={tmp_path / 'picture.png'}"]
    script.main(flags)
    printed = capsys.readouterr().out
    # Nothing is missing. Two pretrainings with the same tokens, one with the same
    # compute, and random weights; each is fine-tuned in two ways.
    assert " - " not in printed
    seconds = json.loads((output / "seconds.json").read_text())
    assert seconds.keys() == set(OBJECTIVES) and min(seconds.values()) > 0
    ratio = seconds["bert"] / seconds["xlnet"]
    steps = round(4 * ratio) if abs(ratio - 1) >= 0.05 else 4
    results = list(output.glob("**/results.json"))
    assert len(results) == (2 + (steps != 4) + 1) * 2
    of_random = [f for f in results if f.is_relative_to(output / "random")]
    begun = [json.loads(f.read_text())["init_from"] == "random" for f in of_random]
    assert begun == [True] * 2
    table = printed.split("Pretraining, the same compute")[1]
    assert re.search(rf"\| XLNet \| {steps} \| ", table)
    frozen, full = (
        json.loads((output / f"tokens/bert/seed-0/MRPC-{mode}/config.json").read_text())
        for mode in ("frozen", "full")
    )
    assert (frozen["frozen"], full["frozen"]) == (True, False)
    before = {path: path.stat().st_mtime_ns for path in output.glob("**/*")}
    script.main(flags)
    assert capsys.readouterr().out == printed
    assert {path: path.stat().st_mtime_ns for path in output.glob("**/*")} == before
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_missing_runs_have_dashes_in_the_tables(comparison, corpus, tmp_path, capsys):
    script, _ = comparison
    seconds = {name: 1.0 for name in OBJECTIVES}
    (tmp_path / "seconds.json").write_text(json.dumps(seconds))
    flags = [f"--corpus={corpus.folder}", "--data=none", f"--output={tmp_path}"]
    script.main([*flags, f"--objectives={','.join(OBJECTIVES)}", "--do="])
    printed = capsys.readouterr().out
    assert "| XLNet | - | - | - | - | - | - | - |" in printed
    assert "| random weights | - | - | - | - | - | - |" in printed
