"""Files of a run that somebody edited, cut or replaced: one clear line, or no harm."""

import dataclasses
import json
import math

import numpy as np
import pytest
import toy

from bert_jax import config, prediction
from bert_jax.errors import UserError
from bert_jax.training import (
    checkpoint,
    curves,
    metrics_file,
    reporting,
    restore,
    workdir,
)
from bert_jax.training import metadata as metadata_lib

CONFIG = config.PretrainConfig()


# ---- what a checkpoint says of itself


def test_metadata_survive_the_way_through_json():
    metadata = dataclasses.replace(
        toy.metadata(), time={"unix_time": 1.5, "seconds": {"step": 2.0}}
    )
    values = json.loads(json.dumps(metadata.to_json()))
    again = metadata_lib.from_json(values)
    assert again.tokenizer.fingerprint == metadata.tokenizer.fingerprint
    again = dataclasses.replace(again, tokenizer=metadata.tokenizer)
    assert again == metadata


def edited(**changes):
    values = json.loads(json.dumps(toy.metadata().to_json()))
    for name, value in changes.items():
        *groups, last = name.split("__")
        group = values
        for part in groups:
            group = group[part]
        if value is None:
            del group[last]
        else:
            group[last] = value
    return {"custom_metadata": values}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe{}", "can't decode"),
        (b"[" * 100_000, "recursion"),
        ([1, 2], "not a JSON object"),
        ({}, "not a bert_jax checkpoint"),
        ({"custom_metadata": [1]}, "not a bert_jax checkpoint"),
        (edited(tokenizer=None), "not a bert_jax checkpoint"),
        (edited(tokenizer=5), "field tokenizer is damaged"),
        (edited(tokenizer="{"), "tokenizer"),
        (edited(tokenizer='{"kind": "wordpiece"}'), "tokenizer"),
        (edited(encoder=[]), "expected a group of fields"),
        (edited(encoder__num_heads=0), "num_heads=0 must be at least 1"),
        (edited(encoder__num_heads="4"), "num_heads='4': expected int"),
        (edited(encoder__heads=4), "unknown config field heads"),
        (edited(encoder_path=None), "field encoder_path is damaged"),
        (edited(versions=3), "field versions is damaged"),
        (edited(time=3), "field time is damaged"),
    ],
)
def test_metadata_of_a_checkpoint(content, message, tmp_path):
    path = tmp_path / "1"
    path.mkdir()
    if not isinstance(content, bytes):
        content = json.dumps(content).encode()
    (path / "_CHECKPOINT_METADATA").write_bytes(content)
    with pytest.raises(UserError, match=f"{path} cannot be used: .*{message}") as error:
        restore.read_metadata(restore.absolute(path))
    assert "\n" not in str(error.value)


def test_checkpoints_that_are_a_file(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(UserError, match="checkpoints is not a folder; move it away"):
        checkpoint.Checkpoints(tmp_path / "checkpoints", 1, toy.metadata())


# ---- names of folders


@pytest.mark.parametrize("name", ["run[lr=1e-4]", "run*", "run?", "a\\b", "\udcff"])
def test_folders_that_the_library_of_checkpoints_would_not_find(name, tmp_path):
    """Its globs take them for patterns, and what it saved there could not be read."""
    with (
        pytest.raises(UserError, match="must not contain .*; give another path"),
        workdir.claim(tmp_path / name, CONFIG, print),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
    for use in (restore.find, prediction.load):
        with pytest.raises(UserError, match="must not contain .*; give another path"):
            use(str(tmp_path / name))


# ---- config.json and lock


def claim(folder):
    with workdir.claim(folder, CONFIG, print):
        pass


@pytest.fixture
def begun(tmp_path):
    """The folder of a run that has had a checkpoint."""
    claim(tmp_path)
    workdir.note_checkpoint(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "config.json cannot be used: .*can't decode"),
        (b"{", "config.json cannot be used: "),
        (b"[]", "config.json cannot be used: .*expected a group"),
        (b"[" * 100_000, "config.json cannot be used: "),
        (b"NaN", "config.json cannot be used: .*expected a group"),
        (b'{"encoder": {"hiden_size": 3}}', r"json cannot .* encoder\.hiden_size"),
        (b'{"kind": "finetuning"}', "this is a config for 'finetuning'"),
    ],
)
def test_config_of_a_run(content, message, begun):
    (begun / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        claim(begun)
    assert (begun / "config.json").read_bytes() == content


def test_config_that_is_a_folder(begun):
    (begun / "config.json").unlink()
    (begun / "config.json").mkdir()
    with pytest.raises(UserError, match=r"config.json cannot be used: .*directory"):
        claim(begun)


@pytest.mark.parametrize("content", [b"", b"soon", b"\xff", b"nan", b"1 2", b"-inf"])
def test_a_lock_without_a_time_gets_one(content, begun):
    (begun / "lock").write_bytes(content)
    claim(begun)
    assert 1e9 < workdir.first_start(begun) < math.inf


def test_a_lock_keeps_its_time(begun):
    first = workdir.first_start(begun)
    claim(begun)
    assert workdir.first_start(begun) == first


def test_a_lock_that_is_a_folder(tmp_path):
    (tmp_path / "lock").mkdir()
    with pytest.raises(UserError, match="cannot write to .*: Is a directory"):
        claim(tmp_path)


# ---- metrics.jsonl

RECORDS = [
    {"step": 1, "split": "train", "loss": 3.0},
    {"step": 1, "split": "eval", "loss": 4.0},
    {"step": 2, "split": "train", "loss": math.nan},
]
NO_RECORDS = [
    b"null",
    b"[1]",
    b"{}",
    b'{"step": 1}',
    b'{"step": true, "split": "train"}',
    b'{"step": "1", "split": "train"}',
    b'{"step": 1, "split": "train", "loss": "low"}',
    b"\x00\x00\x00",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"step": 3, "split": "tr',
]


@pytest.fixture
def with_edited_metrics(tmp_path):
    lines = [json.dumps(record).encode() for record in RECORDS]
    mixed = [*NO_RECORDS[:4], lines[0], *NO_RECORDS[4:8], *lines[1:], *NO_RECORDS[8:]]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(mixed))
    return tmp_path


def test_lines_that_are_no_records_are_left_out(with_edited_metrics):
    np.testing.assert_equal(metrics_file.read(with_edited_metrics), RECORDS)


def test_a_continued_run_drops_them(with_edited_metrics):
    with reporting.Reporter(with_edited_metrics, 3, 1) as reporter:
        assert 1 in reporter.records("eval") and 2 not in reporter.records("train")
        reporter.write(2, "train", {"loss": 2.0})
    lines = (with_edited_metrics / "metrics.jsonl").read_text().splitlines()
    again = {"step": 2, "split": "train", "loss": 2.0}
    assert [json.loads(line) for line in lines] == [*RECORDS[:2], again]


def test_no_records(tmp_path):
    with pytest.raises(UserError, match="cannot read .*No such file"):
        metrics_file.read(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("null\n")
    with pytest.raises(UserError, match="has no records"):
        metrics_file.read(tmp_path)


def test_nothing_to_draw():
    records = [{"step": 1, "split": "train", "padding_fraction": 0.1}]
    with pytest.raises(UserError, match="R has no metrics to plot"):
        curves.draw(records, "R")
