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
BUILD = f"""
import sys
from bert_jax import tokenizer
from bert_jax.corpus import beam, build, sources
build.build(
    sources.Source(sys.argv[1], "text", split_bytes=100_000),
    build.Settings(held_out=0.1),
    tokenizer.Tokenizer.load(sys.argv[2]),
    sys.argv[3],
    runner=beam.runner({OPTIONS!r}),
    on_split=lambda *progress: print(*progress[:2]),
)
"""
# A job that fails at its third split.
FAIL = """
from bert_jax.corpus import build_state
whole, done = build_state.build_and_keep, []
def build_and_keep(job, index, split):
    if len(done) == 2:
        raise RuntimeError("a worker is lost")
    done.append(whole(job, index, split))
build_state.build_and_keep = build_and_keep
"""
ELSEWHERE = """
from bert_jax.corpus import build_state
build_state.is_begun = lambda job: False
"""
UNAVAILABLE = """
from bert_jax.corpus import build_state
from bert_jax.errors import Unavailable
def build_and_keep(job, index, split):
    raise Unavailable("the store does not answer")
build_state.build_and_keep = build_and_keep
"""
CANCEL = """
import apache_beam
class Cancelled:
    def wait_until_finish(self):
        return "CANCELLED"
apache_beam.Pipeline.run = lambda pipeline: Cancelled()
"""


def run_script(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def saved(wordpiece, tmp_path):
    wordpiece.save(tmp_path / "t")
    return tmp_path / "t"


@needs_beam
def test_beam_and_local_processes_continue_each_other(
    corpus, text_file, wordpiece, saved, tmp_path
):
    output = tmp_path / "c"
    build_reference(text_file, wordpiece, output, stop_after=1)
    first = output / "train-00000.arrow"
    before = first.stat().st_mtime_ns
    done = run_script(FAIL + BUILD, text_file, saved, output)
    assert done.returncode == 1
    assert "a worker is lost" in done.stderr
    assert len(list(output.glob("unfinished/split-*.json"))) == 3
    assert build_reference(text_file, wordpiece, output)[0] == 4
    assert first.stat().st_mtime_ns == before
    assert content(output) == content(corpus.folder)


@needs_beam
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (ELSEWHERE, "UserError: Beam's workers do not see the build in"),
        (CANCEL, "UserError: Beam's job ended as CANCELLED; the same command contin"),
        (UNAVAILABLE, "Unavailable: the store does not answer"),
    ],
)
def test_errors_on_a_cluster_are_one_line(change, message, text_file, saved, tmp_path):
    done = run_script(change + BUILD, text_file, saved, tmp_path / "c")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"bert_jax.errors.{message}") and "while running" not in last


@needs_beam
def test_beam_builds_and_reports_the_same(saved, tmp_path):
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
            f"--tokenizer={saved}",
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


@needs_beam
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("'--runner=DirectRunner", "No closing quotation"),
        ("--runner=Nonesuch", "Unexpected pipeline runner: Nonesuch"),
    ],
)
def test_wrong_beam_options_are_refused(options, message, saved, tmp_path):
    flags = [f"--tokenizer={saved}", f"--output={tmp_path / 'c'}", "--runner=beam"]
    flags += [f"--input={__file__}", f"--beam_options={options}"]
    assert_refused(run("build_corpus", *flags), message)
    assert not (tmp_path / "c").exists()


def test_contradictory_flags_and_missing_beam_are_refused(saved, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "bert_jax.corpus.beam", raising=False)
    flags = [f"--tokenizer={saved}", f"--output={tmp_path / 'c'}"]
    for more, message in [
        (["--runner=beam", "--workers=3"], "--workers is for local processes"),
        (["--beam_options=--x=1"], "--beam_options needs --runner=beam"),
        (["--runner=beam"], "--runner=beam needs apache-beam; pip install -e '.[beam"),
    ]:
        done = call("build_corpus", f"--input={__file__}", *flags, *more)
        assert_refused(done, message)
