"""Several runs in one picture and one table."""

import json

import pytest
from commands import assert_refused, call

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.training import comparison, curves


def write_run(folder, rate, phases, records):
    folder.mkdir(parents=True)
    config = {
        "kind": "pretraining",
        "seed": 0,
        "optimizer": {"learning_rate": rate, "name": "adamw"},
        "phases": [{"steps": steps} for steps in phases],
    }
    (folder / "config.json").write_text(json.dumps(config))
    lines = [
        {"step": step, "split": split, "loss": loss, "mlm_loss": loss, "goodput": 0.5}
        for step, split, loss in records
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return storage.path(folder)


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


def test_the_picture_has_the_curves_of_all(workdirs):
    runs = {run.name: run.records for run in comparison.read(workdirs)}
    (axis,) = curves.compare(runs).axes
    assert axis.get_ylabel() == "masked tokens, loss (nats)"
    assert [text.get_text() for text in axis.get_legend().get_texts()] == list(runs)
    drawn = [line.get_xydata().tolist() for line in axis.lines if len(line.get_xdata())]
    assert drawn == [[[1, 9.0], [2, 8.0]], [[2, 8.5]], [[1, 7.25]]]
    with pytest.raises(UserError, match="one have no losses or accuracies to plot"):
        curves.compare({"one": [{"step": 1, "split": "train", "goodput": 0.5}]})


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
    assert_refused(
        call("report", f"--workdir={first}", first), f"{first} is given twice"
    )
    (workdirs[1] / "config.json").unlink()
    done = call("report", f"--workdir={first}", second)
    assert_refused(done, f"cannot read {second}/config.json")
