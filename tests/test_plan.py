"""Plans for absent TPU slices.

Tests that compile have the marker `plans`; their programs are small.
"""

import dataclasses
import json
import re
import tempfile
import types

import commands
import jax
import jax.numpy as jnp
import pytest
import runs
from recipes import build, load
from tpu_compiler import compiled_text, needs_compiler, on_tpu

from bert_jax import config as config_lib
from bert_jax import teacher
from bert_jax.errors import UserError
from bert_jax.interop import checkpoints
from bert_jax.model import cross_entropy, products
from bert_jax.planning import (
    collectives,
    cost,
    hlo,
    page,
    plan,
    schedule,
    search,
    topology,
)
from bert_jax.planning import phase as phase_lib
from bert_jax.run import plan as run_plan
from bert_jax.training import sharding


def fake_phase(steps=1, flops=1e12, left=1.0, batch_size=256):
    available = topology.GENERATIONS["v4"].hbm
    used = available - int(left * 2**30)
    other = used - used // 4 - used // 2
    memory = phase_lib.Memory(used // 4, used // 2, 0, other, available)
    return phase_lib.PhasePlan(
        name="phase 1/2, length 128",
        steps=steps,
        length=128,
        batch_size=batch_size,
        batch_per_chip=batch_size / 64,
        micro_batches=1,
        flops=flops,
        flops_at_peak=1e15,
        memory=memory,
        evaluation=memory,
        cost=cost.Cost(1_050_000, 0, 0.0, None),
        clock=1.05e9,
        traffic=(collectives.Traffic("all-reduce", collectives.ICI, 2, 2**20, 2**21),),
        compile_seconds=1.0,
    )


def fake_plan(*phases):
    # Stand-ins for the 64 devices of v4:4x4x4.
    device = jax.devices()[0]
    shape = topology.Topology(
        "v4:4x4x4", 1, topology.GENERATIONS["v4"], (4, 4, 4), (device,) * 64
    )
    return plan.Plan(
        "bert",
        shape,
        "data 64",
        336_000_000,
        phases,
        ("attention: TPU kernel",),
        "jax 1",
    )


# ---- parser of programs

# The fixtures are hand-written in the compiler's forms.
FIXTURES = commands.ROOT / "tests/fixtures/hlo"


def test_loops_count_by_trip_count_and_fusions_once():
    """The limit is in the condition, carried along, or found by the compiler."""
    text = (FIXTURES / "loops.txt").read_text(encoding="utf-8")
    program = hlo.Program(text)
    loops = [i for i, _ in program.executed(include_async=True) if i.opcode == "while"]
    assert [program.trip_count(loop) for loop in loops] == [24, 7, 3]
    assert cost.measure(program).estimated == (24 + 7 + 3) * 100 + 5


@pytest.mark.parametrize(
    "branches",
    [
        "branch_computations={%with_two, %with_five}",
        "true_computation=%with_two, false_computation=%with_five",
    ],
)
def test_all_branches_of_a_conditional_count(branches):
    text = f"""
%with_two (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  ROOT %y = f32[8]{{0}} copy(%x), backend_config={{"estimated_cycles":"2"}}
}}

%with_five (x.1: f32[8]) -> f32[8] {{
  %x.1 = f32[8]{{0}} parameter(0)
  ROOT %y.1 = f32[8]{{0}} copy(%x.1), backend_config={{"estimated_cycles":"5"}}
}}

ENTRY %main (p: pred[], a: f32[8]) -> f32[8] {{
  %p = pred[] parameter(0)
  %a = f32[8]{{0}} parameter(1)
  ROOT %c = f32[8]{{0}} conditional(%p, %a, %a), {branches}, metadata={{op_name="c"}}
}}
"""
    assert cost.measure(hlo.Program(text)).estimated == 7


def test_collectives_in_all_positions():
    """Plain, fused, in the background of two fusions, in pairs, on another core.

    Three share a channel, as `shard_map` makes them.
    """
    text = (FIXTURES / "collectives.txt").read_text(encoding="utf-8")
    program = hlo.Program(text)
    got = collectives.find_collectives(program)
    summary = [
        (c.kind, c.size, c.groups.shape if c.groups is not None else None)
        for c in sorted(got, key=lambda c: (c.kind, c.size, c.groups is not None))
    ]
    assert summary == [
        ("all-gather", 60 * 4, (4, 2)),
        ("all-gather", 4 * 30 * 4, None),
        ("all-gather", 100 * 128 * 2, (1, 8)),
        ("all-reduce", 30 * 4, None),
        ("all-reduce", 30 * 4, (1, 4)),
        ("all-reduce", 256 * 1024 * 4, (1, 8)),
        ("all-reduce", 256 * 1024 * 4, (1, 8)),
        ("all-reduce", (256 * 1024 + 30) * 4, (1, 8)),
        ("collective-permute", 30 * 4, None),
        ("collective-permute", 30 * 4, (3, 2)),
        ("reduce-scatter", 256 * 1024 * 4, (2, 4)),
    ]
    sent = {(c.kind, c.size): c.sent for c in got if c.groups is not None}
    array = 256 * 1024 * 4
    assert sent["all-reduce", array] == 2 * array * 7 / 8
    assert sent["reduce-scatter", array] == array * 3 / 4
    assert sent["collective-permute", 30 * 4] == 30 * 4
    # Between four slices.
    assert {c.kind: c.sent for c in got if c.groups is None} == {
        "all-reduce": 2 * 30 * 4 * 3 / 4,
        "all-gather": 3 * 30 * 4,
        "collective-permute": 30 * 4,
    }
    # Work of another core takes no time on this one.
    assert cost.measure(program).estimated == 0


@pytest.mark.parametrize(
    "text, expected",
    [
        ("replica_groups={{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a'}", [[0, 2], [1, 3]]),
        ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}", [[0, 1, 2, 3]]),
        (
            "replica_groups=mesh['a'=1,'b'=2,'c'=2], device_ids=([2,2]T(1,0)) {'b'}, x",
            [[0, 1], [2, 3]],
        ),
    ],
)
def test_replica_groups_in_all_forms(text, expected):
    got = collectives.replica_groups(f"channel_id=1, {text}, x={{}}")
    assert got.tolist() == expected


def test_a_permutation_that_moves_nothing_is_no_collective():
    text = (FIXTURES / "collectives.txt").read_text()
    without = re.sub(r"(source_target_pairs)=\{\{.*?\}\}", r"\1={}", text)
    all_parts, left = (
        [(each.kind, each.groups is None) for each in found]
        for found in map(
            collectives.find_collectives, map(hlo.Program, (text, without))
        )
    )
    inside_a_slice = ("collective-permute", False)
    assert all_parts.count(inside_a_slice) == 1
    assert left == [part for part in all_parts if part != inside_a_slice]


# ---- the compiler's estimate of a program, and its schedule

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
    got = {n: cost.hbm_traffic(program, body[n]) for n in ("x", "y", "k", "o", "m")}
    assert got == {
        "x": 2 * SLICE + 4,
        "y": SLICE,  # the result stays on the chip
        "k": SLICE,
        "o": 2 * SLICE + 4 + 4 * 128,
        "m": 2 * SLICE,  # without the all-gather in the background
    }


def test_kernel_without_schedule_counts_products_or_bytes():
    got = cost.measure(hlo.Program(COSTS), RATES)
    # 65,536 operations are 1,024 cycles; to write a slice takes as long.
    assert (got.estimated, got.kernels, got.scheduled) == (4000, 1, None)
    assert got.kernel_cycles == 1024.0
    slower = cost.measure(hlo.Program(COSTS), cost.Rates(32.0, 128.0))
    assert slower.kernel_cycles == 2048.0
    without_clock = cost.Rates()
    assert cost.measure(hlo.Program(COSTS), without_clock).kernel_cycles is None
    got = cost.measure(hlo.Program(COSTS), without_clock, {"k": 5000})
    assert got.kernel_cycles == 5000.0


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


def test_the_body_of_a_loop_counts_by_its_trip_count():
    loop = """
ENTRY %loop (w.1: f32[8]) -> f32[8] {
  %w.1 = f32[8]{0} parameter(0)
  ROOT %l = f32[8]{0} while(%w.1), condition=%c, body=%main, TRIPS
}
""".replace("TRIPS", 'backend_config={"known_trip_count":{"n":"3"}}')
    once, three_times = (
        dataclasses.astuple(cost.measure(hlo.Program(text), RATES, {"k": 5000}))
        for text in (COSTS, COSTS.replace("ENTRY ", "") + loop)
    )
    assert three_times == tuple(3 * value for value in once)


def test_page_has_both_measures():
    def rows(kernel_cycles=525_000.0, clock=1.05e9, **fields):
        cycles = cost.Cost(1_050_000, 2, kernel_cycles, **fields)
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
    without_clock = rows(None, clock=0, scheduled=None)
    assert without_clock["kernels, million cycles"][:2] == ["-", "unknown"]
    assert "estimated, ms" not in without_clock


# ---- slices


@pytest.mark.parametrize(
    "name, message",
    [
        ("v9:2x2", "unknown TPU 'v9'; expected one of v2, v3, v4"),
        ("v4:4x4", "form v4:AxBxC, such as 2x2x1"),
        ("v5e:32x32", "the largest v5e slice has 256 chips"),
        ("v5e:4x2", "v5e:4x2: no slice has this shape; sizes are 1x1, 2x2"),
        ("v5p:4x4x6", "v5p:4x4x6: no slice has this shape; sizes are 2x2x1"),
    ],
)
def test_invalid_slice_names(name, message):
    with pytest.raises(UserError, match=message):
        topology.open_topology(name)


def test_a_plan_has_the_encoders_of_checkpoints(
    pretrained, corpus, byte_bpe, monkeypatch, capsys
):
    monkeypatch.setattr(run_plan.command_line, "overrides", list)
    recipe = build("continued")
    started = dataclasses.replace(recipe, init_from=str(pretrained))
    planned = run_plan.with_checkpoints(started, [corpus]).encoder
    has = checkpoints.read_metadata(checkpoints.find(pretrained)).encoder
    assert (planned.hidden_size, planned.vocab_size) == (32, has.vocab_size)
    assert not capsys.readouterr().err
    recipe = build("distillation")
    objective = dataclasses.replace(
        recipe.objective, teacher=str(pretrained), hidden_weight=0.0
    )
    taught = dataclasses.replace(recipe, objective=objective)
    planned = run_plan.with_checkpoints(taught, []).objective.teacher_encoder
    assert planned.hidden_size == 32
    said = capsys.readouterr().err
    assert "teacher" not in said and "the vocabulary has BERT's 30,522 tokens" in said
    run_plan.with_checkpoints(recipe, [])
    assert "objective.teacher is not set" in capsys.readouterr().err
    student = dataclasses.replace(recipe.encoder, vocab_size=999, scan_layers=True)
    asked = dataclasses.replace(recipe, encoder=student)
    path = "objective.teacher_encoder.scan_layers"
    for overrides, scanned in (((), True), ((path,), False)):
        assumed = teacher.assume_encoder(asked, overrides).objective.teacher_encoder
        assert (assumed.vocab_size, assumed.scan_layers) == (999, scanned)
    other = dataclasses.replace(corpus, tokenizer=byte_bpe)
    for asked in (started, taught):
        with pytest.raises(UserError, match=f"has tokenizer {byte_bpe.fingerprint}"):
            run_plan.with_checkpoints(asked, [other])


@needs_compiler
@pytest.mark.parametrize(
    "name, slices, chips, hosts, per_chip",
    [
        ("v5e:1x1", 1, 1, 1, 1),
        ("v6e:2x4", 1, 8, 1, 1),
        ("v3:2x2", 1, 4, 1, 2),
        ("v4:2x2x4", 8, 128, 32, 1),
        ("v4:4x4x12", 1, 192, 48, 1),
        ("tpu7x:2x2x1", 2, 8, 2, 2),
    ],
)
def test_sizes_of_slices(name, slices, chips, hosts, per_chip):
    got = topology.open_topology(name, slices)
    assert (got.chips, got.hosts, got.devices_per_chip) == (chips, hosts, per_chip)
    assert sharding.num_slices(got.devices) == slices
    assert got.peak_flops


@needs_compiler
def test_examples_of_slices_exist():
    for kind, generation in topology.GENERATIONS.items():
        for shape in generation.examples.split(", ")[:4]:
            assert topology.open_topology(f"{kind}:{shape}").name.endswith(shape)


# ---- compiled programs


def tiny(mesh=None, phase=None, optimizer=None, **encoder):
    """Return a recipe that compiles in seconds, with a large vocabulary."""
    cfg = load("bert_base", "smoke")
    cfg.phases = cfg.phases[:1]
    cfg.phases[0].update(phase or {})
    cfg.encoder.update({"vocab_size": 2000, "num_layers": 1, **encoder})
    cfg.mesh.update(mesh or {})
    cfg.optimizer.update(optimizer or {})
    return config_lib.from_dict(config_lib.PretrainConfig, cfg)


def planned(name="v5e:2x2", slices=1, **changes):
    shape = topology.open_topology(name, slices)
    return planner(shape).plan(tiny(**changes), "tiny")


def planner(shape=None):
    """Return a planner for a slice; without one, for stand-ins of eight devices."""
    if shape is None:
        devices = tuple(jax.devices())
        shape = dataclasses.replace(fake_plan().topology, devices=devices)
    return plan.Planner(shape)


def bytes_of(got, kind):
    chosen = [t for t in got.phases[0].traffic if t.kind == kind]
    return sum(t.size for t in chosen if t.network == collectives.ICI)


@needs_compiler
def test_data_parallelism_sums_all_gradients_once():
    got = planned(vocab_size=100_000)
    size = 4 * got.parameters
    # Of 64 positions, sequences of 32 reach half; besides, there are a few scalars.
    unused = 4 * 32 * 32
    assert 0 <= bytes_of(got, "all-reduce") - (size - unused) < 100
    assert bytes_of(got, "all-gather") < 0.001 * size
    memory = got.phases[0].memory
    assert memory.parameters == size
    assert memory.optimizer == pytest.approx(2 * size, rel=0.001)
    assert got.fits and memory.left > 0.99 * memory.available
    # The state of the optimizer stays on the chip during evaluation.
    evaluation = got.phases[0].evaluation
    assert evaluation.parameters == size and evaluation.optimizer == memory.optimizer
    assert 0 < evaluation.other < memory.other + 2**20
    # The new state overwrites the old one: the rest is the batch and the program.
    assert memory.other < size / 2


@needs_compiler
def test_gradients_of_shared_layers_are_summed_once():
    got = planned(num_layers=4, num_layer_groups=1, vocab_size=512)
    assert bytes_of(got, "all-reduce") == pytest.approx(4 * got.parameters, rel=0.05)
    # In several slices, the compiler splits each of its sums over the chips of a slice.
    got = planned(slices=2, num_layers=4, num_layer_groups=1, vocab_size=512)
    assert bytes_of(got, "reduce-scatter") > 4 * got.parameters


@needs_compiler
def test_micro_batches_sum_gradients_once_in_the_chosen_dtype():
    got = planned(mesh={"gradient_sum": "bfloat16"}, phase={"micro_batches": 2})
    assert bytes_of(got, "all-reduce") == pytest.approx(2 * got.parameters, rel=0.01)


@needs_compiler
def test_muon_gathers_updates_once():
    """Besides the gradients, which are added up once; a layer is padded to four."""
    got = planned(optimizer={"name": "muon"})
    size = 4 * got.parameters
    c = tiny().encoder
    of_layer = 4 * c.hidden_size**2 + 2 * c.hidden_size * c.intermediate_size
    assert bytes_of(got, "all-gather") == pytest.approx(4 * 4 * of_layer, rel=0.01)
    assert bytes_of(got, "all-reduce") == pytest.approx(size, rel=0.05)
    # Muon has one moment where Adam has two.
    moments = 2 * size - 4 * c.num_layers * of_layer
    assert got.phases[0].memory.optimizer == pytest.approx(moments, rel=0.01)


@needs_compiler
def test_fsdp_gathers_parameters():
    """In the type of the products: bfloat16; the embedding also in float32."""
    got = planned(mesh={"data": 1, "fsdp": 4})
    assert got.mesh == "data 1, fsdp 4, tensor 1"
    size = 4 * got.parameters
    assert 0.4 * size < bytes_of(got, "all-gather") < 2.1 * size
    summed = bytes_of(got, "all-reduce") + bytes_of(got, "reduce-scatter")
    assert 0.8 * size < summed < 1.2 * size
    # Biases and layer norms are not cut.
    assert size / 4 < got.phases[0].memory.parameters < size / 3


@needs_compiler
def test_tensor_parallel_chips_share_sequences():
    got = planned(mesh={"data": 1, "fsdp": 2, "tensor": 2})
    (phase,) = got.phases
    assert phase.batch_per_chip == phase.batch_size / 2
    size = 4 * got.parameters
    assert size / 4 < phase.memory.parameters < size / 3
    # Both devices of a chip of v3 have the same rows.
    (phase,) = planned("v3:2x2", mesh={"data": 4, "tensor": 2}).phases
    assert phase.batch_per_chip == phase.batch_size / 4


@needs_compiler
def test_fsdp_gathers_no_gradients_of_the_batch():
    """In a micro-batch they have three times the bytes of the parameters."""
    got = planned(
        mesh={"data": 2, "fsdp": 2}, phase={"batch_size": 1024, "micro_batches": 2}
    )
    size = 4 * got.parameters
    assert 2 * 0.4 * size < bytes_of(got, "all-gather") < 2 * 2.1 * size


@needs_compiler
def test_kernels_compile_inside_replicas_that_are_sharded():
    """Each kernel occurs several times, in a loop over micro-batches."""
    encoder = {"hidden_size": 128, "num_heads": 2, "num_layers": 2}
    got = planned(mesh={"fsdp": 2}, phase={"micro_batches": 2}, **encoder)
    assert got.mesh == "data 2, fsdp 2, tensor 1" and got.fits
    assert got.phases[0].cost.kernel_cycles > 0
    # Parameters are gathered; no product is cut into one for each shard.
    assert bytes_of(got, "collective-permute") == 0 < bytes_of(got, "all-gather")


@needs_compiler
@pytest.mark.parametrize("slices", [2, 4])
def test_slices_exchange_sums_of_gradients(slices):
    """Each device sends its share of the sum of its slice."""
    got = planned(slices=slices, phase={"batch_size": 32})
    size = 4 * got.parameters - 4 * 32 * 32
    (sums,) = [
        t
        for t in got.phases[0].traffic
        if t.kind == "all-reduce" and t.network == collectives.DCN
    ]
    # Arrays are padded to whole tiles of 4 KiB.
    assert size / 4 <= sums.size <= size / 4 + 2 * 4096 * sums.count
    assert sums.sent == 2 * sums.size * (slices - 1) / slices


@needs_compiler
def test_refused_step_has_a_memory_account():
    """The state is exact; the rest is the total that the compiler asked for."""
    got = planned("v5e:1x1", vocab_size=2**26)
    (phase,) = got.phases
    assert phase.refused and not phase.fits and phase.cycles == 0
    assert phase.memory.parameters == 4 * got.parameters
    assert phase.memory.left < 0 < phase.memory.temporaries
    assert phase.evaluation.left < 0


# ---- the page


def test_page_and_json_agree():
    phase = fake_phase(steps=1000, flops=2e12, left=5.0)
    (traffic,) = phase.traffic
    wide = dataclasses.replace(traffic, count=1234, size=2**34, sent=2**34)
    got = fake_plan(phase, dataclasses.replace(phase, name="2/2", traffic=(wide,)))
    lines = page.format_page(got).splitlines()
    rows = {line[:32].strip(): line[32:].split() for line in lines if line}
    # 2 TFLOP at 1000 TFLOP/s are 2 ms; 1.05 million cycles at 1.05 GHz are 1 ms.
    assert rows["at the chips' peak, ms"][:2] == ["2.00", "2.00"]
    assert rows["estimated, ms"][:2] == ["1.00", "1.00"]
    assert rows["utilisation by estimate"] == ["200.0%", "200.0%"]
    assert rows["free"] == ["5.00", "5.00"]
    assert rows["a step of phase 1, ms"] == ["6.7", "5.0", "4.0", "3.3", "1.0"]
    numbers = ["2", "1.0", "2.0", "1234", "16,384.0", "16,384.0"]
    assert rows["all-reduce"][:6] == numbers
    assert lines[-1] == "Compiled in 1 and 1 seconds with jax 1."
    written = json.loads(json.dumps(page.to_dict(got)))
    assert written["fits"] and written["phases"][0]["memory_left"] == 5 * 2**30
    assert written["seconds_at_peak"] == pytest.approx(2000 * 0.002)
    estimated = written["estimated_seconds_without_collectives"]
    assert estimated == pytest.approx(2000 * 0.001)
    # 64 chips for 2000 steps of 0.002 seconds, at a utilisation of 30 %.
    assert rows["all phases, chip-hours"][0] == f"{64 * 4 / 0.3 / 3600:.0f}"


@needs_compiler
def test_a_refused_program_does_not_fit_whatever_size_the_compiler_names():
    """It rounds the size."""
    got = topology.open_topology("v5e:1x1")
    nothing = types.SimpleNamespace(params={}, opt_state={})
    hbm = got.generation.hbm
    assert phase_lib._memory(hbm, nothing, got, arguments={}).left == -1
    assert phase_lib._memory(hbm + 9, nothing, got, arguments={}).left == -9
    lacks = dataclasses.replace(fake_phase(left=-1e-9), cost=None)
    excess = page.describe_excess(lacks, fake_plan(lacks))
    assert excess.startswith("less than 0.01 GiB too much: ")


def test_sizes_of_other_memories_are_not_read():
    assert phase_lib._NEEDED.search("Used 17.00G of 15.75G hbm")[1] == "17.00"
    assert not phase_lib._NEEDED.search("Used 1.00M of 1.00M smem")


def test_page_reports_missing_memory():
    refused = dataclasses.replace(fake_phase(left=-1.5), cost=None, traffic=())
    got = fake_plan(refused, fake_phase(left=-0.25))
    assert not got.fits
    text = page.format_page(got)
    wanted = "1.50 GiB too much: a device needs 32.25 and has 30.75"
    assert f"DOES NOT FIT, {wanted}" in text
    assert "0.25 GiB too much" in text
    assert "included" in text  # the compiler reported no more than the sum
    assert "unknown" in page.format_page(fake_plan(refused))
    reported = page.to_dict(got)
    assert reported["phases"][0]["memory_left"] == -3 * 2**29
    assert reported["phases"][0]["cycles"] is None
    assert reported["estimated_seconds_without_collectives"] is None


def test_a_phase_fits_if_its_evaluation_fits():
    """As before micro-batches of evaluation, which took more than training."""
    phase = fake_phase(left=5.0)
    larger = dataclasses.replace(phase.memory, temporaries=6 * 2**30)
    got = fake_plan(dataclasses.replace(phase, evaluation=larger))
    assert not got.fits
    text = page.format_page(got)
    assert "DOES NOT FIT, 1.00 GiB too much: a device needs 31.75" in text
    rows = {line[:32].strip(): line[32:].split() for line in text.splitlines()}
    assert rows["free"] == ["5.00"] and rows["evaluation: free"] == ["-1.00"]
    assert page.to_dict(got)["phases"][0]["memory_left"] == -(2**30)


TPU = "attention, residuals: TPU kernel"
PLAIN = f"{TPU}; cross entropy: plain operations"


@pytest.mark.parametrize(
    "recipe, lines",
    [
        (
            "electra:base",
            [TPU, f"generator {PLAIN} (sampling reads the logits, too)"],
        ),
        (
            "distillation",
            [f"{PLAIN} (the teacher's loss reads the logits, too)", f"teacher {TPU}"],
        ),
    ],
)
def test_objectives_say_what_reads_their_logits(recipe, lines):
    cfg = load(recipe)
    cfg.encoder.vocab_size = cfg.encoder.vocab_size or 2000
    config = config_lib.from_dict(config_lib.PretrainConfig, cfg)
    got = planner().make_run(config).describe_kernels("tpu")
    assert [line.split(": ", 1)[1] for line in got[: len(lines)]] == lines


def test_a_teacher_has_no_dropout():
    """On TPUs, dropout of probabilities rules out the kernel in long rows."""
    cfg = load("distillation")
    for encoder in (cfg.encoder, cfg.objective.teacher_encoder):
        encoder.update(vocab_size=2000, max_position_embeddings=2048)
        assert encoder.attention_dropout_rate > 0
    cfg.phases[0].length = 2048
    config = config_lib.from_dict(config_lib.PretrainConfig, cfg)
    student, teacher = planner().make_run(config).describe_kernels("tpu")[:2]
    assert "with dropout of probabilities" in student
    assert f"teacher {TPU}" in teacher


# ---- the search


@pytest.mark.parametrize("start, most", [(256, 7), (2**16, 8), (2**20, 8)])
def test_search_needs_few_compilations(start, most, monkeypatch):
    """The fake program needs 1 GiB, and 37 MiB for each sequence of a chip."""
    said, sizes = [], []

    def compiled(self, config, index):
        sizes.append(config.phases[index].batch_size)
        rows = config.phases[index].batch_size // 8
        fake = fake_phase(batch_size=8 * rows)
        temporaries, available = 37 * 2**20 * rows, fake.memory.available
        memory = phase_lib.Memory(2**28, 3 * 2**28, temporaries, 0, available)
        return dataclasses.replace(fake, memory=memory, evaluation=memory)

    monkeypatch.setattr(plan.Planner, "plan_phase", compiled)
    monkeypatch.setattr(sharding, "num_batch_shards", lambda mesh: 8)
    config = tiny(phase={"batch_size": start})
    got = fake_plan(compiled(None, config, 0))
    found = list(search.search(planner(), config, got, said.append))
    assert len(sizes) == len(found)  # the given size is not compiled again
    trials = [trial for trial in found if "batch_size" in trial.change]
    best = max(t.phase.batch_size for t in trials if t.phase.fits)
    limit = 8 * int(29.75 * 1024 / 37)  # 8 * 823
    assert limit - best <= limit // 8 and len(trials) <= most
    assert said[-1] == f"  the largest that fits: {best:,}, {best / 64:g} on a chip"
    assert len(said) == len(found) + (2 if got.fits else 3)


def test_search_says_that_no_batch_fits(monkeypatch):
    lacking = fake_phase(left=-1.0)
    monkeypatch.setattr(plan.Planner, "plan_phase", lambda *_: lacking)
    said = []
    trials = search.search(planner(), tiny(), fake_plan(lacking), said.append)
    assert not any(trial.phase.fits for trial in trials)
    assert said[-1] == "  the largest that fits: none"


def test_search_ends_where_the_config_does(monkeypatch):
    """The fake program needs the same memory for any batch."""

    def compiled(self, config, index):
        return fake_phase(left=29.75, batch_size=config.phases[index].batch_size)

    monkeypatch.setattr(plan.Planner, "plan_phase", compiled)
    config = tiny(phase={"batch_size": 2**18})
    planned = compiled(None, config, 0)
    trials = search.search_batch(planner(), config, 0, planned)
    assert [t.phase.batch_size for t in trials] == [2**18, 2**19, 2**20]
    with pytest.raises(UserError, match="at most 1048576"):
        tiny(phase={"batch_size": 2**20 + 8})


def test_alternatives_can_be_sharded():
    config = tiny()
    changes = search.alternatives(planner(), config, 0)
    # Eight sequences on eight devices cannot be split into micro-batches.
    assert set(changes) == {
        "--config.encoder.remat=layer",
        "--config.mesh.shard_optimizer=True",
        "--config.mesh.fsdp=8",
    }
    lacking, fitting = (fake_plan(fake_phase(left=left)) for left in (-1.0, 1.0))
    assert search.suggestions(planner(), config, lacking) == list(changes)
    assert search.suggestions(planner(), config, fitting) == []
    more = search.alternatives(planner(), tiny(phase={"batch_size": 24}), 0)
    # Quoted: a shell would take [0] for a pattern.
    assert "'--config.phases[0].micro_batches=3'" in more
    all_data = dataclasses.replace(config, mesh=config_lib.MeshConfig(data=8))
    layout = "--config.mesh.data=-1 --config.mesh.fsdp=8"
    assert layout in search.alternatives(planner(), all_data, 0)
    rest_is_tensor = config_lib.MeshConfig(data=4, tensor=-1)
    changes = search.alternatives(
        planner(), dataclasses.replace(config, mesh=rest_is_tensor), 0
    )
    assert "--config.mesh.shard_optimizer=True" in changes
    layout = "--config.mesh.data=-1 --config.mesh.tensor=2 --config.mesh.fsdp=4"
    assert layout in changes
    one_replica = dataclasses.replace(config, mesh=config_lib.MeshConfig(fsdp=8))
    assert list(search.alternatives(planner(), one_replica, 0)) == [
        "--config.encoder.remat=layer"
    ]


# ---- parts of the model on a TPU


@needs_compiler
def test_accuracy_needs_no_extra_pass_over_the_logits():
    """On a TPU, the masked token head is as fast with accuracy as without."""
    floats = (640, 128), (30592, 128), (30592,)
    dtypes = jnp.bfloat16, jnp.float32, jnp.float32
    shapes = [*map(jax.ShapeDtypeStruct, floats, dtypes)]
    shapes.append(jax.ShapeDtypeStruct((640,), jnp.int32))

    def cycles(is_correct):
        def loss(x, table, bias, labels):
            logits = products.linear(x, table, jnp.bfloat16, transposed=True)
            logits = products.add_bias(logits, bias)
            losses = cross_entropy.cross_entropy(logits, labels)
            return losses.mean(), is_correct(logits, labels)

        gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
        text = compiled_text(gradients.lower(*on_tpu("v4:2x2x1", shapes)))
        return cost.measure(hlo.Program(text)).estimated

    without = cycles(lambda logits, labels: jnp.zeros(labels.shape))
    assert without <= cycles(cross_entropy.is_correct) < 1.02 * without


# ---- the program


@needs_compiler
def test_command_prints_only_json():
    got = commands.run(
        "plan",
        f"--config={runs.RECIPE}",
        "--config.encoder.dtype=bfloat16",
        "--config.encoder.hidden_size=128",
        "--config.encoder.max_position_embeddings=128",
        "--config.encoder.scan_layers=False",
        "--config.encoder.vocab_size=200",
        "--config.phases[0].batch_size=8",
        "--config.phases[0].length=128",
        "--topology=v5e:1x1",
        "--json",
        "--schedule",
    )
    values = json.loads(got.stdout)
    assert values["chips"] == values["hosts"] == 1
    assert values["fits"] and values["suggestions"] == []
    (phase,) = values["phases"]
    assert phase["length"] == 128 and phase["traffic"] == []
    # One layer of two is computed at all positions, forward and backward: its two ends,
    # and its attention. The logits are too few for the cross entropy's kernels.
    assert phase["cost"]["kernels"] == 6
    assert 0 < phase["cost"]["kernel_cycles"] < phase["cost"]["scheduled"]
    assert phase["cost"]["scheduled"] < phase["cycles"]
    seconds = phase["cost"]["scheduled"] / 1.5e9
    assert phase["scheduled_seconds_without_collectives"] == pytest.approx(seconds)
    said = ["importing JAX", "compiling phase 1 of 1, length 128"]
    assert got.stderr.splitlines() == said


def test_the_path_of_schedules_has_no_space(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "my files"))
    with pytest.raises(UserError, match="my files' contains a space, .* set TMPDIR"):
        schedule.ScheduleFolder()


@needs_compiler
def test_mistakes_are_reported_in_one_line():
    modern = "--config=configs/modernbert.py:base"
    rate = "--config.optimizer.learning_rate=1e-4"
    got = commands.call("plan", modern, "--topology=v4:2x2x1", rate)
    commands.assert_refused(got, "optimizer.learning_rate=0.0001 has no effect beside")
    large = "--config=configs/bert_large.py"
    got = commands.call("plan", large)
    commands.assert_refused(got, "--topology is missing. Generation and chips")
    got = commands.call("plan", large, "--topology=v4:8x8x8")
    commands.assert_refused(got, "phases[0].batch_size=256 must be a multiple of")
