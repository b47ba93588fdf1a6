"""GLUE from TensorFlow Datasets, prepared by its own builder from files of GLUE."""

import gzip
import pathlib

import numpy as np
import pytest
from corpora import flipped
from glue_files import HEADERS, download, rows, write

from bert_jax import config
from bert_jax.errors import UserError
from bert_jax.tasks import classification, glue, glue_tfds

REAL = pathlib.Path(__file__).parents[2] / "shared/data/glue"
# With protobuf 6, that TFDS asks for a property in a way that protobuf 7 will not have.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:label\(\) is deprecated:DeprecationWarning"
)


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """Prepares a task from folders like those of its download; gives TFDS' folder."""
    import tensorflow_datasets as tfds

    def make(task, folder):
        manager = tfds.download.DownloadManager
        monkeypatch.setattr(
            manager, "download_and_extract", lambda self, url: str(folder.parent)
        )
        monkeypatch.setattr(
            manager,
            "download",
            lambda self, urls: {
                "train": str(folder / "msr_paraphrase_train.txt"),
                "test": str(folder / "msr_paraphrase_test.txt"),
                "dev_ids": str(folder / "dev_ids.tsv"),
            },
        )
        data = tmp_path / "prepared"
        tfds.builder(f"glue/{task}", data_dir=str(data)).download_and_prepare()
        return data

    return make


def plain(folder):
    """Unpack files: TFDS has them from an archive, plain."""
    for path in folder.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    return folder


def as_microsoft_gives_it(folder):
    """MRPC's folder, in which TFDS divides the pairs as GLUE does."""
    header = HEADERS["mrpc"]
    folder.mkdir()
    names = header.removeprefix("\ufeff").split("\t")
    write(folder / "msr_paraphrase_train.txt", header, rows(names, "mrpc", 40))
    write(folder / "msr_paraphrase_test.txt", header, rows(names, "mrpc", 9, 40))
    ids = "".join(f"{i}\t{i}\n" for i in range(3, 40, 6))
    (folder / "dev_ids.tsv").write_text("#1 ID\t#2 ID\n" + ids)
    return folder


def labels(task, examples):
    """Labels; numbers as such, as TFDS rounds them to float32."""
    if task == "stsb":
        return classification.to_numbers(examples).tolist()
    return [example.label for example in examples]


def assert_same(task, ours, theirs):
    assert [(e.text_a, e.text_b) for e in ours] == [
        (e.text_a, e.text_b) for e in theirs
    ]
    assert labels(task, ours) == labels(task, theirs)


@pytest.mark.parametrize("task", config.GLUE)
def test_examples_are_those_of_the_files(task, tmp_path, prepare):
    folder = tmp_path / config.GLUE[task]
    if task == "mrpc":
        as_microsoft_gives_it(folder)
    else:
        plain(download(tmp_path, task))
    files = glue.read(task, str(folder))
    data = prepare(task, folder)
    sets = glue_tfds.read(task, str(data))
    assert len(sets.train) >= 6
    assert_same(task, sets.train, files.train)
    assert sets.labelled.keys() == files.labelled.keys()
    for name, examples in sets.labelled.items():
        assert_same(task, examples, files.labelled[name])
    assert sets.unlabelled == files.unlabelled
    assert sets.about == {"dataset": f"glue/{task}/2.0.0"}
    assert sets.train[3].where.startswith(f"glue/{task}/2.0.0, train, example ")


def made(folder, tokenizer, task="rte"):
    settings = config.ClassificationConfig(
        name=f"glue/{task}", folder=str(folder), length=16
    )
    return classification.Classification(settings, tokenizer)


def test_a_run_may_go_on_with_the_other_source(
    tmp_path, prepare, wordpiece, monkeypatch
):
    """As an older TFDS has prepared it, too."""
    folder = plain(download(tmp_path, "rte"))
    data = prepare("rte", folder)
    older = (data / "glue/rte/2.0.0").rename(data / "glue/rte/1.0.1")
    info = (older / "dataset_info.json").read_text()
    (older / "dataset_info.json").write_text(
        info.replace('"version": "2.0.0"', '"version": "1.0.1"')
    )
    files, prepared = (made(f, wordpiece) for f in (folder, f"tfds:{data}"))
    assert prepared.fingerprint == files.fingerprint
    assert prepared.description["dataset"] == "glue/rte/1.0.1"
    outputs = {
        name: {"logits": np.random.default_rng(0).random((len(set_["labels"]), 2))}
        for name, set_ in files.held_out.items()
    }
    predictions = files.decode(outputs)
    assert prepared.scores(predictions) == files.scores(predictions)
    written = []
    for i, task in enumerate((files, prepared)):
        (tmp_path / f"{i}").mkdir()
        task.write(tmp_path / f"{i}", task.decode(outputs))
        written.append((tmp_path / f"{i}/RTE.tsv").read_text())
    assert written[0] == written[1]
    # What the variable TFDS_DATA_DIR does in a new process.
    monkeypatch.setattr("tensorflow_datasets.core.constants.DATA_DIR", str(data))
    assert made("tfds:", wordpiece).fingerprint == files.fingerprint


def test_what_is_not_prepared(tmp_path, wordpiece):
    message = (
        f"^glue/rte is not prepared in {tmp_path}/glue/rte/.*; `tfds build glue/rte "
        f"--data_dir={tmp_path}` downloads and prepares it$"
    )
    with pytest.raises(UserError, match=message):
        made(f"tfds:{tmp_path}", wordpiece)
    assert not list(tmp_path.iterdir())


def test_a_prepared_set_that_is_damaged(tmp_path, prepare):
    data = prepare("rte", plain(download(tmp_path, "rte")))
    (records,) = data.glob("**/*validation*tfrecord*")
    records.write_bytes(flipped(records.read_bytes(), records.stat().st_size // 2))
    with pytest.raises(
        UserError, match=r"rte/2.0.0 cannot be read \(.*\); remove the f"
    ):
        glue_tfds.read("rte", str(data))


def test_a_submission_needs_all_tests(tmp_path, prepare):
    """TFDS leaves rows out that lack a field."""
    folder = plain(download(tmp_path, "qqp"))
    lines = (folder / "test.tsv").read_text().splitlines()
    lines[2] = "a row of one field"
    (folder / "test.tsv").write_text("\n".join(lines) + "\n")
    data = prepare("qqp", folder)
    with pytest.raises(UserError, match="2.0.0, test: there is no example 1, and the "):
        glue_tfds.read("qqp", str(data))


@pytest.mark.parametrize("task", ["rte", "stsb"])
def test_the_real_files(task, tmp_path, prepare):
    if not REAL.exists():
        pytest.skip("needs GLUE")
    folder = download(tmp_path, task)  # for the tests, which are not at hand
    for path in (REAL / config.GLUE[task]).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    files = glue.read(task, str(plain(folder)))
    sets = glue_tfds.read(task, str(prepare(task, folder)))
    assert_same(task, sets.train, files.train)
    assert_same(task, sets.labelled["eval"], files.labelled["eval"])
