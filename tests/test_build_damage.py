"""What is damaged, edited or left half-written where corpora are built."""

import contextlib
import gzip
import json
import os

import pytest
from commands import assert_refused, call
from corpora import content, flipped

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, shards, sources
from bert_jax.errors import UserError


@pytest.fixture
def vocabulary(wordpiece, tmp_path):
    """Folder of a tokenizer."""
    wordpiece.save(tmp_path / "t")
    return tmp_path / "t"


# ---- input


def test_damaged_input_costs_no_other_input(documents, vocabulary, tmp_path):
    """By the entrypoints, with several workers: damage is reported, the rest kept."""
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
    done = call("build_corpus", *flags, *output)
    assert done.returncode == 0, done.stderr
    reported = [x for x in done.stderr.splitlines() if x.startswith("warning: /")]
    assert len(reported) == 2
    assert reported[0].startswith(
        f"warning: {tmp_path}/b.gz: cannot be read to its end"
    )
    assert reported[1].startswith(
        f"warning: {tmp_path}/c.gz: cannot be read to its end"
    )
    corpus = shards.open_corpus(tmp_path / "c")
    assert 3 * 40 - 1 <= corpus.count("train", "documents") <= 3 * 40
    done = call(
        "train_tokenizer", flags[0], "--vocab_size=500", f"--output={tmp_path / 'v'}"
    )
    assert done.returncode == 0, done.stderr
    assert f"warning: {tmp_path}/b.gz: cannot be read to its end" in done.stderr
    assert tokenizer_lib.Tokenizer.load(tmp_path / "v").vocab_size == 500


@pytest.mark.parametrize("name", ["build_corpus", "train_tokenizer"])
@pytest.mark.parametrize(
    "output", ["/proc/nothing", "/proc/self/nothing/deep", "/sys/x", "x" * 300]
)
def test_what_cannot_be_written_is_refused_first(name, output, text_file, vocabulary):
    flags = [f"--input={text_file}", f"--output={output}"]
    if name == "build_corpus":
        flags.append(f"--tokenizer={vocabulary}")
    done = call(name, *flags)
    assert_refused(done, f"cannot write to {output}: ")
    assert "splits" not in done.stderr and "learning" not in done.stderr


def test_what_a_killed_save_leaves_is_written_again(wordpiece, tmp_path):
    """Settings alone, or a temporary file. What others keep there is not touched."""
    folder = tmp_path / "t"
    wordpiece.save(folder)
    assert not tokenizer_lib.is_unfinished(folder)
    (folder / "vocab.txt").rename(folder / "vocab.txt.0123456789ab.tmp")
    assert tokenizer_lib.is_unfinished(folder)
    wordpiece.save(folder)
    assert tokenizer_lib.Tokenizer.load(folder) == wordpiece
    assert not list(folder.glob("*.tmp"))
    for name, text in {
        "tokenizer.json": '{"version": "1.0", "model": {}}',  # of Hugging Face
        "vocab.txt": "precious",
        "notes.tmp": "precious",
    }.items():
        other = tmp_path / f"other-{name}"
        other.mkdir()
        assert tokenizer_lib.is_unfinished(other)  # empty
        (other / name).write_text(text)
        assert not tokenizer_lib.is_unfinished(other)


# ---- what is on disk


@pytest.fixture
def small_build(text_file, wordpiece, tmp_path):
    """Builds a corpus of some shards; `stop_after` splits if given."""

    class StopError(Exception):
        pass

    def build_it(stop_after=None):
        seen = []

        def on_split(done, total, result):
            seen.append(done)
            if done == stop_after:
                raise StopError

        with contextlib.suppress(StopError):
            build.build(
                sources.Source(str(text_file), "text", split_bytes=100_000),
                build.Settings(held_out=0.1),
                wordpiece,
                tmp_path / "c",
                workers=1,
                on_split=on_split,
            )
        return seen

    return build_it


def test_input_that_was_edited_is_noticed(wordpiece, documents, tmp_path):
    """At equal size and with the same time of modification; a move does not matter."""
    texts = tmp_path / "texts"
    texts.mkdir()
    whole = "\n\n".join(documents)
    big = whole * 3
    assert len(big.encode()) > 1 << 20  # more than is read of a file
    for name, text in {"a.txt": whole, "b.txt": big}.items():
        (texts / name).write_text(text)
        os.utime(texts / name, ns=(10**18, 10**18))

    def build_it(folder=texts):
        source = sources.Source(f"{folder}/*.txt", "text", split_bytes=2_000_000)
        return build.build(
            source, build.Settings(), wordpiece, tmp_path / "c", workers=1
        )

    expected = build_it()
    for name, place in [("a.txt", 1000), ("a.txt", -9), ("b.txt", 9), ("b.txt", -9)]:
        data = (texts / name).read_bytes()
        (texts / name).write_bytes(flipped(data, place))
        os.utime(texts / name, ns=(10**18, 10**18))
        with pytest.raises(UserError, match=r"holds another corpus \(different input"):
            build_it()
        (texts / name).write_bytes(data)
    assert build_it() == expected  # although the files are newer
    texts.rename(tmp_path / "moved")
    assert build_it(tmp_path / "moved") == expected
    (tmp_path / "moved/a.txt").rename(tmp_path / "moved/aa.txt")
    with pytest.raises(UserError, match=r"different input"):
        build_it(tmp_path / "moved")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("settings.json", lambda b: b"", "settings.json is damaged (empty file); del"),
        ("settings.json", lambda b: b[:50], "settings.json is damaged (not JSON: "),
        ("settings.json", lambda b: b"\xff", "settings.json is damaged ('utf-8' codec"),
        ("settings.json", lambda b: b"[1]", "(the text is not a JSON object)"),
        (
            "settings.json",
            lambda b: b.replace(b'"held_out": 0.1', b'"held_out": "0.1"'),
            "settings.json is damaged (held_out is '0.1', not float)",
        ),
        (
            "settings.json",
            lambda b: b.replace(b'"language"', b'"lang"'),
            "settings.json is damaged (language is missing)",
        ),
    ],
)
def test_damaged_settings_are_refused(name, change, message, small_build, tmp_path):
    small_build(stop_after=2)
    path = tmp_path / "c/unfinished" / name
    path.write_bytes(change(path.read_bytes()))
    before = content(tmp_path / "c")
    with pytest.raises(UserError) as refusal:
        small_build()
    assert message in str(refusal.value) and "\n" not in str(refusal.value)
    assert content(tmp_path / "c") == before


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("unfinished/split-1.json", lambda b: b"", "(empty file)"),
        ("unfinished/split-1.json", lambda b: b[:50], "(not JSON: "),
        ("unfinished/split-1.json", lambda b: b"{}", "(train is missing)"),
        (
            "unfinished/split-1.json",
            lambda b: b.replace(b'"documents": ', b'"documents": -', 1),
            "(train.documents is -",
        ),
        ("train-00001.arrow", lambda b: b[:99], "has changed since"),
        ("train-00001.arrow", lambda b: flipped(b, 999), "has changed since"),
        ("held_out-00001.arrow", None, "No such file"),
    ],
)
def test_a_damaged_split_is_built_again(
    name, change, reason, small_build, tmp_path, corpus, capfd
):
    small_build(stop_after=3)
    path = tmp_path / "c" / name
    if change:
        path.write_bytes(change(path.read_bytes()))
    else:
        path.unlink()
    (tmp_path / "c/unfinished/split-1 (copy).json").write_text("not ours")
    (tmp_path / "c/unfinished/split-999.json").write_text("not of this plan")
    assert small_build()[0] == 3  # two were left
    (warning,) = capfd.readouterr().err.splitlines()
    assert warning.startswith("warning: ") and reason in warning
    assert warning.endswith("; building split 1 again")
    assert content(tmp_path / "c") == content(corpus.folder)


def test_a_build_that_was_killed_while_it_ended(small_build, tmp_path, corpus, capfd):
    """Empty shards are gone by then, the manifest is not there yet."""
    splits = len(list(corpus.folder.glob("train-*")))
    small_build(stop_after=splits)
    (tmp_path / "c/corpus.json.0123456789ab.tmp").write_text("{")
    empty = [
        path
        for path in tmp_path.glob("c/*.arrow")
        if not (corpus.folder / path.name).exists()
    ]
    for path in empty:
        path.unlink()
    assert small_build() == []
    assert capfd.readouterr().err == ""
    assert content(tmp_path / "c") == content(corpus.folder)


def edited(manifest, path, value):
    """The text of a manifest in which a field has another value, or has gone."""
    values = json.loads(manifest)
    *parents, name = (int(x) if x.isdigit() else x for x in path.split("."))
    place = values
    for parent in parents:
        place = place[parent]
    if value is None:
        del place[name]
    else:
        place[name] = value(place[name]) if callable(value) else value
    return json.dumps(values).encode()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("fingerprint", None, "fingerprint is missing"),
        ("fingerprint", "0" * 16, "the fingerprint is not that of tokenizer and shar"),
        ("train.tokens", lambda n: n + 1, "the totals of train are not the sums of "),
        ("train.tokens", "many", "train.tokens is 'many', not int"),
        ("train.shards.0.tokens", 0.5, "train.shards[0].tokens is 0.5, not int"),
        ("train.shards.0.tokens", lambda n: n + 1, "the totals of train are not"),
        ("train.shards.0", None, "the totals of train are not the sums of its shards"),
        ("train.shards.0.sha256", "0" * 64, "the fingerprint is not that of"),
        ("train", [], "train is not a JSON object"),
        ("settings", "none", "settings is 'none', not dict"),
        ("problems.first", [1], "problems.first[0] is 1, not str"),
        ("format", "bert_jax corpus 9", "format is 'bert_jax corpus 9', not"),
        ("vocab_size", 5, "is not the tokenizer of this corpus"),
    ],
)
def test_an_edited_manifest_is_noticed(field, value, message, small_build, tmp_path):
    small_build()
    path = tmp_path / "c/corpus.json"
    path.write_bytes(edited(path.read_bytes(), field, value))
    for use in (lambda: shards.open_corpus(tmp_path / "c"), small_build):
        with pytest.raises(UserError) as refusal:
            use()
        assert message in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b"[" * 100_000, b"null"])
def test_a_damaged_manifest_is_one_line(damage, small_build, tmp_path):
    small_build()
    (tmp_path / "c/corpus.json").write_bytes(damage)
    with pytest.raises(UserError, match=r"corpus\.json cannot be read as a corpus: "):
        shards.open_corpus(tmp_path / "c")


@pytest.mark.parametrize("what", ["documents", "sentences", "tokens"])
def test_counts_that_were_edited_consistently_are_noticed(what, small_build, tmp_path):
    small_build()
    path = tmp_path / "c/corpus.json"
    for field in (f"train.{what}", f"train.shards.0.{what}"):
        path.write_bytes(edited(path.read_bytes(), field, lambda count: count + 1))
    corpus = shards.open_corpus(tmp_path / "c")
    with pytest.raises(UserError, match=r"corpus\.json has changed since .* it says"):
        list(shards.read_shard(corpus.folder, corpus.shards["train"][0]))
