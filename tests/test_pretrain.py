"""Whole runs, started as a user would and killed as a machine would."""

import functools
import random
import shutil
import signal
import time

import commands
import numpy as np
import pytest
import runs
from commands import ROOT, assert_refused
from runs import Watched, assert_same_end, metrics

from bert_jax import config
from bert_jax.training import metrics_file, restore
from bert_jax.training import workdir as workdir_lib

# Two phases, a bit of everything between two checkpoints.
LONG_RUN = [
    "--config.phases[0].steps=75",
    "--config.phases[1].steps=25",
    "--config.loop.log_every=7",
    "--config.loop.eval_every=20",
    "--config.loop.checkpoint_every=15",
]


RECIPE = f"{ROOT}/configs/bert_miniature.py:smoke"
flags_of = functools.partial(runs.flags_of, recipe=RECIPE)


def call(*arguments):
    """Run the program in this process, which has eight devices."""
    return commands.call("pretrain", *flags_of(*arguments))


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory):
    """Return the workdir of a long run without interruption."""
    workdir = tmp_path_factory.mktemp("undisturbed")
    commands.succeed("pretrain", *flags_of(corpus, workdir, *LONG_RUN))
    return workdir


def test_a_run_leaves_what_it_should(undisturbed, corpus):
    assert restore.find(undisturbed).name == "100"
    records = metrics(undisturbed)
    train = [r for r in records if r["split"] == "train"]
    evaluated = [r for r in records if r["split"] == "eval"]
    expected = sorted({1, 75, 100, *range(7, 100, 7)})
    assert [r["step"] for r in train] == expected
    assert [r["step"] for r in evaluated] == [20, 40, 60, 75, 80, 100]
    # From the uniform distribution downwards, on held-out text, in the first phase.
    losses = [r["mlm_loss"] for r in (records[0], *evaluated[:3])]
    assert losses[0] == pytest.approx(np.log(1000), abs=0.1)
    assert losses == sorted(losses, reverse=True)
    for record in records:
        assert record["loss"] == pytest.approx(
            record["mlm_loss"] + record["nsp_loss"], rel=1e-5
        )
    assert {"learning_rate", "grad_norm", "padding_fraction"} <= train[0].keys()
    timed = metrics_file.read(undisturbed)[5]
    assert timed["sequences_per_sec"] > 0
    assert 0 <= timed["data_wait_fraction"] <= 1
    assert timed["tokens_per_sec"] <= timed["sequences_per_sec"] * 64
    saved = workdir_lib.read_config(undisturbed, config.PretrainConfig)
    assert saved.encoder.vocab_size == corpus.tokenizer.vocab_size
    assert saved.data.fingerprint == corpus.fingerprint
    metadata = restore.read_metadata(restore.find(undisturbed))
    assert metadata.encoder == saved.encoder
    assert "jax" in metadata.versions


@pytest.mark.faults
def test_killed_run_ends_like_an_undisturbed_one(undisturbed, corpus, tmp_path):
    """Kill it at a random moment of training, then resume it."""
    workdir = tmp_path / "run"
    watched = Watched(runs.pretrain(corpus, workdir, *LONG_RUN, recipe=RECIPE))
    assert watched.wait_for("train step"), watched.text
    time.sleep(random.Random(time.time_ns()).uniform(0, 1))
    watched.process.kill()
    assert watched.end() == -signal.SIGKILL
    commands.succeed("pretrain", *flags_of(corpus, workdir, *LONG_RUN))
    assert_same_end(workdir, undisturbed)


# ---- mistakes: one line each, before any long work


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.encoder.vocab_size=17"], "vocab_size=17, but the tokenizer has"),
        (["--config.data.corpus=/nowhere"], "no corpus in /nowhere"),
        (["--config.data.corpus="], "no corpus given"),
        (["--config.loop.profile_step=99"], "is more than the 6 steps of the run"),
        (["--workdir="], "--workdir is missing"),
    ],
)
def test_mistakes_are_reported_in_one_line(flags, message, corpus, tmp_path):
    assert_refused(call(corpus, tmp_path / "run", *flags), message)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_workdirs_of_others_are_left_alone(undisturbed, corpus, tmp_path):
    before = metrics(undisturbed)
    changed = [*LONG_RUN, "--config.optimizer.learning_rate=0.5"]
    refused = call(corpus, undisturbed, *changed)
    assert_refused(refused, "optimizer.learning_rate: was 0.0001, is now 0.5")
    unimportant = call(corpus, undisturbed, *LONG_RUN, "--config.loop.log_every=8")
    assert unimportant.returncode == 0
    assert "loop.log_every: was 7, is now 8" in unimportant.stderr
    call(corpus, undisturbed, *LONG_RUN)
    assert metrics(undisturbed) == before
    (tmp_path / "file").write_text("")
    (tmp_path / "latest").symlink_to("nowhere")
    for name in ("file", "latest"):
        refused = call(corpus, tmp_path / name)
        assert_refused(refused, f"{name} is a file or a broken link; give a folder")
    assert_refused(call(corpus, tmp_path / ("x" * 300)), "File name too long")


def test_checkpoints_that_are_gone(undisturbed, corpus, tmp_path):
    """A run that had checkpoints never starts from scratch, and keeps its reports."""
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir)
    (workdir / "checkpoints").rename(tmp_path / "elsewhere")
    refused = call(corpus, workdir, *LONG_RUN)
    assert_refused(refused, "are missing; restore them, or give another")
    assert metrics(workdir) == metrics(undisturbed)
    (workdir / "config.json").unlink()
    refused = call(corpus, workdir, *LONG_RUN, "--config.seed=5")
    assert_refused(refused, "has a run, but its config.json is missing; rest")
