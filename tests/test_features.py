"""Vectors of texts: the encoder's own, in any company, in every format, lazily."""

import gzip
import io
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet
import pytest
from commands import assert_refused, call
from saved import save
from toy import TINY, metadata

from bert_jax import config, prediction
from bert_jax.errors import UserError
from bert_jax.model.heads import make_encoder
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import causal_lm, masked_lm
from bert_jax.prediction import feature_files, input_files

TOKENIZER = metadata().tokenizer
TEXTS = [
    "ab ac ad",
    ("ab", "ad ae"),
    "",
    "zz ab [MASK]",
    ("ac ad", "ae"),
    "ad ac ab",
    ("ab ac ad ae af", "ag ah"),
    "ai",
]
# The tokens of these, and how many are of the first segment.
TOKENS = [
    ("[CLS] ab ac ad [SEP]", 5),
    ("[CLS] ab [SEP] ad ae [SEP]", 3),
    ("[CLS] [SEP]", 2),
    # Characters of a text are never a special token.
    ("[CLS] [UNK] ab [UNK] [UNK] [UNK] [SEP]", 7),
    ("[CLS] ac ad [SEP] ae [SEP]", 4),
    ("[CLS] ad ac ab [SEP]", 5),
    ("[CLS] ab ac ad ae af [SEP] ag ah [SEP]", 7),
    ("[CLS] ai [SEP]", 3),
]
STATES = TINY.num_layers + 1


class Nested(masked_lm.MaskedLm):
    """An objective that has its encoder elsewhere in its parameters."""

    encoder_path = "body/encoder"

    def init(self, key):
        params = super().init(key)
        return {"body": {"encoder": params.pop("encoder")}, **params}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    objective = Nested(TINY, config.MaskedLmConfig(segments="doc_sentences"))
    params = save(folder, objective, config.PretrainConfig(), TOKENIZER)
    return folder, params["body"]["encoder"]


@pytest.fixture(scope="module")
def expected(saved):
    """Compute hidden states [T, states, D] of each text, alone and without padding."""

    @jax.jit
    def encode(*inputs):
        model, params = make_encoder(TINY), {"params": saved[1]}
        encoded = model.apply(params, Inputs(*inputs), return_hidden_states=True)
        return encoded.hidden_states

    states = []
    for tokens, boundary in TOKENS:
        ids = jnp.array([[TOKENIZER.tokens.index(token) for token in tokens.split()]])
        segments = (jnp.arange(ids.shape[1]) >= boundary)[None].astype(jnp.int32)
        layers = encode(ids, ids >= 0, segments)
        states.append(np.moveaxis(np.asarray(layers[:, 0]), 0, 1))
    return states


# ---- vectors


@pytest.mark.parametrize("batch_size", [1, 3, 32])
@pytest.mark.parametrize("reverse", [False, True])
def test_vectors_match_each_text_alone(batch_size, reverse, saved, expected):
    model = prediction.load(str(saved[0]))
    order = list(range(len(TEXTS)))[:: -1 if reverse else 1]
    layers = [*range(STATES), -1, -STATES]
    got = model.features([TEXTS[i] for i in order], layers, batch_size=batch_size)
    for i, features in zip(order, got, strict=True):
        assert features.tokens == TOKENS[i][0].split()
        wanted = expected[i][:, layers]
        assert features.values.dtype == np.float32
        np.testing.assert_allclose(features.values, wanted, atol=1e-5)
        assert not features.truncated
    # Layers are different, and so are texts of the same length.
    assert np.abs(expected[0][:, 1:] - expected[0][:, :-1]).max() > 0.1
    assert np.abs(expected[0] - expected[5]).max() > 0.1


@pytest.mark.parametrize(
    ("pool", "reference"),
    [
        ("cls", lambda states: states[0]),
        ("mean", lambda states: states.mean(axis=0)),
        ("max", lambda states: states.max(axis=0)),
    ],
)
def test_pooled_vectors(pool, reference, saved, expected):
    got = prediction.load(str(saved[0])).features(TEXTS, (-2, 1), pool)
    for features, states in zip(got, expected, strict=True):
        wanted = reference(states)[[-2, 1]]
        np.testing.assert_allclose(features.values, wanted, atol=1e-5)


def test_long_texts_are_truncated(saved):
    model = prediction.load(str(saved[0]))
    given = ["ab ac ad ae af", ("ab ac ad ae", "af"), "ab ac", " ".join(["ab"] * 50)]
    got = list(model.features(given, length=6))
    assert [" ".join(features.tokens) for features in got] == [
        "[CLS] ab ac ad ae [SEP]",
        "[CLS] ab ac [SEP] af [SEP]",
        "[CLS] ab ac [SEP]",
        "[CLS] ab ab ab ab [SEP]",
    ]
    assert [features.truncated for features in got] == [True, True, False, True]
    [whole] = model.features(given[3:])
    assert len(whole.tokens) == 40 and whole.truncated


def test_texts_are_read_a_few_batches_ahead(saved):
    read = 0

    def many():
        nonlocal read
        while True:
            read += 1
            yield "ab " * (read % 30)

    got = prediction.load(str(saved[0])).features(many(), pool="mean", batch_size=2)
    assert read == 0
    for given in range(1, 100):
        assert next(got).values.shape == (1, TINY.hidden_size)
        assert given <= read <= given + 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": ()}, "layers is empty"),
        ({"layers": (4,)}, "no layer 4; the encoder has 3: 1 to 3, or -3 to -1, and 0"),
        ({"layers": (-5,)}, "there is no layer -5"),
        ({"layers": (-1, 1, -1)}, "layers=-1,1,-1 contains a duplicate"),
        ({"pool": "sum"}, "pool='sum' must be one of none, cls, mean, max"),
        ({"length": 2}, "length=2 must be from 3 to the 40 positions"),
        ({"length": 41}, "length=41 must be from 3 to the 40 positions"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ],
)
def test_invalid_arguments_are_refused(options, message, saved):
    """The call raises, not the first iteration."""
    with pytest.raises(UserError, match=message):
        prediction.load(str(saved[0])).features(TEXTS, **options)


def test_cls_of_a_causal_encoder_is_refused(tmp_path):
    encoder = config.EncoderConfig(
        **{**{k: getattr(TINY, k) for k in ("vocab_size", "hidden_size", "num_layers",
           "num_heads", "intermediate_size", "max_position_embeddings", "dtype")},
           "causal": True}
    )  # fmt: skip
    save(tmp_path, causal_lm.CausalLm(encoder), config.PretrainConfig(), TOKENIZER)
    model = prediction.load(str(tmp_path))
    with pytest.raises(UserError, match="causal encoder"):
        model.features(TEXTS, pool="cls")
    [features] = model.features(["ab"], pool="mean")
    assert np.isfinite(features.values).all()


# ---- files of features


@pytest.fixture
def made(saved):
    """A function that gives the features of the texts."""
    model = prediction.load(str(saved[0]))
    return lambda pool: list(model.features(TEXTS, (-1, 2), pool))


def test_json_lines_in_the_format_of_the_original(made, tmp_path):
    for pool, pooled in (("none", False), ("mean", True)):
        path, features = tmp_path / "a.jsonl", made(pool)
        feature_files.write(str(path), features, (-1, 2), pooled=pooled)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line.pop("linex_index") for line in lines] == list(range(len(TEXTS)))
        for line, each in zip(lines, features, strict=True):
            tokens, values = [line], each.values[None]
            if not pooled:
                assert line.keys() == {"features"}
                tokens, values = line["features"], each.values
                assert [token.pop("token") for token in tokens] == each.tokens
            for token, vectors in zip(tokens, values, strict=True):
                assert token.keys() == {"layers"}
                assert [layer["index"] for layer in token["layers"]] == [-1, 2]
                got = [layer["values"] for layer in token["layers"]]
                np.testing.assert_allclose(got, vectors, atol=5.1e-7)


def test_numpy_files(made, tmp_path):
    features = made("none")
    feature_files.write(str(tmp_path / "a.npz"), features, (-1, 2), pooled=False)
    with np.load(tmp_path / "a.npz") as file:
        content = dict(file)
    assert content.keys() == {"values", "tokens", "starts", "layers"}
    assert content["layers"].tolist() == [-1, 2]
    starts = content["starts"]
    assert len(starts) == len(TEXTS) + 1
    for i, each in enumerate(features):
        mine = slice(starts[i], starts[i + 1])
        assert content["tokens"][mine].tolist() == each.tokens
        assert np.array_equal(content["values"][mine], each.values)
    features = made("max")
    feature_files.write(str(tmp_path / "a.npz"), features, (-1, 2), pooled=True)
    with np.load(tmp_path / "a.npz") as file:
        assert sorted(file) == ["layers", "values"]
        assert np.array_equal(file["values"], np.stack([f.values for f in features]))


def test_parquet_files(made, tmp_path, monkeypatch):
    monkeypatch.setattr(feature_files, "_ROWS", 7)  # several groups
    features = made("none")
    feature_files.write(str(tmp_path / "a.parquet"), features, (-1, 2), pooled=False)
    file = pyarrow.parquet.ParquetFile(tmp_path / "a.parquet")
    assert file.num_row_groups > 2
    table = file.read().to_pydict()
    file.close()
    assert list(table) == ["line", "position", "token", "layer_-1", "layer_2"]
    rows = [
        (i, position, token)
        for i, each in enumerate(features)
        for position, token in enumerate(each.tokens)
    ]
    assert list(zip(*(table[n] for n in list(table)[:3]), strict=True)) == rows
    values = np.concatenate([each.values for each in features])
    assert np.array_equal(np.array(table["layer_-1"], np.float32), values[:, 0])
    assert np.array_equal(np.array(table["layer_2"], np.float32), values[:, 1])
    features = made("cls")
    feature_files.write(str(tmp_path / "a.parquet"), features, (-1, 2), pooled=True)
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert list(table) == ["line", "layer_-1", "layer_2"]
    assert table["line"] == list(range(len(TEXTS)))
    values = np.stack([each.values for each in features])
    assert np.array_equal(np.array(table["layer_2"], np.float32), values[:, 1])


@pytest.mark.parametrize("ending", ["jsonl", "npz", "parquet"])
def test_incomplete_files_are_not_written(ending, made, tmp_path):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(b"earlier")

    def fails():
        yield made("mean")[0]
        raise UserError("line 2 is bad")

    with pytest.raises(UserError, match="line 2 is bad"):
        feature_files.write(str(path), fails(), (-1, 2), pooled=True)
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]


# ---- files of texts


def test_lines_pairs_and_empty_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffäb\r\n\n a ||| b c \na|||b\na ||| b ||| c\n".encode())
    expected = ["äb", "", ("a", "b c"), "a|||b", ("a ||| b", "c")]
    assert list(input_files.read_texts(str(path))) == expected
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(input_files.read_texts(str(packed))) == expected


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb")))
    assert list(input_files.read_texts("-")) == ["a", "b"]


def test_columns(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('id\tq\ta\n1\tx ||| y\t"\n2\t\tz\n')
    assert list(input_files.read_texts(str(path), "q")) == ["x ||| y", ""]
    assert list(input_files.read_texts(str(path), "a", "q")) == [
        ('"', "x ||| y"),
        ("z", ""),
    ]


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        (b"", (), "a.txt has no lines"),
        (b"", ("a",), "a.txt has no lines"),
        (b"a\nb\xff\n", (), "a.txt, line 2 is not UTF-8; convert the file"),
        (b"a\tb\n", ("c",), "a.txt, line 1: no column 'c'; there are 'a', 'b'"),
        (b"a\tb\n", ("a", "c"), "a.txt, line 1: no column 'c'"),
        (b"a\tb\n", ("a",), "a.txt, line 1: there are no rows below the names"),
        (b"a\tb\n1\t2\n1\n", ("a",), "a.txt, line 3: 1 fields, not 2"),
        (b"x" * (1 << 24), (), "a.txt, line 1 is longer than 16,777,216 bytes"),
    ],
)
def test_unreadable_files_are_refused(content, columns, message, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        list(input_files.read_texts(str(path), *columns))
    assert f"{tmp_path}/{message}" in str(error.value)


def test_truncated_gzip_file_is_refused(tmp_path):
    path = tmp_path / "a.gz"
    whole = gzip.compress("".join(f"line {i}\n" for i in range(9999)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"a\.gz cannot be read after .*, line \d+: "):
        list(input_files.read_texts(str(path)))
    with pytest.raises(UserError, match="cannot be read: .*No such file"):
        list(input_files.read_texts(str(tmp_path / "nonesuch")))


# ---- the program


def test_command_writes_and_counts(saved, expected, tmp_path):
    (tmp_path / "a.txt").write_text("ab ac ad\nab ||| ad ae\n\n" + "ab " * 90)
    files = f"--input={tmp_path}/a.txt", f"--output={tmp_path}/a.npz"
    done = call(
        "extract_features", f"--init_from={saved[0]}", *files, "--layers=-1,0",
        "--pool=mean",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"4 texts to {tmp_path}/a.npz; truncated because they were too long: 1"
    )
    with np.load(tmp_path / "a.npz") as file:
        assert file["values"].shape == (4, 2, TINY.hidden_size)
        for i in range(3):
            wanted = expected[i].mean(axis=0)[[-1, 0]]
            np.testing.assert_allclose(file["values"][i], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output=a.npz"], "--input is missing; give a file of texts"),
        (["--input=a"], "--output is missing; give a file, --output=FILE.jsonl"),
        (
            ["--input=a", "--output=a.txt"],
            "a.txt must end in one of .jsonl, .npz, .par",
        ),
        (["--input=a", "--output=a.npz", "--layers=last"], "--layers=last must be int"),
        (["--input=a", "--output=a.npz", "--text_b=a"], "--text_b needs --text_a"),
        (["--input=/nowhere", "--output={}/a.npz"], "/nowhere cannot be read"),
        (["--input={}/a.txt", "--output=/nowhere/a.npz"], "cannot write to /nowhere/a"),
        (["--input={}/a.txt", "--output={}/a.npz"], "a.txt, line 2 is not UTF-8"),
    ],
)
def test_invalid_flags_and_files_are_refused(flags, message, saved, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"ab\n\xff\n")
    flags = [flag.format(tmp_path) for flag in flags]
    done = call("extract_features", f"--init_from={saved[0]}", *flags)
    assert_refused(done, message)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
