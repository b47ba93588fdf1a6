"""Entrypoints that turn text into tokenizers and corpora."""

import gzip
import json
import os
import pathlib
import subprocess
import sys

import pytest
from commands import ASCII, assert_refused, call, succeed
from corpora import documents_of

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards, sources
from bert_jax.errors import UserError
from bert_jax.interop import tokenizer_files

HERE = pathlib.Path(__file__).parent


def test_from_text_to_corpus(text_file, tmp_path):
    given = f"--input={text_file}"
    flags = ["--kind=sentencepiece", "--vocab_size=900", f"--output={tmp_path / 't'}"]
    succeed("train_tokenizer", given, *flags)
    tokenizer = tokenizer_lib.Tokenizer.load(tmp_path / "t")
    assert tokenizer.vocab_size == 900
    assert tokenizer.model_type == "Unigram"
    flags = [f"--tokenizer={tmp_path / 't'}", f"--output={tmp_path / 'c'}"]
    for _ in range(2):
        done = succeed("build_corpus", given, "--format=text", "--held_out=0.1", *flags)
        corpus = shards.open_corpus(f"{tmp_path / 'c'}")
        assert corpus.tokenizer == tokenizer
        documents = corpus.count("train", "documents")
        assert f"{documents:,} documents" in done.stderr


@pytest.mark.parametrize(
    ("more", "flags", "is_cased"),
    [
        ([], [], False),
        (["Capital"], [], True),
        ([], ["--nolower_case"], True),
        (["<S>", "<T>"], [], False),  # of Google's Chinese model
    ],
)
def test_published_vocabulary_shows_its_case(
    more, flags, is_cased, text_file, wordpiece, tmp_path
):
    vocabulary, tokens = tmp_path / "vocab.txt", [*wordpiece.tokens, *more]
    vocabulary.write_text("\n".join(tokens), encoding="utf-8")
    flags = [f"--input={text_file}", f"--tokenizer={vocabulary}", *flags]
    succeed("build_corpus", *flags, f"--output={tmp_path / 'c'}")
    tokenizer = shards.open_corpus(tmp_path / "c").tokenizer
    assert tokenizer.tokens == tokens
    normaliser = tokenizer.steps()["normalizer"]
    assert normaliser["lowercase"] == normaliser["strip_accents"] == (not is_cased)


def test_a_vocabulary_with_accents_keeps_them(tmp_path):
    """A language without capital letters does not show its case."""
    path = tmp_path / "vocab.txt"
    for word in ("\u0915\u093f", "\u0e01\u0e34", "\ud55c", "\u304c", "e\u0301"):
        path.write_text("\n".join([*tokenizer_lib.SPECIAL_TOKENS, "a", word]))
        tokenizer = tokenizer_files.read_wordpiece(path, None, None)
        assert tokenizer.encode(f"A {word}")[1:] == [tokenizer.tokens.index(word)]
        tokenizer = tokenizer_files.read_wordpiece(path, True, None)
        assert tokenizer.steps()["normalizer"]["strip_accents"]


def test_bad_text_is_reported_and_the_rest_is_kept(tmp_path, saved_wordpiece):
    (tmp_path / "a.txt").write_bytes(b"One good document.\n\nAn\xff other.\n\nThird.\n")
    (tmp_path / "b.txt").write_bytes(b"")
    flags = [f"--input={tmp_path}/*.txt"]
    done = call("train_tokenizer", *flags, f"--output={tmp_path / 'v'}")
    assert f"warning: {tmp_path}/a.txt, line 3: not UTF-8" in done.stderr
    flags += [f"--tokenizer={saved_wordpiece}", f"--output={tmp_path / 'c'}"]
    done = succeed("build_corpus", *flags, "--held_out=1e-6")
    assert f"warning: {tmp_path}/a.txt, line 3: not UTF-8" in done.stderr
    assert f"warning: {tmp_path}/b.txt: empty file" in done.stderr
    assert "fewer than two documents are held out" in done.stderr
    assert shards.open_corpus(tmp_path / "c").count("train", "documents") == 2


def test_the_tokenizer_of_a_run_is_in_its_corpus(tmp_path):
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("Some text.\n")
    flags = [f"--input={tmp_path}/a.txt", f"--tokenizer={tmp_path}/run"]
    done = call("build_corpus", *flags, f"--output={tmp_path}/c")
    assert_refused(done, "; of a run, give the tokenizer/ of its corpus, or the one")


def test_a_repeated_input_is_refused():
    """The first would be ignored."""
    done = call("build_corpus", "--input=a", "--input=b")
    assert_refused(done, "--input is given more than once; give it once")


def test_wikiextractor_output_read_as_text_is_reported(tmp_path):
    text = '<doc id="1" url="u" title="T">\nT\n\nSome text of it.\n\n</doc>\n'
    for name in ("wiki_00", "wiki_01"):
        (tmp_path / name).write_text(text * 3)
    train = ["train_tokenizer", f"--input={tmp_path}/wiki_*", "--vocab_size=100"]
    done = call(*train, "--format=text", f"--output={tmp_path / 'b'}")
    assert done.stderr.count("use --format=wikiextractor to read it") == 1
    assert "<" in tokenizer_lib.Tokenizer.load(tmp_path / "b").tokens
    done = call(*train, f"--output={tmp_path / 'd'}")
    assert "looks like --format=wikiextractor" in done.stderr
    assert "<" not in tokenizer_lib.Tokenizer.load(tmp_path / "d").tokens


def test_json_lines_are_recognised(tmp_path):
    (tmp_path / "a").write_text('{"id": 1, "body": "Some text of it."}\n' * 9)
    train = ["train_tokenizer", f"--input={tmp_path}/a", "--vocab_size=100"]
    done = succeed(*train, "--text_field=body", f"--output={tmp_path / 't'}")
    assert "looks like --format=jsonl" in done.stderr
    assert "{" not in tokenizer_lib.Tokenizer.load(tmp_path / "t").tokens
    for name, lines in (
        ("part-0.gz", b""),
        ("part-1.gz", (tmp_path / "a").read_bytes()),
    ):
        (tmp_path / name).write_bytes(gzip.compress(lines))  # as Spark writes them
    train[1] = f"--input={tmp_path}/part-*"
    done = succeed(*train, "--text_field=body", f"--output={tmp_path / 'p'}")
    assert "looks like --format=jsonl" in done.stderr
    train[1] = f"--input={tmp_path}/a"
    (tmp_path / "a").write_text('[\n  {"body": "Some text of it."}\n]\n')
    done = call(*train, f"--output={tmp_path / 'u'}")
    assert_refused(done, "a looks like a JSON array; convert it to JSON lines, or")


def test_tables_pages_and_mixed_formats_are_read_as_text_only_if_asked(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b'id,text\n1,"Some text of it."\n'))
    (tmp_path / "b.HTML").write_text("<p>Some text of it.</p>\n")
    (tmp_path / "c.md").write_text("Some text of it.\n")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"text": "Some text."}\n'))
    train = ["train_tokenizer", "--vocab_size=100", f"--output={tmp_path / 't'}"]
    for name, message in (
        ("a.csv.gz", "a.csv.gz looks like CSV; convert it to JSON lines, or"),
        ("b.HTML", "b.HTML looks like HTML; extract its text, or read it as it is"),
        ("c.*", "(c.jsonl.gz looks like jsonl, c.md looks like text); give a pattern"),
    ):
        assert_refused(call(*train, f"--input={tmp_path / name}"), message)
    succeed(*train, f"--input={path}", "--format=text")
    assert "," in tokenizer_lib.Tokenizer.load(tmp_path / "t").tokens


def test_vocabulary_that_does_not_cover_the_text_is_reported(saved_wordpiece, tmp_path):
    for i in range(2):
        (tmp_path / f"{i}.txt").write_text("One \N{SNOWMAN} two.\n\n" * 60_000)
    flags = [f"--input={tmp_path}/*.txt", f"--tokenizer={saved_wordpiece}"]
    flags += ["--shard_megabytes=1", "--workers=1"]
    done = succeed("build_corpus", *flags, f"--output={tmp_path / 'c'}", "--held_out=0")
    warning = "warning: 25.0% of the tokens of train-00000.arrow are [UNK]: the vocabul"
    assert done.stderr.count(warning) == done.stderr.count("25.0%") == 1
    assert "480,000 tokens (25.00% [UNK])" in done.stderr
    manifest = json.loads((tmp_path / "c/corpus.json").read_text())
    assert manifest["train"]["unknown_tokens"] == 120_000
    assert [s["unknown_tokens"] for s in manifest["train"]["shards"]] == [60_000] * 2
    assert manifest["held_out"]["unknown_tokens"] == 0


def test_too_little_text_for_the_vocabulary_is_reported(tmp_path):
    (tmp_path / "a.txt").write_text("A few words, a few words more.\n" * 50)
    flags = [f"--input={tmp_path}/a.txt", f"--output={tmp_path / 'v'}"]
    done = succeed("train_tokenizer", *flags)
    size = tokenizer_lib.Tokenizer.load(tmp_path / "v").vocab_size
    (warning,) = [x for x in done.stderr.splitlines() if x.startswith("warning: ")]
    assert f"only {size} tokens, fewer than vocab_size=30522" in warning


def test_file_names_and_terminals_that_are_not_utf_8(documents, tmp_path):
    """Sources of documents are UTF-8 without line breaks."""
    place = os.fsencode(tmp_path) + b"/pl\xe4ce"
    os.mkdir(place)
    text = "\n\n".join(documents[:60]).encode()
    for i in range(2):
        with open(place + b"/fi\xffle %d.txt" % i, "wb") as stream:
            stream.write(text * 12 + b"\n\n\xff\n")
    with gzip.open(place + "/gepäck\n.txt.gz".encode(), "wb") as stream:
        stream.write(b"One.\n\nTwo\xff.\n\nThree.")

    def run_there(name, *flags):
        command = [sys.executable, "-m", f"bert_jax.run.{name}"]
        done = subprocess.run(
            [*map(os.fsencode, command), b"--input=" + place + b"/*.txt*", *flags],
            capture_output=True,
            env=os.environ | ASCII,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stderr.decode()

    run_there("train_tokenizer", b"--vocab_size=600", b"--output=" + place + b"/t")
    output = b"--output=" + place + b"/c"
    flags = [b"--tokenizer=" + place + b"/t", output, b"--held_out=0"]
    flags += [b"--workers=2", b"--shard_megabytes=1"]
    reported = run_there("build_corpus", *flags)
    assert rf"{tmp_path}/pl\xe4ce" in reported.replace(r"\udce4", r"\xe4")
    corpus = shards.open_corpus(os.fsdecode(place + b"/c"))
    assert len(corpus.shards["train"]) > 1
    there = rf"{tmp_path}/pl\xe4ce"
    expected = {r"fi\xffle 0.txt:1", r"gepäck\n.txt.gz:1"}
    assert expected < {d["source"] for d in documents_of(corpus, "train")}
    problems = json.loads((corpus.folder / "corpus.json").read_text())["problems"]
    assert problems["count"] == 3
    assert rf"{there}/gepäck\n.txt.gz, line 3: not UTF-8" in "".join(problems["first"])


def test_source_is_reported_before_the_slow_search(tmp_path, monkeypatch):
    shown = []

    def plan(source, max_splits):
        shown.append(sys.stderr.buffer.getvalue())
        raise UserError("seen enough")

    monkeypatch.setattr(sources, "plan", plan)
    assert_refused(call("train_tokenizer", f"--output={tmp_path / 'c'}"), "seen enough")
    assert shown == [b"reading the documentation of installed Python packages\n"]


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("build_corpus", ["--input=/nowhere/*"], "no file matches '/nowhere/*'"),
        ("build_corpus", [f"--input={HERE}"], f"such as --input='{HERE}/*'"),
        ("build_corpus", ["--input=x", "--format=csv"], "unknown format 'csv'"),
        ("build_corpus", [f"--input={__file__}", "--language=xx"], "unknown langua"),
        ("build_corpus", ["--format=jsonl"], "--format=jsonl needs files"),
        ("build_corpus", ["--input=x", "--format=tfds:lm1b"], "reads no files"),
        ("build_corpus", ["--tokenizer=/nowhere"], "cannot read /nowhere: "),
        ("build_corpus", [f"--tokenizer={'x' * 300}"], "File name too long"),
        ("build_corpus", [f"--input={__file__}", "--held_out=nan"], "held_out=nan"),
        ("train_tokenizer", [f"--output={__file__}"], "is a file"),
        ("train_tokenizer", [f"--output={HERE}"], "is not empty"),
        ("train_tokenizer", [f"--input={__file__}", "--vocab_size=50"], "must be"),
        ("build_corpus", [f"--input={__file__}", f"--output={__file__}"], "is a file "),
        ("build_corpus", [f"--input={__file__}", "--nolower_case"], "applies to a vo"),
        ("build_corpus", [f"--input={__file__}", "--format=jsonl"], "no document"),
    ],
)
def test_user_errors_are_one_line(name, flags, message, saved_wordpiece, tmp_path):
    defaults = [f"--output={tmp_path / 'out'}"]
    if name == "build_corpus":
        defaults.append(f"--tokenizer={saved_wordpiece}")
    assert_refused(call(name, *defaults, *flags), message)


def test_the_folder_above_a_tokenizer_is_refused(wordpiece, tmp_path):
    wordpiece.save(tmp_path / "tokenizer")
    flags = f"--input={__file__}", f"--output={tmp_path / 'out'}"
    done = call("build_corpus", f"--tokenizer={tmp_path}", *flags)
    assert_refused(done, f"with merges.txt; give {tmp_path}/tokenizer")
