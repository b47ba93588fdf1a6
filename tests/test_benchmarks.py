"""Benchmarks: interleaved timing, and short runs of two scripts."""

import ast
import dataclasses
import json
import os
import subprocess
import sys
import time

import flax.linen as nn
import interleaved_timing as timing
import jax
import numpy as np
import plan_tables
import pytest
from commands import ROOT, call_benchmark
from corpora import build_text

BENCHMARKS = ROOT / "benchmarks"
PROGRAMS = [p for p in sorted(BENCHMARKS.glob("*.py")) if "__main__" in p.read_text()]


class Side:
    """A side with a fixed step time; with None it is never ready."""

    def __init__(self, seconds, _):
        self.seconds, self.asked = seconds, []

    def wait(self, deadline):
        return self.seconds

    def seconds_per_step(self, count, deadline):
        self.asked.append(count)
        return self.seconds

    def end(self):
        pass


def test_ready_sides_take_turns_until_the_deadline(monkeypatch):
    made = {}
    monkeypatch.setattr(timing, "Side", lambda s, _: made.setdefault(s, Side(s, _)))
    commands = {"fast": 0.01, "never": None, "slow": 5.0}
    medians, count = timing.medians(commands, {}, time.monotonic() + 1000)
    assert medians == {"fast": 0.01, "slow": 5.0}
    assert count == timing.MAX_TURNS
    assert made[0.01].asked == [int(timing.TURN_SECONDS / 0.01)] * count
    assert made[5.0].asked == [1] * count
    assert not made[None].asked
    assert timing.medians({"one": 1.0}, {}, time.monotonic() - 1) == ({}, 0)


def test_the_first_round_does_not_count():
    called = []
    sides = {n: lambda n=n: called.append(n) or len(called) for n in "ab"}
    assert timing.rounds(sides, 2) == {"a": [3, 5], "b": [4, 6]}
    assert called == ["a", "b"] * 3


def test_side_process_reports_step_times_and_failures():
    script = (
        f"import sys, time; sys.path.append({str(BENCHMARKS)!r}); "
        "import interleaved_timing; "
        "interleaved_timing.serve(lambda: lambda count: time.sleep(0.01 * count))"
    )
    process = timing.Side(["-c", script], dict(os.environ))
    deadline = time.monotonic() + 60
    assert process.wait(deadline) >= 0.01
    assert process.seconds_per_step(3, deadline) >= 0.01
    process.end()
    failing = {"bad": ["-c", "raise SystemExit(3)"]}
    with pytest.raises(SystemExit, match="ended with status 3"):
        timing.medians(failing, dict(os.environ), time.monotonic() + 30)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_help_is_the_docstring(path):
    source = path.read_text()
    if "\nimport torch" in source:
        pytest.importorskip("torch")
    docstring = ast.get_docstring(ast.parse(source))
    done = call_benchmark(path.stem, "--help")
    assert done.returncode == 0 and docstring in done.stdout


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        (
            "finetune_table",
            ["--data=d", "--pretrained=p", "--output=o", "--tasks=CoLA,SST2"],
            "argument --tasks: unknown: SST2; there are CoLA, SST-2",
        ),
        (
            "step_vs_huggingface",
            ["--cases=tiny_float32,base_float16,mini_float32_0"],
            "--cases: unknown base_float16, mini_float32_0; there are tiny|mini|",
        ),
        ("step_vs_huggingface", ["--cores=0"], "argument --cores: 0 is not positive"),
        ("step_vs_huggingface", ["--tokens=64"], "--tokens=64 is less than a row of"),
        ("input_pipeline", ["--corpus=CORPUS", "--recipes", "none"], "configs/none.py"),
        ("input_pipeline", ["--corpus=CORPUS", "--recipes", "electra:none"], "'none'"),
        ("input_pipeline", ["--corpus=nowhere"], "no corpus in nowhere"),
        ("unigram_baseline", ["nowhere"], "no corpus in nowhere"),
        ("unigram_baseline", ["CORPUS/corpus.json"], "is a file; give the folder of"),
        ("speedrun", ["--corpus=nowhere", "--output=OUT"], "no corpus in nowhere"),
        ("speedrun", ["--pairs=-"], "argument --pairs: there is no file -"),
        ("speedrun", ["--every=0"], "argument --every: 0 is not positive"),
        ("speedrun", ["--pairs=CORPUS/corpus.json"], "argument --pairs: CORPUS/corpus"),
    ],
)
def test_mistakes_are_reported_in_one_line(name, flags, message, corpus, tmp_path):
    folders = {"CORPUS": str(corpus.folder), "OUT": str(tmp_path)}
    for word, folder in folders.items():
        flags = [flag.replace(word, folder) for flag in flags]
        message = message.replace(word, folder)
    done = call_benchmark(name, *flags)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def test_a_baseline_needs_held_out_text(documents, wordpiece, tmp_path):
    build_text(documents[:3], wordpiece, tmp_path / "corpus")
    done = call_benchmark("unigram_baseline", tmp_path / "corpus")
    assert done.returncode == 2
    assert "corpus has no held-out text; build it with run.build_corpus" in done.stderr


def test_a_refused_plan_ends_the_tables(monkeypatch, capfd):
    """Its message is the last line."""
    rows = [("bert_base", "v4:2x2x4", "--config.encoder.num_heads=5")]
    monkeypatch.setattr(plan_tables, "ROWS", rows)
    monkeypatch.setattr(sys, "argv", ["plan_tables.py"])
    with pytest.raises(SystemExit, match="2"):
        plan_tables.main()
    assert "num_heads=5 does not divide" in capfd.readouterr().err.splitlines()[-1]


@pytest.mark.runs
def test_the_models_whose_losses_are_compared_begin_with_the_same_parameters():
    pytest.importorskip("torch")
    import loss_vs_huggingface

    encoder = dataclasses.replace(loss_vs_huggingface.ENCODER, num_layers=1)
    objective = loss_vs_huggingface.make_objective("tags", encoder)
    params = nn.unbox(objective.init(jax.random.key(0)))
    model = loss_vs_huggingface.huggingface_model("tags", encoder, params)
    kernel = model.classifier.weight.detach().numpy()
    assert np.array_equal(kernel.T, params["tagger"]["kernel"])


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", [False, True])
def test_step_vs_huggingface(accelerator, tmp_path):
    flags = ["--cases=tiny_float32_32", "--tokens=128", "--minutes=2"]
    if accelerator:
        flags.append("--accelerator")  # works without torch
    else:
        pytest.importorskip("torch")
    output = tmp_path / "report"
    script = BENCHMARKS / "step_vs_huggingface.py"
    subprocess.run(
        [sys.executable, script, *flags, f"--output={output}"],
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    case = json.loads(output.read_text())["tiny_float32_32"]
    assert case["batch"] == 4
    assert case["sequences_per_sec"]["bert_jax"] > 0
    assert accelerator or case["ratio"] > 0
