"""Predictions of fine-tuned models: classes, numbers, answers, tags and choices."""

import dataclasses
import functools
import gzip
import itertools
import json
import math
import types
from unittest import mock

import jax
import numpy as np
import pytest
from commands import assert_refused, call, succeed
from reference_logits import TOKENIZER, logits_of, words
from saved import save
from scipy import special
from toy import TINY

from bert_jax import config, prediction
from bert_jax.errors import UserError
from bert_jax.model import heads
from bert_jax.objectives import (
    choice,
    classification,
    embedding,
    regression,
    spans,
    tagging,
)
from bert_jax.prediction import file_predictions
from bert_jax.prediction.trained_model import BATCH_SIZE
from bert_jax.tasks import entities
from bert_jax.tasks.squad import answers, windows
from bert_jax.training import inference

LABELS = ["left", "no side", "right"]
TAGS = ["B-x", "I-x", "O"]
SQUAD = config.SquadConfig(
    length=24, stride=5, max_question=4, max_answer=3, nbest=4, no_answers=True
)
OF_TEXTS = (
    config.ClassificationConfig(length=12),
    classification.Classification(TINY, len(LABELS)),
)
# Config, objective and settings of each task.
TASKS = {
    "classification": (*OF_TEXTS, {"labels": LABELS}),
    "pairs": (*OF_TEXTS, {"labels": LABELS, "pairs": True}),
    "single texts": (*OF_TEXTS, {"labels": LABELS, "pairs": False}),
    "regression": (
        config.ClassificationConfig(name="glue/stsb", length=12),
        regression.Regression(TINY),
        {"labels": []},
    ),
    "squad": (SQUAD, spans.Spans(TINY), {}),
    "tagging": (
        config.TaggingConfig(length=12),
        tagging.Tagging(TINY, len(TAGS)),
        {"tags": TAGS, "scheme": "IOB2"},
    ),
    "choice": (config.ChoiceConfig(length=14), choice.Choice(TINY, 4), {}),
    "embedding": (
        config.EmbeddingConfig(length=12),
        embedding.Embedding(TINY, 2, "mean", 0.05),
        {},
    ),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function from a task to a model that was fine-tuned for it."""

    @functools.cache
    def make(kind):
        task, objective, settings = TASKS[kind]
        folder = tmp_path_factory.mktemp(kind)
        run = config.FinetuneConfig(task=task)
        params = save(folder, objective, TOKENIZER, settings, run=run)
        return prediction.load(str(folder)), params

    return make


# ---- classes and numbers

TEXTS = ["ab ac", ("ab ac", "ad ae af"), "", ("ab", ""), words(11), ("ab", words(9))]
ROWS = [
    (["ab", "ac"], []),
    (["ab", "ac"], ["ad", "ae", "af"]),
    ([], []),
    (["ab"], []),
    (words(11).split()[:10], []),
    (["ab"], words(9).split()[:8]),
]


def test_classes_match_the_model(saved):
    model, params = saved("classification")
    got = model.classify(TEXTS)
    logits = logits_of(heads.ClassifierModel(TINY, 3), params, ROWS)
    expected = special.softmax(logits, axis=-1)
    for classified, probabilities in zip(got, expected, strict=True):
        assert list(classified.probabilities) == LABELS
        assert list(classified.probabilities.values()) == pytest.approx(
            probabilities.tolist(), rel=1e-4
        )
        assert classified.label == LABELS[probabilities.argmax()]
    assert [each.truncated for each in got] == [False] * 4 + [True] * 2
    assert model.classify([]) == []


@pytest.mark.parametrize(
    ("kind", "method"), [("classification", "classify"), ("embedding", "embed")]
)
def test_rows_are_no_longer_than_the_texts_need(kind, method, saved, monkeypatch):
    """Arrays of `task.length` for each of many short texts would not fit in memory."""
    outputs = mock.Mock(wraps=inference.Engine.outputs)
    monkeypatch.setattr(inference.Engine, "outputs", lambda *args: outputs(*args))
    monkeypatch.setattr(inference.Engine, "bucket", lambda self, length: length)
    getattr(saved(kind)[0], method)(["ab", "ab ac ad"])
    (_, rows, _), _ = outputs.call_args
    assert rows["input_ids"].shape[-1] == 5


def test_numbers_match_the_model(saved):
    model, params = saved("regression")
    got = model.classify(TEXTS)
    expected = logits_of(heads.ClassifierModel(TINY, 1), params, ROWS)[:, 0]
    assert [each.number for each in got] == pytest.approx(expected.tolist(), rel=1e-4)
    assert [each.truncated for each in got] == [False] * 4 + [True] * 2


def test_an_old_classifier_without_class_names_is_refused(saved, monkeypatch):
    model, _ = saved("classification")
    monkeypatch.delitem(model.metadata.task, "labels")
    with pytest.raises(UserError, match="has no class names; use another run"):
        model.classify(["ab"])


# ---- answers


@pytest.fixture
def squad(saved, monkeypatch):
    """Return a function that loads a model as if its task had other settings."""
    model, params = saved("squad")

    def load(**changes):
        task = {**model.metadata.config["task"], **changes}
        monkeypatch.setitem(model.metadata.config, "task", task)
        return model, params, dataclasses.replace(SQUAD, **changes)

    return load


QUESTIONS = [words(2 + i % 5, i) for i in range(24)]
CONTEXTS = [words(6 + 7 * (i % 4), 80 + i) for i in range(24)]


def rankings(params, task):
    """Rank the answers from outputs of all windows, in one batch of full length."""
    made = windows.make(QUESTIONS, CONTEXTS, TOKENIZER, task)
    assert len(made.rows["input_ids"]) > BATCH_SIZE
    outputs = jax.jit(spans.Spans(TINY).outputs)(params, made.rows)
    return answers.rank(made, jax.device_get(outputs), task)


def test_answers_in_long_contexts_and_to_long_questions(squad):
    model, params, task = squad(no_answers=False)
    got = model.answer(QUESTIONS, CONTEXTS)
    ranked = rankings(params, task)
    for answered, ranking, context in zip(got, ranked, CONTEXTS, strict=True):
        for candidate, wanted in zip(
            [answered, *answered.candidates],
            [ranking.answers[0], *ranking.answers],
            strict=True,
        ):
            assert (candidate.begin, candidate.end) == (wanted.begin, wanted.end)
            assert candidate.text == context[wanted.begin : wanted.end] != ""
            assert candidate.probability == pytest.approx(wanted.probability, rel=1e-3)
    assert [a.truncated for a in got] == [len(q.split()) > 4 for q in QUESTIONS]
    assert model.answer(["ab"], [""])[0].text == ""
    assert model.answer([], []) == []


def test_a_question_has_no_answer_above_the_null_threshold(squad):
    model, params, task = squad()
    odds = [ranking.null_odds for ranking in rankings(params, task)]
    threshold = float(np.median(odds)) + 1e-3
    got = model.answer(QUESTIONS, CONTEXTS, null_threshold=threshold)
    model, *_ = squad(null_threshold=threshold)
    assert got == model.answer(QUESTIONS, CONTEXTS)
    assert [a.text == "" for a in got] == [value > threshold for value in odds]
    for answered in got:
        assert "" in [c.text for c in answered.candidates]
        total = sum(c.probability for c in answered.candidates)
        assert total == pytest.approx(1)


def test_a_left_to_right_encoder_takes_no_null_threshold(squad, monkeypatch):
    model, *_ = squad()
    causal = dataclasses.replace(model.encoder, causal=True)
    monkeypatch.setattr(type(model), "encoder", causal)
    with pytest.raises(UserError, match="null_threshold does not go with a left-to-r"):
        model.answer(QUESTIONS, CONTEXTS, null_threshold=0.0)


def test_the_null_threshold_applies_to_a_file(squad, tmp_path):
    model, *_ = squad()
    asked = [
        {"question": question, "context": context}
        for question, context in zip(QUESTIONS, CONTEXTS, strict=True)
    ]
    (tmp_path / "asked").write_text("\n".join(map(json.dumps, asked)))
    for threshold, is_answered in ((1e6, True), (-1e6, False)):
        got = file_predictions.predict(
            model, str(tmp_path / "asked"), null_threshold=threshold
        )
        assert [bool(each["text"]) for each in got] == [is_answered] * len(asked)


# ---- tags


def expected_tags(params, rows):
    logits = logits_of(heads.TaggerModel(TINY, 3), params, [(row, []) for row in rows])
    return [
        [TAGS[c] for c in of_row[1 : 1 + len(row)].argmax(-1)]
        for row, of_row in zip(rows, logits, strict=True)
    ]


def test_tags_of_texts_and_of_words(saved):
    model, params = saved("tagging")
    many = [words(1 + i % 10, i) for i in range(40)]
    got = model.tag(["ab,ac  ad!", ["ab,", "ac"], "", " ", *many])
    assert [tagged.words for tagged in got] == [
        ["ab", ",", "ac", "ad", "!"],
        ["ab,", "ac"],
        [],
        [],
        *(text.split() for text in many),
    ]
    assert got[0].offsets == [(0, 2), (2, 3), (3, 5), (7, 9), (9, 10)]
    assert got[1].offsets == []
    rows = [["ab", "[UNK]", "ac", "ad", "[UNK]"], ["ab", "[UNK]", "ac"]]
    first, second, *expected = expected_tags(params, rows + [t.split() for t in many])
    assert got[0].tags == first
    # The first token of a word has its tag.
    assert got[1].tags == [second[0], second[2]]
    for tagged, text, tags in zip(got[4:], many, expected, strict=True):
        assert tagged.tags == tags
        assert tagged.entities == entities.entities(text.split(), tags, "IOB2")
    assert not any(tagged.truncated for tagged in got)
    assert {name for tagged in got for name in tagged.tags} == set(TAGS)
    assert any(tagged.entities for tagged in got)
    assert model.tag([]) == []


def test_words_of_texts(saved):
    """Marks and soft hyphens belong to a word, and each Han character is one."""
    text = "\u200fहिन्दी, e\u0301t\u00e9 葛\U000e0100城は co\u00adop\u00ad ab\u200bac"
    [tagged] = saved("tagging")[0].tag([text])
    assert tagged.words == [
        *("हिन्दी", ",", "e\u0301t\u00e9", "葛\U000e0100", "城", "は"),
        *("co\u00adop", "ab", "ac"),
    ]
    assert [text[begin:end] for begin, end in tagged.offsets] == tagged.words


def test_words_longer_than_a_row_are_truncated(saved):
    """A row has room for ten tokens; a sign that is not in the vocabulary is one."""
    texts = [["ab", "ab," * 5], ["ab", "ab," * 5 + "ac"], [], [words(30)]]
    texts += [words(30), ["ab," * 6, "ab," * 6]]
    got = saved("tagging")[0].tag(texts)
    assert [t.truncated for t in got] == [False, True, False, True, False, True]
    assert all(len(tagged.tags) == len(tagged.words) for tagged in got)


def test_the_text_of_an_entity_is_copied_from_the_text(saved, monkeypatch):
    model, _ = saved("tagging")

    def outputs(rows, batch_size):
        """Make the second and third word an entity."""
        classes = np.full(rows["input_ids"].shape, TAGS.index("O"))
        classes[:, 2], classes[:, 3] = TAGS.index("B-x"), TAGS.index("I-x")
        return {"predictions": classes}

    engine = types.SimpleNamespace(outputs=outputs)
    monkeypatch.setattr(model, "engine", lambda objective: engine)
    in_text, in_words = model.tag(["ab ac\t. ad", ["ab", "ac", ".", "ad"]])
    assert [(e.begin, e.end, e.text) for e in in_text.entities] == [(1, 3, "ac\t.")]
    assert [(e.begin, e.end, e.text) for e in in_words.entities] == [(1, 3, "ac .")]
    monkeypatch.setitem(model.metadata.task, "scheme", "none")
    assert model.tag(["ab ac . ad"])[0].entities == []


# ---- choices


def test_the_probabilities_of_choices(saved):
    """Questions have any number of choices, and more than in fine-tuning."""
    model, params = saved("choice")
    questions = [words(1 + i % 4, i) for i in range(35)]
    choices = [
        [words(1 + j % 5, 100 * i + j) for j in range(2 + i % 4)] for i in range(35)
    ]
    pairs = [
        (question.split(), text.split())
        for question, texts in zip(questions, choices, strict=True)
        for text in texts
    ]
    scores = iter(logits_of(heads.ClassifierModel(TINY, 1), params, pairs)[:, 0])
    for chosen, texts in zip(model.choose(questions, choices), choices, strict=True):
        expected = special.softmax(list(itertools.islice(scores, len(texts))), axis=-1)
        assert chosen.probabilities == pytest.approx(expected.tolist(), abs=1e-4)
        assert chosen.index == expected.argmax()
        assert chosen.text == texts[chosen.index]
        assert not chosen.truncated
    [chosen] = model.choose(["ab"], [["ac", words(12)]])
    assert chosen.truncated
    assert model.choose([], []) == []


# ---- files of texts

ASKED = [
    json.dumps({"question": "ab", "context": "ac ad ae", "choices": ["ac", "ad ae"]})
] * 5
# Input of each task, and the method with its arguments for the same examples.
LINES = {
    "classification": ("ab ac\nab ||| ac\n", "classify", [["ab ac", ("ab", "ac")]]),
    "regression": ("ab ac\n", "classify", [["ab ac"]]),
    "tagging": ("ab ac\n\n", "tag", [["ab ac", ""]]),
    "squad": ("\n".join(ASKED), "answer", [["ab"] * 5, ["ac ad ae"] * 5]),
    "choice": ("\n\n".join(ASKED), "choose", [["ab"] * 5, [["ac", "ad ae"]] * 5]),
}


@pytest.mark.parametrize("kind", LINES)
def test_lines_of_a_file_have_the_predictions_of_the_method(
    kind, saved, tmp_path, monkeypatch
):
    monkeypatch.setattr(file_predictions, "_WINDOW", 2)
    text, method, arguments = LINES[kind]
    (tmp_path / "lines").write_text(text)
    model, _ = saved(kind)
    flags = [f"--init_from={model.source}", f"--input={tmp_path / 'lines'}"]
    printed = succeed("predict", *flags).stdout
    expected = map(dataclasses.asdict, getattr(model, method)(*arguments))
    for line, each in zip(printed.splitlines(), expected, strict=True):
        got, each = json.loads(line), json.loads(json.dumps(each))
        assert jax.tree.structure(got) == jax.tree.structure(each)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(each), strict=True):
            assert a == (pytest.approx(b, rel=1e-4) if isinstance(b, float) else b)


@pytest.mark.parametrize("kind", ["classification", "tagging", "embedding"])
def test_lines_of_tables_are_not_taken_for_texts(kind, saved, tmp_path):
    """Files of fine-tuning; of each, the lines would have predictions, too."""
    model, _ = saved(kind)
    a_text = "each line would be (a|read as one) text"
    for name, content, text_a, message in (
        ("a.jsonl.gz", gzip.compress(b'{"text": "ab"}\n', mtime=0), "", a_text),
        ("a.csv", b'text\n"ab, ac"\n', "", a_text),
        ("a.csv", b'text\n"ab, ac"\n', "text", "columns are read from .tsv files only"),
        ("a.tsv", b"text\tlabel\nab\tyes\n", "", a_text),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name}: {message}"):
            next(file_predictions.predict(model, str(tmp_path / name), text_a))


def test_columns_and_vectors_of_a_file(saved, tmp_path):
    (tmp_path / "a.tsv").write_text("n\tx\ty\n1\tab ac\tad\n2\tab\tae\n")
    read = functools.partial(file_predictions.predict, name=str(tmp_path / "a.tsv"))
    model, _ = saved("classification")
    expected = model.classify([("ab ac", "ad"), ("ab", "ae")])
    got = [each["probabilities"] for each in read(model, text_a="x", text_b="y")]
    for a, b in zip(got, expected, strict=True):
        assert a == pytest.approx(b.probabilities, rel=1e-4)
    model, _ = saved("embedding")
    got = [each["vector"] for each in read(model, text_a="x")]
    np.testing.assert_allclose(got, model.embed(["ab ac", "ab"]), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "line", "flags", "message"),
    [
        ("squad", "{", [], "lines, line 1: not JSON"),
        ("choice", " ", [], "lines: all lines are blank"),
        ("squad", '{"question": "a"}', [], "line 1: the field 'context' is missing"),
        ("choice", '{"question": "a", "choices": "b"}', [], "must be a list of texts"),
        ("choice", '{"question": "a", "choices": ["b"]}', [], "line 1: 'a' has 1 choi"),
        ("squad", '{"question": 1, "context": "a"}', [], "line 1: expected a text"),
        ("squad", "{}", ["--text_a=x"], "does not apply to squad, which reads JSON"),
        ("choice", "{}", ["--text_b=x"], "text_b does not apply to choice, which re"),
        ("tagging", "a", ["--text_a=a", "--text_b=a"], "does not apply to tagging"),
        ("classification", "a", ["--text_b=a"], "text_b needs text_a"),
        ("tagging", "a", ["--null_threshold=1"], "does not apply to tagging"),
        ("pairs", "a", [], "line 1: 'a' is a single text, but the model was fine-tun"),
    ],
)  # fmt: skip
def test_invalid_lines_are_refused(kind, line, flags, message, saved, tmp_path):
    (tmp_path / "lines").write_text(line + "\n")
    given = f"--init_from={saved(kind)[0].source}", f"--input={tmp_path / 'lines'}"
    assert_refused(call("predict", *given, *flags), message)


def test_predictions_are_utf_8_in_every_locale(saved, tmp_path):
    model, _ = saved("choice")
    asked = {"question": "ab", "choices": ["café", "café"]}
    (tmp_path / "lines").write_text(json.dumps(asked))
    flags = f"--init_from={model.source}", f"--input={tmp_path / 'lines'}"
    done = call("predict", *flags, encoding="latin-1")
    assert json.loads(done.stdout)["text"] == "café"


# ---- what is refused


@pytest.mark.parametrize(
    ("kind", "method", "arguments", "message"),
    [
        ("choice", "answer", (["ab"], ["ac"]), "use a workdir of run.finetune_squad"),
        ("squad", "tag", (["ab"],), "use a workdir of run.finetune_tagger"),
        ("tagging", "choose", (["ab"], [["ac", "ad"]]), "workdir of run.finetune_choi"),
        ("choice", "classify", (["ab"],), "use a workdir of run.finetune_classifier"),
        ("squad", "fill", (["[MASK]"],), "has no head to fill blanks: it was fine-tuned"
         " for squad; give a pretraining run with masked tokens"),
        ("squad", "fill", (["[MASK]"], 0), "top=0 must be at least 1"),
        ("choice", "features", ("a",), "'a' is one text; give a list"),
        ("tagging", "tag", (iter(["ab"]),), "texts are an iterator; give a list"),
        ("tagging", "tag", ([iter(["ab"])],), "expected a text or a list of texts"),
        ("classification", "classify", (["a\ud800"],), r"unpaired surrogate, '.ud800'"),
        ("classification", "classify", ([("a", "b", "c")],), "must have two texts"),
        ("single texts", "classify", ([("a", "b")],), "is a pair, but the model was f"),
        ("choice", "choose", (["a"], [["\ud800", "b"]]), "has an unpaired surrogate"),
        ("squad", "answer", (["ab"], "a"), "'a' is one text; give a list"),
        ("squad", "answer", (["ab"], []), "contexts must have the same length"),
        ("tagging", "tag", ("ab ac",), "'ab ac' is one text; give a list"),
        ("choice", "choose", (["a"], ["bc"]), "'bc' is one text; give a list"),
        ("choice", "choose", (["a"], [["b"]]), "'a' has 1 choice; at least"),
    ],
)  # fmt: skip
def test_other_checkpoints_and_invalid_arguments_are_refused(
    kind, method, arguments, message, saved
):
    with pytest.raises(UserError, match=message):
        getattr(saved(kind)[0], method)(*arguments)


@pytest.mark.parametrize(
    ("kind", "method", "arguments", "item"),
    [
        ("classification", "classify", (["ab", None],), None),
        ("classification", "features", (["ab", b"ab"],), b"ab"),
        ("classification", "classify", (["ab", ("ab", None)],), ("ab", None)),
        ("tagging", "tag", (["ab", math.nan],), math.nan),
        ("squad", "fill", (["[MASK]", ("[MASK]", "b")],), ("[MASK]", "b")),
        ("squad", "answer", (["a", ["a"]], ["b", "b"]), ["a"]),
        ("squad", "answer", (["a", "a"], ["b", ["b", "c"]]), ["b", "c"]),
        ("choice", "choose", (["a", ("a", "b")], [["c", "d"]] * 2), ("a", "b")),
    ],
)
def test_items_that_are_no_texts_are_refused(kind, method, arguments, item, saved):
    with pytest.raises(prediction.TextError, match="expected a text.*, got ") as error:
        list(getattr(saved(kind)[0], method)(*arguments))
    assert error.value.index == 1
    assert repr(item) in str(error.value)
