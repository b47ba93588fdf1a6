"""Runs of several real processes, each with several emulated devices."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import commands
import jax
import numpy as np
import published
import pytest
import runs

from bert_jax.errors import UserError
from bert_jax.interop import checkpoints
from bert_jax.model import parameters
from bert_jax.training import metrics_file, processes, restore

pytestmark = pytest.mark.pods


# ---- checkpoints of other projects


def test_processes_read_each_published_array_once(tmp_path):
    """Each array once; no process holds more than its devices have."""
    folder = published.write("pretraining", tmp_path / "theirs")
    script = runs.ROOT / "tests" / "pod_interop.py"
    command = [sys.executable, str(script), str(folder), str(tmp_path)]
    runs.succeed(runs.launch(2, 2, command))
    about = [json.loads((tmp_path / f"{p}.json").read_text()) for p in range(2)]
    names = checkpoints.open_published(folder).arrays
    assert not any(each["new"] for each in about)
    assert about[0]["fingerprint"] == about[1]["fingerprint"]
    for each in about:
        assert each["read"] == dict.fromkeys(names, 1)
    expected = parameters.flatten(published.params(folder))
    pieces: dict[str, set[str]] = {}
    for process in range(2):
        for key, part in np.load(tmp_path / f"{process}.npz").items():
            path, begin = key.split("@")
            begins = [int(b) for b in begin.split(",")] if begin else []
            at = tuple(slice(b, b + n) for b, n in zip(begins, part.shape, strict=True))
            np.testing.assert_array_equal(part, expected[path][at])
            pieces.setdefault(path, set()).add(begin)
    assert pieces.keys() == expected.keys()
    # Four devices have a quarter each, but for some vectors, of which each has a copy.
    for path, begins in pieces.items():
        is_matrix = path.endswith(("kernel", "embedding"))
        assert len(begins) == 4 or (len(begins) == 1 and not is_matrix), path
    held = sum(
        2 * expected[path].nbytes // len(begins) for path, begins in pieces.items()
    )
    assert [each["held"] for each in about] == [held, held]


# ---- runs

RUN = "--config.phases[0].steps=16", "--config.data.shard_groups=2"


@pytest.fixture(scope="module")
def one_process(corpus, tmp_path_factory):
    """Return the workdir of the run in one process with one device."""
    workdir = tmp_path_factory.mktemp("one")
    commands.succeed("pretrain", *runs.flags_of(corpus, workdir, *RUN))
    return workdir


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param({"data": 1, "fsdp": 2, "tensor": 2}, marks=pytest.mark.slow),
        {"shard_optimizer": True},
    ],
    ids=str,
)
def test_two_processes_train_as_one_does(mesh, one_process, corpus, tmp_path):
    flags = [f"--config.mesh.{name}={value}" for name, value in mesh.items()]
    command = runs.pretrain(corpus, tmp_path / "run", *RUN, *flags)
    done = runs.succeed(runs.launch(2, 2, command))
    runs.assert_same_curve(tmp_path / "run", one_process)
    # One process speaks and writes.
    assert "[0] train step 3/16" in done.text and "[1] train" not in done.text
    records = metrics_file.read(tmp_path / "run")
    last = [r for r in records if r["split"] == "train"][-1]
    assert 0 <= last["host_seconds_mean"] <= last["host_seconds_max"]
    assert last["slowest_process"] in (0, 1)


@pytest.mark.slow
def test_checkpoints_move_between_numbers_of_processes(one_process, corpus, tmp_path):
    """Saved by four processes and continued by one, on another mesh."""
    mesh = ["--config.mesh.fsdp=2"]
    command = runs.pretrain(corpus, tmp_path / "run", *RUN, *mesh)
    stopped = runs.Watched(runs.launch(4, 2, command))
    assert stopped.wait_for("train step 3/16"), stopped.text
    stopped.process.send_signal(signal.SIGTERM)
    assert stopped.end() == 75, stopped.text
    step = int(restore.find(tmp_path / "run").name)
    assert 3 <= step < 16
    other_mesh = ["--config.mesh.data=2", "--config.mesh.tensor=2"]
    command = runs.pretrain(corpus, tmp_path / "run", *RUN, *other_mesh)
    done = runs.succeed(runs.launch(1, 4, command))
    assert f"continuing at step {step} of 16" in done.text
    runs.assert_same_curve(tmp_path / "run", one_process)


@pytest.mark.slow
def test_a_slow_host_shows(corpus, tmp_path):
    """The process whose data comes late is named, with what it costs."""
    lines = (
        "import sys, time; from bert_jax.data import pipeline;"
        "batches = pipeline.Pipeline.batches;"
        "late = lambda self, *a: ((time.sleep(0.1), b)[1] for b in batches(self, *a));"
        "pipeline.Pipeline.batches = late if sys.argv[-1][-1] == '1' else batches"
    )
    flags = runs.flags_of(corpus, tmp_path / "run", *RUN)
    runs.succeed(runs.launch(2, 1, runs.pretrain_after(lines, flags)))
    records = metrics_file.read(tmp_path / "run")
    last = [r for r in records if r["split"] == "train"][-1]
    assert last["slowest_process"] == 1
    assert last["host_seconds_max"] > 0.1 > last["host_seconds_mean"]


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["programs.lower_train_step", "saving.Saver.compile"])
def test_a_process_may_compile_for_longer_than_gloo_waits(slow, corpus, tmp_path):
    """Gloo gives up after 30 seconds if one process is late."""
    lines = (
        "import sys, time; from bert_jax.training import programs, saving;"
        f"compile = {slow};"
        "late = lambda *a: (time.sleep(40), compile(*a))[1];"
        f"{slow} = late if sys.argv[-1][-1] == '1' else compile"
    )
    flags = runs.flags_of(
        corpus, tmp_path / "run", "--config.phases[0].steps=2", "--config.mesh.fsdp=2"
    )
    done = runs.succeed(runs.launch(2, 2, runs.pretrain_after(lines, flags)))
    assert "[0] train step 2/2" in done.text


@pytest.mark.slow
def test_fine_tuning_in_two_processes(one_process, labelled_files, tmp_path):
    """The same predictions, losses and results as in one."""
    command = commands.command(
        "finetune_classifier",
        f"--config={runs.ROOT}/configs/classifier.py:smoke",
        f"--config.init_from={one_process}",
        *(f"--config.task.{part}={path}" for part, path in labelled_files.items()),
        "--config.task.length=16",
    )
    results = []
    for count, devices in ((1, 1), (2, 2)):
        workdir = tmp_path / f"run{count}"
        launched = runs.launch(count, devices, [*command, f"--workdir={workdir}"])
        runs.succeed(launched)
        results.append(json.loads((workdir / "results.json").read_text()))
    assert results[0] == results[1]
    one, two = tmp_path / "run1", tmp_path / "run2"
    (_, *first), (_, *second) = (
        [line.split("\t") for line in (p / "predictions.tsv").read_text().splitlines()]
        for p in (one, two)
    )
    assert [row[:2] for row in first] == [row[:2] for row in second]
    probabilities = [np.array([row[2:] for row in x], float) for x in (first, second)]
    np.testing.assert_allclose(*probabilities, atol=1e-5)
    losses = [[r["loss"] for r in runs.metrics(p)] for p in (one, two)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


PER_PROCESS = """
import sys
process = sys.argv[-1][-1]
sys.argv = [a.replace("CORPUS", {corpora}[process != "1"]) for a in sys.argv]
sys.argv = [a.replace("NUMBER", str(1 + int(process))) for a in sys.argv]
sys.argv = [a for a in sys.argv if process == "0" or "ONLY_0" not in a]
"""


@pytest.mark.parametrize("differs", ["corpus", "workdir", "config", "init_from"])
def test_an_error_in_one_process_ends_all(differs, corpus, tmp_path):
    """One host lacks the corpus, or has another workdir, config or source."""
    nowhere = str(tmp_path / "nowhere") if differs == "corpus" else str(corpus.folder)
    lines = PER_PROCESS.format(corpora=[nowhere, str(corpus.folder)])
    moved = dataclasses.replace(corpus, folder="CORPUS")
    workdir = tmp_path / ("placeNUMBER" if differs == "workdir" else "run")
    fields = "loop.eval_every", "optimizer.learning_rate"
    numbers = [f"--config.{field}=NUMBER" for field in fields]
    changes = {"config": numbers, "init_from": ["--config.init_from=ONLY_0"]}
    flags = runs.flags_of(moved, workdir, *changes.get(differs, ()))
    done = runs.run(runs.launch(2, 1, runs.pretrain_after(lines, flags)))
    assert done.process.returncode == 2 and "Traceback" not in done.text, done.text
    message = {
        "corpus": f"no corpus in {nowhere}",
        "workdir": "process 1 does not see the ",
        "config": f"differs from process 0 in {', '.join(fields)}; give",
        "init_from": "differs from process 0 in init_from; give",
    }[differs]
    errors = [line for line in done.lines if "error: " in line]
    assert errors and all(message in line for line in errors), done.text
    if differs == "corpus":
        assert "[0] error" in done.text and "[1] error" in done.text
        assert not workdir.exists()


# ---- the launcher


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", 2, -1), "give all three"),
        (("localhost:1", 2, 2), "--process_id=2 must be less than"),
        (("host", 2, 1), "address=host: expected HOST:PORT"),
    ],
)
def test_incomplete_process_flags_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        processes.start(*arguments)


@pytest.mark.parametrize("arguments", [(), ("localhost:1", 2, 1)])
def test_processes_wait_for_slices_that_start_later(arguments, monkeypatch):
    calls = []
    monkeypatch.setattr(processes, "_has_peers", lambda: True)
    monkeypatch.setattr(
        jax.distributed, "initialize", lambda *given, **options: calls.append(options)
    )
    processes.start(*arguments)
    assert calls == [{"initialization_timeout": 1800}]


def test_an_unknown_launcher_asks_for_the_flags():
    """Open MPI 5 sets no variable that JAX knows."""
    script = "from bert_jax.training import processes; processes.start()"
    environment = os.environ | {"OMPI_COMM_WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("bert_jax.errors.UserError: JAX cannot find the other")
    assert last.endswith("give --coordinator_address, --num_processes and --process_id")


def local(*arguments):
    return subprocess.run(
        [sys.executable, str(runs.ROOT / "launch" / "local.py"), *arguments],
        capture_output=True,
        text=True,
    )


def test_the_launcher_prints_what_it_would_run():
    done = local("--processes=2", "--devices=3", "--dry_run", "--", "a b", "c[0]=$d")
    first, second = done.stdout.splitlines()
    assert first.startswith("JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=3 'a b' 'c[0]=$d' ")
    assert "--num_processes=2 --process_id=0 &" in first
    assert "--num_processes=2 --process_id=1 &" in second
    assert not done.stderr


@pytest.mark.parametrize(
    ("script", "status", "starts"),
    [
        ("exit 2", 2, 1),
        ("exit 75", 75, 3),
        ("kill -9 $$", 1, 3),
        ('[ -e "$1" ] && exit 0; touch "$1"; exit 1', 0, 2),
    ],
)
def test_the_launcher_restarts_what_may_be_repeated(script, status, starts, tmp_path):
    command = ["sh", "-c", script, "sh", str(tmp_path / "mark")]
    done = local("--processes=1", "--restarts=2", "--", *command)
    assert done.returncode == status
    assert done.stderr.count("has pid") == starts


def test_the_launcher_ends_when_nobody_reads_its_output():
    reader, writer = os.pipe()
    command = [sys.executable, str(runs.ROOT / "launch" / "local.py"), "--processes=1"]
    started = subprocess.Popen([*command, "--", "yes"], stdout=writer, stderr=writer)
    os.close(writer)
    os.read(reader, 1000)
    os.close(reader)
    assert started.wait(timeout=60) in (1, 120)  # 120: Python could not flush


def test_the_launcher_ends_all_when_one_dies():
    script = 'case "$*" in *--process_id=1) exit 3;; *) sleep 15; echo alive;; esac'
    done = local("--processes=3", "--", "sh", "-c", script, "sh")
    assert done.returncode == 1
    assert "alive" not in done.stdout + done.stderr


def test_the_launcher_ends_what_a_dead_wrapper_leaves_behind():
    script = "(sleep 15; echo alive) & kill -9 $$"
    done = local("--processes=1", "--", "sh", "-c", script)
    assert done.returncode == 1
    assert "alive" not in done.stdout + done.stderr


def test_the_launcher_passes_a_stop_on_to_programs_in_wrappers():
    """The wrapper ends at once. The save takes longer than the grace after a crash."""
    program = """
import signal, sys, time
def save(*_):
    time.sleep(6)
    print("saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("trains", flush=True)
time.sleep(60)
"""
    wrapper = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", program]
    watched = runs.Watched(runs.launch(1, 1, wrapper))
    assert watched.wait_for("trains"), watched.text
    watched.process.terminate()
    watched.end()
    assert "[0] saved" in watched.text, watched.text


def test_a_second_interrupt_of_the_launcher_kills():
    script = "trap '' TERM; echo trains; sleep 60 & wait; wait"
    watched = runs.Watched(runs.launch(1, 1, ["sh", "-c", script]))
    assert watched.wait_for("trains"), watched.text
    for _ in range(2):
        watched.process.send_signal(signal.SIGINT)
        time.sleep(0.5)  # signals that arrive together count as one
    watched.end()
    assert watched.process.returncode == 1
