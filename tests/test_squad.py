"""Questions on a context: files, windows, and answers from logits."""

import gzip
import json
import pathlib

import numpy as np
import pytest
import questions

from bert_jax import config as config_lib
from bert_jax import knobs, storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.tasks import squad
from bert_jax.tasks.squad import answers, reader, windows

DATA = pathlib.Path(__file__).parents[2] / "shared/data"
SMALL = config_lib.SquadConfig(length=32, stride=8, max_question=12)


# ---- files


def test_a_file_is_read(tmp_path):
    path = questions.write(
        tmp_path / "a.json",
        questions.paragraph(questions.CONTEXT, questions.QUESTIONS, "a"),
        questions.paragraph("Is it?", [("what", "it")], "b"),
    )
    got = reader.read(path, no_answers=True)
    assert [example.id for example in got] == ["a0", "a1", "a2", "a3", "b0"]
    assert got[0].golds == (reader.Gold("an object", 25),)
    assert got[3].golds == ()
    assert got[4] == reader.Example("b0", "what", "Is it?", (reader.Gold("it", 3),))
    compressed = tmp_path / "a.json.gz"
    compressed.write_bytes(gzip.compress(pathlib.Path(path).read_bytes()))
    assert reader.read(compressed, no_answers=True) == got
    remote = storage.path("memory://squad/a.json")
    storage.write_text(remote, "\ufeff" + pathlib.Path(path).read_text("utf-8"))
    assert reader.read(str(remote), no_answers=True) == got


def one_question(**changes):
    """A file with a question of which some fields are another, or None: missing."""
    qa = {
        "id": "q7",
        "question": "where",
        "answers": [{"text": "b", "answer_start": 2}],
    }
    qa = {name: x for name, x in (qa | changes).items() if x is not None}
    paragraph = {"context": "a b c", "qas": [qa]}
    return {"data": [{"paragraphs": [paragraph]}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "FILE: is no JSON object, but []"),
        ({}, "FILE: has no 'data', as files of SQuAD have there"),
        ({"data": 3}, "FILE: has 3 for 'data', not a list"),
        ({"data": []}, "FILE has no questions"),
        ({"data": [{}]}, "FILE: data[0] has no 'paragraphs'"),
        (
            {"data": [{"paragraphs": [{"context": " ", "qas": []}]}]},
            "FILE: data[0] paragraphs[0] has an empty text for 'context'",
        ),
        (one_question(id=None), "FILE: data[0] paragraphs[0] qas[0] has no 'id'"),
        (
            one_question(question="\n"),
            "FILE: question q7 has an empty text for 'question'",
        ),
        (one_question(question=["a"]), "q7 has ['a'] for 'question', not a text"),
        (
            one_question(answers=[{"text": "b", "answer_start": 1}]),
            "the answer 'b' is not at character 1 of its context, where there is ' '",
        ),
        (
            one_question(answers=[{"text": "c", "answer_start": -1}]),
            "q7: the answer 'c' is not at character -1 of its context, ",
        ),
        (
            one_question(answers=[{"text": "b", "answer_start": "2"}]),
            "q7 answers[0] has '2' for 'answer_start', not a whole number",
        ),
        (one_question(answers=[]), "q7 has no answers; one that cannot be answered"),
        (one_question(answers=None), "FILE: question q7 has no 'answers'"),
        (
            one_question(answers=[], is_impossible=True),
            "FILE: question q7 has no answer (is_impossible), as in SQuAD 2.0; pass "
            "--config.task.no_answers=True",
        ),
        (one_question(is_impossible=True), "q7 has is_impossible and an answer, 'b'"),
    ],
)
def test_files_that_cannot_be_used(content, message, tmp_path):
    path = tmp_path / "FILE"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        reader.read(path, no_answers=False)
    line = str(caught.value).replace(str(path), "FILE")
    assert message in line
    assert "\n" not in line and "FILE" in line


@pytest.mark.parametrize("data", [b"", b"{", b'{"data": "\xff"}', b"\x1f\x8b"])
def test_files_that_cannot_be_read(data, tmp_path):
    for name in ("a.json", "a.json.gz"):
        (tmp_path / name).write_bytes(data)
        reasons = f"cannot read .*{name}: |{name}, line 1: not UTF-8"
        with pytest.raises(UserError, match=reasons):
            reader.read(tmp_path / name, no_answers=True)
    with pytest.raises(UserError, match="cannot read .*nowhere: "):
        reader.read(tmp_path / "nowhere", no_answers=True)


def test_ids_are_of_one_question(tmp_path):
    twice = questions.paragraph("a b", [("what", "b")])
    path = questions.write(tmp_path / "a.json", twice, twice)
    with pytest.raises(UserError, match="a.json: two questions have the id q0"):
        reader.read(path, no_answers=False)


# ---- windows


def in_words(tokenizer, context):
    """The tokens of a context as the texts that they are from."""
    [encoding] = tokenizer.encode_with_offsets([context])
    return [context[begin:end] for begin, end in encoding.offsets]


@pytest.mark.parametrize("kind", tokenizer_lib.KINDS)
def test_windows_are_those_of_a_loop(kind, request):
    """The original's definition, token by token."""
    tokenizer = request.getfixturevalue(kind)
    between = [tokenizer.sep_id] * (2 if kind == "byte_bpe" else 1)
    texts = ["what is it", "the value of the name of the object of the class of what"]
    contexts = [" ".join([questions.CONTEXT] * 4), "An object."]
    asked = [(q, c) for c in contexts for q in texts]
    made = windows.make(*zip(*asked, strict=True), tokenizer, SMALL)
    assert made.contexts == [c for _, c in asked]
    row = 0
    for number, (question, context) in enumerate(asked):
        asked_ids, ids = tokenizer.encode_batch([question, context])
        asked_ids = asked_ids[:12]
        spans, start = [], 0
        while True:
            count = min(len(ids) - start, 32 - len(asked_ids) - 2 - len(between))
            spans.append((start, count))
            if start + count == len(ids):
                break
            start += min(count, 8)
        for start, count in spans:
            tokens = [tokenizer.cls_id, *asked_ids, *between]
            first = len(tokens)
            tokens += [*ids[start : start + count], tokenizer.sep_id]
            padding = [0] * (32 - len(tokens))
            rows = {name: x[row].tolist() for name, x in made.rows.items()}
            assert rows["input_ids"] == tokens + [tokenizer.pad_id] * len(padding)
            assert rows["attention_mask"] == [True] * len(tokens) + [False] * len(
                padding
            )
            assert rows["segment_ids"] == [0] * first + [1] * (count + 1) + padding
            for position in range(32):
                token = start + position - first
                has_most = 0 <= position - first < count and (start, count) == max(
                    (s for s in spans if s[0] <= token < sum(s)),
                    key=lambda s, t=token: min(t - s[0], sum(s) - 1 - t) + 0.01 * s[1],
                )
                assert made.has_most_context[row, position] == has_most
            assert made.question[row] == number
            assert (made.first[row], made.token[row]) == (first, start)
            assert made.count[row] == count
            row += 1
    assert row == len(made.question)
    too_long = len(tokenizer.encode(texts[1])) > 12
    assert too_long and made.truncated.sum() == 2


def test_answers_are_at_the_tokens_of_their_characters(wordpiece):
    context = "Of 1854-object, the VALUE."
    words = in_words(wordpiece, context)
    for text, expected in [
        ("1854", "1854"),
        ("VALUE", "VALUE"),
        ("bject, the", "object, the"),
        (" the ", "the"),
        (context, context),
    ]:
        begin = context.index(text)
        made = windows.make(["what"], [context], wordpiece, SMALL)
        starts, ends = windows.positions(made, [begin], [begin + len(text)])
        first = starts[0] - made.first[0]
        last = ends[0] - made.first[0]
        got = context[made.offsets[0][first, 0] : made.offsets[0][last, 1]]
        assert got == expected
        assert "".join(words[first : last + 1]) == expected.replace(" ", "")


def test_windows_without_all_of_the_answer_point_to_cls(wordpiece):
    context = " ".join([questions.CONTEXT] * 4)
    begin = context.rindex("The class of the")
    end = begin + len("The class of the")
    made = windows.make(["what"] * 2, [context] * 2, wordpiece, SMALL)
    starts, ends = windows.positions(made, [begin, 0], [end, 0])
    assert not starts[made.question == 1].any() and not ends[made.question == 1].any()
    has_all = 0
    for row in np.flatnonzero(made.question == 0):
        at, first = made.first[row], made.token[row]
        texts = made.offsets[0][first : first + made.count[row]]
        inside = texts[0, 0] <= begin and end <= texts[-1, 1]
        assert (starts[row] > 0) == (ends[row] > 0) == inside
        if inside:
            assert texts[starts[row] - at, 0] == begin
            assert texts[ends[row] - at, 1] == end
        has_all += inside
    assert 0 < has_all < np.sum(made.question == 0)


def test_what_fits_no_window_is_counted(wordpiece, tmp_path):
    context = " ".join([questions.CONTEXT] * 4)
    path = questions.write(
        tmp_path / "a.json",
        questions.paragraph(context, [("what", context[:200]), ("is", "an object")]),
        questions.paragraph(context, [("the value " * 9, "object")], "b"),
    )
    config = config_lib.SquadConfig(
        train=path, eval=path, length=32, stride=8, max_question=12
    )
    description = squad.Squad(config, wordpiece).description
    assert description["train_answers_in_no_window"] == 1
    assert description["truncated_questions"] == 2  # once in each of the two files
    assert description["examples"] == description["train_examples"] == 3
    assert description["windows"] == description["train_windows"] > 3


def test_a_window_has_room_for_the_context():
    knobs.check(config_lib.SquadConfig(length=69))
    with pytest.raises(UserError, match="max_question=64 must be at most 63, as a win"):
        knobs.check(config_lib.SquadConfig(length=68))


# ---- answers


def random_outputs(made, seed=0):
    rng = np.random.default_rng(seed)
    shape = made.rows["input_ids"].shape
    return {
        name: rng.normal(size=shape).astype(np.float32) * 3
        for name in ("start_logits", "end_logits")
    }


@pytest.mark.parametrize("no_answers", [False, True])
def test_answers_are_the_best_of_all(no_answers, wordpiece, monkeypatch):
    """Of all pairs of positions, tried one after the other."""
    monkeypatch.setattr(answers, "_CHUNK", 3)
    config = config_lib.SquadConfig(
        length=32,
        stride=8,
        max_question=12,
        max_answer=5,
        nbest=6,
        no_answers=no_answers,
    )
    contexts = [" ".join([questions.CONTEXT] * 3), questions.CONTEXT, "An object."]
    made = windows.make(["what is the value"] * 3, contexts, wordpiece, config)
    outputs = random_outputs(made)
    ranked = answers.rank(made, outputs, config)
    assert len(ranked) == 3
    for number, ranking in enumerate(ranked):
        best, null = {}, []
        for row in np.flatnonzero(made.question == number):
            starts = outputs["start_logits"][row]
            ends = outputs["end_logits"][row]
            null.append(starts[0] + ends[0])
            inside = range(made.first[row], made.first[row] + made.count[row])
            for i in inside:
                for j in range(i, min(i + 5, inside.stop)):
                    if made.has_most_context[row, i]:
                        places = made.offsets[number][
                            np.array([i, j]) - made.first[row] + made.token[row]
                        ]
                        text = contexts[number][places[0, 0] : places[1, 1]]
                        score = starts[i] + ends[j]
                        best[text] = max(best.get(text, -np.inf), score)
        got = {a.text: a.start_logit + a.end_logit for a in ranking.answers}
        scores = list(got.values())
        assert scores == sorted(scores, reverse=True)
        probabilities = [a.probability for a in ranking.answers]
        assert probabilities == pytest.approx(
            (np.exp(scores) / np.exp(scores).sum()).tolist()
        )
        expected = sorted(best, key=best.get, reverse=True)
        assert ranking.best_text == expected[0]
        if no_answers:
            assert got.pop("") == pytest.approx(min(null))
            odds = min(null) - best[expected[0]]
            assert ranking.null_odds == pytest.approx(odds, rel=1e-5)
            assert ranking.best(odds - 0.01).text == ""
            assert ranking.best(odds + 0.01).text == expected[0]
        else:
            assert ranking.null_odds is None
            assert ranking.best(-1e3).text == expected[0]
        # A text that is there twice takes two of the pairs that are looked at.
        assert 3 <= len(got) <= 6
        assert list(got) == expected[: len(got)]
        for text, score in got.items():
            assert score == pytest.approx(best[text])
        for answer in ranking.answers:
            assert contexts[number][answer.begin : answer.end] == answer.text


def test_answers_do_not_depend_on_what_stands_behind_a_row(wordpiece):
    """Nor on logits of the question: they cannot be answers."""
    made = windows.make(["what"] * 2, [questions.CONTEXT, "It."], wordpiece, SMALL)
    outputs = random_outputs(made)
    changed = {name: values.copy() for name, values in outputs.items()}
    position = np.arange(32)
    outside = (position < made.first[:, None]) | ~made.rows["attention_mask"]
    outside |= position == (made.first + made.count)[:, None]
    for values in changed.values():
        values[outside & (position > 0)] = 100.0
    assert answers.rank(made, changed, SMALL) == answers.rank(made, outputs, SMALL)


@pytest.mark.parametrize("kind", tokenizer_lib.KINDS)
def test_an_answer_is_a_part_of_the_context_as_it_stands(kind, request):
    tokenizer = request.getfixturevalue(kind)
    context = "The  VALUE of\u00a0a Cafe\u0301 (naïve)  is 1854-object."
    made = windows.make(["what"], [context], tokenizer, SMALL)
    for text in ("VALUE of\u00a0a Cafe\u0301", "naïve", "object", "The  VALUE"):
        begin = context.index(text)
        starts, ends = windows.positions(made, [begin], [begin + len(text)])
        outputs = {
            "start_logits": np.eye(32, dtype=np.float32)[starts],
            "end_logits": np.eye(32, dtype=np.float32)[ends],
        }
        [ranking] = answers.rank(made, outputs, SMALL)
        best = ranking.best(0.0)
        assert (best.text, best.begin) == (text, begin)


def test_a_context_without_tokens_has_no_answer(wordpiece):
    for no_answers in (False, True):
        config = config_lib.SquadConfig(
            length=32, max_question=12, no_answers=no_answers
        )
        made = windows.make(["what", "is"], ["\x00", "It."], wordpiece, config)
        none, some = answers.rank(made, random_outputs(made), config)
        assert [a.text for a in none.answers] == [""]
        assert none.best(0.0).text == none.best_text == ""
        assert some.best_text in ("It", "It.", ".")
        assert none.null_odds is None or json.loads(json.dumps(none.null_odds)) > 1e6
    no_questions = windows.make([], [], wordpiece, SMALL)
    assert answers.rank(no_questions, random_outputs(no_questions), SMALL) == []


def test_an_answer_is_marked_in_its_text():
    begin = questions.CONTEXT.index("an object")
    got = answers.marked(questions.CONTEXT, begin, begin + 9, width=40)
    assert got == (
        "The value of the name is >>an object<<.\nThe class of the object is a type."
    )


# ---- the task


@pytest.fixture
def v2(wordpiece, tmp_path):
    config = config_lib.SquadConfig(
        **questions.write_pair(tmp_path, no_answers=True),
        no_answers=True,
        length=32,
        stride=8,
        max_question=12,
        null_threshold=-1.5,
    )
    return squad.Squad(config, wordpiece)


def test_files_hold_what_is_scored(v2, tmp_path):
    """Logits that know the answers, and doubt all of them more or less."""
    rows = v2.held_out["eval"]
    count = len(rows["weights"])
    outputs = {
        "start_logits": 9 * np.eye(32, dtype=np.float32)[rows["start_positions"]],
        "end_logits": 9 * np.eye(32, dtype=np.float32)[rows["end_positions"]],
    }
    scores = v2.scores(v2.decode({"eval": outputs}))
    assert (scores["exact"], scores["f1"], scores["total"]) == (100, 100, 8)
    assert (scores["HasAns_total"], scores["NoAns_total"]) == (6, 2)
    v2.write(tmp_path, v2.decode({"eval": outputs}))
    predictions, nbest, odds = (
        json.loads((tmp_path / f"{name}.json").read_text())
        for name in ("predictions", "nbest_predictions", "null_odds")
    )
    answered = dict(zip("012", ["an object", "a type", "the name"], strict=True))
    assert predictions == {x + i: answered.get(i, "") for x in "ab" for i in "0123"}
    assert odds.keys() == nbest.keys() == predictions.keys()
    for name, entries in nbest.items():
        assert entries[0].keys() == {"text", "probability", "start_logit", "end_logit"}
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
        assert (odds[name] > -1.5) == (predictions[name] == "")
        assert len([e for e in entries if e["text"] == ""]) == 1
    # Doubt that is as great everywhere moves the odds, and the best threshold.
    for values in outputs.values():
        values[:, 0] += 10
    doubted = v2.scores(v2.decode({"eval": outputs}))
    assert (doubted["exact"], doubted["HasAns_exact"]) == (25, 0)
    assert doubted["best_exact"] == doubted["best_f1"] == 100
    assert doubted["best_f1_thresh"] == pytest.approx(scores["best_f1_thresh"] + 20)
    assert count == len(outputs["start_logits"])


def test_new_questions_are_answered_as_those_of_the_file(v2, wordpiece):
    """The config, which a checkpoint has, is all that predictions need."""
    config = v2._config
    examples = v2._examples
    made = windows.make(
        [e.question for e in examples], [e.context for e in examples], wordpiece, config
    )
    for name, values in made.rows.items():
        assert np.array_equal(values, v2.held_out["eval"][name])
    outputs = random_outputs(made)
    ranked = answers.rank(made, outputs, config)
    of_task = v2.decode({"eval": outputs})["eval"]
    assert ranked == list(of_task.values())


def test_files_must_be_given(wordpiece):
    with pytest.raises(UserError, match=r"pass --config.task.train=FILE.json"):
        squad.Squad(config_lib.SquadConfig(), wordpiece)


# ---- the real thing


@pytest.fixture(scope="module")
def dev():
    path = DATA / "squad/dev-v1.1.json.gz"
    if not path.exists():
        pytest.skip("needs the development set of SQuAD 1.1")
    return reader.read(path, no_answers=False)


def test_windows_of_the_development_set(dev):
    """As many as the original makes, and answers to the character."""
    tokenizer = tokenizer_lib.from_vocab_file(
        DATA / "vocab/bert-base-uncased.txt", lower_case=True, strip_accents=True
    )
    asked = [e.question for e in dev], [e.context for e in dev]
    made = windows.make(*asked, tokenizer, config_lib.SquadConfig())
    assert len(dev) == 10570
    assert len(made.question) == 10833
    assert not made.truncated.any()
    recovered = total = 0
    for example, offsets in zip(dev, made.offsets, strict=True):
        for gold in set(example.golds):
            end = gold.begin + len(gold.text)
            first, last = windows._tokens_at(offsets, gold.begin, end)
            got = example.context[offsets[first, 0] : offsets[last, 1]]
            # People cut some inside a word; never is a character missing.
            assert gold.text.strip() in got
            recovered += got == gold.text
            total += 1
    assert (recovered, total) == (18154, 18216)
