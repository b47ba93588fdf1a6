"""Plans for absent TPU slices.

Tests that compile have the marker `plans`; their programs are small.
"""

import dataclasses
import functools
import importlib.util
import json
import math

import commands
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plans import ROOT, fake_phase, fake_plan, needs_compiler
from recipes import load

from bert_jax import config as config_lib
from bert_jax import knobs, pretraining
from bert_jax.errors import UserError
from bert_jax.model import products
from bert_jax.objectives import metric_sums
from bert_jax.planning import hlo, page, plan, search, topology
from bert_jax.planning import phase as phase_lib
from bert_jax.training import sharding

# ---- parser of programs; the fixtures are hand-written in the compiler's forms

FIXTURES = ROOT / "tests/fixtures/hlo"

# The forms of a loop: its limit in the condition, its limit carried along, and a trip
# count that the compiler has found.
LOOPS = (FIXTURES / "loops.txt").read_text(encoding="utf-8")


def test_loops_count_by_trip_count_and_fusions_once():
    program = hlo.Program(LOOPS)
    loops = [i for _, i, _ in program.executed(beside=True) if i.opcode == "while"]
    assert [program.trip_count("main", loop) for loop in loops] == [24, 7, 3]
    assert program.estimated_cycles() == (24 + 7 + 3) * 100 + 5


def test_unknown_loops_and_missing_entry_are_errors():
    program = hlo.Program(LOOPS.replace('"known_trip_count":{"n":"3"}', ""))
    with pytest.raises(ValueError, match="third does not count up"):
        program.estimated_cycles()
    with pytest.raises(ValueError, match="no entry computation"):
        hlo.Program("HloModule nothing")


COLLECTIVES = (FIXTURES / "collectives.txt").read_text(encoding="utf-8")


def test_collectives_in_all_positions():
    """Plain, fused, in the background of two fusions, in pairs, on another core.

    Three share a channel, as `shard_map` makes them.
    """
    program = hlo.Program(COLLECTIVES)
    got = program.collectives()
    summary = [
        (c.kind, c.size, c.groups.shape if c.groups is not None else None)
        for c in sorted(got, key=lambda c: (c.kind, c.size, c.groups is not None))
    ]
    assert summary == [
        ("all-gather", 60 * 4, (4, 2)),
        ("all-gather", 100 * 128 * 2, (1, 8)),
        ("all-reduce", 30 * 4, None),
        ("all-reduce", 30 * 4, (1, 4)),
        ("all-reduce", 256 * 1024 * 4, (1, 8)),
        ("all-reduce", 256 * 1024 * 4, (1, 8)),
        ("all-reduce", (256 * 1024 + 30) * 4, (1, 8)),
        ("collective-permute", 30 * 4, (3, 2)),
        ("reduce-scatter", 256 * 1024 * 4, (2, 4)),
    ]
    sent = {c.kind: c.sent for c in got if c.groups is not None}
    assert sent["reduce-scatter"] == 256 * 1024 * 4 * 3 / 4
    assert sent["collective-permute"] == 30 * 4
    # What another core does meanwhile is not the time of this one.
    assert program.estimated_cycles() == 0


@pytest.mark.parametrize(
    "text, expected",
    [
        ("replica_groups={{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("replica_groups=[2,2]<=[4]", [[0, 1], [2, 3]]),
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
    assert hlo.replica_groups(f"channel_id=1, {text}, x={{}}").tolist() == expected


def test_unknown_replica_groups_are_errors():
    with pytest.raises(ValueError, match="unknown form of groups"):
        hlo.replica_groups("replica_groups=somehow")


@pytest.mark.parametrize(
    "text, size",
    [
        ("f32[2,3]{1,0:T(8,128)}", 24),
        ("(bf16[4]{0}, pred[2,2], u32[], token[])", 8 + 4 + 4),
        ("(f8e4m3fn[8], s4[8], f32[])", 8 + 4 + 4),
    ],
)
def test_bytes_of_types(text, size):
    assert hlo.type_bytes(text) == size


# ---- names of slices


@pytest.mark.parametrize(
    "name, message",
    [
        ("v9:2x2", "unknown TPU 'v9'; expected one of v2, v3, v4"),
        ("v4:4x4", "form v4:AxBxC, such as 2x2x1"),
        ("v5e:16", "form v5e:AxB"),
        ("v5e:0x4", "form v5e:AxB"),
        ("v5e:32x32", "the largest v5e slice has 256 chips"),
    ],
)
def test_invalid_slice_names(name, message):
    with pytest.raises(UserError, match=message):
        topology.open_topology(name)


def test_without_the_compiler(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    def missing(**options):
        raise RuntimeError("no libtpu")

    monkeypatch.setattr(topology.topologies, "get_topology_desc", missing)
    with pytest.raises(UserError) as error:
        topology.open_topology("v4:2x2x1")
    wanted = "run.plan needs the TPU compiler; pip install -e '.[tpu]'"
    assert str(error.value) == wanted


@needs_compiler
@pytest.mark.parametrize(
    "name, slices, chips, hosts, per_chip",
    [
        ("v5e:1x1", 1, 1, 1, 1),
        ("v6e:2x4", 1, 8, 1, 1),
        ("v3:2x2", 1, 4, 1, 2),
        ("v4:4x4x8", 1, 128, 32, 1),
        ("v5p:8x16x16", 1, 2048, 512, 1),
        ("v6e:16x16", 8, 2048, 512, 1),
        ("tpu7x:2x2x1", 2, 8, 2, 2),
    ],
)
def test_slice_sizes(name, slices, chips, hosts, per_chip):
    got = topology.open_topology(name, slices)
    assert (got.chips, got.hosts, got.devices_per_chip) == (
        chips,
        hosts,
        per_chip,
    )
    assert sharding.num_slices(got.devices) == slices
    assert phase_lib.hardware.peak_flops(got.device_kind)


@needs_compiler
def test_examples_of_slices_exist():
    for kind, generation in topology.GENERATIONS.items():
        for shape in generation.examples.split(", "):
            got = topology.open_topology(f"{kind}:{shape}")
            assert got.chips == math.prod(map(int, shape.split("x")))
    with pytest.raises(UserError, match="v5e:3x3: .*sizes are 1x1, 2x2"):
        topology.open_topology("v5e:3x3")


# ---- compiled programs


def tiny(phases=1, mesh=None, **encoder):
    """A recipe that compiles in seconds, with a vocabulary that outweighs the rest."""
    cfg = load("bert_base", "smoke")
    cfg.encoder.update(vocab_size=2000, **encoder)
    cfg.mesh.update(mesh or {})
    config = knobs.from_configdict(config_lib.PretrainConfig, cfg)
    return dataclasses.replace(config, phases=config.phases[:phases])


@functools.cache
def planned(name, slices=1, mesh=(), **encoder):
    config = tiny(mesh=dict(mesh), **encoder)
    return planner(topology.open_topology(name, slices)).plan(config, "tiny")


def planner(shape):
    make_run = functools.partial(pretraining.make_run, corpora=())
    return plan.Planner(shape, make_run)


def bytes_of(got, kind, network=phase_lib.ICI):
    chosen = [t for t in got.phases[0].traffic if t.kind == kind]
    return sum(t.size for t in chosen if t.network == network)


@needs_compiler
def test_data_parallelism_sums_all_gradients_once():
    got = planned("v5e:2x2")
    size = 4 * got.parameters
    # Of 64 positions, sequences of 32 reach half; besides, there are a few scalars.
    unused = 4 * 32 * 32
    assert 0 <= bytes_of(got, "all-reduce") - (size - unused) < 100
    assert bytes_of(got, "all-gather") < 0.001 * size
    memory = got.phases[0].memory
    assert memory.parameters == size
    assert memory.optimizer == pytest.approx(2 * size, rel=0.001)
    assert got.fits and memory.left > 0.99 * memory.available


@needs_compiler
def test_micro_batches_sum_gradients_once_in_the_chosen_dtype():
    shape = topology.open_topology("v5e:2x2")
    for gradient_sum, factor in (("float32", 1.0), ("bfloat16", 0.5)):
        config = tiny(mesh={"gradient_sum": gradient_sum})
        phase = dataclasses.replace(config.phases[0], micro_batches=2)
        pieces = dataclasses.replace(config, phases=(phase,))
        got = planner(shape).plan(pieces, "tiny")
        size = factor * 4 * got.parameters
        assert bytes_of(got, "all-reduce") == pytest.approx(size, rel=0.01)


@needs_compiler
def test_muon_gathers_updates_once():
    """Besides the gradients, which are added up once; two layers are padded to four."""
    config = tiny(phases=1)
    asked = dataclasses.replace(config.optimizer, name="muon")
    config = dataclasses.replace(config, optimizer=asked)
    got = planner(topology.open_topology("v5e:2x2")).plan(config, "tiny")
    size = 4 * got.parameters
    c = config.encoder
    of_layer = 4 * c.hidden_size**2 + 2 * c.hidden_size * c.intermediate_size
    assert bytes_of(got, "all-gather") == pytest.approx(4 * 4 * of_layer, rel=0.01)
    assert bytes_of(got, "all-reduce") == pytest.approx(size, rel=0.05)
    # Muon has one moment where Adam has two.
    moments = 2 * size - 4 * c.num_layers * of_layer
    assert got.phases[0].memory.optimizer == pytest.approx(moments, rel=0.01)


@needs_compiler
def test_fsdp_gathers_parameters():
    """In the type of the products: bfloat16; the embedding also in float32."""
    got = planned("v5e:2x2", mesh=(("data", 1), ("fsdp", 4)))
    assert got.mesh == "data 1, fsdp 4, tensor 1"
    size = 4 * got.parameters
    assert 0.4 * size < bytes_of(got, "all-gather") < 2.1 * size
    summed = bytes_of(got, "all-reduce") + bytes_of(got, "reduce-scatter")
    assert 0.8 * size < summed < 1.2 * size
    # Biases and layer norms are not cut.
    assert size / 4 < got.phases[0].memory.parameters < size / 3


@needs_compiler
def test_slices_exchange_sums_of_gradients():
    """Each device sends its share of the sum of its slice."""
    got = planned("v5e:2x2", slices=2)
    size = 4 * got.parameters - 4 * 32 * 32
    (sums,) = [
        t
        for t in got.phases[0].traffic
        if t.kind == "all-reduce" and t.network == phase_lib.DCN
    ]
    # Arrays are padded to whole tiles of 4 KiB.
    assert size / 4 <= sums.size <= size / 4 + 2 * 4096 * sums.count
    assert sums.sent == sums.size


@needs_compiler
def test_chip_with_two_devices():
    got = planned("v3:2x2")
    memory = got.phases[0].memory
    assert memory.parameters == 2 * 4 * got.parameters
    assert memory.available == 2 * topology.GENERATIONS["v3"].hbm
    assert got.phases[0].batch_per_chip == 2
    networks = {t.network for t in got.phases[0].traffic}
    assert phase_lib.ICI in networks


@needs_compiler
def test_scanned_and_unrolled_layers_have_similar_cycles():
    row = planned("v5e:2x2").phases[0].cycles
    loop = planned("v5e:2x2", scan_layers=True).phases[0].cycles
    assert 0.7 * row < loop < 3 * row


def test_page_and_json_agree():
    phase = fake_phase(steps=1000, flops=2e12, left=5.0)
    got = fake_plan(phase, dataclasses.replace(phase, name="phase 2/2, length 512"))
    lines = page.page(got, step_ms=[4.0, 8.0]).splitlines()
    rows = {line[:32].strip(): line[32:].split() for line in lines if line}
    # 2 TFLOP at 1000 TFLOP/s are 2 ms.
    assert rows["at the chips' peak, ms"][:2] == ["2.00", "2.00"]
    assert rows["utilisation"][:2] == ["50.0%", "25.0%"]
    assert rows["estimated, ms"][:2] == ["1.00", "1.00"]  # 1.05 M at 1.05 GHz
    assert rows["left"] == ["5.00", "5.00"]
    assert rows["utilisation, if it were so"] == ["200.0%", "200.0%"]
    assert rows["a step of phase 1, ms"] == ["6.7", "5.0", "4.0", "3.3", "1.0"]
    assert lines[-1] == "Compiled in 1 and 1 seconds with jax 1."
    written = json.loads(json.dumps(page.to_dict(got)))
    assert written["versions"] == "jax 1"
    assert written["fits"] and written["phases"][0]["memory_left"] == 5 * 2**30
    hours = 2000 * 0.002 / 0.5 / 3600
    assert written["hours"]["0.5"] == pytest.approx(hours)
    assert written["chip_hours"]["0.5"] == pytest.approx(64 * hours)
    estimated = 2000 * 0.001 / 3600
    assert written["estimated_hours_without_collectives"] == pytest.approx(estimated)
    assert written["utilisation_at_step_ms"] is None
    given = page.to_dict(got, [4.0, 8.0])
    assert given["utilisation_at_step_ms"] == pytest.approx([0.5, 0.25])


def test_search_needs_few_compilations(monkeypatch):
    """The fake program needs 1 GiB, and 37 MiB for each sequence of a chip."""
    tried = []

    def compiled(self, config, index):
        rows = config.phases[index].batch_size // 8
        tried.append(rows)
        return fake_phase(left=29.75 - 37 / 1024 * rows, batch_size=8 * rows)

    monkeypatch.setattr(plan.Planner, "plan_phase", compiled)
    monkeypatch.setattr(sharding, "batch_parts", lambda mesh: 8)
    shape = fake_plan().topology
    shape = dataclasses.replace(shape, devices=tuple(jax.devices()))
    for start, most in ((256, 7), (2**16, 8)):
        tried.clear()
        config = tiny()
        phase = dataclasses.replace(config.phases[0], batch_size=start)
        config = dataclasses.replace(config, phases=(phase,))
        trials = list(search.search_batch(planner(shape), config, 0))
        best = max(rows for rows, t in zip(tried, trials, strict=True) if t.phase.fits)
        limit = int(29.75 * 1024 / 37)  # 823
        assert limit - best <= limit // 8 and len(tried) <= most, tried
        assert search._largest(trials).startswith(f"  so {8 * best:,} fit, ")


@needs_compiler
def test_needed_bytes_of_a_refused_program():
    device = topology.open_topology("v5e:1x1").devices[0]
    place = jax.sharding.NamedSharding(
        jax.sharding.Mesh([device], ("x",)), jax.sharding.PartitionSpec()
    )
    x = jax.ShapeDtypeStruct((2**17, 2**17), np.float32, sharding=place)
    lowered = jax.jit(lambda x: x @ x + x, out_shardings=place).lower(x)
    with phase_lib._no_cache(), pytest.raises(jax.errors.JaxRuntimeError) as error:
        lowered.compile()
    # At least the argument and the result, of 64 GiB each.
    assert 2**36 <= phase_lib._needed(error.value) <= 3 * 2**36
    assert "available HBM (15.75G)" in str(error.value)
    other = jax.errors.JaxRuntimeError("INTERNAL: (1.0G) exceeds available HBM")
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        phase_lib._needed(other)


def test_page_reports_missing_memory():
    refused = dataclasses.replace(fake_phase(left=-1.5), cost=None, traffic=())
    above = fake_phase(left=-0.25)
    got = fake_plan(refused, above)
    assert not got.fits
    text = page.page(got)
    wanted = "1.50 GiB too much: a device needs 32.25 and has 30.75"
    assert f"DOES NOT FIT, {wanted}" in text
    assert "0.25 GiB too much" in text
    assert "with these" in text  # the compiler reported no more than the sum
    assert "not known" in page.page(fake_plan(refused))
    reported = page.to_dict(got)
    assert reported["phases"][0]["memory_left"] == -3 * 2**29
    assert reported["phases"][0]["cycles"] is None
    assert reported["estimated_hours_without_collectives"] is None


@needs_compiler
def test_refused_step_has_a_memory_account():
    """The state is exact; the rest is the total that the compiler asked for."""
    config = tiny()
    encoder = dataclasses.replace(config.encoder, vocab_size=2**26)
    large = dataclasses.replace(config, encoder=encoder)
    got = planner(topology.open_topology("v5e:1x1")).plan(large, "tiny")
    (phase,) = got.phases
    assert phase.refused and not phase.fits and phase.cycles == 0
    assert phase.memory.parameters == 4 * got.parameters
    assert phase.memory.left < 0 < phase.memory.temporaries


def test_alternatives_can_be_sharded():
    config = tiny()
    shape = dataclasses.replace(fake_plan().topology, devices=tuple(jax.devices()))
    changes = search.alternatives(planner(shape), config, 0)
    # Eight sequences on eight devices cannot be split into micro-batches.
    assert set(changes) == {
        "--config.encoder.remat=layer",
        "--config.mesh.shard_optimizer=True",
        "--config.mesh.fsdp=8",
    }
    lacking = dataclasses.replace(fake_plan(fake_phase(left=-1.0)), topology=shape)
    suggested = search.suggestions(planner(shape), config, lacking)
    assert suggested == list(changes)
    fitting = fake_plan(fake_phase(left=1.0))
    assert search.suggestions(planner(shape), config, fitting) == []


# ---- parts of the model on a TPU


@needs_compiler
def test_accuracy_needs_no_extra_pass_over_the_logits():
    """On a TPU, the masked token head is as fast with accuracy as without."""
    [device, *_] = topology.open_topology("v4:2x2x1").devices
    on_device = jax.sharding.SingleDeviceSharding(device)

    def cycles(is_correct):
        def loss(x, table, bias, labels):
            logits = products.linear(x, table, jnp.bfloat16, transposed=True)
            logits = products.add_bias(logits, bias)
            return metric_sums.cross_entropy(logits, labels).mean(), is_correct(
                logits, labels
            )

        shapes = [
            jax.ShapeDtypeStruct(shape, dtype, sharding=on_device)
            for shape, dtype in (
                ((640, 128), jnp.bfloat16),
                ((30592, 128), jnp.float32),
                ((30592,), jnp.float32),
                ((640,), jnp.int32),
            )
        ]
        gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
        text = gradients.lower(*shapes).compile().as_text()
        return hlo.Program(text).estimated_cycles()

    without = cycles(lambda logits, labels: jnp.zeros(labels.shape))
    assert without <= cycles(metric_sums.is_correct) < 1.02 * without


# ---- the program


@needs_compiler
def test_command_prints_only_json():
    got = commands.call(
        "plan",
        "--config=configs/bert_miniature.py:smoke",
        "--config.encoder.num_layers=1",
        "--topology=v5e:1x1",
        "--json",
    )
    assert got.returncode == 0, got.stderr
    values = json.loads(got.stdout)
    assert values["chips"] == values["hosts"] == 1
    assert values["fits"] and values["suggestions"] == []
    assert [phase["length"] for phase in values["phases"]] == [32, 64]
    assert values["phases"][0]["traffic"] == []
    said = got.stderr.splitlines()
    assert said == [
        "importing JAX",
        "compiling phase 1 of 2, length 32",
        "compiling phase 2 of 2, length 64",
    ]


@needs_compiler
@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "error: --topology is missing; give a slice, such as"),
        (["--topology=v4:8x8x8"], "error: phases[0].batch_size=256 is not a multiple"),
        (["--topology=v4:4x4x4", "--step_ms=3"], "error: --step_ms=3: expected 2 num"),
    ],
)
def test_mistakes_are_reported_in_one_line(flags, message):
    got = commands.call("plan", "--config=configs/bert_large.py", *flags)
    assert got.returncode == 2
    said = got.stderr.removeprefix("importing JAX\n")
    assert said.startswith(message) and len(said.splitlines()) == 1
