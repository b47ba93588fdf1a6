"""Files and folders of a run: edited, damaged, claimed and of others."""

import dataclasses
import fcntl
import json
import math
import pathlib
import time

import numpy as np
import pytest
import toy

from bert_jax import config, prediction
from bert_jax.errors import UserError
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import metrics_file, restore, workdir

CONFIG = config.PretrainConfig()


def claim(folder, config=CONFIG):
    with workdir.claim(folder, config):
        pass


# ---- metadata of checkpoints


def test_metadata_survive_json():
    metadata = dataclasses.replace(
        toy.metadata(), time={"unix_time": 1.5, "seconds": {"step": 2.0}}
    )
    values = json.loads(json.dumps(metadata.to_json()))
    again = metadata_lib.from_json(values)
    assert again.tokenizer.fingerprint == metadata.tokenizer.fingerprint
    again = dataclasses.replace(again, tokenizer=metadata.tokenizer)
    assert again == metadata


def edited(change):
    values = json.loads(json.dumps(toy.metadata().to_json()))
    change(values)
    return {"custom_metadata": values}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe{}", "can't decode"),
        ({"custom_metadata": [1]}, "not a bert_jax checkpoint"),
        (edited(lambda values: values.pop("tokenizer")), "not a bert_jax checkpoint"),
        (edited(lambda values: values.pop("versions")), "not a bert_jax checkpoint"),
        (edited(lambda values: values.update(tokenizer="{")), "tokenizer"),
        (
            edited(lambda values: values["encoder"].update(num_heads=0)),
            "num_heads=0 must be at least 1",
        ),
    ],
)
def test_damaged_metadata_are_refused(content, message, tmp_path):
    path = tmp_path / "1"
    path.mkdir()
    if not isinstance(content, bytes):
        content = json.dumps(content).encode()
    (path / "_CHECKPOINT_METADATA").write_bytes(content)
    with pytest.raises(UserError, match=f"cannot read {path}: .*{message}") as error:
        restore.read_metadata(restore.absolute(path))
    assert "\n" not in str(error.value)


# ---- names of folders


@pytest.mark.parametrize("name", ["run[lr=1e-4]", "a\\b"])
def test_folder_names_that_orbax_cannot_find_are_refused(name, tmp_path):
    """Orbax's globs take them for patterns, and could not read what it saved there."""
    for use in (claim, restore.find, prediction.load):
        with pytest.raises(UserError, match="must not contain .*; give another path"):
            use(str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_in_an_unknown_store_are_refused():
    with pytest.raises(UserError, match="checkpoints cannot be at 'https://'; give a"):
        restore.find("https://example.org/bert-base-uncased")


# ---- config.json and lock


def test_the_config_of_another_program_is_not_overwritten(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="cannot read .*config.json: .*model_type"):
        claim(tmp_path)
    assert (tmp_path / "config.json").read_text() == '{"model_type": "bert"}'
    assert len(list(tmp_path.iterdir())) == 1


def test_a_corpus_is_not_written_into(corpus):
    before = {path.name: path.stat().st_mtime_ns for path in corpus.folder.iterdir()}
    with pytest.raises(UserError, match=f"^{corpus.folder} holds a corpus; give anoth"):
        claim(corpus.folder)
    after = {path.name: path.stat().st_mtime_ns for path in corpus.folder.iterdir()}
    assert after == before


def test_other_files_in_a_folder_are_no_run(tmp_path):
    (tmp_path / "log.txt").write_text("text")
    (tmp_path / "latest").symlink_to("nowhere")
    claim(tmp_path)
    claim(tmp_path, dataclasses.replace(CONFIG, seed=CONFIG.seed + 1))


def test_a_path_through_a_link_is_one_folder(tmp_path):
    """Orbax would drop the link before `..`, which the system follows."""
    (tmp_path / "disk/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk/deep")
    path = f"{tmp_path}/link/../run"
    with workdir.claim(path, CONFIG) as folder:
        assert str(folder) == str(restore.absolute(path)) == f"{tmp_path}/disk/run"
    assert pathlib.Path(path, "config.json").exists()


def test_a_start_that_was_refused_can_be_corrected(tmp_path):
    """A workdir belongs to a config from when there is something to lose."""
    corrected = dataclasses.replace(CONFIG, seed=1)
    with workdir.claim(tmp_path, CONFIG):
        (tmp_path / "metrics.jsonl").touch()
        (tmp_path / "checkpoints").mkdir()
    with workdir.claim(tmp_path, corrected):
        (tmp_path / "metrics.jsonl").write_text("{}")
    with pytest.raises(UserError, match="seed: was 1, is now 0"):
        claim(tmp_path)


def test_of_two_first_starts_one_leaves_no_trace(tmp_path):
    with open(tmp_path / "lock", "w") as lock:  # the other one has only just begun
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process uses"):
            claim(tmp_path)
    with (
        workdir.claim(tmp_path, CONFIG),  # holds the lock until the run ends
        pytest.raises(UserError, match="another process uses"),
    ):
        claim(tmp_path)
    assert time.time() - 60 < workdir.first_start(tmp_path) <= time.time()


def test_a_folder_that_cannot_be_made_is_refused():
    with pytest.raises(UserError, match="cannot write to /proc/run"):
        claim("/proc/run")  # not even root writes there


@pytest.fixture
def begun(tmp_path):
    """Return the folder of a run that has had a checkpoint."""
    claim(tmp_path)
    workdir.note_checkpoint(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "cannot read .*config.json: "),
        (b"[]", "cannot read .*config.json: .*expected a group"),
        (b'{"encoder": {"hiden_size": 3}}', r"config.json: .* encoder\.hiden_size"),
        (b'{"kind": "finetuning"}', "^/.* holds a run of finetuning, not of pretrain"),
    ],
)
def test_damaged_config_is_refused(content, message, begun):
    (begun / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        claim(begun)
    assert (begun / "config.json").read_bytes() == content


def test_lock_without_a_time_gets_one(begun):
    (begun / "lock").write_bytes(b"")
    claim(begun)
    first = workdir.first_start(begun)
    assert 1e9 < first < math.inf
    claim(begun)
    assert workdir.first_start(begun) == first


# ---- metrics.jsonl

RECORDS = [
    {"step": 1, "split": "train", "loss": 3.0},
    {"step": 1, "split": "eval", "loss": 4.0},
    {"step": 2, "split": "train", "loss": math.nan},
]


def test_damaged_lines_are_left_out(tmp_path):
    first, *others = (json.dumps(record).encode() for record in RECORDS)
    lines = [b"[1]", b'{"step": 1}', first, b"\0\0\0", *others, b"\xff\xfe"]
    lines += [b'{"step": "1", "split": "eval"}', b'{"step": 1, "split": null}']
    lines.append(b'{"step": 3, "split": "tr')
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines))
    np.testing.assert_equal(metrics_file.read(tmp_path), RECORDS)


def test_metrics_without_records_are_refused(tmp_path):
    with pytest.raises(UserError, match="has no metrics.jsonl; give the workdir"):
        metrics_file.read(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("null\n")
    with pytest.raises(UserError, match="has no records"):
        metrics_file.read(tmp_path)
