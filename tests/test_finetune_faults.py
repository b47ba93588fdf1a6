"""Fine-tuning that is killed ends bitwise as if undisturbed."""

import json
import random
import time

import numpy as np
import pytest
import runs
from commands import ROOT, command

pytestmark = [pytest.mark.faults, pytest.mark.slow]

WORDS = ["the", "a", "object", "value", "name", "is", "of", "to", "in", "class"]


def labelled(rng):
    text = rng.choice(WORDS, rng.integers(3, 25))
    return " ".join(text) + f"\t{'yes' if 'class' in text else 'no'}\n"


def files(folder):
    """Write files for training and evaluation."""
    rng = np.random.default_rng(0)
    paths = {}
    for name, count in (("train", 64), ("eval", 16)):
        text = "text\tlabel\n" + "".join(labelled(rng) for _ in range(count))
        (folder / f"{name}.tsv").write_text(text)
        paths[name] = str(folder / f"{name}.tsv")
    return paths


def left_behind(workdir):
    """Return results and prediction files by name."""
    return {
        path.name: path.read_bytes()
        for path in workdir.iterdir()
        if path.name in ("results.json", "predictions.tsv")
    }


def test_run_killed_three_times_ends_like_undisturbed(pretrained, tmp_path):
    flags = [
        f"--config={ROOT}/configs/classifier.py:smoke",
        f"--config.init_from={pretrained}",
        *(f"--config.task.{k}={v}" for k, v in files(tmp_path).items()),
        "--config.epochs=15.0",
        "--config.lengths=2",
        "--config.keep_best=loss",
        "--config.loop.eval_every=7",
        "--config.loop.checkpoint_every=5",
    ]

    def program(workdir):
        return command("finetune_classifier", *flags, f"--workdir={workdir}")

    runs.succeed(program(tmp_path / "undisturbed"))
    rng = random.Random(time.time_ns())
    kills = 0
    while kills < 3:
        watched = runs.Watched(program(tmp_path / "killed"))
        if watched.wait_for("train step"):
            time.sleep(rng.uniform(0, 1))
        watched.process.kill()
        kills += watched.end() < 0
        if (tmp_path / "killed/results.json").exists():
            break
    assert kills
    runs.succeed(program(tmp_path / "killed"))
    runs.assert_same_end(tmp_path / "killed", tmp_path / "undisturbed")
    expected = left_behind(tmp_path / "undisturbed")
    assert left_behind(tmp_path / "killed") == expected
    results = json.loads(expected["results.json"])
    records = [r for r in runs.metrics(tmp_path / "killed") if r["split"] == "eval"]
    assert results["step"] == min(records, key=lambda r: r["loss"])["step"]
