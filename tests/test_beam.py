"""Apache Beam builds the corpus that local processes build.

In processes of its own, for it warns of its own doings, and warnings are errors here.
The runner is the one behind Beam's DirectRunner, which would look for a faster one on
the network first.
"""

import importlib.util
import os
import subprocess
import sys

import pytest
from commands import assert_refused, call, run
from corpora import content

from bert_jax.corpus import build, shards, sources

needs_beam = pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None, reason="no Apache Beam here"
)
OPTIONS = "--runner=FnApiRunner"
SETTINGS = build.Settings(held_out=0.1)


def source(text_file):
    """As the fixture `corpus` has it."""
    return sources.Source(str(text_file), "text", split_bytes=100_000)


def run_script(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ,
    )


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
from bert_jax.corpus import unfinished
whole, done = unfinished.build_and_keep, []
def build_and_keep(job, index, split):
    if len(done) == 2:
        raise RuntimeError("a worker is lost")
    done.append(whole(job, index, split))
unfinished.build_and_keep = build_and_keep
"""


@pytest.fixture
def saved(wordpiece, tmp_path):
    wordpiece.save(tmp_path / "t")
    return tmp_path / "t"


@needs_beam
def test_beam_builds_the_same(corpus, text_file, saved, tmp_path):
    done = run_script(BUILD, text_file, saved, tmp_path / "c")
    assert done.returncode == 0, done.stderr
    splits = len(corpus.shards["train"])
    assert done.stdout.split("\n")[:-1] == [f"{i + 1} {splits}" for i in range(splits)]
    assert content(tmp_path / "c") == content(corpus.folder)


@needs_beam
def test_beam_finishes_what_was_begun_locally(
    corpus, text_file, wordpiece, saved, tmp_path
):
    class CutOffError(Exception):
        pass

    def cut_off(done, total, result):
        if done == 2:
            raise CutOffError

    arguments = (source(text_file), SETTINGS, wordpiece, tmp_path / "c")
    with pytest.raises(CutOffError):
        build.build(*arguments, workers=1, on_split=cut_off)
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("c/train-0000[01]*")}
    done = run_script(BUILD, text_file, saved, tmp_path / "c")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 ")
    after = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("c/train-0000[01]*")}
    assert before == after
    assert content(tmp_path / "c") == content(corpus.folder)


@needs_beam
def test_a_job_that_failed_is_finished_locally(
    corpus, text_file, wordpiece, saved, tmp_path
):
    done = run_script(FAIL + BUILD, text_file, saved, tmp_path / "c")
    assert done.returncode == 1
    assert "a worker is lost" in done.stderr
    assert len(list(tmp_path.glob("c/unfinished/split-*.json"))) == 2
    seen = []
    build.build(
        source(text_file),
        SETTINGS,
        wordpiece,
        tmp_path / "c",
        workers=1,
        on_split=lambda *progress: seen.append(progress[0]),
    )
    assert seen[0] == 3
    assert content(tmp_path / "c") == content(corpus.folder)


ELSEWHERE = """
from bert_jax.corpus import unfinished
unfinished.is_begun = lambda job: False
"""
AWAY = """
from bert_jax.corpus import unfinished
from bert_jax.errors import Unavailable
def build_and_keep(job, index, split):
    raise Unavailable("the store does not answer")
unfinished.build_and_keep = build_and_keep
"""
CANCEL = """
import apache_beam
class Cancelled:
    def wait_until_finish(self):
        return "CANCELLED"
apache_beam.Pipeline.run = lambda pipeline: Cancelled()
"""


@needs_beam
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (ELSEWHERE, "c is another place on Beam's workers; give an --output that all"),
        (CANCEL, "Beam's job ended as CANCELLED; the same command continues"),
        (AWAY, "the store does not answer"),
    ],
)
def test_what_goes_wrong_on_a_cluster(change, message, text_file, saved, tmp_path):
    done = run_script(change + BUILD, text_file, saved, tmp_path / "c")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    kind = "Unavailable" if change == AWAY else "UserError"
    assert last.startswith(f"bert_jax.errors.{kind}: ")
    assert message in last and "while running" not in last


@needs_beam
def test_bad_text_is_reported_as_by_local_processes(saved, tmp_path):
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
    assert f"warning: {tmp_path}/a.txt, line 3: not UTF-8" in "\n".join(
        reported["beam"]
    )
    assert content(tmp_path / "beam") == content(tmp_path / "local")
    assert shards.open_corpus(tmp_path / "beam").count("train", "documents") == 2


@needs_beam
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--projct=x", "Beam knows no option --projct"),
        ("--direct_num_workers=x", "--direct_num_workers: invalid int value: 'x'"),
        ("'--runner=DirectRunner", "No closing quotation"),
        ("DirectRunner", "options are given as --name=value"),
        ("--runner=Nonesuch", "Unexpected pipeline runner: Nonesuch"),
    ],
)
def test_wrong_options_are_reported_in_one_line(options, message, saved, tmp_path):
    done = run(
        "build_corpus",
        f"--input={__file__}",
        f"--tokenizer={saved}",
        f"--output={tmp_path / 'c'}",
        "--runner=beam",
        f"--beam_options={options}",
    )
    assert_refused(done, message)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--runner=beam", "--workers=3"], "--workers is for local processes"),
        (["--beam_options=--x=1"], "--beam_options is for --runner=beam"),
        (["--runner=spark"], "runner"),
    ],
)
def test_contradictions_are_reported_in_one_line(flags, message, saved, tmp_path):
    flags = [f"--tokenizer={saved}", f"--output={tmp_path / 'c'}", *flags]
    done = call("build_corpus", f"--input={__file__}", *flags)
    assert_refused(done, message)


def test_without_beam_it_is_asked_for(saved, tmp_path):
    script = (
        "import sys; sys.modules['apache_beam'] = None;"
        "from bert_jax.run import build_corpus, command_line;"
        "command_line.main(build_corpus.main, build_corpus.define_flags)"
    )
    done = run_script(
        script,
        f"--input={__file__}",
        f"--tokenizer={saved}",
        f"--output={tmp_path / 'c'}",
        "--runner=beam",
    )
    assert_refused(done, "--runner=beam needs apache-beam; pip install -e '.[beam]'")
