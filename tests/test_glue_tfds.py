"""GLUE from TensorFlow Datasets, whose builder prepares small files of GLUE."""

import gzip

import pytest
from corpora import flipped
from glue_files import HEADERS, download, rows, write

from bert_jax import config
from bert_jax.errors import UserError
from bert_jax.tasks import classification, glue, glue_tfds

# TFDS uses an API of protobuf that protobuf 6 deprecates.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:label\(\) is deprecated:DeprecationWarning"
)


MICROSOFT_MRPC = {
    "train": "msr_paraphrase_train.txt",
    "test": "msr_paraphrase_test.txt",
    "dev_ids": "dev_ids.tsv",
}


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """Return a function that prepares a task from files, and returns TFDS' folder."""
    import tensorflow_datasets as tfds

    def make(task, folder):
        files = str(folder.parent / "diagnostic/diagnostic.tsv")
        if task == "mrpc":
            names = MICROSOFT_MRPC.items()
            files = {part: str(folder / name) for part, name in names}
        manager, extracted = tfds.download.DownloadManager, str(folder.parent)
        monkeypatch.setattr(manager, "download_and_extract", lambda *_: extracted)
        monkeypatch.setattr(manager, "download", lambda *_: files)
        data = tmp_path / "prepared"
        tfds.builder(f"glue/{task}", data_dir=str(data)).download_and_prepare()
        return data

    return make


def plain(folder):
    """Decompress the files of a folder, because TFDS reads plain ones only."""
    for path in folder.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    return folder


def microsoft_mrpc(folder):
    """Write the pairs of GLUE's MRPC as Microsoft does."""
    header = HEADERS["mrpc"]
    names = header.removeprefix("\ufeff").split("\t")
    train, test, ids = (folder / name for name in MICROSOFT_MRPC.values())
    write(train, header, rows(names, "mrpc", 10))
    write(test, header, rows(names, "mrpc", 3, 10))
    write(ids, "#1 ID\t#2 ID", (f"{i}\t{i}" for i in range(6, 10)))


def values(task, examples):
    """Return texts and labels; numbers as float32, because TFDS rounds them."""
    labels = [example.label for example in examples]
    if task == "stsb" and labels[0]:
        labels = classification.to_numbers(examples).tolist()
    return [(e.text_a, e.text_b) for e in examples], labels


@pytest.mark.parametrize("task", ["cola", "mrpc", "stsb", "mnli", "qnli"])
def test_examples_match_the_files(task, tmp_path, prepare):
    folder = plain(download(tmp_path, task))
    if task == "mrpc":
        microsoft_mrpc(folder)
    if task == "mnli":
        prepare("ax", folder)
    files, _ = glue.read(task, str(folder))
    sets, about = glue_tfds.read(task, str(prepare(task, folder)))
    assert [*sets] == [*files]
    for name in ("train", *dict(glue.TASKS[task].held_out)):
        assert values(task, sets[name]) == values(task, files[name])
    for name in dict(glue.TASKS[task].tests):
        assert sets[name] == files[name]
    assert about == {"dataset": f"glue/{task}/2.0.0"}
    assert sets["train"][3].where.startswith(f"glue/{task}/2.0.0, train, example ")


def made(folder, tokenizer, task="rte"):
    settings = config.ClassificationConfig(
        name=f"glue/{task}", folder=str(folder), length=16
    )
    return classification.Classification(settings, tokenizer)


def test_a_run_can_continue_with_data_of_an_older_tfds(
    tmp_path, prepare, wordpiece, monkeypatch
):
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
    # The effect of the variable TFDS_DATA_DIR in a new process.
    monkeypatch.setattr("tensorflow_datasets.core.constants.DATA_DIR", str(data))
    assert made("tfds:", wordpiece).fingerprint == files.fingerprint


def test_data_that_is_not_prepared_is_refused(tmp_path):
    message = (
        f"^glue/rte is not prepared in {tmp_path}/glue/rte/.*; `tfds build glue/rte "
        f"--data_dir={tmp_path}` downloads and prepares it$"
    )
    with pytest.raises(UserError, match=message):
        glue_tfds.read("rte", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_damaged_data_is_refused(tmp_path, prepare):
    data = prepare("rte", plain(download(tmp_path, "rte")))
    (records,) = data.glob("**/*validation*tfrecord*")
    records.write_bytes(flipped(records.read_bytes(), records.stat().st_size // 2))
    with pytest.raises(UserError, match=r"rte/2.0.0 cannot be read \(.*\); remove"):
        glue_tfds.read("rte", str(data))


def test_incomplete_test_sets_are_refused(tmp_path, prepare):
    """TFDS skips a row that lacks a field."""
    folder = plain(download(tmp_path, "qqp"))
    lines = (folder / "test.tsv").read_text().splitlines()
    lines[2] = "a row of one field"
    (folder / "test.tsv").write_text("\n".join(lines) + "\n")
    data = prepare("qqp", folder)
    with pytest.raises(UserError, match="2.0.0, test: there is no example 1, and the "):
        glue_tfds.read("qqp", str(data))
