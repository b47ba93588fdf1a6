"""Predictions of pretrained models: blanks and next sentences; and batches of rows."""

import dataclasses
import types
from typing import ClassVar
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest
from commands import assert_refused, call
from reference_logits import TOKENIZER, WORDS, logits_of, words
from saved import save
from scipy import special
from toy import TINY

from bert_jax import config, prediction
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.model import heads
from bert_jax.objectives import masked_lm, replaced_tokens
from bert_jax.prediction import filling, text_inputs
from bert_jax.prediction.trained_model import BATCH_SIZE
from bert_jax.tokenizer import pipelines
from bert_jax.training import inference


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Return models with and without a head for next sentences, with parameters."""
    made = {}
    for segments in ("next_sentence", "doc_sentences"):
        folder = tmp_path_factory.mktemp(segments)
        objective = config.MaskedLmConfig(segments=segments)
        params = save(folder, masked_lm.MaskedLm(TINY, objective), TOKENIZER)
        made[segments] = prediction.load(str(folder)), params
    return made


@pytest.fixture
def model(pretrained):
    return pretrained["next_sentence"][0]


# ---- blanks


def test_lengths_of_a_bucket_are_traced_once(model, monkeypatch):
    model.fill(["the [MASK]"])
    logits = mock.Mock()  # called by a trace only
    monkeypatch.setattr(filling.BlankFilling, "logits", logits)
    model.fill(["the [MASK] of the name"])
    logits.assert_not_called()
    model.next_probability("the", "name")
    apply = mock.Mock()
    monkeypatch.setattr(text_inputs.TextComputation, "apply", apply)
    model.next_probability("the value of", "the name")
    apply.assert_not_called()


def assert_filled(filled, logits, texts):
    """Compare guesses with logits [texts, P, V]."""
    probabilities = special.softmax(logits, axis=-1)[..., : TOKENIZER.vocab_size]
    are_words = np.arange(TOKENIZER.vocab_size) >= 5
    best = np.argsort(-probabilities * are_words, axis=-1)
    for i, (text, blanks) in enumerate(zip(texts, filled, strict=True)):
        assert len(blanks) == text.count("[MASK]")
        for j, guesses in enumerate(blanks):
            ids = best[i, j, : len(guesses)]
            assert [g.word for g in guesses] == [TOKENIZER.tokens[k] for k in ids]
            got = [guess.probability for guess in guesses]
            np.testing.assert_allclose(got, probabilities[i, j, ids], rtol=1e-4)


@pytest.mark.parametrize(
    ("segments", "blanks"), [("next_sentence", 512), ("doc_sentences", 3)]
)
def test_blanks_do_not_depend_on_other_texts(segments, blanks, pretrained, monkeypatch):
    monkeypatch.setattr(filling, "_BATCH_BLANKS", blanks)  # 3: one text in a batch
    model, params = pretrained[segments]
    texts = [
        " ".join(["[MASK]"] * (1 + i % 3) + [words(n, i), "[MASK]"])
        for i, n in enumerate([30, 1, 7] * 12)
    ]
    assert len(texts) > BATCH_SIZE
    rows = [text.split() for text in texts]
    positions = [[i for i, x in enumerate(row, 1) if x == "[MASK]"] for row in rows]
    positions = np.array([(p * 4)[:4] for p in positions])
    kept = {name: params[name] for name in ("encoder", "mlm_head")}
    pairs = [(row, []) for row in rows]
    logits = logits_of(heads.PretrainingModel(TINY, ""), kept, pairs, positions)
    filled = model.fill(texts, top=2)
    assert all(len(guesses) == 2 for blanks in filled for guesses in blanks)
    assert_filled(filled, logits["mlm"], texts)


def test_a_text_with_many_blanks_is_in_a_batch_of_its_own(model, monkeypatch):
    """Its logits at many positions are not computed for the other texts."""
    batches, compute = [], inference.Engine.outputs

    def outputs(self, rows, batch_size):
        batches.append((rows["mlm_positions"].shape, batch_size))
        return compute(self, rows, batch_size)

    monkeypatch.setattr(inference.Engine, "outputs", outputs)
    texts = ["ab [MASK]", " ".join(["[MASK]"] * 20), "[MASK] ad [MASK] [MASK]"]
    filled = model.fill(texts)
    assert batches == [((2, 4), BATCH_SIZE), ((1, 32), 16)]
    assert list(map(len, filled)) == [1, 20, 3]
    for text, blanks in zip(texts, filled, strict=True):
        for got, alone in zip(blanks, model.fill([text])[0], strict=True):
            assert [guess.word for guess in got] == [guess.word for guess in alone]


def test_blanks_of_a_generator(tmp_path):
    objective = config.ReplacedTokensConfig(generator_size=0.5, generator_layers=0.5)
    trained = replaced_tokens.ReplacedTokens(TINY, objective)
    params = save(tmp_path, trained, TOKENIZER)
    filled = prediction.load(str(tmp_path)).fill(["ab [MASK] ad"], top=3)
    pairs, position = [(["ab", "[MASK]", "ad"], [])], np.array([[2]])
    logits = logits_of(trained.model, params, pairs, position, method="generate")
    assert_filled(filled, logits, ["[MASK]"])


def test_top_is_limited_to_the_number_of_words(model):
    [[guesses]] = model.fill(["ab [MASK]"], top=10**6)
    assert sorted(guess.word for guess in guesses) == sorted(WORDS)
    assert model.fill([]) == []


@pytest.mark.parametrize(
    ("text", "continues", "kind", "expected"),
    [
        ("word", False, "wordpiece", True),
        ("word", True, "wordpiece", False),
        ("b2b", False, "byte_bpe", True),
        ("हिन्दी", False, "wordpiece", True),
        ("हिन्दी", True, "sentencepiece", False),
        ("中文", True, "sentencepiece", True),
        ("、", True, "sentencepiece", False),
        ("्", False, "wordpiece", False),
        ("[MASK]", False, "wordpiece", False),
        ("", False, "sentencepiece", False),
    ],
)
def test_words_of_many_scripts_are_guessed(text, continues, kind, expected):
    tokenizer = types.SimpleNamespace(
        texts=[text],
        continues_word=[continues],
        encode_batch=lambda texts: [[0] for _ in texts],
        word_suffix="",
        space_marker={"wordpiece": "", "sentencepiece": "▁", "byte_bpe": "Ġ"}[kind],
        vocab_size=1,
    )
    assert filling.is_word.__wrapped__(tokenizer).tolist() == [expected]


def test_pieces_of_thai_are_guessed_and_of_han_are_not():
    """BERT's normaliser puts spaces around Han characters only."""
    tokens = ["ก", "##ก", "##กก", "的", "##的", "が", "##が", "ab", "##ab"]
    tokens += tokenizer_lib.SPECIAL_TOKENS
    tokenizer = tokenizer_lib.make(pipelines.wordpiece(tokens, False, False))
    words = [tokens[i] for i in np.flatnonzero(filling.is_word(tokenizer))]
    assert words == ["ก", "##ก", "##กก", "的", "が", "##が", "ab"]
    stripped = pipelines.wordpiece([*tokens, "##\u0e01\u0e34"], True, True)
    assert filling.is_word(tokenizer_lib.make(stripped)).sum() == len(words)


def test_a_table_has_a_column_for_each_blank():
    guess = prediction.Guess
    assert filling.table("a [MASK].", [[guess("bc", 0.256), guess("d", 1e-4)]]) == (
        "a [MASK].\n    bc   25.6%\n    d     0.0%"
    )
    blanks = [[guess("a", 1.0)], [guess("longer", 0.5)]]
    assert filling.table("[MASK] [MASK]", blanks).splitlines()[1:] == [
        "    blank 1      blank 2",
        "    a  100.0%    longer   50.0%",
    ]


# ---- next sentences


def test_next_probability_is_that_of_class_0(pretrained):
    """Class 1 is a text from another document."""
    model, params = pretrained["next_sentence"]
    pairs = [("ab ac", "ad"), ("ad", "ab ac"), ("ab", words(20))]
    rows = [(first.split(), second.split()) for first, second in pairs]
    first = np.zeros((3, 1), int)
    logits = logits_of(heads.PretrainingModel(TINY), params, rows, first)
    expected = 1 - special.softmax(logits["sentence"], axis=-1)[:, 1]
    assert expected.min() > 0.001 and expected.max() < 0.999
    got = [model.next_probability(*pair) for pair in pairs]
    assert got == pytest.approx(expected.tolist(), abs=1e-5)


def test_next_sentence_head_is_required(pretrained):
    message = (
        "has no head for next sentences: it was pretrained with "
        "objective.kind='masked_lm' and objective.segments='doc_sentences'; give a "
        "pretraining run with objective.segments='next_sentence'"
    )
    with pytest.raises(UserError, match=message):
        pretrained["doc_sentences"][0].next_probability("ab", "ac")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("", "ab", "'' has no tokens"),
        ("ab", " ", "' ' has no tokens"),
        (words(20), words(18), "41 tokens; shorten it to the 40 positions"),
        (["a"], "ab", r"expected a text, got \['a'\]"),
    ],
)
def test_empty_or_long_pairs_are_refused(first, second, message, model):
    with pytest.raises(prediction.TextError, match=message):
        model.next_probability(first, second)


# ---- batches


@dataclasses.dataclass(frozen=True)
class Echo(text_inputs.TextComputation):
    """Computation on rows of three texts each, which returns its input."""

    traced: ClassVar[list] = []

    def init(self, key):
        return {}

    def batch_shapes(self, batch_size, length):
        shapes = super().batch_shapes(batch_size, length)
        return {
            name: jax.ShapeDtypeStruct((batch_size, 3, length), shape.dtype)
            for name, shape in shapes.items()
        }

    def outputs(self, params, batch):
        self.traced.append(batch["input_ids"].shape)
        # Padding must not matter to a model.
        ids = batch["input_ids"] * batch["attention_mask"]
        return {"last": jnp.moveaxis(ids, 1, 2), "sum": jnp.sum(ids, axis=(1, 2))}


@pytest.mark.parametrize("length", [23, 40])
def test_outputs_come_in_order_and_at_full_length(length, model):
    rng = np.random.default_rng(0)
    mask = np.arange(length) < rng.integers(0, length + 1, (77, 3))[..., None]
    ids = np.where(mask, rng.integers(1, 100, mask.shape), 0).astype(np.int32)
    # Unused arrays may be present, and arrays that `outputs` ignores missing.
    rows = {"input_ids": ids, "attention_mask": mask, "index": np.arange(77)}
    for batch_size in (1, 12, 32):
        got = model.engine(Echo(TINY)).outputs(rows, batch_size)
        assert np.array_equal(got["last"], np.moveaxis(ids, 1, 2))
        assert np.array_equal(got["sum"], ids.sum(axis=(1, 2)))


def test_each_batch_shape_is_traced_once(pretrained):
    model, rng = pretrained["doc_sentences"][0], np.random.default_rng(1)
    Echo.traced.clear()
    for count in (1, 3, 70, 64, 33, 2, 90):
        mask = np.arange(40) < rng.integers(1, 41, (count, 3, 1))
        rows = {"input_ids": mask.astype(np.int32), "attention_mask": mask}
        model.engine(Echo(TINY)).outputs(rows, BATCH_SIZE)
    # The shapes of the outputs take one more trace.
    assert len(Echo.traced) <= len(set(Echo.traced)) + 1
    sizes, _, lengths = (set(x) for x in zip(*Echo.traced, strict=True))
    assert sizes <= {1, 2, 4, 8, 16, 32} and lengths <= {16, 24, 32, 40}


# ---- the program


def run_fill_mask(model, *flags):
    return call("fill_mask", f"--init_from={model.source}", *flags)


def test_texts_from_arguments_and_from_a_file(model, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("[MASK] ac\n[MASK] [MASK] ad", encoding="utf-8")
    done = run_fill_mask(model, "ab [MASK]", f"--file={path}", "--top=2")
    assert done.returncode == 0, done.stderr
    texts = ["ab [MASK]", "[MASK] ac", "[MASK] [MASK] ad"]
    filled = model.fill(texts, top=2)
    tables = [filling.table(*each) for each in zip(texts, filled, strict=True)]
    assert done.stdout == "\n".join(tables) + "\n"


def test_the_probability_that_a_text_follows(model):
    done = run_fill_mask(model, "--next=ad ae", "ab ac", "ad")
    texts = "ab ac", "ad"
    probabilities = [model.next_probability(text, "ad ae") for text in texts]
    assert done.stdout.splitlines() == [
        f"{p:6.1%}  {text}" for p, text in zip(probabilities, texts, strict=True)
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "there is no text; give a sentence with [MASK] in it, in quotes, or"),
        (["ab"], "there is no [MASK] in 'ab'"),
        (["ab", "[MASK]"], "there is no [MASK] in 'ab'; give each text in quotes"),
        (["[Mask] a"], "no [MASK] in '[Mask] a'; write [MASK] instead of [Mask]"),
        (["[MASK]" * 39], "has 41 tokens; shorten it to the 40 positions"),
        (["--file=/nowhere"], "cannot read /nowhere: No such file or directory"),
        (["--file={lines}"], "lines.txt, line 2: there is no [MASK] in ''"),
        (["--file={lines}", "--next=ab"], "lines.txt, line 2: '' has no tokens"),
        (["--file={lines}", "--next= "], "error: --next: ' ' has no tokens"),
        (["ab", "--next=\udcff"], "error: --next: "),
        (["--file={long}"], "long.txt, line 3: '[MASK][MASK]"),
    ],
)
def test_invalid_texts_are_refused(flags, message, model, tmp_path):
    (tmp_path / "lines.txt").write_text("[MASK]\n\n")
    (tmp_path / "long.txt").write_text("[MASK]\n" * 2 + "[MASK]" * 39)
    files = {name: tmp_path / f"{name}.txt" for name in ("lines", "long")}
    done = run_fill_mask(model, *(flag.format(**files) for flag in flags))
    assert_refused(done, message)


def test_a_published_discriminator_has_no_generator():
    loaded = prediction.load(str(published.folder("electra_discriminator")))
    hint = "give the folder of its generator$"
    with pytest.raises(UserError, match=hint):
        loaded.fill(["aa [MASK]"])
    with pytest.raises(UserError, match=hint):
        list(loaded.score_pairs([("aa ab", "ab aa")], generator=True))
