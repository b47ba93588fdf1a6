"""Feature vectors of texts: their values, their files, and files of texts."""

import dataclasses
import gzip
import io
import json
import sys

import jax
import numpy as np
import published
import pyarrow.parquet
import pytest
from commands import assert_refused, call, succeed
from reference_logits import TOKENIZER, logits_of
from saved import save
from toy import TINY

from bert_jax import config, prediction
from bert_jax.errors import UserError
from bert_jax.model.heads import make_encoder
from bert_jax.objectives import causal_lm, masked_lm
from bert_jax.prediction import feature_files, text_files
from bert_jax.prediction import features as features_lib

# Texts, their tokens, and how many of these are of the first segment.
CASES = [
    ("ab ac ad", "[CLS] ab ac ad [SEP]", 5),
    (("ab", "ad ae"), "[CLS] ab [SEP] ad ae [SEP]", 3),
    ("", "[CLS] [SEP]", 2),
    # Characters of a text are never a special token.
    ("zz ab [MASK]", "[CLS] [UNK] ab [UNK] [UNK] [UNK] [SEP]", 7),
    ("ad ac ab", "[CLS] ad ac ab [SEP]", 5),
    (("ab ac ad ae af", "ag"), "[CLS] ab ac ad ae af [SEP] ag [SEP]", 7),
]
TEXTS, TOKENS, FIRST = zip(*CASES, strict=True)
STATES = TINY.num_layers + 1


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a model, and the parameters of its encoder."""
    folder = tmp_path_factory.mktemp("saved")
    objective = masked_lm.MaskedLm(
        TINY, config.MaskedLmConfig(segments="doc_sentences")
    )
    params = save(folder, objective, TOKENIZER)
    return prediction.load(str(folder)), params["encoder"]


@pytest.fixture
def model(saved):
    return saved[0]


@pytest.fixture(scope="module")
def expected(saved):
    """Compute hidden states [T, states, D] of each text, in one batch."""

    def hidden_states(module, inputs):
        return module(inputs, return_hidden_states=True).hidden_states

    rows = [tokens.split() for tokens in TOKENS]
    pairs = [(row[1 : n - 1], row[n:-1]) for row, n in zip(rows, FIRST, strict=True)]
    states = logits_of(make_encoder(TINY), saved[1], pairs, method=hidden_states)
    return [states[:, i, : len(row)].swapaxes(0, 1) for i, row in enumerate(rows)]


# ---- vectors


@pytest.mark.parametrize(("batch_size", "order"), [(1, 1), (3, -1), (32, 1)])
def test_vectors_do_not_depend_on_the_other_texts(batch_size, order, model, expected):
    layers = [*range(STATES), np.int64(-1), -STATES]
    got = model.features(TEXTS[::order], layers, batch_size=batch_size)
    for i, features in zip(range(len(TEXTS))[::order], got, strict=True):
        assert features.tokens == TOKENS[i].split()
        wanted = expected[i][:, layers]
        assert features.values.dtype == np.float32
        np.testing.assert_allclose(features.values, wanted, atol=1e-5)
        assert not features.truncated
    # Layers are different, and so are texts of the same length.
    assert np.abs(expected[0][:, 1:] - expected[0][:, :-1]).max() > 0.1
    assert np.abs(expected[0] - expected[4]).max() > 0.1


@pytest.mark.parametrize("pool", ["cls", "mean", "max"])
def test_pooled_vectors(pool, model, expected):
    for features, states in zip(
        model.features(TEXTS, (-2, 1), pool), expected, strict=True
    ):
        wanted = {"cls": states[0], "mean": states.mean(0), "max": states.max(0)}[pool]
        np.testing.assert_allclose(features.values, wanted[[-2, 1]], atol=1e-5)


def test_a_model_may_be_loaded_under_another_mesh(model, expected):
    loaded = prediction.load(model.source)
    with jax.set_mesh(jax.make_mesh((1,), ("x",))):
        [features] = loaded.features(TEXTS[:1], (-1,))
    np.testing.assert_allclose(features.values, expected[0][:, -1:], atol=1e-5)


def test_long_texts_are_truncated(model):
    given = ["ab ac ad ae af", ("ab ac ad ae", "af"), ("ab ac", "ad")]
    given.append(" ".join(["ab"] * 50))
    got = list(model.features(given, length=6))
    assert [" ".join(features.tokens) for features in got] == [
        "[CLS] ab ac ad ae [SEP]",
        "[CLS] ab ac [SEP] af [SEP]",
        "[CLS] ab ac [SEP] ad [SEP]",
        "[CLS] ab ab ab ab [SEP]",
    ]
    assert [features.truncated for features in got] == [True, True, False, True]
    [whole] = model.features(given[3:])
    assert len(whole.tokens) == 40 and whole.truncated


@pytest.mark.parametrize(("window_bytes", "ahead"), [(1 << 28, 16), (128, 2)])
def test_texts_are_read_a_few_batches_ahead(window_bytes, ahead, model, monkeypatch):
    monkeypatch.setattr(features_lib, "_WINDOW_BYTES", window_bytes)
    read = 0

    def many():
        nonlocal read
        while True:
            read += 1
            yield "ab " * (read % 30)

    got = model.features(many(), pool="mean", batch_size=2)
    assert read == 0
    for given in range(1, 40):
        assert next(got).values.shape == (1, TINY.hidden_size)
        assert given <= read <= given + ahead


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": (4,)}, "no layer 4; the encoder has 3: 1 to 3, or -3 to -1, and 0"),
        ({"layers": (-5,)}, "there is no layer -5"),
        ({"layers": ()}, "layers is empty"),
        ({"layers": (-1, 2, -1)}, "layers has -1 more than once"),
        ({"batch_size": -1}, "batch_size=-1 must be at least 1"),
        ({"pool": "sum"}, "pool='sum' must be one of none, cls, mean, max"),
        ({"length": 2}, "length=2 must be from 3 to the 40 positions"),
        ({"length": 41}, "length=41 must be from 3 to the 40 positions"),
    ],
)
def test_invalid_arguments_are_refused(options, message, model):
    """The call raises, not the first iteration."""
    with pytest.raises(UserError, match=message):
        model.features(TEXTS, **options)


def test_layers_that_are_no_integers_are_refused(model):
    """1.0 equals 1, and later calls with 1 would compute what 1.0 asked for."""
    with pytest.raises(TypeError, match="float"):
        model.features(["ab"], (1.0,))


def test_invalid_texts_are_refused_by_their_index(model):
    got = model.features(["ab", ("ab", "ac"), "ad", "\ud800"], batch_size=2)
    with pytest.raises(prediction.TextError, match="unpaired surrogate") as error:
        list(got)
    assert error.value.index == 3


def test_the_length_has_room_for_the_special_tokens_of_a_pair():
    model = prediction.load(published.folder("roberta_bare"))
    with pytest.raises(UserError, match="length=3 must be from 4 to the "):
        model.features([("aa", "ab")], length=3)
    [features] = model.features([("aa", "ab")], length=4)
    assert features.tokens == ["<s>", "</s>", "</s>", "</s>"] and features.truncated


def test_cls_of_a_causal_encoder_is_refused(tmp_path):
    encoder = dataclasses.replace(TINY, causal=True)
    save(tmp_path, causal_lm.CausalLm(encoder), TOKENIZER)
    model = prediction.load(str(tmp_path))
    with pytest.raises(UserError, match="causal encoder"):
        model.features(TEXTS, pool="cls")
    [features] = model.features(["ab"], pool="mean")
    assert np.isfinite(features.values).all()


# ---- files of features


def read_jsonl(path, pooled):
    """Return index, tokens and values [rows, layers, D] of a file."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    index = [line["linex_index"] for line in lines]
    tokens = [] if pooled else [[t["token"] for t in x["features"]] for x in lines]
    rows = lines if pooled else [row for line in lines for row in line["features"]]
    assert all([x["index"] for x in row["layers"]] == [-1, 2] for row in rows)
    return index, tokens, [[x["values"] for x in row["layers"]] for row in rows]


def read_npz(path, pooled):
    with np.load(path) as content:
        more = [] if pooled else ["starts", "tokens"]
        assert sorted(content) == ["layers", *more, "values"]
        assert content["layers"].tolist() == [-1, 2]
        values, tokens = content["values"], []
        if not pooled:
            parts = np.split(content["tokens"], content["starts"][1:-1])
            tokens = [part.tolist() for part in parts]
    return list(range(len(tokens or values))), tokens, values


def read_parquet(path, pooled):
    with pyarrow.parquet.ParquetFile(path) as file:
        assert file.num_row_groups == (1 if pooled else 2)
        table = file.read().to_pydict()
    more = [] if pooled else ["position", "token"]
    assert list(table) == ["line", *more, "layer_-1", "layer_2"]
    values = np.stack([table["layer_-1"], table["layer_2"]], axis=1)
    tokens = {}
    columns = [] if pooled else [table[name] for name in ("line", *more)]
    for i, position, token in zip(*columns, strict=True):
        tokens.setdefault(i, []).append(token)
        assert len(tokens[i]) == position + 1
    return sorted(set(table["line"])), list(tokens.values()), values


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("read", [read_jsonl, read_npz, read_parquet])
def test_files_have_all_vectors(read, pooled, tmp_path, monkeypatch):
    monkeypatch.setattr(feature_files, "_GROUP_TEXTS", 3)  # several groups
    monkeypatch.setattr(feature_files, "_WRITTEN_TOKENS", 4)
    tokens = [["[CLS]", "ä", "[SEP]"], ["a", "b"], ["c"], ["d", "e", "f"]]
    values = np.random.default_rng(0).normal(size=(9, 2, 8)).astype(np.float32)
    parts = np.split(values, [3, 5, 6])
    if pooled:
        values, parts = values[:4], values[:4]
    features = map(prediction.Features, tokens, parts, [False, True, False, False])
    path = tmp_path / f"a.{read.__name__.removeprefix('read_')}"
    assert feature_files.write(str(path), features, (-1, 2), pooled=pooled) == (4, 1)
    index, got_tokens, got = read(path, pooled)
    assert index == [0, 1, 2, 3]
    assert got_tokens == ([] if pooled else tokens)
    np.testing.assert_allclose(got, values, atol=5.1e-7)


@pytest.mark.parametrize("ending", ["jsonl", "npz", "parquet"])
def test_incomplete_files_are_not_written(ending, tmp_path):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(b"earlier")

    def fails():
        yield prediction.Features(["a"], np.zeros((2, 8), np.float32), False)
        raise UserError("line 2 is bad")

    with pytest.raises(UserError, match="line 2 is bad"):
        feature_files.write(str(path), fails(), (-1, 2), pooled=True)
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]


# ---- files of texts


def test_errors_of_the_computation_are_no_errors_of_the_store():
    def fails():
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        yield

    with pytest.raises(RuntimeError, match="out of memory"):
        feature_files.write("memory://f/a.jsonl", fails(), (-1,), pooled=True)


def test_lines_pairs_and_empty_lines(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes(
        "\ufeffäb\r\n\n a ||| b c \na|||b\na ||| b ||| c\na ||| \n||| b\n".encode()
    )
    pairs = [("a ||| b", "c"), ("a", ""), ("", "b")]
    expected = ["äb", "", ("a", "b c"), "a|||b", *pairs]
    assert [text for _, text in text_files.read_texts(str(path))] == expected
    content = path.read_bytes()
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(content))
    assert [text for _, text in text_files.read_texts(str(packed))] == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    expected = [(f"standard input, line {i}", x) for i, x in enumerate(expected, 1)]
    assert list(text_files.read_texts("-")) == expected
    path.write_bytes(b"one\r\rtwo\r\r")  # as old Macs end lines
    texts = [("line 1", "one"), ("line 2", ""), ("line 3", "two"), ("line 4", "")]
    assert list(text_files.read_texts(str(path))) == [
        (f"{path}, {line}", text) for line, text in texts
    ]


def test_columns(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('id\tq\ta\n1\tx ||| y\t"\n\n2\t\tz\n\n')
    first, third = f"{path}, line 2", f"{path}, line 4"
    expected = [(first, "x ||| y"), (third, "")]
    assert list(text_files.read_texts(str(path), "q")) == expected
    expected = [(first, ('"', "x ||| y")), (third, ("z", ""))]
    assert list(text_files.read_texts(str(path), "a", "q")) == expected


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        (b"", ("a",), "a.txt has no lines"),
        (b"a\nb\xff\n", (), "a.txt, line 2: not UTF-8; convert it"),
        (
            gzip.compress(b"a\n", mtime=0),
            (),
            "a.txt: no text; the file is compressed; rename it to end in .gz",
        ),
        (b"a\tb\n", ("a", "c"), "a.txt, line 1: no column 'c'; there are 'a', 'b'"),
        (b"a\tb\n", ("a",), "a.txt, line 1: there are no rows below the header"),
        (b"a\tb\n1\t2\n1\n", ("a",), "a.txt, line 3: 1 field, not 2"),
        (b"x" * (1 << 24), (), "a.txt, line 1 is longer than 16,777,216 bytes"),
    ],
)
def test_unreadable_files_are_refused(content, columns, message, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        list(text_files.read_texts(str(path), *columns))
    assert f"{tmp_path}/{message}" in str(error.value)


def test_truncated_gzip_file_is_refused(tmp_path):
    path = tmp_path / "a.gz"
    whole = gzip.compress("".join(f"line {i}\n" for i in range(9999)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cannot read .*a\.gz: "):
        list(text_files.read_texts(str(path)))


# ---- the program


def test_command_writes_and_counts(model, expected, tmp_path):
    (tmp_path / "a.txt").write_text("ab ac ad\nab ||| ad ae\n\n" + "ab " * 90)
    files = f"--input={tmp_path}/a.txt", f"--output={tmp_path}/a.npz"
    done = succeed(
        "extract_features", f"--init_from={model.source}", *files, "--pool=mean"
    )
    assert done.stderr.splitlines()[-1] == (
        f"4 texts to {tmp_path}/a.npz; truncated because they were too long: 1"
    )
    with np.load(tmp_path / "a.npz") as file:
        # The default is the last four layers, or all of a smaller encoder.
        assert file["layers"].tolist() == [-1, -2, -3]
        assert file["values"].shape == (4, 3, TINY.hidden_size)
        for i in range(3):
            wanted = expected[i].mean(axis=0)[[-1, -2, -3]]
            np.testing.assert_allclose(file["values"][i], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input=a", "--output=a.txt"], "a.txt must end in one of .jsonl, .npz, .pa"),
        (["--input=a", "--output={}/b.npz"], "b.npz is a folder; give the path of"),
        (["--input=a", "--output=a.npz", "--layers=last"], "--layers=last must be int"),
        (["--input=a", "--output=a.npz", "--text_b=a"], "text_b needs text_a, the"),
        (["--input=a.jsonl.gz", "--output={}/a.npz"], "gz: each line would be read"),
        (["--input=/nowhere", "--output={}/a.npz"], "cannot read /nowhere"),
        (["--input={}/a.txt", "--output=/nowhere/a.npz"], "cannot write to /nowhere/a"),
        (["--input={}/a.txt", "--output={}/a.npz"], "a.txt, line 2: not UTF-8"),
    ],
)
def test_invalid_flags_and_files_are_refused(flags, message, model, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"ab\n\xff\n")
    (tmp_path / "b.npz").mkdir()
    flags = [flag.format(tmp_path) for flag in flags]
    done = call("extract_features", f"--init_from={model.source}", *flags)
    assert_refused(done, message)
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "b.npz"}
