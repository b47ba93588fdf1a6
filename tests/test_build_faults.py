"""Kills of `run.build_corpus`, and full disks, with real processes."""

import multiprocessing
import os
import pathlib
import random
import signal
import string
import subprocess
import sys
import time

import pytest
import runs
from commands import assert_refused, call, command, run, succeed
from corpora import content

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, build_state, local_runner, sources, splits
from bert_jax.errors import UserError
from bert_jax.tokenizer import pipelines

pytestmark = pytest.mark.faults


# ---- processes


@pytest.fixture(scope="module")
def long_text(tmp_path_factory):
    """Three splits of unknown words, which take long to tokenise."""
    rng = random.Random(0)

    def words(count):
        return ("".join(rng.choices(string.ascii_lowercase, k=9)) for _ in range(count))

    path = tmp_path_factory.mktemp("long") / "text.txt"
    documents = (
        "\n".join(" ".join(words(15)) + "." for _ in range(60)) for _ in range(330)
    )
    path.write_text("\n\n".join(documents))
    return path


@pytest.fixture(scope="module")
def undisturbed(long_text, wordpiece, tmp_path_factory):
    """Files of the corpus that an undisturbed `LongBuild` makes."""
    folder = tmp_path_factory.mktemp("undisturbed") / "c"
    source = sources.Source(str(long_text), "text", split_bytes=1_000_000)
    return content(build.build(source, build.Settings(), wordpiece, folder).folder)


class LongBuild(runs.Watched):
    """`run.build_corpus` with two processes, in a session of its own."""

    def __init__(self, text, vocabulary, output):
        self.output = output
        self.flags = [
            f"--input={text}",
            f"--tokenizer={vocabulary}",
            f"--output={output}",
            "--shard_megabytes=1",
            "--workers=2",
        ]
        super().__init__(command("build_corpus", *self.flags), start_new_session=True)

    def wait_for_split(self):
        while not list(self.output.glob("unfinished/split-*.json")):
            assert self.process.poll() is None, self.text
            time.sleep(0.01)

    def workers(self):
        pid = self.process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(p) for p in children.split() if "spawn_main" in command_line(p)]

    def finish(self):
        succeed("build_corpus", *self.flags)
        return content(self.output)


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def assert_gone(pids):
    assert len(pids) == 2
    deadline = time.monotonic() + 60
    while any("spawn_main" in command_line(pid) for pid in pids):
        assert time.monotonic() < deadline, "worker processes were left behind"
        time.sleep(0.05)


@pytest.fixture
def long_build(long_text, saved_wordpiece, tmp_path):
    started = LongBuild(long_text, saved_wordpiece, tmp_path / "c")
    yield started
    if started.process.poll() is None:
        started.process.kill()


def stop(build, number, to_all):
    (os.killpg if to_all else os.kill)(build.process.pid, number)


@pytest.mark.parametrize(
    ("number", "to_all", "pause"),
    [
        (signal.SIGINT, True, 0.02),
        *(
            pytest.param(*values, marks=pytest.mark.slow)
            for values in (
                (signal.SIGINT, True, None),
                (signal.SIGINT, True, 0.0),
                (signal.SIGINT, True, 0.3),
                (signal.SIGTERM, False, None),
                (signal.SIGTERM, True, None),
            )
        ),
    ],
)
def test_signals_end_the_build_at_once_and_lose_nothing(
    number, to_all, pause, long_build, undisturbed
):
    """Once, or twice after a pause. A terminal sends Ctrl-C to all processes."""
    long_build.wait_for_split()
    workers = long_build.workers()
    stop(long_build, number, to_all)
    if pause is not None:
        time.sleep(pause)
        if long_build.process.poll() is None:
            stop(long_build, number, to_all)
    long_build.process.wait(120)
    assert long_build.end() == 75
    assert_gone(workers)
    assert "Traceback" not in long_build.text
    assert "; the same command continues" in long_build.lines[-1]
    assert list(long_build.output.glob("unfinished/split-*.json"))
    assert long_build.finish() == undisturbed


def test_an_interrupt_comes_between_two_results_only(long_text, wordpiece, tmp_path):
    """Anywhere else, it could meet a lock or a thread of a library half-way."""
    source = sources.Source(str(long_text), "text", split_bytes=1_000_000)
    job = splits.Job(source, build.Settings(), wordpiece, str(tmp_path))
    with build_state.claimed(tmp_path):
        build_state.start_or_resume(tmp_path, {}, 3)
        results = local_runner.run(
            job, list(enumerate(sources.plan(source))), workers=2
        )
        next(results)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            next(results)
    assert not multiprocessing.active_children()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


DIES_AT_ONCE = """
import multiprocessing.util as util, os, signal
from bert_jax import tokenizer
from bert_jax.corpus import build, sources
start = util.spawnv_passfds
def start_and_kill(path, arguments, fds):
    pid = start(path, arguments, fds)
    if "spawn_main" in str(arguments):
        os.kill(pid, signal.SIGKILL)
    return pid
util.spawnv_passfds = start_and_kill
source = sources.Source({text!r}, "text", split_bytes=1_000_000)
build.build(source, build.Settings(), tokenizer.Tokenizer.load({tokenizer!r}),
            {output!r}, workers=2)
"""


def test_a_worker_is_killed_before_it_reads_a_large_tokenizer(long_text, tmp_path):
    """Its pipe holds 64 KiB."""
    words = [f"word{i}" for i in range(10_000)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pipeline = pipelines.wordpiece([*special, *words], True, True)
    tokenizer_lib.make(pipeline).save(tmp_path / "t")
    paths = {"tokenizer": str(tmp_path / "t"), "output": str(tmp_path / "c")}
    program = DIES_AT_ONCE.format(text=str(long_text), **paths)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "UserError: a worker process was killed" in done.stderr, done.stderr


@pytest.mark.slow
def test_workers_end_with_a_killed_build(long_build, undisturbed):
    long_build.wait_for_split()
    workers = long_build.workers()
    long_build.process.kill()
    assert_gone(workers)
    assert long_build.end() == -signal.SIGKILL
    assert long_build.finish() == undisturbed


def test_second_build_is_refused_and_killed_worker_is_reported(long_build, undisturbed):
    """The system kills the largest process when memory runs out."""
    long_build.wait_for_split()
    workers = long_build.workers()
    done = call("build_corpus", *long_build.flags)
    busy = f"another build is running on {long_build.output}; wait for it"
    assert_refused(done, busy)
    os.kill(workers[0], signal.SIGKILL)
    assert long_build.end() == 2
    assert_gone(workers)
    *progress, line = long_build.lines
    assert all(x.startswith(("reading ", "building corpus: ")) for x in progress)
    assert line.startswith("error: a worker process was killed (out of memory?); run")
    assert long_build.finish() == undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_learning_at_once(number, tmp_path):
    """The trainers do not return to Python while they learn."""
    rng = random.Random(0)
    words = ("".join(rng.choices(string.ascii_lowercase, k=900)) for _ in range(3000))
    (tmp_path / "text.txt").write_text("\n".join(words))
    flags = [f"--input={tmp_path}/text.txt", f"--output={tmp_path / 't'}"]
    watched = runs.Watched(command("train_tokenizer", *flags))
    assert watched.wait_for("learning"), watched.text
    time.sleep(1)
    watched.process.send_signal(number)
    watched.process.wait(5)
    assert watched.end() == -number, watched.text
    assert not (tmp_path / "t").exists()


# ---- disks


@pytest.mark.parametrize(
    ("limit", "workers"),
    [
        (300, 2),
        pytest.param(300, 1, marks=pytest.mark.slow),
        pytest.param(0, 2, marks=pytest.mark.slow),
        pytest.param(100_000, 2, marks=pytest.mark.slow),
    ],
)
def test_full_disk_ends_a_build_in_one_line(
    limit, workers, text_file, saved_wordpiece, tmp_path
):
    """At the first file, at the result of a split, in a shard."""
    text = tmp_path / "text.txt"
    text.write_text(text_file.read_text() * 4)  # several splits
    flags = [
        f"--input={text}",
        f"--tokenizer={saved_wordpiece}",
        f"--workers={workers}",
        "--shard_megabytes=1",
    ]
    output = f"--output={tmp_path / 'c'}"
    done = run("build_corpus", *flags, output, largest_file=limit)
    assert_refused(done, f"cannot write to {tmp_path / 'c'}")
    assert "File too large" in done.stderr
    for other in ("c", "whole"):
        succeed("build_corpus", *flags, f"--output={tmp_path / other}")
    assert content(tmp_path / "c") == content(tmp_path / "whole")


def test_full_disk_ends_learning_in_one_line(text_file, tmp_path):
    """The same command works when there is room."""
    flags = [f"--input={text_file}", "--vocab_size=500", f"--output={tmp_path / 'v'}"]
    done = run("train_tokenizer", *flags, largest_file=400)
    assert_refused(done, f"cannot write to {tmp_path / 'v'}: File too large")
    with pytest.raises(UserError):
        tokenizer_lib.Tokenizer.load(tmp_path / "v")
    succeed("train_tokenizer", *flags)
    assert tokenizer_lib.Tokenizer.load(tmp_path / "v").vocab_size == 500
    assert_refused(call("train_tokenizer", *flags), "v is not empty; give a new folder")
