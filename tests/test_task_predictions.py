"""Asking models that were fine-tuned for a task: answers, tags, choices, numbers."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved import save
from toy import TINY, metadata

from bert_jax import config, prediction
from bert_jax.errors import UserError
from bert_jax.model import heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import choice, regression, spans, tagging
from bert_jax.prediction.trained import BATCH_SIZE
from bert_jax.tasks.squad import answers, windows

TOKENIZER = metadata().tokenizer
WORDS = TOKENIZER.tokens[5:]
TAGS = ["B-x", "I-x", "O"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Saves a checkpoint of a task; gives its folder and parameters."""

    @functools.cache
    def make(kind):
        task, objective, settings = {
            "squad": (
                config.SquadConfig(
                    length=24, stride=5, max_question=4, max_answer=3, nbest=4,
                    no_answers=True,
                ),
                spans.Spans(TINY),
                {},
            ),
            "tagging": (
                config.TaggingConfig(length=12),
                tagging.Tagging(TINY, 3),
                {"tags": TAGS, "scheme": "IOB2"},
            ),
            "choice": (config.ChoiceConfig(length=14), choice.Choice(TINY, 4), {}),
            "classification": (
                config.ClassificationConfig(name="glue/stsb", length=12),
                regression.Regression(TINY),
                {"labels": []},
            ),
        }[kind]  # fmt: skip
        folder = tmp_path_factory.mktemp(kind)
        run = config.FinetuneConfig(task=task)
        return str(folder), save(folder, objective, run, TOKENIZER, settings)

    return make


def words(number, seed=0):
    """A text."""
    return " ".join(np.random.default_rng(seed).choice(WORDS, number))


@functools.partial(jax.jit, static_argnames="model")
def _apply(model, params, inputs):
    return model.apply({"params": params}, inputs)


def logits_of(model, params, first, second=()):
    """Of [CLS] first [SEP] second [SEP] alone, and of its tokens if of tokens.

    One length for all, so that few programs are compiled.
    """
    first = ["[CLS]", *first, "[SEP]"]
    second = [*second, "[SEP]"] if second else []
    count = len(first) + len(second)
    padding = [0] * (24 - count)
    ids = [TOKENIZER.tokens.index(t) for t in [*first, *second]] + padding
    segments = [0] * len(first) + [1] * len(second) + padding
    mask = jnp.arange(24) < count
    inputs = Inputs(jnp.array([ids]), mask[None], jnp.array([segments]))
    logits = np.asarray(_apply(model, params, inputs))[0]
    return logits[:count] if logits.ndim > 1 else logits


def softmax(values):
    odds = np.exp(np.array(values) - max(values))
    return odds / odds.sum()


# ---- answers


def load_squad(folder, **changes):
    """The model as if it had been fine-tuned with another config."""
    model = prediction.load(folder)
    model.metadata.config["task"].update(changes)
    return model


@pytest.fixture(scope="module")
def asked():
    """Questions and contexts of one window each."""
    return (
        [words(1 + i % 3, i) for i in range(5)],
        [" ".join(words(4 + i, 50 + i).split()) + "." for i in range(5)],
    )


def scores_of(params, question, context):
    """The score of each span of at most three words, and of none."""
    tokens = context.rstrip(".").split()
    both = logits_of(
        heads.SpanModel(TINY), params, question.split(), [*tokens, "[UNK]"]
    )
    first = len(question.split()) + 2
    start, end = both[first:-1].T
    begins = list(itertools.accumulate([0, *(len(t) + 1 for t in tokens)]))
    begins[-1] -= 1  # the full stop follows its word
    ends = [*(b + len(t) for b, t in zip(begins, tokens, strict=False)), len(context)]
    scores = {}
    for i, j in itertools.product(range(len(begins)), repeat=2):
        if i <= j < i + 3:
            scores[begins[i], ends[j]] = start[i] + end[j]
    return scores, both[0].sum()


def test_an_answer_is_the_best_span(saved, asked):
    folder, params = saved("squad")
    got = load_squad(folder, no_answers=False).answer(*asked)
    assert len(got) == len(asked[0])
    for answered, question, context in zip(got, *asked, strict=True):
        scores, _ = scores_of(params, question, context)
        best = sorted(scores, key=scores.get, reverse=True)
        assert (answered.begin, answered.end) == best[0]
        assert answered.text == context[slice(*best[0])]
        assert [c.text for c in answered.candidates] == [
            context[slice(*place)] for place in best[: len(answered.candidates)]
        ]
        expected = softmax([scores[place] for place in best[:4]])
        assert [c.probability for c in answered.candidates] == pytest.approx(
            expected.tolist(), rel=1e-3
        )
        assert answered.probability == answered.candidates[0].probability
        assert not answered.truncated


def test_a_question_may_have_no_answer(saved, asked):
    """Then it is the odds of none that decide."""
    folder, params = saved("squad")
    odds = []
    for question, context in zip(*asked, strict=True):
        scores, null = scores_of(params, question, context)
        odds.append(null - max(scores.values()))
    threshold = float(np.median(odds)) + 1e-3
    got = prediction.load(folder).answer(*asked, null_threshold=threshold)
    as_config = load_squad(folder, null_threshold=threshold).answer(*asked)
    assert got == as_config
    assert [a.text == "" for a in got] == [value > threshold for value in odds]
    for answered in got:
        assert "" in [c.text for c in answered.candidates]
        if not answered.text:
            assert (answered.begin, answered.end) == (0, 0)
        total = sum(c.probability for c in answered.candidates)
        assert total == pytest.approx(1)


def test_long_contexts_and_long_questions(saved):
    """Windows of many questions are answered as the objective says of all at once."""
    folder, params = saved("squad")
    questions = [words(2 + i % 5, i) for i in range(24)]
    contexts = [words(6 + 7 * (i % 4), 80 + i) for i in range(24)]
    model = load_squad(folder, no_answers=False)
    got = model.answer(questions, contexts)
    task = config.SquadConfig(
        length=24, stride=5, max_question=4, max_answer=3, nbest=4
    )
    made = windows.make(questions, contexts, TOKENIZER, task)
    assert len(made.rows["input_ids"]) > BATCH_SIZE
    outputs = jax.jit(spans.Spans(TINY).outputs)(params, made.rows)
    ranked = answers.rank(made, jax.device_get(outputs), task)
    assert [a.text for a in got] == [ranking.answers[0].text for ranking in ranked]
    assert [a.truncated for a in got] == [len(q.split()) > 4 for q in questions]
    assert model.answer(["ab"], [""])[0].text == ""
    assert model.answer([], []) == []


# ---- tags


def expected_tags(params, tokens):
    logits = logits_of(heads.TaggerModel(TINY, 3), params, tokens)[1:-1]
    return [TAGS[c] for c in logits.argmax(-1)]


def expected_entities(tags):
    """First word, and the one after the last, of each entity in IOB2."""
    places, begin = [], None
    for i, name in enumerate([*tags, "O"]):
        if begin is not None and name != "I-x":
            places.append((begin, i))
            begin = None
        if name == "B-x":
            begin = i
    return places


def test_tags_of_texts_and_of_words(saved):
    folder, params = saved("tagging")
    many = [words(1 + i % 10, i) for i in range(40)]
    texts = ["ab,ac  ad!", ["ab,", "ac"], "", " ", *many]
    expected = [
        ["ab", ",", "ac", "ad", "!"],
        ["ab,", "ac"],
        [],
        [],
        *(text.split() for text in many),
    ]
    got = prediction.load(folder).tag(texts)
    assert [tagged.words for tagged in got] == expected
    assert got[0].offsets == [(0, 2), (2, 3), (3, 5), (7, 9), (9, 10)]
    assert got[1].offsets == []
    for tagged, text in list(zip(got, texts, strict=True))[4:]:
        assert tagged.tags == expected_tags(params, tagged.words)
        places = [(e.begin, e.end) for e in tagged.entities]
        assert places == expected_entities(tagged.tags)
        for entity in tagged.entities:
            assert entity.kind == "x"
            assert entity.text == " ".join(text.split()[entity.begin : entity.end])
    tokens = ["ab", "[UNK]", "ac", "ad", "[UNK]"]
    assert got[0].tags == expected_tags(params, tokens)
    # Of the two tokens of a word, the first one has its tag.
    assert (
        got[1].tags
        == np.array(expected_tags(params, ["ab", "[UNK]", "ac"]))[[0, 2]].tolist()
    )
    assert not any(tagged.truncated for tagged in got)
    assert {name for tagged in got for name in tagged.tags} == set(TAGS)
    assert any(tagged.entities for tagged in got)


def test_words_that_are_longer_than_a_row(saved):
    """A row has room for ten tokens; a sign that is not in the vocabulary is one."""
    model = prediction.load(saved("tagging")[0])
    texts = [["ab", "ab," * 5], ["ab", "ab," * 5 + "ac"], [], [words(30)]]
    texts += [words(30), ["ab," * 6, "ab," * 6]]
    got = model.tag(texts)
    assert [t.truncated for t in got] == [False, True, False, True, False, True]
    assert all(len(tagged.tags) == len(tagged.words) for tagged in got)


def test_the_text_of_an_entity_is_as_it_stands_there(saved, monkeypatch):
    folder, _ = saved("tagging")
    model = prediction.load(folder)

    def outputs(objective, rows):
        """The second and third word are an entity."""
        classes = np.full(rows["input_ids"].shape, TAGS.index("O"))
        classes[:, 2], classes[:, 3] = TAGS.index("B-x"), TAGS.index("I-x")
        return {"predictions": classes}

    monkeypatch.setattr(model, "outputs", outputs)
    in_text, in_words = model.tag(["ab ac\t. ad", ["ab", "ac", ".", "ad"]])
    assert [(e.begin, e.end, e.text) for e in in_text.entities] == [(1, 3, "ac\t.")]
    assert [(e.begin, e.end, e.text) for e in in_words.entities] == [(1, 3, "ac .")]
    model.metadata.task["scheme"] = "none"
    assert model.tag(["ab ac . ad"])[0].entities == []


# ---- choices


def test_the_probabilities_of_choices(saved):
    """Questions with any number of them, and more than at fine-tuning."""
    folder, params = saved("choice")
    questions = [words(1 + i % 4, i) for i in range(35)]
    choices = [
        [words(1 + j % 5, 100 * i + j) for j in range(2 + i % 4)] for i in range(35)
    ]
    model = prediction.load(folder)
    got = model.choose(questions, choices)
    for chosen, question, texts in zip(got, questions, choices, strict=True):
        scores = [
            logits_of(
                heads.ClassifierModel(TINY, 1), params, question.split(), text.split()
            )[0]
            for text in texts
        ]
        assert chosen.probabilities == pytest.approx(softmax(scores), abs=1e-4)
        assert chosen.index == int(np.argmax(scores))
        assert chosen.text == texts[chosen.index]
        assert not chosen.truncated
    [chosen] = model.choose(["ab"], [["ac", words(12)]])
    assert chosen.truncated
    assert model.choose([], []) == []


# ---- numbers


def test_numbers_are_those_of_the_model(saved):
    folder, params = saved("classification")
    texts = ["ab ac", ("ab ac", "ad"), words(11)]
    got = prediction.load(folder).classify(texts)
    tokens = [(["ab", "ac"],), (["ab", "ac"], ["ad"]), (words(11).split()[:10],)]
    expected = [
        logits_of(heads.ClassifierModel(TINY, 1), params, *t)[0] for t in tokens
    ]
    assert [each.number for each in got] == pytest.approx(expected, rel=1e-4)
    assert [each.truncated for each in got] == [False, False, True]


# ---- what is refused


@pytest.mark.parametrize(
    ("other", "kind", "program", "ask"),
    [
        ("choice", "squad", "squad", lambda m: m.answer(["ab"], ["ac"])),
        ("squad", "tagging", "tagger", lambda m: m.tag(["ab"])),
        ("tagging", "choice", "choice", lambda m: m.choose(["ab"], [["ac", "ad"]])),
        ("choice", "classification", "classifier", lambda m: m.classify(["ab"])),
    ],
)
def test_a_checkpoint_of_another_task(other, kind, program, ask, saved):
    message = (
        f"is not a checkpoint of {kind}: it was fine-tuned for {other}; use a workdir "
        f"of run.finetune_{program}$"
    )
    with pytest.raises(UserError, match=message):
        ask(prediction.load(saved(other)[0]))


@pytest.mark.parametrize(
    ("kind", "ask", "message"),
    [
        ("squad", lambda m: m.answer("ab", "ac"), "'ab' is one text; give a list"),
        ("squad", lambda m: m.answer(["ab"], "a"), "'a' is one text; give a list"),
        ("squad", lambda m: m.answer(["ab"], []), "contexts must have the same length"),
        ("tagging", lambda m: m.tag("ab ac"), "'ab ac' is one text; give a list"),
        ("choice", lambda m: m.choose("a", [["b"]]), "'a' is one text; give a list"),
        ("choice", lambda m: m.choose(["a"], ["bc"]), "'bc' is one text; give a list"),
        ("choice", lambda m: m.choose(["a"], []), "choices must have the same length"),
        ("choice", lambda m: m.choose(["a"], [["b"]]), "'a' has 1 choices; at least"),
    ],
)
def test_arguments_that_cannot_be(kind, ask, message, saved):
    with pytest.raises(UserError, match=message):
        ask(prediction.load(saved(kind)[0]))
