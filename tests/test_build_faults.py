"""What is done to `run.build_corpus` and `run.train_tokenizer`, and what is lost.

Real processes and real files: damaged input, full disks, processes that are killed.
"""

import gzip
import subprocess
import sys

import pytest

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards


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
    for name, content in {
        "a.gz": good,
        "b.gz": good[:11] + bytes([good[11] ^ 1]) + good[12:],
        "c.gz": good[:-6] + bytes([good[-6] ^ 1]) + good[-5:],
        "d.gz": good,
    }.items():
        (tmp_path / name).write_bytes(content)
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
