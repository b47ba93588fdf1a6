"""The demo, shrunk, on a part of the documentation; its task and pictures."""

import dataclasses
import json

import numpy as np
import pytest
from commands import ROOT, assert_refused, call, succeed
from recipes import load

from bert_jax import config as config_lib
from bert_jax import prediction
from bert_jax.corpus import build, python_docs, shards, splits
from bert_jax.demo import demo, parameter_pairs, report
from bert_jax.demo.config import DemoConfig
from bert_jax.errors import UserError
from bert_jax.training import curves

PNG = b"\x89PNG"


def some_packages():
    """Return enough modules with numpydoc sections to hold some out."""
    names = ("matplotlib/c", "matplotlib/a", "numpy/lib/", "pydoc_data/")
    return [
        path
        for path in python_docs.source_files()
        if python_docs.module_name(path).startswith(names)
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a demo that was stopped before fine-tuning and continued."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    cfg = config_lib.from_dict(DemoConfig, load("demo", "smoke"))
    finetune = dataclasses.replace(cfg.finetune, reinit_layers=1)
    cfg = dataclasses.replace(cfg, repeats=1, finetune=finetune)
    with pytest.MonkeyPatch.context() as patch:
        paths = some_packages()
        patch.setattr(python_docs, "source_files", lambda: paths)
        # Other processes of a build would not see the patch.
        patch.setattr(build.os, "sched_getaffinity", lambda pid: {0})
        # A kill in the middle of a part leaves this.
        (folder / "task.tmp").mkdir(parents=True)
        (folder / "task.tmp/eval.tsv").write_text("text_a")
        with pytest.MonkeyPatch.context() as crash:
            crash.setattr(demo, "_finetune", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                demo.demo(cfg, str(folder))
        before = {p: p.stat().st_mtime_ns for p in made(folder)}
        text = demo.demo(cfg, str(folder))
    assert {p: p.stat().st_mtime_ns for p in before} == before
    return folder, cfg, text


def made(folder):
    """Return files that a continued demo must not write again."""
    return [
        *(p for p in (folder / "corpus").rglob("*") if p.is_file()),
        *(folder / "tokenizer").iterdir(),
        *(folder / "task").iterdir(),
        *(p for p in (folder / "pretrain/checkpoints").rglob("*") if p.is_file()),
    ]


@pytest.mark.runs
def test_results_and_pictures(finished):
    folder, cfg, text = finished
    results = report.Results(**json.loads((folder / "results.json").read_text()))
    assert {len(values) for values in results.accuracies.values()} == {cfg.repeats}
    assert results.train_examples == cfg.train_examples
    assert 0.4 < results.most_frequent_class < 0.6
    corpus = shards.open_corpus(folder / "corpus")
    assert results.documentation["held_out"] == corpus.count("held_out", "tokens")
    level = results.without_context
    assert 0 < level["mlm_loss"] < np.log(corpus.tokenizer.vocab_size)
    assert (folder / "curves.png").read_bytes().startswith(PNG)
    assert text == (folder / "report.txt").read_text()
    assert text.startswith(report.table(results))
    assert f"{results.held_out['mlm_loss']:.2f}" in text
    assert f"{level['mlm_loss']:.2f}  without context" in text
    assert f"{level['mlm_accuracy']:.1%}  without context" in text
    assert f"{100 * results.accuracies['random'][0]:.1f}" in text
    # Both initial weights see the same examples with the same seeds.
    configs = [
        json.loads((folder / f"finetune/{name}-0/config.json").read_text())
        for name in ("pretrained", "random")
    ]
    assert [c.pop("random_init") for c in configs] == [False, True]
    assert [c.pop("reinit_layers") for c in configs] == [1, 0]
    assert configs[0] == configs[1]


@pytest.mark.runs
def test_a_finished_demo_only_reports(finished, tmp_path):
    """Also in a folder that has been moved."""
    folder, _, text = finished
    moved = tmp_path / "moved"
    folder.rename(moved)
    recipe = (
        f"--config={ROOT}/bert_jax/demo/recipe.py:smoke",
        "--config.repeats=1",
        "--config.finetune.reinit_layers=1",
    )
    try:
        (moved / "curves.png").unlink()
        before = {p: p.stat().st_mtime_ns for p in made(moved)}
        done = succeed("demo", *recipe, f"--workdir={moved}")
        assert text in done.stdout and "next sentence, accuracy" in text
        assert {p: p.stat().st_mtime_ns for p in made(moved)} == before
        assert (moved / "curves.png").read_bytes().startswith(PNG)
    finally:
        moved.rename(folder)
    other = call("demo", *recipe, f"--workdir={folder}", "--config.vocab_size=600")
    assert_refused(other, "holds a run with another config (vocab_size")
    assert_refused(call("demo", *recipe), "--workdir is missing")


def test_a_report_without_next_sentence():
    single = {"mlm_loss": 3.0, "mlm_accuracy": 0.5}
    results = report.Results(
        documentation={"train": 1000, "held_out": 100},
        held_out=single,
        without_context={"mlm_loss": 5.0, "mlm_accuracy": 0.1},
        accuracies={"pretrained": [0.8], "random": [0.6]},
        most_frequent_class=0.5,
        train_examples=40,
        eval_examples=20,
    )
    got = report.table(results)
    assert "3.00" in got and "next sentence" not in got.partition("The task")[0]
    both = dataclasses.replace(results, held_out=single | {"nsp_accuracy": 0.625})
    expected = "next sentence, accuracy       62.5%                  50.0%  chance"
    assert expected in report.table(both)


def test_the_default_recipe_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("demo", f"--workdir={tmp_path / 'run'}", "--config.repeats=0")
    assert_refused(done, "repeats=0 must be at least 1")


@pytest.mark.runs
def test_blanks_of_the_model(finished):
    folder, _, _ = finished
    texts = ["The [MASK] of the [MASK] list.", "Returns [MASK]"]
    filled = prediction.load(str(folder / "pretrain")).fill(texts, top=4)
    assert [len(blanks) for blanks in filled] == [2, 1]
    described = report.describe_blanks(texts, filled)
    assert described.count("\n    ") == 3


# ---- the task

CAUSAL_LM = config_lib.to_configdict(config_lib.CausalLmConfig())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 10}, "vocab_size=10 must be at least 300"),
        ({"finetune.init_from": "x"}, "init_from='x': the demo sets this field"),
        ({"finetune.repeats": 3}, "finetune.repeats=3: set repeats instead"),
        ({"finetune.keep_best": "f1"}, "keep_best='f1' must be one of loss, cl"),
        ({"finetune.reinit_layers": 3}, "reinit_layers=3 is more than pretrain"),
        (
            {"finetune.reinit_layers": 2, "pretrain.encoder.num_layer_groups": 1},
            "reinit_layers=2 is more than pretrain.encoder.num_distinct_layers=1",
        ),
        ({"finetune.task.length": 129}, "task.length=129 is more than pre"),
        ({"finetune.task.text_a": "x"}, "text_a='x': the demo sets this fie"),
        ({"finetune.task.target": "number"}, "the demo's task has classes"),
        (
            {"pretrain.objective": CAUSAL_LM, "pretrain.encoder.causal": True},
            "pretrain.objective.kind=.*: the demo needs 'masked_lm'",
        ),
        (
            {"finetune.task": config_lib.to_configdict(config_lib.TaggingConfig())},
            "finetune.task.kind=.*: the demo needs 'classification'",
        ),
    ],
)
def test_wrong_demo_configs_are_refused(change, message):
    cfg = load("demo")
    cfg.update_from_flattened_dict(change)
    with pytest.raises(UserError, match=message):
        config_lib.from_dict(DemoConfig, cfg)


def test_a_demo_keeps_the_config_of_its_tokenizer(tmp_path):
    """Also if it was stopped before pretraining."""
    cfg = config_lib.from_dict(DemoConfig, load("demo", "smoke"))
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(config_lib.to_dict(cfg)))
    other = dataclasses.replace(cfg, vocab_size=900)
    with pytest.raises(UserError, match="another config .vocab_size: was 500, is now"):
        demo.demo(other, str(tmp_path))
    with pytest.raises(UserError, match="gs://b/demo: the demo needs a local folder"):
        demo.demo(cfg, "gs://b/demo")


def write_module(folder, name, functions):
    lines = []
    for i, (summary, descriptions) in enumerate(functions):
        body = [f'def f{i}():\n    """{summary}\n\n    Parameters\n    ----------']
        body += [f"    p{j} : int\n        {d}" for j, d in enumerate(descriptions)]
        lines.append("\n".join([*body, '    """']))
    (folder / name).write_text("\n\n".join(lines) + "\n")
    return str(folder / name)


def test_labels_of_pairs_are_true(tmp_path):
    def text(*words):
        return " ".join((*words, "and a few words more to be prose"))

    home = {}
    paths = []
    for m in range(40):
        functions = []
        for f in range(3):
            summary = text("module", "abcdefghij"[m % 10] * (m // 10 + 1), "xyz"[f])
            name, letter = summary.split()[1:3]
            descriptions = [text("value", name, letter, d) for d in ("u", "v")]
            functions.append((summary, descriptions))
            home |= dict.fromkeys(descriptions, (summary, m))
        paths.append(write_module(tmp_path, f"m{m}.py", functions))
    train, held_out = parameter_pairs.collect(paths, 0.3)
    assert len(train) + len(held_out) == len(home) == 240
    assert 20 < len(held_out) < 120
    module_of = {summary: m for summary, m in home.values()}
    for examples in (train, held_out):
        labels = [example.label for example in examples]
        assert abs(labels.count(parameter_pairs.SAME) - len(labels) / 2) <= 1
        for example in examples:
            summary, module = home[example.text_b]
            same = example.label == parameter_pairs.SAME
            assert (example.text_a == summary) == same
            assert (module_of[example.text_a] == module) == same
    # Whole modules are held out, the same as in a corpus.
    out = {home[example.text_b][1] for example in held_out}
    assert out.isdisjoint(home[example.text_b][1] for example in train)
    for m, path in enumerate(paths):
        [document] = python_docs.read_module(path, print)
        assert splits.is_held_out(document, 0.3) == (m in out)
    # A description that a training module has copied is not held out.
    copied = held_out[0].text_b
    copy = (home[train[0].text_b][0], [copied])
    more = [("Filling", [text("filling", c, d) for d in "uvwx"]) for c in "abcdefgh"]
    modules = (write_module(tmp_path, f"{i}.py", [copy, m]) for i, m in enumerate(more))
    path = next(
        path
        for path in modules
        if not splits.is_held_out(*python_docs.read_module(path, print), 0.3)
    )
    _, fewer = parameter_pairs.collect([*paths, path], 0.3)
    assert copied not in {e.text_b for e in fewer}
    # The order of the files has no influence.
    assert parameter_pairs.collect(paths[::-1], 0.3) == (train, held_out)


# ---- pictures


def record(step, split, **values):
    return {"step": step, "split": split, **values}


def test_curves_show_the_records():
    records = [
        record(1, "train", mlm_loss=3.0, learning_rate=0.1, sequences_per_sec=5.0),
        record(2, "train", mlm_loss=2.0, learning_rate=0.2, sequences_per_sec=6.0),
        record(2, "eval", mlm_loss=2.5),
    ]
    runs = [[record(4, "eval", accuracy=a)] for a in (0.5, 0.7)]
    runs[0].insert(0, record(2, "eval", accuracy=0.4))  # another `eval_every`
    picture = curves.draw(
        records, "T", baselines={"mlm_loss": (2.2, "known")}, finetuned={"one": runs}
    )
    by_label = {axis.get_ylabel(): axis for axis in picture.axes}
    assert list(by_label) == [
        "loss (nats)",
        "learning rate",
        "sequences per second",
        "accuracy, fine-tuned",
    ]
    lines = {ln.get_label(): ln for ln in by_label["loss (nats)"].lines}
    assert lines["masked tokens, training"].get_ydata().tolist() == [3.0, 2.0]
    assert lines["masked tokens, held out"].get_xdata().tolist() == [2]
    assert set(lines["known"].get_ydata()) == {2.2}
    [mean] = by_label["accuracy, fine-tuned"].lines
    assert mean.get_ydata().tolist() == [pytest.approx(0.6)]
