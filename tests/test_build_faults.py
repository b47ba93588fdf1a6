"""What is done to `run.build_corpus` and `run.train_tokenizer`, and what is lost.

Real processes and real files: damaged input, full disks, processes that are killed.
"""

import gzip
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from test_corpus import content

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, shards, sources


def command(name, *flags):
    return [sys.executable, "-m", f"bert_jax.run.{name}", *map(str, flags)]


def run(name, *flags, **options):
    return subprocess.run(
        command(name, *flags), capture_output=True, text=True, **options
    )


@pytest.fixture
def vocabulary(wordpiece, tmp_path):
    """Folder of a tokenizer."""
    wordpiece.save(tmp_path / "t")
    return tmp_path / "t"


# ---- input


def test_damaged_input_costs_no_other_input(documents, vocabulary, tmp_path):
    """By the entrypoints, in several processes: damage is reported, the rest kept."""
    good = gzip.compress("\n\n".join(documents[:40]).encode())
    for name, data in {
        "a.gz": good,
        "b.gz": good[:11] + bytes([good[11] ^ 1]) + good[12:],
        "c.gz": good[:-6] + bytes([good[-6] ^ 1]) + good[-5:],
        "d.gz": good,
    }.items():
        (tmp_path / name).write_bytes(data)
    flags = [f"--input={tmp_path}/*.gz", "--workers=2", "--held_out=0"]
    output = [f"--tokenizer={vocabulary}", f"--output={tmp_path / 'c'}"]
    done = run("build_corpus", *flags, *output)
    assert done.returncode == 0, done.stderr
    told = [x for x in done.stderr.splitlines() if x.startswith("warning: /")]
    assert len(told) == 2
    assert told[0].startswith(f"warning: {tmp_path}/b.gz: cannot be read to its end")
    assert told[1].startswith(f"warning: {tmp_path}/c.gz: cannot be read to its end")
    corpus = shards.open_corpus(tmp_path / "c")
    assert 3 * 40 - 1 <= corpus.count("train", "documents") <= 3 * 40
    done = run(
        "train_tokenizer", flags[0], "--vocab_size=500", f"--output={tmp_path / 'v'}"
    )
    assert done.returncode == 0, done.stderr
    assert f"warning: {tmp_path}/b.gz: cannot be read to its end" in done.stderr
    assert tokenizer_lib.Tokenizer.load(tmp_path / "v").vocab_size == 500


# ---- processes


@pytest.fixture(scope="module")
def long_text(documents, tmp_path_factory):
    """Enough for some splits; every document differs from the others."""
    path = tmp_path_factory.mktemp("long") / "text.txt"
    texts = [f"Copy {i}. {text}" for i in range(12) for text in documents]
    path.write_text("\n\n".join(texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def undisturbed(long_text, wordpiece, tmp_path_factory):
    """Files of the corpus that `LongBuild` makes if nothing happens to it."""
    source = sources.Source(str(long_text), "text", split_bytes=1_000_000)
    folder = tmp_path_factory.mktemp("undisturbed") / "c"
    return content(build.build(source, build.Settings(), wordpiece, folder).folder)


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

    def end(self, seconds=20):
        _, self.errors = self.process.communicate(timeout=seconds)
        return self.process.returncode

    def finish(self):
        """The same command again, to the end."""
        done = run("build_corpus", *self.flags)
        assert done.returncode == 0, done.stderr
        return content(self.output)


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def assert_gone(pids, seconds=10):
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


@pytest.mark.parametrize("pause", [None, 0.0, 0.02, 0.3])
def test_ctrl_c_ends_the_build_at_once_and_loses_nothing(
    pause, long_build, undisturbed
):
    """Once, or twice in a row; a terminal sends it to all processes."""
    long_build.wait_for_splits(2)
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
    assert kept >= 2
    assert long_build.finish() == undisturbed


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


def test_workers_end_with_a_build_that_is_killed(long_build, undisturbed):
    long_build.wait_for_splits(1)
    workers = long_build.workers()
    long_build.process.kill()
    assert_gone(workers)
    assert long_build.end() == -signal.SIGKILL
    assert long_build.finish() == undisturbed


def test_a_worker_that_is_killed_is_told_in_one_line(long_build, undisturbed):
    """What the system does to the largest process when memory runs out."""
    long_build.wait_for_splits(1)
    workers = long_build.workers()
    os.kill(workers[0], signal.SIGKILL)
    assert long_build.end() == 2
    assert_gone(workers)
    lines = [x for x in long_build.errors.splitlines() if "building corpus" not in x]
    assert len(lines) == 1, long_build.errors
    expected = "error: a worker process was killed by signal 9 (Killed); memory may"
    assert lines[0].startswith(expected)
    assert "the same command continues" in lines[0]
    assert long_build.finish() == undisturbed
