"""Damaged and edited files of corpora and builds."""

import dataclasses
import functools
import json
import os
import shutil

import pytest
from commands import assert_refused, call
from corpora import build_reference, content, flipped

from bert_jax import config as config_lib
from bert_jax.corpus import build, build_state, mixture, shards, sources
from bert_jax.errors import UserError


@pytest.fixture(scope="module")
def interrupted(text_file, wordpiece, tmp_path_factory):
    """Folder of a build that was interrupted after three splits of five."""
    folder = tmp_path_factory.mktemp("interrupted") / "c"
    build_reference(text_file, wordpiece, folder, stop_after=3)
    return folder


@pytest.fixture
def go_on(interrupted, text_file, wordpiece, tmp_path):
    """Return a function that continues a copy of the interrupted build."""
    shutil.copytree(interrupted, tmp_path / "c")
    return functools.partial(build_reference, text_file, wordpiece, tmp_path / "c")


@pytest.fixture
def finished(corpus, tmp_path):
    """Copy of the corpus."""
    return shutil.copytree(corpus.folder, tmp_path / "finished")


@pytest.mark.parametrize("name", ["build_corpus", "train_tokenizer"])
@pytest.mark.parametrize("output", ["/proc/nothing", "x" * 300])
def test_unwritable_output_is_refused_before_the_work(
    name, output, text_file, saved_wordpiece
):
    flags = [f"--input={text_file}", f"--output={output}"]
    if name == "build_corpus":
        flags.append(f"--tokenizer={saved_wordpiece}")
    done = call(name, *flags)
    assert_refused(done, f"cannot write to {output}: ")
    assert "splits" not in done.stderr and "learning" not in done.stderr


def test_edited_input_is_noticed(wordpiece, documents, tmp_path):
    """At equal size and with equal modification time. Moving the input is allowed."""
    texts = tmp_path / "texts"
    texts.mkdir()
    whole = "\n\n".join(documents)
    big = whole * 3
    assert len(big.encode()) > 1 << 20  # only samples of it are hashed
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
    ("name", "change", "reason"),
    [
        ("unfinished/split-1.json", lambda b: b[:50], "cannot read "),
        ("unfinished/split-1.json", lambda b: b"{}", "cannot read "),
        ("train-00001.arrow", lambda b: flipped(b, 999), "has changed since"),
        ("held_out-00001.arrow", None, "No such file"),
    ],
)
def test_damaged_split_is_built_again(
    name, change, reason, go_on, tmp_path, corpus, capfd
):
    path = tmp_path / "c" / name
    if change:
        path.write_bytes(change(path.read_bytes()))
    else:
        path.unlink()
    (tmp_path / "c/unfinished/split-999.json").write_text("not of this plan")
    assert go_on() == [1, 3, 4]
    warning, *_ = capfd.readouterr().err.splitlines()
    assert warning.startswith("warning: ") and reason in warning
    assert warning.endswith("; building split 1 again")
    assert content(tmp_path / "c") == content(corpus.folder)


def test_build_killed_before_the_manifest_continues(go_on, tmp_path, corpus, capfd):
    """Empty shards are removed by then."""
    assert go_on(stop_after=2) == [3, 4]
    capfd.readouterr()
    (tmp_path / "c/corpus.json.0123456789ab.tmp").write_text("{")
    for path in tmp_path.glob("c/*.arrow"):
        if not (corpus.folder / path.name).exists():
            path.unlink()
    assert go_on() == []
    assert capfd.readouterr().err == ""
    assert content(tmp_path / "c") == content(corpus.folder)


def test_build_is_not_continued_with_another_version(go_on, monkeypatch):
    """Another version may split text differently."""
    here = build_state.versions()
    # The builds of older versions lack some.
    for name, begun in (("tokenizers", here["tokenizers"]), ("other", "unknown")):
        changed = here | {name: "9.9"}
        monkeypatch.setattr(build_state, "versions", lambda changed=changed: changed)
        expected = f"begun with {name} {begun}, but this process has {name} 9.9; use"
        with pytest.raises(UserError, match=expected):
            go_on()


def test_missing_and_truncated_shards_are_found_when_a_corpus_is_opened(finished):
    [corpus] = mixture.open_corpora([finished])
    path = finished / corpus.shards["train"][1].file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=rf"{path.name} cannot be read: it has .* byte"):
        mixture.open_corpora([finished])
    path.unlink()
    with pytest.raises(UserError, match=rf"{path.name} cannot be read: No such file"):
        mixture.open_corpora([finished])


def test_corpora_with_too_few_documents_are_refused(corpus):
    def config(groups, segments="next_sentence"):
        return config_lib.PretrainConfig(
            data=config_lib.DataConfig(shard_groups=groups),
            objective=config_lib.MaskedLmConfig(segments=segments),
        )

    mixture.check_counts(config(32), [corpus])
    with pytest.raises(UserError, match="at least 2 in each of 1,000 shard groups; g"):
        mixture.check_counts(config(1000), [corpus])
    one = dataclasses.replace(corpus.shards["train"][0], documents=1)
    small = dataclasses.replace(corpus, shards=corpus.shards | {"train": (one,)})
    mixture.check_counts(config(1, "doc_sentences"), [small])
    with pytest.raises(UserError, match="has 1 document for training; .* least 2 in"):
        mixture.check_counts(config(1), [small])


def test_damaged_settings_are_refused(go_on, tmp_path):
    (tmp_path / "c/unfinished/settings.json").write_text('{"sour')
    with pytest.raises(UserError, match=r"cannot read .*settings\.json: .*; delete "):
        go_on()


MISMATCH = "the fingerprint does not match the tokenizer and"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values, _: values.update(fingerprint="0" * 16), MISMATCH),
        (lambda _, shards: shards[0].update(sha256="0" * 64), MISMATCH),
        (lambda _, shards: shards.pop(0), MISMATCH),
        (lambda _, shards: shards[0].clear(), "cannot be read as a corpus: "),
        (lambda values, _: values.update(format="other 9"), "format is 'other 9', not"),
    ],
)
def test_edited_manifest_is_refused(change, message, finished, text_file, wordpiece):
    manifest = json.loads((finished / "corpus.json").read_text())
    change(manifest, manifest["train"]["shards"])
    (finished / "corpus.json").write_text(json.dumps(manifest))
    for use in (
        lambda: shards.open_corpus(finished),
        lambda: build_reference(text_file, wordpiece, finished),
    ):
        with pytest.raises(UserError) as refusal:
            use()
        assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_damaged_manifest_or_tokenizer_is_refused(finished, byte_bpe):
    byte_bpe.save(finished / "tokenizer")
    with pytest.raises(UserError, match="is not the tokenizer of this corpus"):
        shards.open_corpus(finished)
    for damage in (b"", b"{", b"\xff", b"null"):
        (finished / "corpus.json").write_bytes(damage)
        with pytest.raises(UserError, match=r"json cannot be read as a corpus: "):
            shards.open_corpus(finished)
