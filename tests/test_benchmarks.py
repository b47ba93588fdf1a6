"""Benchmarks of steps: how sides take turns, and that both scripts work at all."""

import importlib.util
import json
import os
import subprocess
import sys
import time

import pytest
from commands import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def turns(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("turns", BENCHMARKS / "turns.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def side(seconds):
    """Arguments of Python for a side whose steps sleep."""
    serve = f"turns.serve(lambda: lambda count: time.sleep({seconds} * count))"
    return [
        "-c",
        f"import sys, time; sys.path.append({str(BENCHMARKS)!r}); "
        f"import turns; {serve}",
    ]


class Side:
    """A side that says how long its steps take; None: it is never ready."""

    def __init__(self, seconds, _):
        self.seconds, self.asked = seconds, []

    def wait(self, deadline):
        return self.seconds

    def seconds_per_step(self, count, deadline):
        self.asked.append(count)
        return self.seconds

    def end(self):
        pass


def test_sides_that_are_ready_take_turns(turns, monkeypatch):
    made = {}
    monkeypatch.setattr(turns, "Side", lambda s, _: made.setdefault(s, Side(s, _)))
    commands = {"fast": 0.01, "never": None, "slow": 5.0}
    medians, count = turns.medians(commands, {}, time.monotonic() + 1000)
    assert medians == {"fast": 0.01, "slow": 5.0}
    assert count == turns.MAX_TURNS
    assert made[0.01].asked == [int(turns.TURN_SECONDS / 0.01)] * count
    assert made[5.0].asked == [1] * count
    assert not made[None].asked


def test_no_turn_begins_after_the_deadline(turns, monkeypatch):
    monkeypatch.setattr(turns, "Side", Side)
    assert turns.medians({"one": 1.0}, {}, time.monotonic() - 1) == ({}, 0)


def test_cases_share_the_time_by_weight(turns):
    now = time.monotonic()
    assert turns.share(now + 100, [3, 1]) - now == pytest.approx(75, abs=1)
    assert turns.share(now + 100, [1]) - now == pytest.approx(100, abs=1)


def test_a_process_is_asked_for_steps(turns):
    process = turns.Side(side(0.01), dict(os.environ))
    deadline = time.monotonic() + 60
    assert process.wait(deadline) >= 0.01
    assert process.seconds_per_step(3, deadline) >= 0.01
    process.end()


def test_a_side_that_fails_is_no_result(turns):
    with pytest.raises(SystemExit, match="a side ended with status 3"):
        turns.medians(
            {"bad": ["-c", "raise SystemExit(3)"]},
            dict(os.environ),
            time.monotonic() + 30,
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("step_vs_huggingface.py", ["--cases=tiny_float32"]),
        ("step_on_accelerator.py", ["--cases=tiny_32", "--tokens=128"]),
    ],
)
def test_steps_of_both_sides_can_be_timed(script, flags, tmp_path):
    output = tmp_path / "report"
    is_alone = script == "step_on_accelerator.py"  # works with ours alone
    if not is_alone:
        pytest.importorskip("torch")
    subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *flags, f"--output={output}"],
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    text = output.read_text()
    if not is_alone:
        assert json.loads(text)["tiny_float32"]["ratio"] > 0
        return
    *_, row = text.splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:2] == ["tiny, length 32", "4"]
    assert float(cells[2].replace(",", "")) > 0
