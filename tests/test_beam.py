"""Apache Beam builds the same corpus as local processes.

Beam runs in processes of its own, because its warnings would be errors here. The runner
is the one behind Beam's DirectRunner, which first looks for a faster one online.
"""

import importlib.util
import subprocess
import sys

import pytest
from commands import assert_refused, call, run
from corpora import build_reference, content

from bert_jax.corpus import shards

needs_beam = pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None, reason="no Apache Beam here"
)
OPTIONS = "--runner=FnApiRunner"
# Functions that build with Beam, and that print the error if there is one.
BEAM = f"""
import sys
import apache_beam
from bert_jax import tokenizer
from bert_jax.corpus import beam_runner, build, build_state, sources
from bert_jax.errors import Unavailable

def build_with_beam(options={OPTIONS!r}):
    build.build(
        sources.Source(sys.argv[1], "text", split_bytes=100_000),
        build.Settings(held_out=0.1),
        tokenizer.Tokenizer.load(sys.argv[2]),
        sys.argv[3],
        runner=beam_runner.make(options),
    )

def show_error(*options):
    try:
        build_with_beam(*options)
    except Exception as error:
        print(type(error).__name__, error)
"""
# A job that fails at its third split.
FAIL = """
whole, done = build_state.build_and_save, []
def build_and_save(job, index, split):
    if len(done) == 2:
        raise RuntimeError("a worker is lost")
    done.append(whole(job, index, split))
build_state.build_and_save = build_and_save
build_with_beam()
"""
# Wrong options, a cluster that does not see the folder, a job that is cancelled, a
# store that does not answer, and a signal.
ERRORS = """
show_error("'--runner=DirectRunner")
show_error("--runner=Nonesuch")

begin, run = build_state.start_or_resume, apache_beam.Pipeline.run
def begin_elsewhere(folder, *arguments):
    results = begin(folder, *arguments)
    build_state.settings_path(folder).unlink()
    return results
build_state.start_or_resume = begin_elsewhere
show_error()
build_state.start_or_resume = begin

class Cancelled:
    def wait_until_finish(self):
        return "CANCELLED"
apache_beam.Pipeline.run = lambda pipeline: Cancelled()
show_error()
apache_beam.Pipeline.run = run

def build_and_save(job, index, split):
    raise Unavailable("the store does not answer")
build_state.build_and_save = build_and_save
show_error()

def build_and_save(job, index, split):
    raise KeyboardInterrupt  # as by SIGTERM
build_state.build_and_save = build_and_save
try:
    show_error()
except KeyboardInterrupt:
    print("stopped")
"""
# The size of the graph of a job with many splits.
GRAPH = """
from bert_jax.corpus import splits
def print_size(pipeline):
    print(len(pipeline.to_runner_api().SerializeToString()))

beam_runner._wait = print_size
job = splits.Job(sources.Source("*", "text"), build.Settings(), None, sys.argv[3])
name = "gs://bucket/a/longer/name/of/a/file/" + "x" * 60
todo = [(i, (sources.Section(name, i, i + 1),)) for i in range(30_000)]
try:
    next(beam_runner.make("--runner=FnApiRunner")(job, todo))
except Exception:
    pass  # there are no results
# Workers refuse an input that is not the same for them.
try:
    job = splits.Job(sources.Source(sys.argv[1], "text"), None, None, None)
    beam_runner._plan([0], job, "?")
except Exception as error:
    print(type(error).__name__, error)
"""


def run_script(script, *arguments):
    command = [sys.executable, "-c", BEAM + script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@needs_beam
def test_beam_and_local_processes_continue_each_other(
    corpus, text_file, wordpiece, saved_wordpiece, tmp_path
):
    output = tmp_path / "c"
    build_reference(text_file, wordpiece, output, stop_after=1)
    first = output / "train-00000.arrow"
    before = first.stat().st_mtime_ns
    done = run_script(FAIL, text_file, saved_wordpiece, output)
    assert done.returncode == 1
    assert "a worker is lost" in done.stderr
    assert len(list(output.glob("unfinished/split-*.json"))) == 3
    assert build_reference(text_file, wordpiece, output) == [3, 4]
    assert first.stat().st_mtime_ns == before
    assert content(output) == content(corpus.folder)


@needs_beam
def test_errors_of_options_and_workers_are_one_line(
    text_file, saved_wordpiece, tmp_path
):
    done = run_script(ERRORS, text_file, saved_wordpiece, tmp_path / "c")
    assert done.returncode == 0, done.stderr
    expected = [
        """UserError --beam_options="'--runner=DirectRunner": No closing quotation""",
        "UserError --beam_options='--runner=Nonesuch': Unexpected pipeline runner: ",
        f"UserError Beam's workers do not see the build in {tmp_path / 'c'}; give an ",
        "UserError Beam's job ended as CANCELLED; the same command continues",
        "Unavailable the store does not answer",
        "stopped",
    ]
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected) and "while running" not in done.stdout
    for line, beginning in zip(lines, expected, strict=True):
        assert line.startswith(beginning)


@needs_beam
def test_graph_of_a_job_does_not_hold_the_splits(text_file, saved_wordpiece, tmp_path):
    """Dataflow refuses graphs of more than 10 MB."""
    done = run_script(GRAPH, text_file, saved_wordpiece, tmp_path / "c")
    assert done.returncode == 0, done.stderr
    size, refusal = done.stdout.splitlines()
    assert int(size) < 500_000
    assert refusal == (
        f"UserError {text_file} has changed, or differs on Beam's workers; "
        "give an --input that all machines share"
    )


@needs_beam
def test_beam_builds_and_reports_the_same(saved_wordpiece, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"One good document.\n\nAn\xff other.\n\nThird.\n")
    (tmp_path / "b.txt").write_bytes(b"")
    reported = {}
    for name, flags in {
        "local": [],
        "beam": ["--runner=beam", f"--beam_options={OPTIONS}"],
    }.items():
        done = run(
            "build_corpus",
            f"--input={tmp_path}/*.txt",
            f"--tokenizer={saved_wordpiece}",
            f"--output={tmp_path / name}",
            "--held_out=0",
            *flags,
        )
        assert done.returncode == 0, done.stderr
        lines = done.stderr.splitlines()
        reported[name] = [line for line in lines if line.startswith("warning: ")]
    assert reported["beam"] == reported["local"]
    assert any("a.txt, line 3: not UTF-8" in line for line in reported["beam"])
    assert content(tmp_path / "beam") == content(tmp_path / "local")
    assert shards.open_corpus(tmp_path / "beam").count("train", "documents") == 2


def test_contradictory_flags_and_missing_beam_are_refused(
    saved_wordpiece, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "bert_jax.corpus.beam_runner", raising=False)
    flags = [f"--tokenizer={saved_wordpiece}", f"--output={tmp_path / 'c'}"]
    for more, message in [
        (["--beam_options=--x=1"], "--beam_options needs --runner=beam"),
        (["--runner=beam"], "--runner=beam needs apache-beam; pip install -e '.[beam"),
    ]:
        done = call("build_corpus", f"--input={__file__}", *flags, *more)
        assert_refused(done, message)
