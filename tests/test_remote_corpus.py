"""Corpora in an object store equal corpora on disk.

The store is fsspec's `memory://`. Like Google's store, it has neither folders nor
renaming. gcsfs itself is not tested here.
"""

import dataclasses
import json
import sys
import types
import uuid

import fsspec
import numpy as np
import pytest
import requests
from corpora import COMPRESS, build_reference, content, flipped
from fsspec.implementations import memory

from bert_jax import object_store, storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, shards, sources
from bert_jax.corpus.document_files import Problems
from bert_jax.errors import Unavailable, UserError
from bert_jax.interop import tokenizer_files

STORE = fsspec.filesystem("memory")


@pytest.fixture
def url():
    """Return the URL of a unique folder: tests share the store of the process."""
    place = f"memory://{uuid.uuid4().hex}"
    yield place
    if STORE.exists(place):
        STORE.rm(place, recursive=True)


def stored(url):
    prefix = url.removeprefix("memory:/") + "/"
    return {name.removeprefix(prefix): STORE.cat_file(name) for name in STORE.find(url)}


def test_corpus_in_a_store_is_the_same(corpus, text_file, wordpiece, url):
    build_reference(text_file, wordpiece, f"{url}/c")
    assert stored(f"{url}/c") == content(corpus.folder)
    opened = shards.open_corpus(f"{url}/c")
    assert str(opened.folder) == f"{url}/c"
    assert dataclasses.replace(opened, folder=corpus.folder) == corpus
    for shard in corpus.shards["train"]:
        rows = (shards.read_shard(c.folder, shard) for c in (opened, corpus))
        for got, expected in zip(*rows, strict=True):
            np.testing.assert_equal(vars(got), vars(expected))
    # The same command again is allowed, another is refused.
    build_reference(text_file, wordpiece, f"{url}/c")
    with pytest.raises(UserError, match=r"another corpus \(different held_out\)"):
        build_reference(text_file, wordpiece, f"{url}/c", held_out=0.2)
    assert stored(f"{url}/c") == content(corpus.folder)


def test_interrupted_build_continues(corpus, text_file, wordpiece, url):
    build_reference(text_file, wordpiece, url, stop_after=2)
    assert {"unfinished/split-0.json", "unfinished/split-1.json"} < stored(url).keys()
    with pytest.raises(UserError, match=r"corpus\.json is missing"):
        shards.open_corpus(url)
    built = build_reference(text_file, wordpiece, url)
    splits = len(json.loads(stored(url)["corpus.json"])["train"]["shards"])
    assert built == list(range(2, splits))
    assert stored(url) == content(corpus.folder)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_text_is_read_from_a_store(suffix, documents, tmp_path, url):
    pack = COMPRESS.get(suffix, bytes)
    for i in range(2):
        content = pack("\n\n".join(documents[i:40:2]).encode() + b"\n\n\xff\n")
        (tmp_path / f"{i}.txt{suffix}").write_bytes(content)
        STORE.pipe_file(f"{url}/{i}.txt{suffix}", content)
    STORE.pipe_file(f"{url}/other.md", b"not this")
    STORE.pipe_file(f"{url}/2.txt{suffix}/deeper", b"nor this")

    def read(place):
        source = sources.Source(f"{place}/*.txt{suffix}", "text", split_bytes=9_000)
        problems = Problems()
        splits = sources.plan(source)
        got = [d for split in splits for d in sources.read(split, source, problems)]
        where = [d.source.removeprefix(f"{place}") for d in got]
        lines = [line.removeprefix(f"{place}") for line in problems.lines]
        return len(splits), [d.text for d in got], where, lines

    assert read(url) == read(str(tmp_path))
    number, texts, _, lines = read(url)
    assert len(texts) == 40 and len(lines) == 2
    assert number == 2 if suffix else number > 2
    with pytest.raises(UserError, match="no file matches 'memory://"):
        sources.plan(sources.Source(f"{url}/*.nothing", "text"))


def test_tokenizers_are_saved_in_a_store(wordpiece, url):
    wordpiece.save(f"{url}/t")
    assert tokenizer_lib.Tokenizer.load(f"{url}/t") == wordpiece
    assert tokenizer_files.read(storage.path(f"{url}/t")) == wordpiece
    vocab = storage.path(f"{url}/vocab.txt")
    storage.write_text(vocab, "\n".join(wordpiece.tokens))
    assert tokenizer_files.read_wordpiece(vocab, True, True) == wordpiece
    with pytest.raises(UserError, match="no tokenizer in memory://"):
        tokenizer_lib.Tokenizer.load(f"{url}/nothing")


@pytest.mark.parametrize("is_remote", [False, True])
def test_damaged_shards_are_refused(is_remote, corpus, url, tmp_path):
    folder = storage.path(url) if is_remote else tmp_path
    shard = corpus.shards["train"][0]
    data = (corpus.folder / shard.file).read_bytes()
    storage.write_bytes(folder / shard.file, flipped(data, len(data) // 2))
    with pytest.raises(UserError, match=r"/train-00000\.arrow has changed since"):
        list(shards.read_shard(folder, shard))
    (folder / shard.file).unlink()
    with pytest.raises(UserError, match=r"train-00000\.arrow cannot be read"):
        list(shards.read_shard(folder, shard))


def test_threads_read_ahead_but_hold_few_results():
    begun = []
    results = storage.map_in_threads(lambda i: begun.append(i) or i, range(100))
    assert next(results) == 0
    assert len(begun) <= 17
    assert list(results) == list(range(1, 100))


def test_wildcards_match_no_hidden_object(url):
    names = "a.txt", ".b.txt", ".c/d.txt", "e/f.txt"
    for name in names:
        STORE.pipe_file(f"{url}/{name}", b"x")

    def found(pattern):
        return [x.name.removeprefix(f"{url}/") for x in storage.list_files(pattern)]

    assert found(f"{url}/*.txt") == ["a.txt"]
    assert found(f"{url}/**/*.txt") == ["a.txt", "e/f.txt"]
    assert found(f"{url}/.*.txt") == [".b.txt"]
    assert found(f"{url}/.c/*") == [".c/d.txt"]
    with pytest.raises(UserError, match="is not empty"):
        storage.check_new_folder(f"{url}/.c")
    STORE.pipe_file(f"{url}/x/.hidden", b"x")
    with pytest.raises(UserError, match="is not empty"):
        storage.check_new_folder(f"{url}/x")


def test_marks_of_folders_are_no_files(monkeypatch):
    """A console makes an empty folder by such an object."""
    about = {"type": "file", "size": 0}
    found = {"b/new/": about, "b/new/a": about}
    store = types.SimpleNamespace(glob=lambda url, detail: found)
    monkeypatch.setattr(object_store, "open_store", lambda url: store)
    assert [f.name for f in object_store.list_objects("gs://b/**")] == ["gs://b/new/a"]


def test_brackets_in_the_name_of_a_folder_are_no_glob(url):
    for name in ("c1/a", "c[1]/a"):
        STORE.pipe_file(f"{url}/{name}", b"x")
    storage.remove_folder(storage.path(f"{url}/c[1]"))
    assert stored(url) == {"c1/a": b"x"}


def test_a_build_refuses_a_folder_with_folders(wordpiece, url):
    """In a store, it would replace the tokenizer that it gets."""
    STORE.pipe_file(f"{url}/c/tokenizer/tokenizer.json", b"mine")
    STORE.pipe_file(f"{url}/a.txt", b"Some text.\n")
    source = sources.Source(f"{url}/*.txt", "text")
    with pytest.raises(UserError, match="is not empty; give a new folder"):
        build.build(source, build.Settings(), wordpiece, f"{url}/c", workers=1)
    assert stored(url)["c/tokenizer/tokenizer.json"] == b"mine"


def test_build_without_documents_leaves_nothing(wordpiece, url):
    STORE.pipe_file(f"{url}/a.txt", b"")
    source = sources.Source(f"{url}/*.txt", "text")
    with pytest.raises(UserError, match=r"no document for training .*a\.txt: empty"):
        build.build(source, build.Settings(), wordpiece, f"{url}/c", workers=1)
    assert stored(url) == {"a.txt": b""}
    with pytest.raises(UserError, match="is not empty; give a new folder"):
        build.build(source, build.Settings(), wordpiece, url, workers=1)


@pytest.mark.parametrize(
    ("call", "ending"),
    [
        ("cat_file", ""),
        ("open", ""),
        *(("readinto", ending) for ending in ("", ".gz", ".zst", ".parquet")),
    ],
)
@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (RuntimeError("later\nmaybe UNAVAILABLE"), Unavailable, "later maybe"),
        (OSError("Forbidden: b/a\nno access"), UserError, "Forbidden: b/a no access"),
        (requests.exceptions.ProxyError(), Unavailable, "ProxyError"),
    ],
)
def test_a_store_that_fails_while_text_is_read(
    error, expected, message, call, ending, url, monkeypatch
):
    content = COMPRESS.get(ending, bytes)(b"Some words. " * 10_000)
    STORE.pipe_file(f"{url}/a{ending}", content)
    kind = "parquet" if ending == ".parquet" else "text"
    source = sources.Source(f"{url}/*", kind, split_bytes=10**6)
    (split,) = sources.plan(source)

    def fail(*arguments, **settings):
        raise error

    where = memory.MemoryFile if call == "readinto" else type(STORE)
    monkeypatch.setattr(where, call, fail, raising=False)
    with pytest.raises(expected, match=rf"^memory://.* cannot be reached: {message}"):
        if call == "cat_file":
            sources.fingerprint(source, [split])
        list(sources.read(split, source, Problems()))


def test_edited_input_is_noticed(wordpiece, tmp_path, monkeypatch, url):
    """By the ends of a file, or by the store's checksum."""
    text = (b"Some words of a document, " * 2_000 + b"\n\n") * 30

    def build_it(output):
        source = sources.Source(f"{url}/*.txt", "text")
        return build.build(source, build.Settings(), wordpiece, output, workers=1)

    STORE.pipe_file(f"{url}/a.txt", text)
    expected = build_it(tmp_path / "c")
    for edited in (b"s" + text[1:], text[:-3] + b"!\n\n"):
        STORE.pipe_file(f"{url}/a.txt", edited)
        with pytest.raises(UserError, match=r"another corpus \(different input\)"):
            build_it(tmp_path / "c")
    STORE.pipe_file(f"{url}/a.txt", text)
    assert build_it(tmp_path / "c") == expected
    checksums = ["crc32c", "another"]
    monkeypatch.setattr(object_store, "_checksum", lambda about: checksums[0])
    monkeypatch.setattr(storage, "read_ranges", pytest.fail)  # there is no need
    expected = build_it(tmp_path / "d")
    assert build_it(tmp_path / "d") == expected
    checksums.pop(0)
    with pytest.raises(UserError, match=r"another corpus \(different input\)"):
        build_it(tmp_path / "d")


def test_unwritable_store_is_one_line(text_file, wordpiece, monkeypatch, url):
    def refuse(self, path, *args, **kwargs):
        raise RuntimeError("403:\nno access")  # not an OSError, as in gcsfs

    def fail(self, path, *args, **kwargs):
        raise ConnectionResetError("no answer")

    monkeypatch.setattr(type(STORE), "put_file", refuse)
    with pytest.raises(UserError, match=r"cannot write to memory://.*: 403: no access"):
        build_reference(text_file, wordpiece, f"{url}/c")
    monkeypatch.setattr(type(STORE), "put_file", fail)
    with pytest.raises(Unavailable, match=r"cannot write to memory://.*: no answer; "):
        build_reference(text_file, wordpiece, f"{url}/c")
    monkeypatch.setattr(type(STORE), "pipe_file", refuse)
    with pytest.raises(UserError, match=r"cannot write to memory://.*/t: 403: no acce"):
        wordpiece.save(f"{url}/t")


def test_unreachable_store_is_one_line(monkeypatch, url):
    with pytest.raises(UserError, match="file:///b: give a path without file://"):
        storage.path("file:///b")
    with pytest.raises(UserError, match="s4://b/c cannot be reached: Protocol not"):
        shards.open_corpus("s4://b/c")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "gcsfs", None)
        with pytest.raises(UserError, match=r"gs://b/c cannot .* install -e '\.\[gcs"):
            shards.open_corpus("gs://b/c")

    def refuse(self, path, **kwargs):
        raise RuntimeError("Anonymous caller\nhas no access")  # not an OSError

    monkeypatch.setattr(type(STORE), "info", refuse)
    monkeypatch.setattr(type(STORE), "cat_file", refuse)
    for call in (
        lambda: shards.open_corpus(url),
        lambda: sources.plan(sources.Source(f"{url}/*", "text")),
        lambda: tokenizer_lib.Tokenizer.load(url),
    ):
        with pytest.raises(UserError, match=": Anonymous caller has no access$"):
            call()

    monkeypatch.setattr(type(STORE), "isdir", refuse)
    with pytest.raises(UserError, match=": Anonymous caller has no access$"):
        storage.path(url).is_dir()

    def away(self, path, **kwargs):
        raise OSError("no answer") from ConnectionResetError()

    # Not a user error: the launcher may start the program again.
    monkeypatch.setattr(type(STORE), "cat_file", away)
    with pytest.raises(Unavailable, match="cannot be reached: no answer$"):
        shards.open_corpus(url)
