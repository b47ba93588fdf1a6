"""Predictions: blanks, next sentences, classes, and the batches behind them."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import assert_refused, call
from saved import save
from toy import TINY, metadata

from bert_jax import config, prediction
from bert_jax.errors import UserError
from bert_jax.model import heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import classification, masked_lm, replaced_tokens
from bert_jax.prediction import features, filling
from bert_jax.prediction.trained import BATCH_SIZE

TOKENIZER = metadata().tokenizer
WORDS = TOKENIZER.tokens[5:]
LABELS = ["left", "no side", "right"]


def save_pretrained(folder, segments):
    objective = config.MaskedLmConfig(segments=segments)
    return save(
        folder,
        masked_lm.MaskedLm(TINY, objective),
        config.PretrainConfig(objective=objective),
        TOKENIZER,
    )


@pytest.fixture(scope="module")
def with_pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("with_pairs")
    return folder, save_pretrained(folder, "next_sentence")


@pytest.fixture(scope="module")
def without_pairs(tmp_path_factory):
    """A checkpoint without a head for next sentences, and its parameters."""
    folder = tmp_path_factory.mktemp("without_pairs")
    return folder, save_pretrained(folder, "doc_sentences")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    objective = classification.Classification(TINY, len(LABELS))
    task = config.ClassificationConfig(length=12)
    settings = {"labels": LABELS}
    run = config.FinetuneConfig(task=task)
    return folder, save(folder, objective, run, TOKENIZER, settings)


def ids_of(*tokens):
    return jnp.array([[TOKENIZER.tokens.index(token) for token in tokens]])


def words(number, seed=0):
    """A text."""
    return " ".join(np.random.default_rng(seed).choice(WORDS, number))


# ---- blanks


@functools.partial(jax.jit, static_argnames="model")
def apply(model, params, *inputs):
    """Logits; of a model for pretraining those of tokens and of pairs."""
    logits = model.apply({"params": params}, *inputs)
    if isinstance(model, heads.PretrainingModel):
        return logits.mlm, logits.sentence
    return logits


def expected_guesses(params, text, top):
    """The best words for the blanks of a text alone, without padding."""
    ids = ids_of("[CLS]", *text.split(), "[SEP]")
    positions = jnp.flatnonzero(ids[0] == TOKENIZER.mask_id)[None]
    model = heads.PretrainingModel(TINY, "")
    kept = {name: params[name] for name in ("encoder", "mlm_head")}
    logits, _ = apply(model, kept, Inputs(ids, ids >= 0), positions)
    probabilities = np.asarray(jax.nn.softmax(logits))[0, :, : len(WORDS) + 5]
    are_words = np.array([word.isalpha() for word in TOKENIZER.tokens])
    best = np.argsort(-probabilities * are_words, axis=-1)[:, :top]
    return [
        [(TOKENIZER.tokens[i], row[i]) for i in ids]
        for ids, row in zip(best, probabilities, strict=True)
    ]


def assert_filled(filled, params, texts, top):
    for text, blanks in zip(texts, filled, strict=True):
        expected = expected_guesses(params, text, top)
        assert len(blanks) == len(expected) == text.count("[MASK]")
        for guesses, wanted in zip(blanks, expected, strict=True):
            assert [guess.word for guess in guesses] == [word for word, _ in wanted]
            np.testing.assert_allclose(
                [guess.probability for guess in guesses],
                [probability for _, probability in wanted],
                rtol=1e-4,
            )


def test_blanks_without_a_head_for_pairs(without_pairs):
    folder, params = without_pairs
    assert params.keys() == {"encoder", "mlm_head"}
    texts = ["ab [MASK]"]
    filled = prediction.load(str(folder)).fill(texts, top=3)
    assert_filled(filled, params, texts, 3)


def test_blanks_of_a_generator(tmp_path):
    objective = config.ReplacedTokensConfig(generator_size=0.5, generator_layers=0.5)
    trained = replaced_tokens.ReplacedTokens(TINY, objective)
    run = config.PretrainConfig(objective=objective)
    params = save(tmp_path, trained, run, TOKENIZER)
    ((guesses,),) = prediction.load(str(tmp_path)).fill(["ab [MASK] ad"], top=3)
    ids = ids_of("[CLS]", "ab", "[MASK]", "ad", "[SEP]")
    logits = trained.model.apply(
        {"params": params}, Inputs(ids, ids >= 0), jnp.array([[2]]), method="generate"
    )
    probabilities = np.asarray(jax.nn.softmax(logits))[0, 0, : len(WORDS) + 5]
    probabilities = np.where(np.arange(len(WORDS) + 5) < 5, 0, probabilities)
    best = np.argsort(-probabilities)[:3]
    assert [guess.word for guess in guesses] == [TOKENIZER.tokens[i] for i in best]
    np.testing.assert_allclose(
        [guess.probability for guess in guesses], probabilities[best], rtol=1e-4
    )


def test_blanks_do_not_depend_on_the_other_texts(with_pairs):
    folder, params = with_pairs
    texts = [
        " ".join(["[MASK]"] * (1 + i % 3) + [words(n, i), "[MASK]"])
        for i, n in enumerate([30, 1, 7] * 12)
    ]
    filled = prediction.load(str(folder)).fill(texts, top=2)
    assert len(texts) > BATCH_SIZE
    assert_filled(filled, params, texts, 2)


def test_top_is_limited_to_the_number_of_words(with_pairs):
    model = prediction.load(str(with_pairs[0]))
    [[guesses]] = model.fill(["ab [MASK]"], top=10**6)
    assert sorted(guess.word for guess in guesses) == sorted(WORDS)
    assert model.fill([]) == []


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


def test_next_probability(with_pairs):
    """Compare with class 0; class 1 is a text from another document."""
    folder, params = with_pairs
    model = prediction.load(str(folder))
    for first, second in (("ab ac", "ad"), ("ad", "ab ac"), ("ab", words(20))):
        a, b = ["[CLS]", *first.split(), "[SEP]"], [*second.split(), "[SEP]"]
        ids = ids_of(*a, *b)
        segments = jnp.array([[0] * len(a) + [1] * len(b)])
        inputs = Inputs(ids, ids >= 0, segments)
        model_of_pairs = heads.PretrainingModel(TINY)
        _, logits = apply(model_of_pairs, params, inputs, jnp.zeros((1, 1), jnp.int32))
        other = float(jax.nn.softmax(logits)[0, 1])
        got = model.next_probability(first, second)
        assert got == pytest.approx(1 - other, abs=1e-5)
        assert 0.001 < got < 0.999


def test_next_sentence_head_is_required(without_pairs, tmp_path):
    save_pretrained(tmp_path, "sentence_order")
    for folder, name in ((without_pairs[0], "doc_sentences"),
                         (tmp_path, "sentence_order")):  # fmt: skip
        with pytest.raises(UserError) as error:
            prediction.load(str(folder)).next_probability("ab", "ac")
        message = str(error.value)
        assert f"pretrained with masked_lm on {name}" in message
        assert "no head for next sentences" in message
        assert message.endswith("objective.segments='next_sentence'")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("", "ab", "'' has no tokens"),
        ("ab", " ", "' ' has no tokens"),
        (words(20), words(18), "41 tokens, the model has 40 positions"),
    ],
)
def test_empty_or_long_pairs_are_refused(first, second, message, with_pairs):
    with pytest.raises(prediction.TextError, match=message):
        prediction.load(str(with_pairs[0])).next_probability(first, second)


# ---- classes


def test_classes_match_the_model(classifier):
    folder, params = classifier
    texts = [
        "ab ac",
        ("ab ac", "ad ae af"),
        "",
        ("ab", ""),
        words(11),
        ("ab", words(9)),
    ]
    got = prediction.load(str(folder)).classify(texts)
    long = words(11).split()[:10], words(9).split()[:8]
    rows = [
        (["[CLS]", "ab", "ac", "[SEP]"], []),
        (["[CLS]", "ab", "ac", "[SEP]"], ["ad", "ae", "af", "[SEP]"]),
        (["[CLS]", "[SEP]"], []),
        (["[CLS]", "ab", "[SEP]"], []),
        (["[CLS]", *long[0], "[SEP]"], []),
        (["[CLS]", "ab", "[SEP]"], [*long[1], "[SEP]"]),
    ]
    for classified, (a, b) in zip(got, rows, strict=True):
        ids, segments = ids_of(*a, *b), jnp.array([[0] * len(a) + [1] * len(b)])
        inputs = Inputs(ids, ids >= 0, segments)
        logits = apply(heads.ClassifierModel(TINY, 3), params, inputs)
        expected = dict(zip(LABELS, np.asarray(jax.nn.softmax(logits))[0], strict=True))
        assert classified.probabilities == pytest.approx(expected, rel=1e-4)
        assert classified.label == max(expected, key=expected.get)
    assert [each.truncated for each in got] == [False] * 4 + [True] * 2


def test_questions_for_another_checkpoint_are_refused(classifier, with_pairs):
    model = prediction.load(str(classifier[0]))
    with pytest.raises(UserError, match="has no head to fill blanks: it was fine-tuned "
                       "for classification; give a pretraining run"):  # fmt: skip
        model.fill(["[MASK]"])
    with pytest.raises(UserError, match="is not a checkpoint of classification: it was "
                       "pretrained with masked_lm on next_sentence; use a workdir of "
                       "run.finetune_classifier"):  # fmt: skip
        prediction.load(str(with_pairs[0])).classify(["ab"])
    for ask in (model.classify, model.features):
        with pytest.raises(UserError, match="'ab ac' is one text; give a list"):
            ask("ab ac")


# ---- batches


@dataclasses.dataclass(frozen=True)
class Choices(features.Hidden):
    """Question whose rows hold several texts, and which returns its input."""

    traced: ClassVar[list] = []

    def batch_shapes(self, batch_size, length):
        tokens = (batch_size, 3, length)
        return {
            "input_ids": jax.ShapeDtypeStruct(tokens, jnp.int32),
            "attention_mask": jax.ShapeDtypeStruct(tokens, jnp.bool_),
            "labels": jax.ShapeDtypeStruct((batch_size,), jnp.int32),
        }

    def outputs(self, params, batch):
        ids = batch["input_ids"]
        self.traced.append(ids.shape)
        # Padding must not matter to a model.
        return {
            "last": jnp.moveaxis(ids * batch["attention_mask"], 1, 2),
            "sum": jnp.sum(ids * batch["attention_mask"], axis=(1, 2)),
        }


@pytest.mark.parametrize("length", [23, 40])
def test_outputs_come_in_order_and_at_full_length(length, with_pairs):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, min(length, 40) + 1, (77, 3))
    mask = np.arange(length) < lengths[..., None]
    ids = np.where(mask, rng.integers(1, 100, mask.shape), 0).astype(np.int32)
    question = Choices(TINY, (-1,), "none")
    model = prediction.load(str(with_pairs[0]))
    for batch_size in (1, 12, 32):
        # Unused arrays may be present, and arrays that `outputs` ignores missing.
        rows = {"input_ids": ids, "attention_mask": mask, "index": np.arange(77)}
        got = model.outputs(question, rows, batch_size)
        assert np.array_equal(got["last"], np.moveaxis(ids, 1, 2))
        assert np.array_equal(got["sum"], ids.sum(axis=(1, 2)))
        none = {name: values[:0] for name, values in rows.items()}
        assert model.outputs(question, none)["last"].shape == (0, length, 3)


def test_each_batch_shape_is_traced_once(with_pairs):
    question, model = (
        Choices(TINY, (-1, -2), "cls"),
        prediction.load(str(with_pairs[0])),
    )
    rng = np.random.default_rng(1)
    question.traced.clear()
    for count in (1, 3, 70, 64, 33, 2, 90):
        mask = np.arange(40) < rng.integers(1, 41, (count, 3, 1))
        model.outputs(question, {"input_ids": mask + 0, "attention_mask": mask})
    # The shapes of the outputs take one more trace.
    assert len(question.traced) <= len(set(question.traced)) + 1
    sizes, _, lengths = (set(x) for x in zip(*question.traced, strict=True))
    assert sizes <= {1, 2, 4, 8, 16, 32} and lengths <= {16, 24, 32, 40}


# ---- the program


@pytest.fixture
def source(with_pairs):
    return f"--init_from={with_pairs[0]}"


def test_texts_from_arguments_and_from_a_file(source, with_pairs, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("[MASK] ac\n[MASK] [MASK] ad", encoding="utf-8")
    done = call("fill_mask", "ab [MASK]", source, f"--file={path}", "--top=2")
    assert done.returncode == 0, done.stderr
    texts = ["ab [MASK]", "[MASK] ac", "[MASK] [MASK] ad"]
    filled = prediction.load(str(with_pairs[0])).fill(texts, top=2)
    tables = [filling.table(*each) for each in zip(texts, filled, strict=True)]
    assert done.stdout == "\n".join(tables) + "\n"


def test_the_probability_that_a_text_follows(source, with_pairs):
    done = call("fill_mask", source, "--next=ad ae", "ab ac", "ad")
    model = prediction.load(str(with_pairs[0]))
    expected = [model.next_probability(text, "ad ae") for text in ("ab ac", "ad")]
    got = [float(line.split("%")[0]) / 100 for line in done.stdout.splitlines()]
    assert got == pytest.approx(expected, abs=6e-4)
    assert [line.split("%")[1] for line in done.stdout.splitlines()] == [
        "  ab ac",
        "  ad",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "there is no text; give a sentence with [MASK] in it, in quotes, or"),
        (["--next=ab"], "there is no text; give a sentence, in quotes, or --file=FILE"),
        (["ab"], "there is no [MASK] in 'ab'"),
        (["[MASK]", "--next=ab"], "--next needs texts without [MASK], got"),
        (["[MASK]" * 39], "has 41 tokens, the model has 40 positions"),
        (["--file=/nowhere"], "/nowhere cannot be read: "),
        (["--file={lines}"], "lines.txt, line 2: there is no [MASK] in ''"),
        (["--file={lines}", "--next=ab"], "lines.txt, line 1: --next needs texts"),
        (["--file={long}"], "long.txt, line 3: '[MASK][MASK]"),
        (["--file={long}"], "has 41 tokens, the model has 40 positions"),
    ],
)
def test_invalid_texts_are_refused(flags, message, source, tmp_path):
    (tmp_path / "lines.txt").write_text("[MASK]\n\n")
    (tmp_path / "long.txt").write_text("[MASK]\n" * 2 + "[MASK]" * 39)
    files = {name: tmp_path / f"{name}.txt" for name in ("lines", "long")}
    done = call("fill_mask", source, *(flag.format(**files) for flag in flags))
    assert_refused(done, message)
