"""Pictures and tables of runs."""

import io
import json

import pytest
from commands import assert_refused, call

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.training import comparison, curves, reporting


def write_run(folder, rate, phases, records):
    folder.mkdir(parents=True)
    config = {
        "kind": "pretraining",
        "seed": 0,
        "optimizer": {"learning_rate": rate, "name": "adamw"},
        "phases": [{"steps": steps} for steps in phases],
    }
    (folder / "config.json").write_text(json.dumps(config))
    more = {"train": {"goodput": 0.5}, "eval": {"padding_fraction": 0.5}}
    lines = [
        {"step": step, "split": split, "loss": loss, "mlm_loss": loss, **more[split]}
        for step, split, loss in records
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return storage.path(folder)


def test_each_corpus_has_a_row(workdirs):
    for folder, names in zip(workdirs, ("a/en,b/de", "a/en,c/fr"), strict=True):
        config = json.loads((folder / "config.json").read_text())
        config["data"] = {"corpus": names, "fingerprint": names[-1]}
        (folder / "config.json").write_text(json.dumps(config))
    lines = comparison.table(comparison.read(workdirs)).splitlines()
    shown = [line.split() for line in lines if line.startswith("data")]
    assert shown == [
        ["data.fingerprint", '"e"', '"r"'],
        ["data.corpus[1]", '"b/de"', '"c/fr"'],
    ]


@pytest.fixture
def workdirs(tmp_path):
    one = [(1, "train", 9.0), (2, "train", 8.0), (2, "eval", 8.5)]
    return [
        write_run(tmp_path / "one", 1e-3, [2], one),
        write_run(tmp_path / "second", 5e-4, [1, 2], [(1, "train", 7.25)]),
    ]


def test_the_table_has_what_differs_and_the_last_numbers(workdirs):
    lines = comparison.table(comparison.read(workdirs)).splitlines()
    assert [line.split() for line in lines] == [
        ["one", "second"],
        ["optimizer.learning_rate", "0.001", "0.0005"],
        ["phases[0].steps", "2", "1"],
        ["phases[1].steps", "-", "2"],
        [],
        ["held", "out,", "step", "2", "-"],
        ["held", "out,", "loss", "8.5", "-"],
        ["held", "out,", "mlm_loss", "8.5", "-"],
        ["training,", "step", "-", "1"],
        ["training,", "loss", "-", "7.25"],
        ["training,", "mlm_loss", "-", "7.25"],
    ]
    # Columns are flush right.
    assert {len(line) for line in lines if line} == {len(lines[0])}


def test_table_and_terminal_have_the_score_of_keep_best(tmp_path, capsys):
    for name, score in (("a", 0.5), ("b", 0.625)):
        folder = write_run(tmp_path / name, 1e-3, [2], [])
        values = {"loss": 1.0, "macro_f1": score, "padding_fraction": 0.25}
        with reporting.Reporter(folder, 5, 0) as reporter:
            reporter.write(5, "eval", values)
        said = capsys.readouterr().err
        assert f"eval step 5/5  loss 1  macro_f1 {score}\n" in said
    runs = comparison.read([tmp_path / "a", tmp_path / "b"])
    lines = [line.split() for line in comparison.table(runs).splitlines()]
    assert lines[-1] == ["held", "out,", "macro_f1", "0.5", "0.625"]


def test_the_picture_has_the_curves_of_all(workdirs):
    runs = {run.name: run.records for run in comparison.read(workdirs)}
    (axis,) = curves.compare(runs).axes
    assert axis.get_ylabel() == "masked tokens, loss (nats)"
    assert legend(axis) == [*runs, "training", "held out"]
    drawn = [line.get_xydata().tolist() for line in axis.lines if len(line.get_xdata())]
    assert drawn == [[[1, 9.0], [2, 8.0]], [[2, 8.5]], [[1, 7.25]]]
    none = [{"step": 1, "split": "train", "padding_fraction": 0.5}]
    with pytest.raises(UserError, match="one have no losses or accuracies to plot"):
        curves.compare({"one": none})
    with pytest.raises(UserError, match="one has no metrics to plot"):
        curves.draw(none, "one")


def test_panels_have_units_and_the_baselines_of_their_corpus():
    """Each corpus of a mixture has a unigram entropy of its own."""
    values = {"regression_loss": 2.0, "mlm_loss": 5.0, "de/mlm_loss": 4.0}
    values |= {"mlm_loss_without_context": 5.5, "unigram_entropy": 6.0}
    values |= {"de/mlm_loss_without_context": 4.5, "de/unigram_entropy": 4.75}
    record = {"step": 1, "split": "eval", **values}
    squares, mixed, german = curves.compare({"run": [record]}).axes
    assert squares.get_ylabel() == "regression loss"
    assert german.get_ylabel().endswith("(nats)")
    for axis, levels in ((mixed, [5.5, 6.0]), (german, [4.5, 4.75])):
        flat = [line.get_ydata() for line in axis.lines if len(line.get_ydata()) == 2]
        assert [list(line) for line in flat] == [[level] * 2 for level in levels]
    trained = {"step": 1, "split": "train", "regression_loss": 2.0}
    assert curves.draw([trained], "run").axes[0].get_ylabel() == "loss"


def test_names_of_folders_with_dollar_signs_are_drawn_as_they_are():
    record = {"step": 1, "split": "train", "mlm_loss": 5.0}
    curves.draw([record], "a$1^$").savefig(io.BytesIO())


def test_many_runs_have_a_color_each_and_room_for_their_legend():
    record = {"step": 1, "split": "eval", "mlm_loss": 5.0}
    picture = curves.compare({f"a$1^$ {i}": [record] for i in range(40)})
    picture.savefig(io.BytesIO())  # warns if the panel has no room
    (axis,) = picture.axes
    colors = {str(line.get_color()) for line in axis.lines if len(line.get_xdata())}
    assert len(colors) == 40


def test_only_the_first_corpora_have_panels():
    corpora = [f"a$^$ {i}/mlm_loss" for i in range(100)]
    record = {"step": 1, "split": "eval", "mlm_loss": 5.0, **dict.fromkeys(corpora, 4)}
    picture = curves.compare({"one": [record], "two": [record]})
    assert len(picture.axes) == 1 + 6
    picture.savefig(io.BytesIO())


def test_runs_of_one_name_are_told_apart_by_their_folders(workdirs, tmp_path):
    namesake = write_run(tmp_path / "more/one", 1e-3, [2], [(1, "train", 1.0)])
    names = [run.name for run in comparison.read([workdirs[0], namesake])]
    assert names == [str(workdirs[0]), str(namesake)]


def test_from_the_command_line(workdirs, tmp_path):
    output = tmp_path / "compared.png"
    first, second = map(str, workdirs)
    done = call("report", f"--workdir={first}", second, f"--output={output}")
    assert done.stdout == comparison.table(comparison.read(workdirs)) + "\n"
    assert output.read_bytes().startswith(b"\x89PNG")
    assert_refused(call("report", f"--workdir={first}", first), "is given twice")
    write_run(tmp_path / "seeds/seed-1", 1e-3, [2], [(1, "train", 1.0)])
    for others in ((), (first,)):
        refused = call("report", f"--workdir={tmp_path}/seeds", *others)
        assert_refused(refused, f"holds 1 runs; give some of them, such as {tmp_path}/")
    # A file without an ending, a new folder, and an existing one.
    for name, end in (("a", ".png"), ("new/", "curves.png"), ("seeds", "/curves.png")):
        done = call("report", f"--workdir={first}", f"--output={tmp_path}/{name}")
        assert done.stderr.endswith(f"wrote {tmp_path}/{name}{end}\n")
        assert (tmp_path / f"{name}{end}").read_bytes().startswith(b"\x89PNG")
    for place, message in (
        ("gs://bucket", "--output=gs://bucket/a.png must be a local file"),
        (output, f"{output} is a file or a broken link; give a folder"),
    ):
        refused = call("report", f"--workdir={first}", f"--output={place}/a.png")
        assert_refused(refused, message)
    (workdirs[1] / "config.json").unlink()
    done = call("report", f"--workdir={first}", second)
    assert_refused(done, f"cannot read {second}/config.json: No such file or directory")


# ---- baselines


def records_of(entropy, loss, accuracy, name="mlm"):
    metric = f"{name}_loss", f"{name}_accuracy"
    trained = {"split": "train", metric[0]: 7.0, metric[1]: 0.1, "nsp_loss": 0.7}
    evaluated = {
        "split": "eval",
        metric[0]: 6.0,
        metric[1]: 0.2,
        "nsp_loss": 0.6,
        "unigram_entropy": entropy,
        f"{metric[0]}_without_context": loss,
        f"{metric[1]}_without_context": accuracy,
    }
    return [{"step": 1, **trained}, {"step": 2, **trained}, {"step": 2, **evaluated}]


def horizontal(axis):
    """Return the heights of horizontal lines by label."""
    return {
        line.get_label(): line.get_ydata()[0]
        for line in axis.lines
        if list(line.get_xdata()) == [0, 1]
    }


def legend(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_the_picture_of_a_run_has_its_baselines():
    loss, accuracy = curves.draw(records_of(6.4, 5.8, 0.15), "T").axes
    assert horizontal(loss) == {"unigram entropy": 6.4, "without context": 5.8}
    assert horizontal(accuracy) == {"without context": 0.15}
    assert {"unigram entropy", "without context"} <= set(legend(loss))
    # For left-to-right models, the two baselines are equal.
    loss, _ = curves.draw(records_of(6.4, 6.4, 0.06, name="lm"), "T").axes
    assert horizontal(loss) == {"unigram entropy": 6.4}
    # Records of earlier versions have no baselines.
    before = [
        {k: v for k, v in r.items() if "context" not in k and "entropy" not in k}
        for r in records_of(6.4, 5.8, 0.15)
    ]
    assert all(not horizontal(axis) for axis in curves.draw(before, "T").axes)


def test_the_picture_of_a_mixture_has_each_corpus():
    *trained, evaluated = records_of(6.4, 5.8, 0.15)
    evaluated |= {"en/mlm_loss": 5.5, "a/de/mlm_loss": 6.5, "en/mlm_accuracy": 0.25}
    evaluated |= {"en/unigram_entropy": 6.1, "en/mlm_loss_without_context": 6.0}
    loss, accuracy = curves.draw([*trained, evaluated], "T").axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in loss.lines}
    assert drawn["masked tokens, held out"] == [6.0]
    assert drawn["masked tokens, en"] == [5.5]
    assert drawn["masked tokens, a/de"] == [6.5]
    assert {"masked tokens, en", "masked tokens, held out"} <= set(legend(accuracy))
    assert horizontal(loss) == {"unigram entropy": 6.4, "without context": 5.8}
    evaluated |= {f"language{i}/mlm_loss": 6.0 for i in range(9)}
    loss, _ = curves.draw([*trained, evaluated], "T").axes
    assert sum("language" in label for label in legend(loss)) == 4  # six with two above


def test_picture_and_table_of_several_runs_have_all_baselines():
    runs = {"a": records_of(6.4, 5.8, 0.15), "b": records_of(6.3, 5.7, 0.15)}
    loss, accuracy, nsp = curves.compare(runs).axes
    heights = [
        line.get_ydata()[0] for line in loss.lines if list(line.get_xdata()) == [0, 1]
    ]
    assert sorted(heights) == [5.7, 5.8, 6.3, 6.4]
    shown = ["a", "b", "training", "held out"]
    assert legend(loss) == [*shown, "without context", "unigram entropy"]
    assert legend(accuracy) == [*shown, "without context"]
    assert legend(nsp) == shown
    compared = [comparison.ComparedRun(name, {}, r) for name, r in runs.items()]
    lines = [line.split() for line in comparison.table(compared).splitlines()]
    assert ["held", "out,", "unigram_entropy", "6.4", "6.3"] in lines
    assert ["held", "out,", "mlm_loss_without_context", "5.8", "5.7"] in lines
