"""Samples of text: from everywhere, in proportion, and cut into lines."""

import gzip
import random

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.corpus import sources, text_sample
from bert_jax.errors import UserError


def test_sample_is_from_everywhere_and_counts_bytes(tmp_path):
    texts = [f"\u4e2d{i} " * 20 for i in range(5000)]
    plain = "\n\n".join(texts).encode()
    (tmp_path / "a.txt").write_bytes(plain)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(plain))
    # By default, one row group has up to a million rows. Another column is no text.
    vectors = [[random.random() for _ in range(99)] for _ in texts]
    table = pyarrow.table({"text": texts, "vector": vectors})
    parquet.write_table(table, tmp_path / "a.parquet")
    for name in ("a.txt", "a.txt.gz", "a.parquet"):
        kind = "parquet" if name == "a.parquet" else "text"
        source = sources.Source(str(tmp_path / name), kind, split_bytes=5000)
        got = text_sample.read(source, 50_000)
        assert len(set(got)) == len(got) and {*got} <= {*texts}
        assert 40_000 < sum(len(text.encode()) for text in got) < 110_000
        places = [texts.index(text) for text in got]
        assert min(places) < 1000 and max(places) > 4000


@pytest.mark.parametrize("kind", ["text", "parquet"])
def test_large_and_small_files_have_their_share_of_a_sample(kind, tmp_path):
    """The large one has three quarters of the text, whatever the order of splits."""
    rng = random.Random(0)
    texts = [f"{i} {rng.randbytes(40).hex()}" for i in range(4000)]
    parts = {"a": texts[:500], "b": texts[500:1000], "large": texts[1000:]}
    for name, part in parts.items():
        if kind == "parquet":
            table = pyarrow.table({"text": part})
            parquet.write_table(table, tmp_path / name)
        elif name == "large":
            packed = gzip.compress("\n\n".join(part).encode())
            (tmp_path / f"{name}.gz").write_bytes(packed)
        else:
            (tmp_path / name).write_text("\n\n".join(part))
    source = sources.Source(f"{tmp_path}/*", kind, split_bytes=20_000)
    got = text_sample.read(source, 80_000)
    share = sum(int(text.split()[0]) >= 1000 for text in got) / len(got)
    assert 0.6 < share < 0.85
    # How well a file compresses is an estimate.
    assert 40_000 < sum(map(len, got)) < 120_000


def test_a_sample_of_a_large_input_is_from_many_places(tmp_path, monkeypatch):
    """A build has a limited number of splits; the sample's splits stay small."""
    monkeypatch.setattr(sources.plan, "__defaults__", (1,))
    texts = [f"{i} " * 10 for i in range(1000)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    source = sources.Source(f"{tmp_path}/a.txt", "text", split_bytes=1)
    assert len(sources.plan(source)) == 1
    got = text_sample.read(source, 400)
    assert len({*got}) == len(got) >= 8
    numbers = sorted(int(text.split()[0]) for text in got)
    assert (np.diff(numbers) > 1).sum() == len(got) - 1


def test_a_file_without_the_column_of_texts_has_no_sample(tmp_path):
    for columns in ({}, {"other": ["a"]}):
        parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
        source = sources.Source(str(tmp_path / "a.parquet"), "parquet")
        with pytest.raises(UserError, match="has no column 'text' of texts"):
            text_sample.read(source, 100)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_a_sample_may_end_in_any_way(end, tmp_path):
    """Byte-level BPE would learn words without the space before them."""
    (tmp_path / "a.txt").write_bytes(f"a cat{end}the dog{end}{end}end".encode())
    got = text_sample.read(sources.Source(f"{tmp_path}/a.txt", "text"), 10**6)
    assert got == ["a cat", "the dog", "end"]


def test_long_words_are_cut_in_a_sample(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 9_500 + " y\n")
    got = text_sample.read(sources.Source(f"{tmp_path}/a.txt", "text"), 10**6)
    assert [len(text) for text in got] == [1000] * 9 + [502]
