"""Both measures of a plan: the compiler's estimate, and its schedule.

The fixtures are hand-written in the compiler's forms.
"""

import dataclasses
import json

import commands
import pytest
from plans import fake_phase, fake_plan, needs_compiler

from bert_jax.planning import cost, hlo, page, schedule

FIXTURES = commands.ROOT / "tests/fixtures/hlo"
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
    got = {n: cost.hbm_traffic(program, body[n]) for n in ("x", "y", "k", "o")}
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


def test_page_has_both_measures():
    def rows(clock=1.05e9, **fields):
        cycles = cost.Cost(1_050_000, 2, 525_000.0, **fields)
        got = fake_plan(dataclasses.replace(fake_phase(), cost=cycles, clock=clock))
        generation = dataclasses.replace(got.topology.generation, clock=clock)
        shape = dataclasses.replace(got.topology, generation=generation)
        text = page.format_page(dataclasses.replace(got, topology=shape))
        return {line[:32].strip(): line[32:].split() for line in text.splitlines()}

    estimate = rows(scheduled=None)
    assert estimate["kernels, million cycles"][:3] == ["0.53", "lower", "bound;"]
    assert estimate["estimated, ms"][0] == "1.50"
    assert "scheduled, ms" not in estimate
    both = rows(scheduled=2_100_000.0)
    assert both["kernels, million cycles"][:2] == ["0.53", "by"]
    assert both["estimated, ms"][0] == "1.50"
    assert both["scheduled, ms"] == ["2.00"]
    assert both["a step of phase 1, ms"][-2:] == ["1.5", "2.0"]
    without_clock = rows(clock=0, scheduled=None)
    assert "kernels, million cycles" in without_clock
    assert "estimated, ms" not in without_clock


@pytest.mark.slow
@needs_compiler
def test_plan_with_schedule():
    """Twice the rows take more cycles of kernels."""
    got = commands.run(
        "plan",
        "--config=configs/bert_miniature.py:smoke",
        "--config.encoder.num_layers=2",
        "--config.encoder.hidden_size=128",
        "--config.encoder.vocab_size=200",
        "--config.encoder.max_position_embeddings=128",
        "--config.phases[0].length=128",
        "--config.phases[1].length=128",
        "--config.phases[1].batch_size=16",
        "--topology=v5e:1x1",
        "--json",
        "--schedule",
    )
    assert got.returncode == 0, got.stderr
    few, many = json.loads(got.stdout)["phases"]
    # One layer of two is computed at all positions, forward and backward: its two ends,
    # and its attention. After the last layer comes the cross entropy.
    assert few["cost"]["kernels"] == many["cost"]["kernels"] == 8
    ratio = many["cost"]["kernel_cycles"] / few["cost"]["kernel_cycles"]
    assert 1.5 < ratio < 5
    for phase in (few, many):
        assert 0 < phase["cost"]["scheduled"] < phase["cycles"]
        seconds = phase["cost"]["scheduled"] / 1.5e9
        assert phase["scheduled_seconds_without_collectives"] == pytest.approx(seconds)
