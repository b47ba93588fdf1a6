"""Both gauges of a plan: the compiler's estimate, and its schedule.

The fixtures are hand-written in the compiler's forms.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import pytest
from plans import ROOT, fake_phase, fake_plan, needs_compiler, run_plan

from bert_jax.planning import cost, hlo, page, schedule, topology

FIXTURES = ROOT / "tests/fixtures/hlo"
COSTS = (FIXTURES / "costs.txt").read_text(encoding="utf-8")
# A slice [128, 256] of float32.
SLICE = 4 * 128 * 256
RATES = cost.Rates(flops=64.0, hbm_bytes=128.0)


def test_bundles_count_by_trip_count():
    text = (FIXTURES / "bundles.txt").read_text(encoding="utf-8")
    outside = 5  # branches back to a loop among them
    inner = 2 * 3 + 1  # and one that does not say how often
    assert schedule.scheduled_cycles(text) == outside + 6 * (7 + inner) + 10 * 2


def test_traffic_counts_slices_instead_of_whole_arrays():
    program = hlo.Program(COSTS)
    body = program.computations["main"]
    got = {n: cost.traffic(program, "main", body[n]) for n in ("x", "y", "k", "o")}
    assert got == {
        "x": 2 * SLICE + 4,
        "y": SLICE,  # the result stays on the chip
        "k": SLICE,
        "o": 2 * SLICE + 4 + 4 * 128,
    }


def test_kernel_without_schedule_counts_products_or_bytes():
    got = cost.measure(hlo.Program(COSTS), RATES)
    # 65,536 operations are 1,024 cycles; to write a slice takes as long.
    assert (got.estimated, got.kernels, got.scheduled) == (4000, 1, None)
    assert got.kernel_cycles == 1024.0
    slower = cost.measure(hlo.Program(COSTS), cost.Rates(32.0, 128.0))
    assert slower.kernel_cycles == 2048.0
    assert cost.measure(hlo.Program(COSTS), cost.Rates(0, 0)).kernel_cycles == 0.0


def test_schedule_or_bytes_whichever_is_more():
    """The compiler writes the schedule of only one of two equal operations."""
    schedules = {"x": 10, "y": 3000, "k": 5000}
    got = cost.measure(hlo.Program(COSTS), RATES, schedules)
    assert got.estimated == 4000 and got.kernel_cycles == 5000.0
    arrays = {"x": 2 * SLICE + 4, "o": 2 * SLICE + 4 + 4 * 128}
    # `o` has only an estimate, which is less than its bytes take.
    assert got.scheduled == sum(arrays.values()) / 128 + 2 * 3000 + 5000
    other = COSTS.replace("add(%p.6, %p.6)", "multiply(%p.6, %p.6)")
    changed = cost.measure(hlo.Program(other), RATES, schedules)
    assert got.scheduled - changed.scheduled == 3000 - SLICE / 128


def test_page_says_how_kernels_are_counted():
    def text(kind="v4", clock=1.05e9, **fields):
        phase = dataclasses.replace(
            fake_phase(flops=1e12),
            cost=cost.Cost(1_050_000, 2, 525_000.0, **fields),
            clock=clock,
        )
        got = fake_plan(phase)
        generation = topology.GENERATIONS[kind]
        shape = dataclasses.replace(got.topology, generation=generation)
        return page.page(dataclasses.replace(got, topology=shape))

    least = text(scheduled=None)
    assert "0.53   at least: products at peak, or bytes; --schedule" in least
    assert "scheduled, ms" not in least and "1.50   these cycles at 1.05" in least
    both = text(scheduled=2_100_000.0)
    assert "0.53   by schedule, or by bytes where that is more" in both
    rows = {line[:32].strip(): line[32:].split() for line in both.splitlines()}
    assert rows["estimated, ms"][0] == "1.50"
    assert rows["scheduled, ms"] == ["2.00"]
    assert rows["a step of phase 1, ms"][-2:] == ["1.5", "2.0"]
    assert "Passes over memory are estimated several times too high" in both
    none = text("tpu7x", clock=0, scheduled=None)
    assert "not counted; --schedule does" in none and "estimated, ms" not in none


@needs_compiler
def test_schedule_of_a_compiled_kernel():
    """The schedule takes one to ten times as long as the products at the peak.

    Twice the rows take twice the cycles, except for the ends of the pipeline.
    """
    command = [sys.executable, str(ROOT / "benchmarks/attention_kernel.py")]
    command += ["--length=128", "--heads=2"]

    def cycles(rows):
        done = subprocess.run(
            [*command, f"--rows={rows}"], capture_output=True, text=True, check=True
        )
        lines = [line.split() for line in done.stdout.splitlines()]
        return {line[1]: float(line[2]) for line in lines if line[0] == "kernel"}

    few, many = cycles(16), cycles(32)
    for name, products in (("forward:", 2), ("backward:", 5)):
        flops = 2 * products * 2 * 32 * 128**2 * 64
        peak = flops / (197e12 / 1.5e9) / 1e6
        assert peak < many[name] < 10 * peak
        assert 1.5 < many[name] / few[name] <= 2


@needs_compiler
def test_plan_with_schedule():
    got = run_plan(
        "--config=configs/bert_miniature.py:smoke",
        "--config.encoder.num_layers=2",
        "--config.encoder.hidden_size=128",
        "--config.encoder.max_position_embeddings=128",
        "--config.phases[0].length=128",
        "--topology=v5e:1x1",
        "--json",
        "--schedule",
    )
    assert got.returncode == 0, got.stderr
    with_kernel, without = json.loads(got.stdout)["phases"]
    # One layer of two is computed at all positions, forward and backward: its two ends,
    # and its attention where the length is a multiple of 128.
    assert with_kernel["cost"]["kernels"] == 6 and without["cost"]["kernels"] == 4
    cycles = [phase["cost"]["kernel_cycles"] for phase in (without, with_kernel)]
    assert 0 < cycles[0] < cycles[1]
    for phase in (with_kernel, without):
        assert 0 < phase["cost"]["scheduled"] < phase["cycles"]
        seconds = phase["cost"]["scheduled"] / 1.5e9
        assert phase["scheduled_seconds_without_collectives"] == pytest.approx(seconds)


def test_dump_after_the_compiler_was_loaded(monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--other=1")
    dump = schedule.Dump()
    flags = os.environ["LIBTPU_INIT_ARGS"].split()
    assert flags[0] == "--other=1"
    folder = pathlib.Path(flags[1].partition("=")[2])
    (folder / "12-fusion.1-03-final_bundles.txt").write_text(
        "     0   :  { %1 = nop }\n"
    )
    (folder / "12-fusion.1-02-schedule-analysis_final_bundles.txt").write_text("x")
    assert dump.take() == {"fusion.1": 1}
    with pytest.raises(RuntimeError, match="loaded before it was asked"):
        dump.take()
