"""The training loop: its account of time, its order, and its reports."""

import dataclasses
import errno
import json
import resource
import shutil
import sys
import types

import jax
import numpy as np
import pod_recipe
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bert_jax import config, pretraining, storage
from bert_jax.corpus import shards
from bert_jax.data import batches
from bert_jax.errors import UserError
from bert_jax.objectives import masked_lm, metric_sums
from bert_jax.training import (
    checkpoint,
    goodput,
    hardware,
    metrics_file,
    plateau,
    programs,
    reporting,
    saving,
    sharding,
    throughput,
    workdir,
)

# ---- where the time goes


@pytest.fixture
def clock(monkeypatch):
    """Return clocks that are set by hand: of the wall, and since some moment."""
    now = types.SimpleNamespace(time=1000.0)
    monkeypatch.setattr(goodput.time, "time", lambda: now.time)
    monkeypatch.setattr(goodput.time, "monotonic", lambda: now.time)
    return now


def test_a_ledger_adds_up_over_starts(clock):
    clock.time = 990.0
    first = goodput.Ledger()
    clock.time = 1005.0  # init: 15
    with first.counting("compile"):
        clock.time = 1025.0  # compile: 20
    first.switch("step")
    clock.time = 1055.0
    with first.counting("data_wait"):
        clock.time = 1060.0  # data_wait: 5
    entry = json.loads(json.dumps(first.entry()))  # step: 30, saved at 1060
    clock.time = 1080.0  # steps that will be lost
    assert first.fractions()["goodput"] == pytest.approx(50 / 90)

    clock.time = 1100.0
    second = goodput.Ledger()
    second.add_earlier_starts(entry, first_start=990.0)
    clock.time = 1110.0  # init: 10 more
    shares = second.fractions()
    expected = {"init": 25, "compile": 20, "step": 30, "data_wait": 5, "lost": 40}
    for name in goodput.BUCKETS:
        share = shares[f"time_fraction_{name}"]
        assert share == pytest.approx(expected.get(name, 0) / 120), name
    assert shares["goodput"] == shares["time_fraction_step"]
    assert second.describe().startswith("120 s in all: lost 33.3%, step 25.0%")
    # A run that is done loses nothing more when it is started again.
    done = goodput.Ledger()
    done.add_earlier_starts(entry, first_start=990.0, is_done=True)
    assert done.fractions()["time_fraction_lost"] == 0
    # Without a checkpoint, all was lost.
    third = goodput.Ledger()
    third.add_earlier_starts({}, first_start=800.0)
    clock.time = 1210.0
    assert third.fractions()["time_fraction_lost"] == pytest.approx(310 / 410)


# ---- a run inside of this process


def small_config(corpus, steps=10, optimizer=None, **run):
    cfg = pod_recipe.get_config()
    cfg.data.corpus = str(corpus.folder)
    cfg.phases[0].steps = steps
    cfg.optimizer.update(optimizer or {})
    cfg.loop.update(run)
    return config.from_dict(config.PretrainConfig, cfg)


@pytest.fixture
def record(monkeypatch):
    """Return a function that has calls of a method recorded, with a label of each."""
    done = []

    def record(owner, name, label=lambda *_: ""):
        function = getattr(owner, name)

        def recorded(*args, **kwargs):
            done.append((name, label(*args)))
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, recorded)
        return done

    return record


def test_reports_and_saves_do_not_hold_up_steps(corpus, tmp_path, monkeypatch, record):
    """A step's report is read when later steps are on their way."""
    lower_train_step = programs.lower_train_step

    def recording_lower_train_step(*arguments):
        compiled = lower_train_step(*arguments).compile()
        count = iter(range(1, 100))

        def run_step(*inputs):
            events.append(("sent", next(count)))
            return compiled(*inputs)

        return types.SimpleNamespace(compile=lambda: run_step)

    monkeypatch.setattr(programs, "lower_train_step", recording_lower_train_step)
    record(goodput.Ledger, "switch", lambda _, bucket: bucket)
    record(reporting.Reporter, "flush")
    record(reporting.Reporter, "records")
    record(saving.Saver, "wait")
    record(checkpoint.Checkpoints, "save", lambda _, step, *more: step)
    write = "write", lambda _, step, split, values: (split, step)
    events = record(reporting.Reporter, *write)
    options = {"log_every": 1, "eval_every": 0, "checkpoint_every": 4}
    pretraining.pretrain(small_config(corpus, **options), str(tmp_path / "run"))
    sent = [events.index(("sent", step)) for step in range(1, 11)]
    reported = [events.index(("write", ("train", step))) for step in range(1, 11)]
    assert events.count(("write", ("eval", 10))) == 1
    for step in (1, 2, 5, 6):
        assert reported[step - 1] > sent[step + 1], step
    # A checkpoint has all reports before it on disk.
    assert reported[3] < events.index(("save", 4))
    # The first save is waited for: a kill before the second must not lose track of it.
    for step, waits in ((4, True), (8, False)):
        between = events[events.index(("save", step)) : sent[step]]
        assert (("wait", "") in between) == waits
    # Slow storage takes time of an evaluation or a checkpoint, and none of steps.
    for event, bucket in (
        (("write", ("eval", 10)), "evaluation"),
        (("records", ""), "evaluation"),
        (("flush", ""), "checkpoint"),
    ):
        before = events[: events.index(event)]
        assert [label for name, label in before if name == "switch"][-1] == bucket


def test_a_start_does_nothing_twice_and_compiles_before_the_first_step(
    corpus, tmp_path, record
):
    """A stop then waits for no compilation, in a first start and in a restart."""
    compiled = "/jax/core/compile/backend_compile_duration"

    def hear(name, seconds, fun_name="", **about):
        # Functions called <lambda> are many, such as the split of a key.
        if name == compiled and "<lambda>" not in fun_name:
            done.append(("compiled", fun_name))

    done = record(shards, "_read_checked", lambda path, shard: path.name)
    record(shards, "open_corpus")
    record(sharding, "initialise")
    record(checkpoint.Checkpoints, "restore")
    record(reporting.Reporter, "write", lambda _, step, split, values: (split, step))
    run, options = tmp_path / "run", {"eval_every": 4, "checkpoint_every": 4}
    expected = {"_read_checked", "open_corpus", "initialise", "restore", "write"}
    expected |= {"compiled"}
    # Orbax slices arrays; JAX makes keys, once without and once with a mesh.
    small = {("compiled", f"jit({n})") for n in ("slice", "stage", "_threefry_seed")}
    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        for parts in (expected, expected - {"initialise"}):
            done.clear()
            pretraining.pretrain(small_config(corpus, **options), str(run))
            events = [e for e in done if e not in small]
            assert {name for name, _ in events} == parts
            assert len(events) == len(set(events))
            files = {shard.file for split in corpus.shards.values() for shard in split}
            assert {label for name, label in events if name == "_read_checked"} == files
            assert ("compiled", "jit(step_and_report)") in events
            assert ("write", ("eval", 10)) in events
            begun = next(i for i, (name, _) in enumerate(events) if name == "write")
            assert "compiled" not in dict(events[begun:])
            shutil.rmtree(run / "checkpoints" / "10")
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)


def test_evaluation_loops_over_the_micro_batches_of_its_phase(corpus):
    loops = []
    for micro_batches in (1, 4):
        values = small_config(corpus)
        phase = dataclasses.replace(values.phases[0], micro_batches=micro_batches)
        values = dataclasses.replace(values, phases=(phase,))
        values = pretraining.fill_in_from_corpora(values, [corpus])
        run = pretraining.make_run(values, sharding.make_mesh(values.mesh), [corpus])
        (phase,) = run.phases
        params, shapes = run.state_shapes.params, run.batch_shapes(phase, 16)
        text = programs.lower_eval_step(run, phase, params, shapes).as_text()
        loops.append(text.count("stablehlo.while"))
    assert loops[1] == loops[0] + 1


def test_profile_cache_and_shares_of_time(corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(throughput.hardware, "peak_flops", lambda kind: 1e10)
    before = jax.config.jax_compilation_cache_dir
    folder, cache = tmp_path / "run", tmp_path / "cache"
    options = {"profile_step": 4, "profile_steps": 2, "compilation_cache": "~/cache"}
    asked = small_config(corpus, **options)
    try:
        pretraining.pretrain(asked, str(folder))
        assert jax.config.jax_compilation_cache_dir == str(cache)
        assert any(cache.iterdir())  # JAX opened another one before
        said = capsys.readouterr().err
        pretraining.pretrain(asked, str(folder))
        end = asked.total_steps
        line = f"4: this start makes no profile, because it resumes after step {end}"
        assert line in capsys.readouterr().err and line not in said
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()
    (profile,) = (folder / "profile").rglob("*.xplane.pb")
    assert profile.stat().st_size > 1000
    assert f"profile in {folder / 'profile'}" in said
    # The shares of time in each report add up.
    trained = [r for r in metrics_file.read(folder) if r["split"] == "train"]
    resolved = workdir.read_config(folder, config.PretrainConfig)
    objective = masked_lm.MaskedLm(resolved.encoder, resolved.objective)
    flops = objective.sequence_flops(resolved.phases[0].length)
    for record in trained:
        shares = [v for k, v in record.items() if k.startswith("time_fraction_")]
        assert len(shares) == len(goodput.BUCKETS)
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        assert record["skipped_steps"] == 0
        rate = flops * record["sequences_per_sec"]
        assert record["mfu"] == pytest.approx(rate / 1e10, rel=1e-3)
    # The last line has the shares of the whole run.
    last = said.splitlines()[-1]
    assert "s in all: " in last
    shares = dict(part.split(" ") for part in last.split("; ")[1].split(", "))
    assert list(shares) == ["goodput", "data_wait_fraction", "mfu"]
    for name in ("data_wait_fraction", "mfu"):
        values = [record[name] for record in trained]
        share = float(shares[name].rstrip("%")) / 100
        assert min(values) - 6e-4 <= share <= max(values) + 6e-4
    assert 0 < float(shares["goodput"].rstrip("%")) < 100


@pytest.fixture
def window(clock, monkeypatch):
    """Return a ledger's window that counts steps of 4 sequences and 1e9 operations."""
    monkeypatch.setattr(throughput.hardware, "peak_flops", lambda kind: 1e9 / 8)
    mesh = types.SimpleNamespace(devices=np.array(jax.devices()))
    run = types.SimpleNamespace(mesh=mesh, flops=lambda *_: 1e9)
    ledger = goodput.Ledger()
    ledger.switch("step")
    window = throughput.ThroughputMeter(run, ledger)
    window.begin_phase(types.SimpleNamespace(lengths=(8,), batch_size=4))

    def count(steps, seconds):
        clock.time += seconds
        for _ in range(steps):
            window.count(8, np.zeros(len(jax.devices())))

    return window, ledger, count


def test_rates_are_those_of_all_steps_since_the_last_report(window, clock):
    """Evaluations and saves between the steps are left out."""
    window, ledger, count = window
    none = metric_sums.zeros(["grad_norm"])
    count(3, 2.0)
    for bucket in ("evaluation", "checkpoint", "profile"):
        with ledger.counting(bucket):
            clock.time += 100.0
    with ledger.counting("data_wait"):
        clock.time += 0.5
    count(2, 1.5)
    sums = none | {  # 32 tokens a step, a quarter of them padding
        "grad_norm": metric_sums.MetricSum(np.float32(1), np.float32(5)),
        "padding_fraction": metric_sums.MetricSum(np.float32(40), np.float32(160)),
    }
    assert window.close(sums) == {
        "tokens_per_sec": 5 * 24 / 4.0,
        "sequences_per_sec": 5 * 4 / 4.0,
        "data_wait_fraction": 0.5 / 4.0,
        "mfu": 5 / 4.0,
    }
    count(10, 2.0)
    assert window.close(none)["sequences_per_sec"] == 20
    assert window.shares() == {"data_wait_fraction": 0.5 / 6, "mfu": 15 / 6}


@pytest.mark.parametrize(("seconds", "rest"), [(0.36, "about 12 min"), (15, "8.3 h")])
def test_the_rest_of_a_phase_is_described_once(seconds, rest, window):
    """The first step is slow, and does not count."""
    window, _, count = window
    count(99, 9.9)
    assert window.describe_remaining_time(599) == ""  # too short to care
    window.begin_phase(window._phase)
    count(1, 900.0)
    for expected in ("", "", rest, ""):  # at first too few to know
        line = window.describe_remaining_time(2000)
        assert (expected in line) and bool(line) == bool(expected)
        window.close(metric_sums.zeros(["grad_norm"]))
        count(5, 5 * seconds)


def test_parameters_that_are_not_finite_are_not_saved(corpus, tmp_path, monkeypatch):
    """Losses and gradients may all have been finite."""
    seen = iter([True, True, False])  # the first one only compiles
    monkeypatch.setattr(programs, "make_finite_check", lambda _: lambda _: next(seen))
    run_config = small_config(corpus, checkpoint_every=4)
    with pytest.raises(UserError, match=r"step 8: the parameters .* is of step 4"):
        pretraining.pretrain(run_config, str(tmp_path / "run"))
    assert not (tmp_path / "run" / "checkpoints" / "8").exists()


# ---- reports


def test_a_report_that_a_crash_cut_off_or_zeroed_is_dropped(tmp_path):
    whole = [b'{"step": 1, "split": "train"}\n', b'{"step": 2, "split": "train"}\n']
    zeros = b"\0" * 40 + b"\n"
    for left in (whole[1][:9], zeros, zeros[:-1]):
        (tmp_path / "metrics.jsonl").write_bytes(b"".join([*whole, left]))
        with reporting.Reporter(tmp_path, 10, 2) as reporter:
            assert 2 in reporter.records("train")
        assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(whole)


def test_a_full_disk_is_reported_and_loses_one_report(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (
        pytest.raises(UserError, match=r"metrics.jsonl: File too large; run the"),
        reporting.Reporter(tmp_path, 10, 0) as reporter,
    ):
        reporter.write(1, "train", {"loss": 2.0})
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (60, before[1]))
            reporter.write(2, "train", {"loss": 1.5})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with reporting.Reporter(tmp_path, 10, 1) as reporter:
        assert 1 in reporter.records("train") and 2 not in reporter.records("train")


def test_a_batch_that_is_not_finite_cannot_be_written(tmp_path):
    (tmp_path / "run").touch()
    report = types.SimpleNamespace(loss=np.nan, grad_norm=np.inf)
    with pytest.raises(UserError, match="cannot write to .*not_finite_step_3_process"):
        reporting.write_not_finite(tmp_path / "run", 3, report, ["a"])


def test_a_full_disk_of_tensorboard_ends_no_run(tmp_path, monkeypatch):
    written = []

    class Writer:
        def __init__(self, folder, purge_step, max_queue, flush_secs):
            assert max_queue == 0  # no limit: nothing waits for a thread that ended
            assert flush_secs == 1  # os._exit drops what is not flushed

        def add_scalar(self, *scalar):
            written.append(scalar)

        def close(self):
            written.append("closed")
            raise OSError(errno.ENOSPC, "No space left on device")

    stand_in = types.SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "tensorboardX", stand_in)
    with reporting.Reporter(tmp_path, 10, 0) as reporter:
        reporter.write(1, "train", {"loss": 2.0})
    assert written == [("train/loss", 2.0, 1), "closed"]


@pytest.mark.parametrize("kind", ["PCIe", "80GB HBM3 MIG 1g.10gb"])
def test_the_peak_of_a_part_or_another_card_is_unknown(kind):
    assert hardware.peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert hardware.peak_flops(f"NVIDIA H100 {kind}") == 0


def test_steps_that_were_all_skipped_report_no_loss(corpus, tmp_path):
    """Their loss is not 0: there is none. A file names the rows of each step."""
    options = {"log_every": 1, "max_skipped_steps": 1000}
    optimizer = {"learning_rate": 1e30, "schedule": "linear"}
    values = small_config(corpus, 3, optimizer, **options)
    values = dataclasses.replace(values, phases=2 * values.phases)
    try:
        pretraining.pretrain(values, str(tmp_path))
    except UserError as error:  # parameters of 1e30 are finite, or are not saved
        assert "not finite" in str(error)
    records = [r for r in metrics_file.read(tmp_path) if r["split"] == "train"]
    skipped = [r for r in records if r["skipped_steps"]]
    assert skipped and all("loss" not in r for r in skipped[1:])
    assert all(r["sequences_per_sec"] > 0 for r in records)
    # Step 5 is the second one of the second phase.
    (file,) = tmp_path.glob("not_finite_step_5_process_0.json")
    rows = batches.PretrainingBatches([corpus], values, 1).row_names(1)
    assert json.loads(file.read_text())["rows"] == rows


def notice(step, loss, earlier=()):
    values = {"loss": 9.0, "mlm_loss": loss, "nsp_loss": 0.7}
    levels = {"unigram_entropy": 6.0, "mlm_loss_without_context": 5.0}
    return plateau.describe(step, 100, values | levels, earlier)


def test_notice_at_the_first_evaluation_after_a_fifth_of_the_steps():
    assert notice(19, 5.5) == ""
    line = notice(20, 5.5)
    assert line.startswith("step 20 of 100: the held-out mlm_loss, 5.50, is not")
    # The baseline is lower than that of frequencies: some tokens stay in their places.
    assert "below 5.00, the loss of a model that sees no context." in line
    assert "\n" not in line and "nsp" not in line
    assert notice(35, 5.5, earlier=[10, 19, 35]) == notice(35, 5.5) != ""
    # Not again.
    assert notice(36, 5.5, earlier=[20]) == notice(36, 5.5, earlier=[35]) == ""
    # A little below is chance.
    assert notice(20, 4.97) and notice(20, 5.0)
    assert notice(20, 4.9) == ""
    # Fine-tuning has no baseline.
    assert plateau.describe(50, 100, {"loss": 9.0, "spans_loss": 9.0}, []) == ""


# ---- a workdir in an object store


def test_an_object_store_keeps_reports_and_config(tmp_path, capsys):
    """The store is in memory; like others it has neither rename nor append."""
    folder = storage.path(f"memory://runs/{tmp_path.name}")
    first = config.PretrainConfig()
    with workdir.claim(str(folder), first) as place:
        begun = workdir.first_start(place)
        with reporting.Reporter(place, 10, 0) as reporter:
            reporter.write(1, "train", {"loss": 2.0})
            reporter.write(2, "train", {"loss": 1.5})
            reporter.flush()
            kept = (place / "metrics.jsonl").read_text(encoding="utf-8")
            reporter.write(3, "train", {"loss": 1.0})
            assert 2 in reporter.records("train") and 2 not in reporter.records("eval")
            # Reports that are not in the store yet count, too.
            assert list(reporter.records("train")) == [1, 2, 3]
    assert [json.loads(line)["step"] for line in kept.splitlines()] == [1, 2]
    assert [r["step"] for r in metrics_file.read(str(folder))] == [1, 2, 3]
    # Continued at step 2: what came later goes, and the folder has its owner.
    with workdir.claim(str(folder), first) as place:
        assert workdir.first_start(place) == begun
        with reporting.Reporter(place, 10, 2) as reporter:
            reporter.write(3, "train", {"loss": 1.1})
    losses = [r["loss"] for r in metrics_file.read(str(folder))]
    assert losses == [2.0, 1.5, 1.1]
    other = dataclasses.replace(first, seed=1)
    with (
        pytest.raises(UserError, match="seed: was 0, is now 1"),
        workdir.claim(str(folder), other),
    ):
        pass
    assert "config changed" not in capsys.readouterr().err
