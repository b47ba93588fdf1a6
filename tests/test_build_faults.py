"""What is done to `run.build_corpus` and `run.train_tokenizer`, and what is lost.

Real processes: they are killed, and their disks are full.
"""

import os
import pathlib
import random
import signal
import string
import subprocess
import time

import pytest
from commands import assert_refused, call, command, run
from corpora import content

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, sources
from bert_jax.errors import UserError

pytestmark = pytest.mark.faults


@pytest.fixture
def vocabulary(wordpiece, tmp_path):
    """Folder of a tokenizer."""
    wordpiece.save(tmp_path / "t")
    return tmp_path / "t"


# ---- processes


@pytest.fixture(scope="module")
def long_text(tmp_path_factory):
    """Some splits of words that the vocabulary lacks, which take long to cut up."""
    rng = random.Random(0)

    def words(count):
        return ("".join(rng.choices(string.ascii_lowercase, k=9)) for _ in range(count))

    path = tmp_path_factory.mktemp("long") / "text.txt"
    documents = (
        "\n".join(" ".join(words(15)) + "." for _ in range(60)) for _ in range(500)
    )
    path.write_text("\n\n".join(documents))
    return path


@pytest.fixture(scope="module")
def short_text(long_text, tmp_path_factory):
    """Its begin, two splits long."""
    path = tmp_path_factory.mktemp("short") / "text.txt"
    documents = long_text.read_text().split("\n\n")
    path.write_text("\n\n".join(documents[:175]))
    return path


def built(text, wordpiece, folder):
    """Files of the corpus of a text, in splits of a megabyte."""
    source = sources.Source(str(text), "text", split_bytes=1_000_000)
    return content(build.build(source, build.Settings(), wordpiece, folder).folder)


@pytest.fixture(scope="module")
def undisturbed(long_text, wordpiece, tmp_path_factory):
    """Files of the corpus that `LongBuild` makes if nothing happens to it."""
    return built(long_text, wordpiece, tmp_path_factory.mktemp("undisturbed") / "c")


@pytest.fixture(scope="module")
def short_corpus(short_text, wordpiece, tmp_path_factory):
    """Files of the corpus of the short text."""
    return built(short_text, wordpiece, tmp_path_factory.mktemp("short") / "c")


class LongBuild:
    """`run.build_corpus` with two processes, in a session of its own."""

    def __init__(self, text, vocabulary, output, *flags):
        self.output = output
        self.flags = [
            f"--input={text}",
            f"--tokenizer={vocabulary}",
            f"--output={output}",
            "--shard_megabytes=1",
            "--workers=2",
            *flags,
        ]
        self.process = subprocess.Popen(
            command("build_corpus", *self.flags),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for_splits(self, count):
        while len(list(self.output.glob("unfinished/split-*.json"))) < count:
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.01)

    def workers(self):
        """Processes that build splits; the standard library has one of its own."""
        pid = self.process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(p) for p in children.split() if "spawn_main" in command_line(p)]

    def end(self, seconds=120):
        _, self.errors = self.process.communicate(timeout=seconds)
        return self.process.returncode

    def finish(self):
        """The same command again, to the end."""
        done = call("build_corpus", *self.flags)
        assert done.returncode == 0, done.stderr
        return content(self.output)


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def assert_gone(pids, seconds=60):
    assert len(pids) == 2
    deadline = time.monotonic() + seconds
    while any("spawn_main" in command_line(pid) for pid in pids):
        assert time.monotonic() < deadline, "worker processes were left behind"
        time.sleep(0.05)


@pytest.fixture
def long_build(long_text, vocabulary, tmp_path):
    started = LongBuild(long_text, vocabulary, tmp_path / "c")
    yield started
    if started.process.poll() is None:
        started.process.kill()


SWEEP = [pytest.param(pause, marks=pytest.mark.slow) for pause in (None, 0.0, 0.3)]


@pytest.mark.parametrize("pause", [0.02, *SWEEP])
def test_ctrl_c_ends_the_build_at_once_and_loses_nothing(
    pause, long_build, undisturbed
):
    """Once, or twice in a row; a terminal sends it to all processes."""
    long_build.wait_for_splits(1)
    workers = long_build.workers()
    os.killpg(long_build.process.pid, signal.SIGINT)
    if pause is not None:
        time.sleep(pause)
        if long_build.process.poll() is None:
            os.killpg(long_build.process.pid, signal.SIGINT)
    assert long_build.end() == 75
    assert_gone(workers)
    assert "Traceback" not in long_build.errors
    assert "stopped" in long_build.errors.splitlines()[-1]
    kept = len(list(long_build.output.glob("unfinished/split-*.json")))
    assert kept >= 1
    assert long_build.finish() == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("to_all", [False, True])
def test_sigterm_stops_like_ctrl_c(to_all, long_build, undisturbed):
    long_build.wait_for_splits(1)
    workers = long_build.workers()
    (os.killpg if to_all else os.kill)(long_build.process.pid, signal.SIGTERM)
    assert long_build.end() == 75
    assert_gone(workers)
    assert "Traceback" not in long_build.errors
    assert "; the same command continues" in long_build.errors.splitlines()[-1]
    assert long_build.finish() == undisturbed


@pytest.mark.slow
def test_workers_end_with_a_build_that_is_killed(long_build, undisturbed):
    long_build.wait_for_splits(1)
    workers = long_build.workers()
    long_build.process.kill()
    assert_gone(workers)
    assert long_build.end() == -signal.SIGKILL
    assert long_build.finish() == undisturbed


def test_a_worker_that_is_killed_is_reported_in_one_line(long_build, undisturbed):
    """What the system does to the largest process when memory runs out."""
    long_build.wait_for_splits(1)
    workers = long_build.workers()
    os.kill(workers[0], signal.SIGKILL)
    assert long_build.end() == 2
    assert_gone(workers)
    *progress, line = long_build.errors.splitlines()
    assert all(x.startswith(("reading ", "building corpus: ")) for x in progress)
    expected = "error: a worker process was killed by signal 9 (Killed); memory may"
    assert line.startswith(expected)
    assert "the same command continues" in line
    assert long_build.finish() == undisturbed


def test_two_builds_do_not_share_a_folder(
    long_build, long_text, vocabulary, tmp_path, undisturbed
):
    long_build.wait_for_splits(1)
    done = call("build_corpus", *long_build.flags)
    assert_refused(done, f"another build is running on {tmp_path / 'c'}; wait for it")
    assert long_build.end() == 0
    assert content(tmp_path / "c") == undisturbed


@pytest.mark.slow
def test_two_builds_that_start_together_do_not_either(
    long_text, vocabulary, tmp_path, undisturbed
):
    both = [LongBuild(long_text, vocabulary, tmp_path / "c") for _ in range(2)]
    assert sorted(build.end() for build in both) == [0, 2]
    errors = "".join(build.errors for build in both)
    assert errors.count("error: another build is running on") == 1
    assert "Traceback" not in errors
    assert content(tmp_path / "c") == undisturbed


# ---- disks


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "limit", [300, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 100_000))]
)
def test_a_full_disk_ends_a_build_in_one_line(
    limit, workers, short_text, vocabulary, tmp_path, short_corpus
):
    """At its first file, at a result of a split, in a shard."""
    flags = [
        f"--input={short_text}",
        f"--tokenizer={vocabulary}",
        f"--output={tmp_path / 'c'}",
        f"--workers={workers}",
        "--shard_megabytes=1",
    ]
    done = run("build_corpus", *flags, largest_file=limit)
    assert_refused(done, f"cannot write to {tmp_path / 'c'}")
    assert "File too large" in done.stderr
    assert len(list(tmp_path.glob("c/**/*.tmp"))) <= workers  # of killed workers
    done = call("build_corpus", *flags)
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "c") == short_corpus


@pytest.mark.parametrize("limit", [0, 400])
def test_a_full_disk_ends_learning_in_one_line(limit, text_file, tmp_path):
    """At the settings, at the vocabulary. The same command works when there is room."""
    flags = [
        f"--input={text_file}",
        "--vocab_size=500",
        f"--output={tmp_path / 'v'}",
    ]
    done = run("train_tokenizer", *flags, largest_file=limit)
    assert_refused(done, f"cannot write to {tmp_path / 'v'}: File too large")
    with pytest.raises(UserError):
        tokenizer_lib.Tokenizer.load(tmp_path / "v")
    done = call("train_tokenizer", *flags)
    assert done.returncode == 0, done.stderr
    assert tokenizer_lib.Tokenizer.load(tmp_path / "v").vocab_size == 500
    assert_refused(call("train_tokenizer", *flags), "v is not empty; give a new folder")
