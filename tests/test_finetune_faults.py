"""Fine-tuning that is killed: the same command ends at the same bits, for each task."""

import json
import random
import time

import numpy as np
import pytest
import questions
import runs
from commands import ROOT, command

pytestmark = [pytest.mark.faults, pytest.mark.slow]

WORDS = ["the", "a", "object", "value", "name", "is", "of", "to", "in", "class"]


def sentence(rng):
    """Words with a tag each, in columns."""
    words = rng.choice(WORDS, rng.integers(3, 40))
    tags = ["B-x" if word == "class" else "O" for word in words]
    return "".join(f"{w}\t{t}\n" for w, t in zip(words, tags, strict=True)) + "\n"


def labelled(rng):
    text = rng.choice(WORDS, rng.integers(3, 25))
    return " ".join(text) + f"\t{'yes' if 'class' in text else 'no'}\n"


def asked(rng):
    choices = [" ".join(rng.choice(WORDS, 3)) for _ in range(4)]
    return ",".join(["which", *choices, "ABCD"[rng.integers(4)]]) + "\n"


def files(task, folder):
    """Files to train and to evaluate on."""
    if task == "squad":
        return questions.write_pair(folder, no_answers=False)
    suffix, make, header = {
        "classifier": ("tsv", labelled, "text\tlabel\n"),
        "tagger": ("conll", sentence, ""),
        "choice": ("csv", asked, ""),
    }[task]
    rng = np.random.default_rng(0)
    paths = {}
    for name, count in (("train", 64), ("eval", 16)):
        paths[name] = str(folder / f"{name}.{suffix}")
        text = header + "".join(make(rng) for _ in range(count))
        (folder / f"{name}.{suffix}").write_text(text)
    return paths


def left_behind(workdir):
    """Results and predictions, by name of the file."""
    return {
        path.name: path.read_bytes()
        for path in workdir.iterdir()
        if path.suffix in (".tsv", ".conll")
        or path.name in ("results.json", "predictions.json", "nbest_predictions.json")
    }


@pytest.mark.parametrize("task", ["classifier", "squad", "tagger", "choice"])
def test_killed_three_times_ends_like_undisturbed(task, pretrained, tmp_path):
    recipe = "squad.py:v1,smoke" if task == "squad" else f"{task}.py:smoke"
    flags = [
        f"--config={ROOT}/configs/{recipe}",
        f"--config.init_from={pretrained}",
        *(f"--config.task.{k}={v}" for k, v in files(task, tmp_path).items()),
        "--config.epochs=15.0",
        "--config.lengths=2",
        "--config.keep_best=loss",
        "--config.loop.eval_every=7",
        "--config.loop.checkpoint_every=5",
    ]

    def program(workdir):
        return command(f"finetune_{task}", *flags, f"--workdir={workdir}")

    undisturbed = runs.run(program(tmp_path / "undisturbed"))
    assert undisturbed.process.returncode == 0, undisturbed.text
    rng = random.Random(time.time_ns())
    kills = 0
    while kills < 3:
        watched = runs.Watched(program(tmp_path / "killed"))
        if watched.wait_for("train step"):
            time.sleep(rng.uniform(0, 1))
        kills += watched.kill() < 0
        if (tmp_path / "killed/results.json").exists():
            break
    assert kills
    ended = runs.run(program(tmp_path / "killed"))
    assert ended.process.returncode == 0, ended.text
    runs.assert_same_end(tmp_path / "killed", tmp_path / "undisturbed")
    expected = left_behind(tmp_path / "undisturbed")
    assert left_behind(tmp_path / "killed") == expected
    results = json.loads(expected["results.json"])
    records = [r for r in runs.metrics(tmp_path / "killed") if r["split"] == "eval"]
    assert results["step"] == min(records, key=lambda r: r["loss"])["step"]
