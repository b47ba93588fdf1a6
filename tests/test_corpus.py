import bz2
import contextlib
import dataclasses
import errno
import gzip
import hashlib
import json
import os
import shutil
import sysconfig
from unittest import mock

import numpy as np
import pyarrow
import pytest
from commands import shared_data
from corpora import COMPRESS, build_reference, content, documents_of, flipped
from pyarrow import parquet

from bert_jax import storage
from bert_jax.corpus import (
    build,
    build_state,
    document_files,
    file_kinds,
    local_runner,
    python_docs,
    shards,
    sources,
    splits,
)
from bert_jax.corpus.document_files import Problems
from bert_jax.errors import Unavailable, UserError


def read_all(source):
    """Return all documents of a source, and the problems."""
    problems = Problems()
    documents = [
        document
        for split in sources.plan(source)
        for document in sources.read(split, source, problems)
    ]
    return documents, problems


# ---- reading


def test_text_files_part_documents_at_blank_lines(tmp_path):
    text = "\ufeffone\nstill one\n\n  \n\ntwo\n"  # with a byte order mark
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (tmp_path / "b.txt").write_text("\n\nthree")
    got, problems = read_all(sources.Source(str(tmp_path / "*.txt"), "text"))
    assert [d.text for d in got] == ["one\nstill one\n", "two\n", "three"]
    assert got[1].source == "a.txt:2"
    assert problems.count == 0


WRITERS = {
    "text": lambda i, text: text + "\n\n",
    "jsonl": lambda i, text: json.dumps({"text": text, "id": 1}) + "\n",
    "wikiextractor": lambda i, text: (
        f'<doc id="{i}" title="T {i}">\nT {i}\n\n{text}\n</doc>\n'
    ),
}


@pytest.mark.parametrize(
    ("format", "line_end"),
    [*((format, "\n") for format in WRITERS), ("text", "\r"), ("jsonl", "\r\n")],
)
def test_documents_do_not_depend_on_where_a_file_is_cut(
    format, line_end, documents, tmp_path
):
    path = tmp_path / "input"
    written = "".join(WRITERS[format](i, text) for i, text in enumerate(documents[:30]))
    path.write_text(written.replace("\n", line_end), encoding="utf-8")
    expected = [" ".join(text.split()) for text in documents[:30]]
    whole = path.stat().st_size
    for split_bytes in (whole, 20_000, 997):
        source = sources.Source(str(path), format, split_bytes=split_bytes)
        assert len(sources.plan(source)) == round(whole / split_bytes)
        got, problems = read_all(source)
        assert [" ".join(d.text.split()) for d in got] == expected
        assert problems.count == 0
    source = sources.Source(str(path), format, split_bytes=997)
    assert len(sources.plan(source, max_splits=3)) == 3
    # At each byte of a short file.
    texts = ["One.\nTwo.", "Three.", "\u00e9."]
    written = "".join(WRITERS[format](i, text) for i, text in enumerate(texts))
    path.write_text(written.replace("\n", line_end), encoding="utf-8")
    size = path.stat().st_size
    for cut in range(1, size):
        got = [
            " ".join(text.split())
            for begin, end in ((0, cut), (cut, size))
            for text in document_files.documents(
                sources.Section(str(path), begin, end), format, "text", Problems()
            )
        ]
        assert got == ["One. Two.", "Three.", "\u00e9."]


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("text", ["One sentence.\n" * 500, "word " * 1000])
def test_splits_in_which_nothing_begins_end_with_their_range(
    format, text, tmp_path, monkeypatch
):
    """If each read to the end of the file, n splits of it would read it n / 2 times."""
    ends = []

    @contextlib.contextmanager
    def opened(name):
        with open(name, "rb") as stream:
            yield stream
            ends.append(stream.tell())

    monkeypatch.setattr(file_kinds, "open_decompressed", opened)
    monkeypatch.setattr(document_files, "_MAX_LINE_BYTES", 50)
    path = tmp_path / "a.txt"
    path.write_text(text)
    ranges = [(begin, begin + 200) for begin in range(200, len(text), 200)]
    for begin, end in ranges:
        section = sources.Section(str(path), begin, end)
        assert not list(document_files.documents(section, format, "text", Problems()))
    assert all(at <= end + 50 for at, (_, end) in zip(ends, ranges, strict=True))


def test_deleted_file_is_refused(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text")
    source = sources.Source(str(tmp_path / "*.txt"), "text")
    [split] = sources.plan(source)
    (tmp_path / "b.txt").unlink()
    with pytest.raises(UserError, match=r"b\.txt was deleted, or is not on all"):
        list(sources.read(split, source, Problems()))


@pytest.mark.parametrize(
    ("suffix", "place", "reason"),
    [
        (".gz", 0, "Not a gzipped file"),
        (".gz", 11, "Error -3 while decompressing data"),  # in the deflate stream
        (".gz", -6, "CRC check failed"),
        (".gz", None, "Compressed file ended before"),
        (".zst", 0, "ZSTD decompress failed"),
        (".zst", -1, "ZSTD decompress failed: Restored data doesn't match checksum"),
        (".zst", None, "Truncated compressed stream"),
        (".bz2", None, "Compressed file ended before"),
        (".xz", None, "Compressed file ended before"),
        (".xz", 0, "Input format not supported by decoder"),
    ],
)
def test_damage_of_an_archive_costs_only_what_is_behind_it(
    suffix, place, reason, documents, tmp_path
):
    """A bit is flipped at `place`, or the second half is missing."""
    texts = [text.strip() for text in documents[:100]]
    whole = COMPRESS[suffix]("\n\n".join(texts).encode())
    damaged = whole[: len(whole) // 2] if place is None else flipped(whole, place)
    (tmp_path / f"a{suffix}").write_bytes(damaged)
    (tmp_path / f"b{suffix}").write_bytes(whole)
    got, problems = read_all(sources.Source(f"{tmp_path}/*", "text", split_bytes=1000))
    kept = [d.text.strip() for d in got if d.source.startswith("a")]
    assert [d.text.strip() for d in got[len(kept) :]] == texts
    assert kept == texts[: len(kept)]
    # A block of .bz2 is larger than this text.
    assert len(kept) > 10 or place is not None or suffix == ".bz2"
    (line,) = problems.lines
    assert line.startswith(f"{tmp_path}/a{suffix}: cannot be read to its end ({reason}")
    assert f"kept the {len(kept)} documents" in line
    assert ("up to line" in line) == bool(kept)


@pytest.mark.parametrize("suffix", [".bz2", ".xz"])
@pytest.mark.parametrize("between", [b"", bytes(8), b"junk"])
def test_streams_one_after_the_other(suffix, between, documents, tmp_path):
    """An xz file may have zeros between streams, where Python's reader just stops."""
    texts = [text.strip() for text in documents[:100]]
    whole = COMPRESS[suffix]("\n\n".join([*texts, ""]).encode())
    (tmp_path / f"a{suffix}").write_bytes(whole + between + whole)
    got, problems = read_all(sources.Source(f"{tmp_path}/*", "text"))
    is_damaged = between == b"junk"
    (tmp_path / f"a.jsonl{suffix}").write_bytes(
        COMPRESS[suffix](b'{"text": 1}') + between
    )
    assert file_kinds.detect_format([f"{tmp_path}/a.jsonl{suffix}"]) == "jsonl"
    assert [d.text.strip() for d in got] == texts * (2 - is_damaged)
    assert problems.count == is_damaged


@pytest.mark.parametrize("error", [TimeoutError("away"), OSError(errno.EIO, "away")])
def test_a_store_or_a_mount_that_is_away_ends_the_build(error, tmp_path, monkeypatch):
    """Leaving out the rest of the file would silently make another corpus."""
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")

    def fail(lines):
        yield from ("one\n", None)
        raise error

    monkeypatch.setattr(document_files, "_text_lines", fail)
    with pytest.raises(Unavailable, match=r"a\.txt cannot be read now: away"):
        read_all(sources.Source(f"{tmp_path}/*", "text"))
    monkeypatch.setattr(file_kinds, "open_decompressed", mock.Mock(side_effect=error))
    with pytest.raises(Unavailable, match=r"a\.jsonl cannot be read now: away"):
        file_kinds.detect_format(["a.jsonl"])


def test_bad_lines_are_reported_and_left_out(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good\n\xff\xfe bad\nmore\n\nnext\n")
    (tmp_path / "b.txt").write_bytes(b"")
    got, problems = read_all(sources.Source(str(tmp_path / "*.txt"), "text"))
    assert [d.text for d in got] == ["good\nmore\n", "next\n"]
    assert problems.lines == [
        f"{tmp_path}/a.txt, line 2: not UTF-8; left out",
        f"{tmp_path}/b.txt: empty file",
    ]
    lines = [
        '{"text": "good"}',
        r'{"text": "half \ud800"}',
        r'{"text": "whole \ud83d\ude00"}',
        *('{"id": 1, "txt": "b"}', "{oops", "[1]", '"c"', "[" * 100_000),
        '{"text": ' + "9" * 5_000 + "}",
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n")
    got, problems = read_all(sources.Source(str(tmp_path / "c.jsonl"), "jsonl"))
    assert [d.text for d in got] == ["good", "whole \N{GRINNING FACE}"]
    assert problems.lines == [
        f"{tmp_path}/c.jsonl, line 2: unpaired surrogate in 'text'; left out",
        f"{tmp_path}/c.jsonl, line 4: the fields are ['id', 'txt'], not 'text' "
        "(--text_field); left out",
        # One line for equal problems, of lines 5 to 9.
        f"{tmp_path}/c.jsonl, line 5: no JSON object with a text in 'text'; left out",
    ]
    assert problems.count == 2 + 5


@pytest.mark.parametrize("kind", ["text", "wikiextractor"])
def test_bad_lines_are_counted_once_wherever_a_file_is_cut(kind, tmp_path):
    line = b"<doc >\n" if kind == "wikiextractor" else b"good\n"
    (tmp_path / "a").write_bytes(line + b"\xff\n" * 20)
    for split_bytes in (10, 1000):
        source = sources.Source(str(tmp_path / "a"), kind, split_bytes=split_bytes)
        _, problems = read_all(source)
        assert problems.count == 20


def test_long_documents_and_lines_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(document_files, "_MAX_DOCUMENT_CHARS", 50)
    monkeypatch.setattr(document_files, "_MAX_LINE_BYTES", 20)
    (tmp_path / "a.txt").write_text("a" + "ä" * 200)
    got, problems = read_all(sources.Source(str(tmp_path / "a.txt"), "text"))
    assert "".join(d.text for d in got) == "a" + "ä" * 200
    assert max(len(d.text) for d in got) <= 50
    assert problems.count == 0
    (hint,) = problems.hints
    assert "more than 50 characters, which are split between lines; put b" in hint
    lines = ['{"text": "' + "a" * 70 + '"}', '{"text": "b"}', '{"text": 1}']
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    got, problems = read_all(sources.Source(str(tmp_path / "b.jsonl"), "jsonl"))
    assert [d.text for d in got] == ["b"]
    assert problems.lines == [
        f"{tmp_path}/b.jsonl, line 1: longer than 20 bytes; left out",
        f"{tmp_path}/b.jsonl, line 3: no JSON object with a text in 'text'; left out",
    ]


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n", "\r\r\n"])
def test_a_line_that_is_cut_at_its_end_ends_no_document(
    line_end, tmp_path, monkeypatch
):
    monkeypatch.setattr(document_files, "_MAX_LINE_BYTES", 16)
    path = tmp_path / "a.txt"
    for length in range(12, 36):
        first = "a" * length + line_end + "second line"
        written = first + 2 * line_end + "next" + line_end
        path.write_bytes(written.encode())
        for cut in range(1, len(written)):
            got = [
                text.strip()
                for begin, end in ((0, cut), (cut, len(written)))
                for text in document_files.documents(
                    sources.Section(str(path), begin, end), "text", "text", Problems()
                )
            ]
            assert got == [first, "next"]


def test_lines_that_end_in_carriage_returns_are_not_cut(tmp_path, monkeypatch):
    """The file is read in blocks of as many bytes as the longest line may have."""
    texts = ["é" * (i % 9) + str(i) for i in range(40)]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (tmp_path / "a.jsonl").write_bytes("\r".join(lines).encode())
    for block in range(36, 80):
        monkeypatch.setattr(document_files, "_MAX_LINE_BYTES", block)
        got, problems = read_all(sources.Source(str(tmp_path / "a.jsonl"), "jsonl"))
        assert [d.text for d in got] == texts
        assert problems.count == 0


def test_long_lines_are_cut_after_ones_that_end_in_carriage_returns(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(document_files, "_MAX_LINE_BYTES", 16)
    first = "\r" + "a" * 14 + "\r\r\n"  # its end is not cut, but longer than a block
    (tmp_path / "a.txt").write_bytes((first + "b" * 99).encode())
    section = sources.Section(f"{tmp_path}/a.txt", 0, 999)
    with open(section.name, "rb") as file:
        got = [text for _, text in document_files._Lines(file, section, Problems())]
    assert got == ["\r", first[1:], *["b" * 16] * 6, "b" * 3]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (bz2.compress(bytes(range(256)) * 99), "compressed; rename it to end in .bz2"),
        (gzip.compress(b"text", mtime=0), "compressed; rename it to end in .gz"),
        (
            b"PAR1\x15\x04\x15\x0e",
            "a Parquet file; for a corpus use --format=parquet, else write text",
        ),
        (b"%PDF-1.7\n%\xe2\xe3\n1 0 obj\n", "a PDF document; extract its text"),
        (
            "\ufeffDas ist Text.\n".encode("utf-16-le"),
            "UTF-16; iconv -f UTF-16 -t UTF-8 converts it",
        ),
        (b"\x7fELF\x02\x01\x01" + bytes(60), "binary"),
    ],
)
def test_files_that_are_not_text_are_refused_by_their_first_bytes(
    content, kind, tmp_path
):
    (tmp_path / "a").write_bytes(content + b"\nrubbish\n\n" * 99)
    (tmp_path / "b").write_text("text\n")
    got, problems = read_all(sources.Source(f"{tmp_path}/*", "text", split_bytes=300))
    assert [d.text for d in got] == ["text\n"]
    assert problems.lines == [f"{tmp_path}/a: no text; the file is {kind}; left out"]


@pytest.mark.parametrize("split_bytes", [10**9, 40_000])
def test_parquet_files_are_read_by_row_groups(split_bytes, documents, tmp_path):
    texts = [*documents[:60], None]
    table = pyarrow.table({"id": range(61), "body": texts})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    source = sources.Source(f"{tmp_path}/*", "parquet", "body", split_bytes)
    assert (len(sources.plan(source)) > 3) == (split_bytes < 10**9)
    got, problems = read_all(source)
    assert [d.text for d in got] == documents[:60]
    assert problems.lines == [
        f"{tmp_path}/a.parquet, row 61: no text in 'body'; left out"
    ]
    with pytest.raises(UserError, match=r"no column 'text' of texts; it has body; cho"):
        read_all(sources.Source(f"{tmp_path}/*", "parquet"))
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[:-9])
    got, problems = read_all(source)
    assert got == [] and "a.parquet: cannot be read to its end" in problems.lines[0]


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.binary(),
        pyarrow.large_binary(),
        pyarrow.binary_view(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.binary()),
    ],
)
def test_parquet_columns_may_be_binary(kind, tmp_path):
    texts = pyarrow.array([b"a \xc3\xa4\n", b"\xff", None, b"c"], kind)
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    got, problems = read_all(sources.Source(f"{tmp_path}/*", "parquet"))
    assert [d.text for d in got] == ["a ä\n", "c"]
    problem = f"{tmp_path}/a.parquet, row 2: no text in 'text'; left out"
    assert (problems.lines, problems.count) == ([problem], 2)
    nothing = pyarrow.table({"text": pyarrow.nulls(3)})
    parquet.write_table(nothing, tmp_path / "a.parquet")
    got, problems = read_all(sources.Source(f"{tmp_path}/*", "parquet"))
    assert (got, problems.count) == ([], 3)


def test_html_escapes_of_wikiextractor_are_undone(tmp_path):
    (tmp_path / "a").write_text(
        '<doc id="1" title="AT&amp;T">\nAT&amp;T\n\n'
        "&lt;b&gt; is &quot;bold&quot; at AT&amp;T, &amp;amp; &copy stays.\n</doc>\n"
    )
    [got], _ = read_all(sources.Source(str(tmp_path / "a"), "wikiextractor"))
    assert got.text == '<b> is "bold" at AT&T, &amp; &copy stays.\n'


def test_brackets_in_names_are_literal_if_they_match_nothing_as_a_glob(tmp_path):
    for name in ("a[1].txt", "a2.txt"):
        (tmp_path / name).write_text(name)
    for pattern, expected in {
        "a[1].txt": ["a[1].txt"],
        "a[2].txt": ["a2.txt"],
        "a[1]*": ["a[1].txt"],
    }.items():
        got, _ = read_all(sources.Source(f"{tmp_path}/{pattern}", "text"))
        assert [d.text for d in got] == expected


def test_a_document_of_wikiextractor_without_its_end(tmp_path):
    (tmp_path / "a").write_text('<doc title="X">\none\n<doc title="Y">\ntwo\n</doc>\n')
    for split_bytes in (10, 1000):
        source = sources.Source(
            str(tmp_path / "a"), "wikiextractor", split_bytes=split_bytes
        )
        assert [d.text for d in read_all(source)[0]] == ["one\n", "two\n"]


def test_text_outside_documents_of_wikiextractor_is_reported(tmp_path):
    lines = '<doc title="X">', "one", "</doc>", "stray", '<doc title="Y">', "two"
    path = tmp_path / "a"
    path.write_text("\n".join([*lines, "</doc>", ""]))
    for split_bytes in (5, 10, 20, 1000):
        documents, problems = read_all(
            sources.Source(str(path), "wikiextractor", split_bytes=split_bytes)
        )
        assert [d.text for d in documents] == ["one\n", "two\n"]
        (line,) = problems.lines
        assert line.endswith("text outside <doc ...> and </doc>; left out")
    path.write_text("a\nb\n")
    documents, problems = read_all(sources.Source(str(path), "wikiextractor"))
    assert not documents and f"{path}, line 1: text outside" in problems.lines[0]


def test_a_glob_finds_each_file_once(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/x.txt").touch()
    (tmp_path / "a/b/y.txt").symlink_to("x.txt")
    (tmp_path / "here").symlink_to(".")
    matched = sources.matching_files(f"{tmp_path}/**/**/*.txt")
    assert [info.name for info in matched] == [f"{tmp_path}/a/b/x.txt"]


def test_a_folder_is_no_pattern(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").mkdir()
    for pattern in (f"{tmp_path}/a", "~/a"):
        with pytest.raises(UserError, match="/a is a folder; give a pattern for its f"):
            sources.matching_files(pattern)


def test_wikiextractor_output():
    pattern = str(shared_data("wikipedia") / "*")
    got, problems = read_all(sources.Source(pattern, "wikiextractor"))
    assert len(got) == 152  # of 153: one is a title without text
    assert got[0].text.startswith("Anarchism is an anti-authoritarian political")
    assert problems.count == 0


# TFDS reads a property of protobuf 6 that protobuf 7 will not have.
@pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")
@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_tensorflow_datasets(tmp_path, documents, monkeypatch, file_format):
    import tensorflow as tf
    import tensorflow_datasets as tfds

    examples = [*documents[:29], b"caf\xe9"]
    tfds.dataset_builders.store_as_tfds_dataset(
        name="chapters",
        version="1.0.0",
        features=tfds.features.FeaturesDict({"body": tfds.features.Text()}),
        split_datasets={
            "train": tf.data.Dataset.from_tensor_slices({"body": examples})
        },
        data_dir=str(tmp_path),
        file_format=file_format,
    )
    # TFDS_DATA_DIR does the same in a new process.
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
    source = sources.Source("", "tfds:chapters", "body", split_bytes=10_000)
    read_texts = sources._tfds_texts
    assert len(sources.plan(source)) > 3
    # An example may be larger than a split.
    for size in (10_000, 10):
        got, problems = read_all(dataclasses.replace(source, split_bytes=size))
        assert sorted(d.text for d in got) == sorted(documents[:29])
        assert problems.count == 1 and ": not UTF-8; left out" in problems.lines[0]
    with pytest.raises(UserError, match="text features body; it needs a split 'train'"):
        sources.plan(sources.Source("", "tfds:chapters"))
    with pytest.raises(UserError, match=r"not prepared in .*tfds build lm1b"):
        sources.plan(sources.Source("", "tfds:lm1b"))
    forbidden = "HTTP response code 403"
    for error, expected, message in (
        (ConnectionResetError("away"), Unavailable, "cannot be read now: away"),
        (tf.errors.AbortedError(None, None, "away"), Unavailable, "now: away"),
        (tf.errors.PermissionDeniedError(None, None, forbidden), UserError, forbidden),
    ):
        fails = mock.Mock(side_effect=error)
        monkeypatch.setattr(sources, "_tfds_texts", lambda *_, f=fails: iter(f, None))
        with pytest.raises(expected, match=message):
            read_all(source)
    monkeypatch.setattr(sources, "_tfds_texts", read_texts)
    (records,) = tmp_path.glob("**/*record*")
    records.write_bytes(flipped(records.read_bytes(), records.stat().st_size // 2))
    kept, problems = read_all(dataclasses.replace(source, split_bytes=10**9))
    assert len(kept) < 30
    assert kept or file_format == "array_record"  # which has an index at its end
    expected = f"chapters: examples {len(kept)} to 29 cannot be read"
    assert problems.count == 1 and expected in problems.lines[0]
    (info,) = tmp_path.glob("**/dataset_info.json")
    info.write_text("{")
    with pytest.raises(UserError, match=r"dataset chapters cannot be read \(Failed"):
        sources.plan(source)


# ---- installed documentation


def test_docstrings_become_prose():
    docstring = """Find peaks inside a signal based on :func:`peak <a.b>` properties.

    This takes a 1-D array and finds all
    local maxima by ``comparison`` [1]_.

    Parameters
    ----------
    x : sequence
        A signal with peaks that are found.

    Args:
      size (int): How many of the peaks to keep.

    .. versionadded:: 1.1
        Not this text at all please.

    Examples
    --------
    >>> find(1)
    array([1])

    Use it like this one::

        code(1, 2)

    Afterwards comes the last of the text.
    """
    import inspect

    assert python_docs._prose(inspect.cleandoc(docstring)).split("\n") == [
        "Find peaks inside a signal based on peak properties.",
        "This takes a 1-D array and finds all local maxima by comparison.",
        "A signal with peaks that are found.",
        "size (int): How many of the peaks to keep.",
        "Use it like this one:",
        "Afterwards comes the last of the text.",
    ]


def test_parameters_have_descriptions_and_summaries(tmp_path):
    (tmp_path / "m.py").write_text(
        'def f():\n    """Sum all\n    elements.\n\n    More of it.\n\n'
        "    Parameters\n    ----------\n"
        "    axis, b : int, optional\n        Axis along which the\n"
        "        sum is taken.\n\n        More.\n    name: this goes on\n"
        '        as a sentence.\n    """\n'
    )
    [got] = python_docs.parameters(tmp_path / "m.py")
    assert got.description == "Axis along which the sum is taken."
    assert got.summary == ""  # too few words to be prose
    (tmp_path / "n.py").write_text('def f():\n    """Parameters of it."""\n')
    assert list(python_docs.parameters(tmp_path / "n.py")) == []


def test_docstrings_of_all_blocks(tmp_path):
    text = "These words are a sentence of prose. " * 10
    begins = [
        "try:\n pass\nexcept E:",
        "for x in y:",
        "while x:",
        "with x:",
        "def f():",
    ]
    begins += ["if x:\n pass\nelse:", "match x:\n case y:", "async def f():"]
    blocks = [
        f'{begin}\n  def g{i}():\n    """Number {i}. {text}"""\n'
        for i, begin in enumerate(begins)
    ]
    (tmp_path / "m.py").write_text("".join(blocks))
    [got] = python_docs.read_module(tmp_path / "m.py", pytest.fail)
    numbers = [line.partition(".")[0] for line in got.splitlines()]
    assert numbers == [f"Number {i}" for i in range(len(begins))]


def test_docstrings_after_many_branches(tmp_path):
    """Python's parser nests a branch in the one before."""
    branches = ["if False:\n    pass"] + ["elif False:\n    pass"] * 2000
    definition = f'def f():\n    """{"These words are a sentence of prose. " * 10}"""'
    (tmp_path / "m.py").write_text("\n".join([*branches, definition]))
    [text] = python_docs.read_module(tmp_path / "m.py", pytest.fail)
    assert text.startswith("These words are")


def test_unpaired_surrogates_in_docstrings_are_dropped(tmp_path):
    words = "This sentence has a few words, and an escape \\ud800 in it. " * 5
    (tmp_path / "m.py").write_text(f'"""{words}"""')
    [text] = python_docs.read_module(tmp_path / "m.py", pytest.fail)
    assert "an escape  in it" in text
    assert text.encode("utf-8")


def test_modules_of_packages_and_of_the_standard_library_are_listed(
    tmp_path, monkeypatch
):
    library = tmp_path / "lib"
    packages = library / "site-packages"
    for name in ("re.py", "pydoc_data/topics.py", "test/support.py", "test_x.py"):
        for folder in (library, packages):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
    (packages / ".#re.py").symlink_to("nothing")  # of an editor
    (packages / "notes.txt").touch()
    monkeypatch.setattr(python_docs, "_roots", lambda: [packages, library])
    names = [python_docs.module_name(path) for path in python_docs.source_files()]
    assert sorted(names) == ["pydoc_data/topics.py"] * 2 + ["re.py"] * 2
    monkeypatch.undo()
    (tmp_path / "lib64").symlink_to("lib")
    monkeypatch.setattr(
        sysconfig,
        "get_path",
        {"purelib": library, "platlib": tmp_path / "lib64", "stdlib": library}.get,
    )
    assert python_docs._roots.__wrapped__() == [library]
    monkeypatch.undo()
    roots = python_docs._roots()
    assert any((root / "pydoc_data/topics.py").exists() for root in roots)
    assert any((root / "numpy/__init__.py").exists() for root in roots)


# ---- building


@pytest.mark.parametrize("mark", ["(1)", "\u2022", " \u25cf (iv)"])
def test_sentences_end_behind_the_mark_of_a_list_item(mark):
    """`sentencex` takes the rest of such a paragraph for one sentence."""
    text = (
        f"First one. Second one.\n{mark} Third one. Fourth\none. Fifth one.\nSixth.\n"
    )
    segments = splits.split_sentences("en", text)
    assert "".join(segments) == text
    assert [s.strip() for s in segments] == [
        *("First one.", "Second one.", f"{mark.strip()} Third one."),
        *("Fourth\none.", "Fifth one.", "Sixth."),
    ]
    assert splits.split_sentences("en", "Plain. Text.") == ["Plain. ", "Text."]


@pytest.mark.parametrize("blank", ["\n\n", "\r\n\r\n", "\n \n\n"])
def test_sentences_of_long_texts_with_blank_lines(blank):
    """`sentencex` leaves out some of the blank lines."""
    sentences = [f"Sentence {i} \u00e9." for i in range(50)]
    text = blank.join([" ".join(sentences)] * 30)
    segments = splits.split_sentences("en", text)
    assert "".join(segments) == text
    assert [s.strip() for s in segments if s.strip()] == sentences * 30


@pytest.mark.parametrize("quote", ["'", '"', "\u2018", "\u201c"])
def test_a_stray_quotation_mark_makes_no_long_sentence(quote):
    """`sentencex` takes the text up to the next one for one sentence."""
    sentences = [f"{quote}Twas sentence {i}."[i > 0 :] for i in range(100)]
    text = " ".join([*sentences, f"The{quote} end.", "And more."])
    segments = splits.split_sentences("en", text)
    assert "".join(segments) == text
    assert len(segments) == 102
    quoted = "She said: 'I came. I saw. I won.' Then she left."
    assert splits.split_sentences("en", quoted)[0] == quoted.removesuffix(
        "Then she left."
    )


@pytest.mark.parametrize("quote", ["'", '"'])
def test_quotation_marks_stay_with_what_they_open_or_close(quote):
    """In a sentence that is split again: a long quotation in a list item."""
    sentences = [
        "(1) \u201cIt begins.",
        *(f"It is number {i}." for i in range(100)),
        f"{quote}Go{quote}, he said.",
        f"{quote}Now.{quote}",
        "All went.\u201d",
        "And more.",
    ]
    segments = splits.split_sentences("en", " ".join(sentences))
    assert [s.strip() for s in segments if s] == sentences


@pytest.mark.parametrize(
    ("language", "begin", "end"),
    [("fr", "« ", " »"), ("de", "»", "«"), ("ru", "«", "»"), ("ja", "「", "」")],
)
def test_long_quotations_are_split(language, begin, end):
    stop, space = ("。", "") if language == "ja" else (".", " ")
    inside = [f"Numero {i} est la maison{stop}" for i in range(100)]
    text = (
        f"Primo{stop}{space}" + begin + space.join(inside) + end + f"{space}Fin{stop}"
    )
    segments = splits.split_sentences(language, text)
    assert "".join(segments) == text
    assert [s.strip() for s in segments[1:3]] == [begin + inside[0], inside[1]]
    assert segments[-1] == f"Fin{stop}"


def test_quotation_marks_after_chinese_punctuation_open():
    text = "「" + "他说完了话。\u201c好的。\u201d" * 120 + "」结束。"
    segments = splits.split_sentences("zh", text)
    assert segments[:3] == ["「他说完了话。", "\u201c好的。\u201d", "他说完了话。"]


def test_the_version_of_the_splitter_changes_with_its_sentences():
    """Change `splits.VERSION` together with this hash."""
    long = '\'Twas "one" of 5". It (a) went. ' * 50
    text = f"One. Two!\xa0Three?\n\n(1) Four. {long}\u3000Five.\u2028Six."
    found = [splits.split_sentences(language, text) for language in ("en", "de", "ja")]
    found.append(splits.normalise_spaces(found[0]))
    digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()[:8]
    assert (splits.VERSION, digest) == ("2026-11-30", "a330d2ea")


@pytest.mark.parametrize("space", ["\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}"])
def test_wide_spaces_are_kept(space):
    """`sentencex` panics at such a space between an initial and a period."""
    text = f"This was plan B{space}. It{space}failed{space}. Then it worked."
    for language in ("en", "fr", "ja"):
        segments = splits.split_sentences(language, text)
        assert "".join(segments) == text and segments[-1] == "Then it worked."
    assert splits.split_sentences("en", "") == [""]


def test_corpus_holds_every_document_once(corpus, documents, wordpiece):
    assert len(corpus.shards["train"]) > 3
    for split in shards.SPLITS:
        got = [tuple(d["tokens"]) for d in documents_of(corpus, split)]
        expected = [
            tuple(wordpiece.encode(text))
            for text in documents
            if splits.is_held_out(text, 0.1) == (split == "held_out")
        ]
        assert sorted(got) == sorted(expected)
        assert corpus.count(split, "documents") == len(got)
        assert corpus.count(split, "tokens") == sum(map(len, got))


def test_sentence_starts_are_those_of_the_sentences(corpus, documents, wordpiece):
    by_tokens = {tuple(wordpiece.encode(text)): text for text in documents}
    for document in documents_of(corpus, "held_out"):
        text = by_tokens[tuple(document["tokens"])]
        ids = [wordpiece.encode(s) for s in splits.split_sentences("en", text)]
        lengths = [len(i) for i in ids if i]
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        assert document["sentence_starts"] == starts


def test_copies_of_a_document_stay_on_one_side():
    sides = [splits.is_held_out(f"Document {i}.\n", 0.3) for i in range(1000)]
    assert sides == [splits.is_held_out(f" Document {i}.", 0.3) for i in range(1000)]
    lines = [
        [splits.is_held_out(f"{i}{end}b", 0.3) for i in range(1000)]
        for end in ("\n", "\r\n", "\r")
    ]
    assert lines[0] == lines[1] == lines[2]
    assert 250 < sum(sides) < 350


def test_number_of_processes_does_not_matter(corpus, text_file, wordpiece, tmp_path):
    build_reference(text_file, wordpiece, tmp_path, workers=2)
    assert content(tmp_path) == content(corpus.folder)


def test_an_interrupt_at_the_end_of_a_build(
    corpus, text_file, wordpiece, tmp_path, monkeypatch
):
    """The corpus is complete by then; the same command removes the rest."""
    interrupt = mock.Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(storage, "remove_folder", interrupt)
        build_reference(text_file, wordpiece, tmp_path)
    assert (tmp_path / build_state.FOLDER).exists()
    refuse = mock.Mock(side_effect=PermissionError("read-only"))
    with monkeypatch.context() as patch:
        patch.setattr(storage, "remove_folder", refuse)
        build_reference(text_file, wordpiece, tmp_path)
    build_reference(text_file, wordpiece, tmp_path)
    assert content(tmp_path) == content(corpus.folder)


def test_unknown_languages_are_refused():
    for code in ("xx", "EN", "english", "de-at", ""):
        with pytest.raises(UserError, match=f"unknown language '{code}'; give an ISO"):
            build.Settings(language=code)


def test_nothing_to_train_on_is_explained(wordpiece, tmp_path):
    (tmp_path / "a.txt").write_text("One document.")
    source = sources.Source(f"{tmp_path}/*.txt", "text")
    settings = build.Settings(held_out=1 - 1e-12)
    (tmp_path / "disk").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "disk")
    with pytest.raises(UserError, match=r"held_out=0\.9+ holds out every document"):
        build.build(source, settings, wordpiece, tmp_path / "c")
    assert not any((tmp_path / "c").iterdir())
    built = build.build(source, build.Settings(0.0), wordpiece, tmp_path / "c")
    assert ": 1 document, 1 sentence, " in build.describe(built)


def test_the_same_text_makes_the_same_corpus_wherever_it_is(
    wordpiece, tmp_path, monkeypatch
):
    """A run whose corpus was lost can go on with a new one."""
    for i, name in enumerate(("AA/wiki_00", "AB/wiki_00")):
        (tmp_path / "here" / name).parent.mkdir(parents=True)
        (tmp_path / "here" / name).write_text(f"Text {i}.\n\nAnother one.\n")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    monkeypatch.chdir(tmp_path / "here")
    patterns = f"{tmp_path}/here/*/wiki*", "*/wiki_00", f"{tmp_path}/there/**/wiki*"
    built = [
        build.build(
            sources.Source(pattern, "text"),
            build.Settings(0.0),
            wordpiece,
            tmp_path / f"corpus{i}",
        )
        for i, pattern in enumerate(patterns)
    ]
    assert len({corpus.fingerprint for corpus in built}) == 1
    path = built[0].folder / built[0].shards["train"][0].file
    column = pyarrow.ipc.open_file(str(path)).read_all()["source"].to_pylist()
    assert column == [f"A{c}/wiki_00:{n}" for c in "AB" for n in (1, 2)]


def test_input_that_changes_while_it_is_read_is_reported(wordpiece, tmp_path, capsys):
    path = tmp_path / "a.txt"
    path.write_text("One document.\n\n" * 1000)
    source = sources.Source(str(path), "text", split_bytes=5000)

    def run(job, todo):
        for each in local_runner.run(job, todo, workers=1):
            yield each
            os.truncate(path, 100)
        path.unlink()

    build.build(source, build.Settings(0.0), wordpiece, tmp_path / "c", runner=run)
    assert "warning: the input has changed while it was read" in capsys.readouterr().err


@pytest.mark.parametrize("separator", ["\n", "\n\n"])
def test_sentences_between_blank_lines_are_reported(separator, wordpiece, tmp_path):
    document = separator.join(["One sentence.", "Another one.", "A third."])
    (tmp_path / "a.txt").write_text("\n\n".join([document] * 4))
    source = sources.Source(f"{tmp_path}/a.txt", "text")
    built = build.build(source, build.Settings(0.0), wordpiece, tmp_path / "c")
    assert built.count("train", "documents") == (4 if separator == "\n" else 12)
    summary = build.describe(built)
    assert ("most documents have a single sentence" in summary) == (separator != "\n")


def test_shards_are_plain_arrow_files(corpus):
    path = corpus.folder / corpus.shards["train"][0].file
    table = pyarrow.ipc.open_file(str(path)).read_all()
    assert table.column_names == ["tokens", "sentence_starts", "source"]
    assert table.schema.field("tokens").type == pyarrow.list_(pyarrow.uint16())
    assert table.num_rows == corpus.shards["train"][0].documents
