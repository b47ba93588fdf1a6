"""Files of GLUE: small ones of each task, and real ones where available."""

import uuid

import fsspec
import numpy as np
import pytest
from commands import shared_data
from glue_files import HEADERS, download, rows, write

from bert_jax import config as config_lib
from bert_jax import finetuning, storage
from bert_jax.errors import UserError
from bert_jax.tasks import classification, glue
from bert_jax.tasks.labelled_texts import Example

METRICS = {
    "cola": {"matthews"},
    "mrpc": {"f1", "accuracy"},
    "qqp": {"f1", "accuracy"},
    "stsb": {"pearson", "spearman"},
}


WORDS = {
    "stsb": ["0.000", "3.142", "5.000"],
    "mnli": ["entailment", "contradiction", "contradiction"],
    "qnli": ["not_entailment", "entailment", "entailment"],
    "rte": ["not_entailment", "entailment", "entailment"],
}


@pytest.mark.parametrize("task", config_lib.GLUE)
def test_every_task_is_read_scored_and_submitted(task, tmp_path, wordpiece):
    """Score predictions that are wrong for the first example of each set only."""
    folder = download(tmp_path, task)
    sets, about = glue.read(task, str(tmp_path))
    assert glue.read(task, str(folder)) == (sets, about)
    spec = glue.TASKS[task]
    labels = spec.labels or ("0.000", "5.000", "2.500")
    second = "value {}" if spec.text_b else ""
    expected = [
        Example(f'a "{i}', second.format(i), labels[i % len(labels)]) for i in range(13)
    ]
    assert (sets["train"], sets["eval"]) == (expected[:6], expected[6:10])
    assert sets["train"][0].where.endswith(f"train.tsv.gz, line {1 + (task != 'cola')}")
    for name in sets.keys() & dict(spec.tests):
        unlabelled = [Example(e.text_a, e.text_b, "") for e in expected[10:]]
        assert sets[name] == unlabelled
    assert set(about["incomplete"].values()) == {0}

    config = config_lib.ClassificationConfig(
        name=f"glue/{task}", folder=str(tmp_path), length=16
    )
    made = classification.Classification(config, wordpiece)
    assert ["train", *made.held_out] == [*sets]
    assert [*sets] == ["train", *dict(spec.held_out), *dict(spec.tests)]
    count = len(spec.labels)
    outputs = {}
    for name, values in made.held_out.items():
        predicted = values["labels"].copy()
        if count:
            predicted[0] = (predicted[0] + 1) % count
            outputs[name] = {"logits": np.eye(count)[predicted]}
        else:
            outputs[name] = {"predictions": predicted + np.float32(0.12345)}
    if not count:
        outputs["test"]["predictions"] = np.array([-0.5, 3.14159, 5.2], np.float32)
    predictions = {n: made.decode(n, x) for n, x in outputs.items()}
    scores = finetuning.all_scores(made, predictions)
    metrics = METRICS.get(task, {"accuracy"})
    mismatched = {"mismatched_accuracy"} if task == "mnli" else set()
    assert scores.keys() == metrics | mismatched
    for name in scores.keys() - {"f1", "matthews"}:
        assert scores[name] == pytest.approx(0.75 if count else 1.0)
    if task == "cola":  # 2 of one class and 1 of the other: (2 * 1 - 0 * 1) / sqrt(12)
        assert scores["matthews"] == pytest.approx(2 / np.sqrt(12))
    if "f1" in scores:  # labels 0 1 0 1, predicted 1 1 0 1
        assert scores["f1"] == pytest.approx(2 * 2 / (3 + 2))

    out = tmp_path / "out"
    out.mkdir()
    for name, predicted in predictions.items():
        made.write(out, name, predicted)
    submissions = ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]
    if task != "mnli":
        submissions = [f"{config_lib.GLUE[task]}.tsv"]
    usual = ["predictions.tsv"] + ["confusion.png"] * (count > 0)
    usual += ["mismatched_predictions.tsv"] * (task == "mnli")
    assert {p.name for p in out.iterdir()} == {*usual, *submissions}
    words = enumerate(WORDS.get(task, ["1", "0", "0"]))
    lines = ["index\tprediction", *(f"{i}\t{word}" for i, word in words)]
    for file in submissions:
        assert (out / file).read_text().splitlines() == lines


@pytest.mark.parametrize("above", ["", "glue"])
def test_a_task_in_a_store(above, tmp_path, wordpiece):
    """Examples come from a store, and what a run writes goes there."""
    local = download(tmp_path, "mrpc")
    url = "/".join(filter(None, [f"memory://{uuid.uuid4().hex}", above]))
    store = fsspec.filesystem("memory")
    store.put(f"{local}/", f"{url}/{local.name}/", recursive=True)
    assert glue.read("mrpc", url) == glue.read("mrpc", str(tmp_path))
    config = config_lib.ClassificationConfig(name="glue/mrpc", folder=url, length=16)
    made = classification.Classification(config, wordpiece)
    folder = storage.path(f"{url}/run")
    for name, values in made.held_out.items():
        made.write(folder, name, np.eye(2)[values["labels"]])
    finetuning._write_results(folder, {"accuracy": 1.0})
    written = {name.rpartition("/")[2] for name in store.find(f"{url}/run")}
    files = {"results.json", "predictions.tsv", "confusion.png", "MRPC.tsv"}
    assert written == files


def test_incomplete_rows_of_qqp_are_counted(tmp_path):
    folder = download(tmp_path, "qqp")
    names = HEADERS["qqp"].split("\t")
    lines = list(rows(names, "qqp", 300))
    broken = [*lines[:100], "9\t1\t2\tIs this", 'cut in two?"\tyes\t1', *lines[100:]]
    write(folder / "train.tsv", HEADERS["qqp"], broken)
    (folder / "train.tsv.gz").unlink()
    sets, about = glue.read("qqp", str(folder))
    assert about["incomplete"] == {"train": 2, "eval": 0}
    assert sets["train"] == [
        Example(f'a "{i}', f"value {i}", f"{i % 2}") for i in range(300)
    ]
    assert sets["train"][100].where.endswith("line 104")
    # The real files have less than 1 in 10,000.
    write(folder / "train.tsv", HEADERS["qqp"], ["x\ty"] * 4 + lines)
    with pytest.raises(UserError, match="4 of 304 rows do not have 6 fields, line 2 f"):
        glue.read("qqp", str(folder))
    # A skipped test row would shift all later predictions.
    write(folder / "train.tsv", HEADERS["qqp"], lines)
    header = "id\tquestion1\tquestion2"
    write(folder / "test.tsv", header, ["0\ta\tb", "1\ta"])
    with pytest.raises(UserError, match=r"test.tsv: 1 of 2 rows .* 3 fields, line 3"):
        glue.read("qqp", str(folder))
    # CoLA has no line of names.
    folder = download(tmp_path, "cola")
    (folder / "train.tsv.gz").unlink()
    write(folder / "train.tsv", "a\t0\t\tA text.", ["a\t1"])
    with pytest.raises(UserError, match="1 of 2 rows do not have 4 fields, line 2 f"):
        glue.read("cola", str(folder))


def test_folders_and_files_of_another_task_are_refused(tmp_path, wordpiece):
    with pytest.raises(UserError, match="pass --config.task.folder=DIR, .* SST-2 of"):
        glue.read("sst2", "")
    with pytest.raises(UserError, match="/RTE nor .* has train.tsv, plain or "):
        glue.read("rte", str(tmp_path))
    rte = download(tmp_path, "rte")
    with pytest.raises(UserError, match="not a file of MNLI: no column 'gold_label'"):
        glue.read("mnli", str(rte))
    # The columns are the same, the labels are not.
    config = config_lib.ClassificationConfig(name="glue/wnli", folder=str(rte))
    message = "train.tsv.gz, line 2: unknown label 'entailment'; the labels .* '0', '1'"
    with pytest.raises(UserError, match=message):
        classification.Classification(config, wordpiece)


@pytest.mark.parametrize(
    ("task", "train", "held_out"),
    [
        ("cola", 8551, 1043),
        ("sst2", 67349, 872),
        # The file has one pair less than the 3,668 published ones.
        ("mrpc", 3667, 408),
        ("rte", 2490, 277),
        ("stsb", 5749, 1500),
    ],
)
def test_the_real_files(task, train, held_out):
    sets, about = glue.read(task, str(shared_data("glue")))
    assert (len(sets["train"]), len(sets["eval"])) == (train, held_out)
    assert set(about["incomplete"].values()) == {0}
    if task == "stsb":
        first = (
            "A man with a hard hat is dancing.",
            "A man wearing a hard hat is dancing.",
        )
        assert sets["eval"][0] == Example(*first, "5.000")
    for examples in (sets["train"], sets["eval"]):
        if labels := glue.TASKS[task].labels:
            probabilities = classification.to_probabilities(examples, labels)
            assert probabilities.any(0).sum() == 2
        else:
            numbers = classification.to_numbers(examples)
            assert numbers.min() == 0 and numbers.max() == 5
