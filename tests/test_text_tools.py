"""The entrypoints that turn text into tokenizers and corpora, as a user runs them."""

import os
import pathlib
import subprocess
import sys

import pytest
from test_pretrain import assert_refused

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards

HERE = pathlib.Path(__file__).parent


def run(name, *flags):
    command = [sys.executable, "-m", f"bert_jax.run.{name}", *flags]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ)


def test_from_text_to_corpus(text_file, tmp_path):
    for kind in ("wordpiece", "sentencepiece"):
        done = run(
            "train_tokenizer",
            f"--input={text_file}",
            f"--kind={kind}",
            "--vocab_size=900",
            f"--output={tmp_path / kind}",
        )
        assert done.returncode == 0, done.stderr
        tokenizer = tokenizer_lib.Tokenizer.load(tmp_path / kind)
        assert (tokenizer.kind, tokenizer.vocab_size) == (kind, 900)
        flags = [
            f"--input={text_file}",
            "--format=text",
            f"--tokenizer={tmp_path / kind}",
            f"--output={tmp_path / kind}-corpus",
            "--held_out=0.1",
        ]
        for _ in range(2):
            done = run("build_corpus", *flags)
            assert done.returncode == 0, done.stderr
            corpus = shards.open_corpus(f"{tmp_path / kind}-corpus")
            assert corpus.tokenizer == tokenizer
            documents = corpus.count("train", "documents")
            assert f"{documents:,} documents" in done.stderr


def test_a_published_vocabulary(text_file, wordpiece, tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_bytes(wordpiece.model)
    flags = [f"--input={text_file}", f"--tokenizer={vocabulary}"]
    done = run("build_corpus", *flags, "--nolower_case", f"--output={tmp_path / 'c'}")
    assert done.returncode == 0, done.stderr
    tokenizer = shards.open_corpus(tmp_path / "c").tokenizer
    assert (tokenizer.lower_case, tokenizer.strip_accents) == (False, False)
    assert tokenizer.tokens == wordpiece.tokens


def test_bad_text_is_told_and_the_rest_is_kept(tmp_path, wordpiece):
    wordpiece.save(tmp_path / "t")
    (tmp_path / "a.txt").write_bytes(b"One good document.\n\nAn\xff other.\n\nThird.\n")
    (tmp_path / "b.txt").write_bytes(b"")
    done = run(
        "build_corpus",
        f"--input={tmp_path}/*.txt",
        f"--tokenizer={tmp_path / 't'}",
        f"--output={tmp_path / 'c'}",
        "--held_out=0",
    )
    assert done.returncode == 0
    assert f"warning: {tmp_path}/a.txt, line 3: not UTF-8" in done.stderr
    assert f"warning: {tmp_path}/b.txt: empty file" in done.stderr
    assert "fewer than two documents are held out" in done.stderr
    assert shards.open_corpus(tmp_path / "c").count("train", "documents") == 2


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("build_corpus", ["--input=/nowhere/*"], "no file matches '/nowhere/*'"),
        ("build_corpus", ["--input=x", "--format=csv"], "unknown format 'csv'"),
        ("build_corpus", ["--format=jsonl"], "--format=jsonl needs files"),
        ("build_corpus", ["--input=x", "--format=tfds:lm1b"], "reads no files"),
        ("build_corpus", ["--tokenizer=/nowhere"], "cannot read the vocabulary"),
        ("build_corpus", ["--tokenizer="], "--tokenizer is missing"),
        ("build_corpus", ["--held_out=2"], "held_out"),
        ("build_corpus", [f"--input={__file__}", "--held_out=nan"], "held_out=nan"),
        ("build_corpus", [f"--input={__file__}", "--held_out=1e999"], "held_out"),
        ("train_tokenizer", ["--input=/nowhere/*"], "no file matches"),
        ("train_tokenizer", ["--output="], "--output is missing"),
        ("train_tokenizer", ["--kind=bpe"], "kind"),
        ("train_tokenizer", [f"--output={__file__}"], "is a file"),
        ("train_tokenizer", [f"--output={__file__}/sub"], "is a file"),
        ("train_tokenizer", [f"--output={HERE}"], "is not empty"),
        ("train_tokenizer", [f"--input={__file__}", "--vocab_size=50"], "at least"),
        ("train_tokenizer", ["--vocab_size=2000000000"], "vocab_size"),
        ("train_tokenizer", [f"--vocab_size={2**70}"], "vocab_size"),
        (
            "train_tokenizer",
            [f"--input={__file__}", "--vocab_size=20", "--kind=sentencepiece"],
            "vocab_size=20 has no room for the characters of the text; give at least",
        ),
        ("build_corpus", [f"--input={__file__}", f"--output={__file__}"], "cannot wri"),
        ("build_corpus", [f"--input={__file__}", "--nolower_case"], "is for a vocab"),
        ("build_corpus", [f"--input={__file__}", "--format=jsonl"], "no document"),
        ("build_corpus", ["--format=tfds:no such"], "TFDS knows no dataset 'no such'"),
    ],
)
def test_mistakes_are_told_in_one_line(name, flags, message, wordpiece, tmp_path):
    wordpiece.save(tmp_path / "t")
    defaults = [f"--output={tmp_path / 'out'}"]
    if name == "build_corpus":
        defaults.append(f"--tokenizer={tmp_path / 't'}")
    assert_refused(run(name, *defaults, *flags), message)
    assert not (tmp_path / "out").exists()
