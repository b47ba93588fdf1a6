"""SQuAD: files, windows, answers from logits, and the task."""

import dataclasses
import json
import tracemalloc

import numpy as np
import other_pipelines
import published
import pytest
import questions
import tokenizers
from commands import shared_data
from tokenizers import normalizers, pre_tokenizers, processors

from bert_jax import config as config_lib
from bert_jax import prediction
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import tokenizer_training
from bert_jax.errors import UserError
from bert_jax.interop import tokenizer_files
from bert_jax.tasks import squad
from bert_jax.tasks.squad import answers, reader, windows

SMALL = config_lib.SquadConfig(length=32, stride=8, max_question=12)


# ---- files


def test_questions_are_read(tmp_path):
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


def one_question(**changes):
    """Return a file with one question; a field set to None is missing."""
    qa = {"id": "q7", "question": "what", "answers": [{"text": "b", "answer_start": 2}]}
    qa = {name: x for name, x in (qa | changes).items() if x is not None}
    return {"data": [{"paragraphs": [{"context": "a b c", "qas": [qa]}]}]}


def one_answer(text, begin, **changes):
    return one_question(answers=[{"text": text, "answer_start": begin}], **changes)


TWICE = questions.paragraph("a b", [("what", "b")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": "q0"}\n{"id": "q1"}\n', "FILE: not JSON: Extra data"),
        ([], "FILE: '[]' is not a JSON object"),
        ({"data": [[]]}, "FILE: data[0] has a field of a wrong type: list indices"),
        ({"data": []}, "FILE has no questions"),
        ({"data": [{}]}, "FILE: data[0]: the field 'paragraphs' of SQuAD is missing"),
        ({"data": [{"paragraphs": [{"context": " "}]}]}, "[0]: 'context' is ' ', not"),
        (one_question(question=["a"]), "q7: 'question' is ['a'], not a text"),
        (one_answer("b", "2"), "q7: 'answer_start' is '2', not a whole number"),
        (one_question(answers=[], is_impossible=True), "q7 has no answer, as in SQuA"),
        (one_question(is_impossible=True), "q7 has is_impossible and an answer"),
        (one_question(is_impossible="false"), "'is_impossible' is 'false', not true"),
        (one_question(answers={"text": ["b"]}), "'answers' is {'text': ['b']}, not a"),
        ({"data": [{"paragraphs": [TWICE, TWICE]}]}, "q0: two questions have this id"),
        # Not a question before it.
        ({"data": [{"paragraphs": [TWICE, {}]}]}, "FILE: data[0]: the field 'context'"),
    ],
)
def test_invalid_questions_are_refused(content, message, tmp_path):
    path = tmp_path / "FILE"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError) as caught:
        reader.read(path, no_answers=False)
    line = str(caught.value).replace(str(path), "FILE")
    assert message in line and "\n" not in line


def test_ids_are_kept_as_they_are(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(one_question(id="q1\n")))
    assert [each.id for each in reader.read(path, no_answers=False)] == ["q1\n"]
    path.write_text(json.dumps(one_question(id=57)))
    assert [each.id for each in reader.read(path, no_answers=False)] == ["57"]


# ---- windows


@pytest.mark.parametrize("kind", tokenizer_training.TRAINERS)
def test_windows_match_a_loop_over_tokens(kind, request):
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
            rest = 32 - len(tokens)
            rows = {name: x[row].tolist() for name, x in made.rows.items()}
            assert rows["input_ids"] == tokens + [tokenizer.pad_id] * rest
            assert rows["attention_mask"] == [True] * len(tokens) + [False] * rest
            assert rows["segment_ids"] == [0] * first + [1] * (count + 1) + [0] * rest
            for position in range(32):
                token = start + position - first
                has_most = 0 <= position - first < count and (start, count) == max(
                    (s for s in spans if s[0] <= token < sum(s)),
                    key=lambda s, t=token: min(t - s[0], sum(s) - 1 - t) + 0.01 * s[1],
                )
                assert made.has_most_context[row, position] == has_most
            assert made.question[row] == number
            assert (made.row_start[row], made.context_start[row]) == (first, start)
            assert made.size[row] == count
            row += 1
    assert row == len(made.question)
    too_long = len(tokenizer.encode(texts[1])) > 12
    assert too_long and made.truncated.sum() == 2


def test_answers_cover_each_token_with_any_of_their_characters(wordpiece):
    context = "Of 1854-object, the VALUE."
    given = ("bject, the", "object, the"), (" the ", "the"), (context, context)
    for text, expected in given:
        assert_found(text, context, wordpiece, expected)


def test_windows_without_the_complete_answer_point_to_cls(wordpiece):
    context = " ".join([questions.CONTEXT] * 4)
    begin = context.rindex("The class of the")
    end = begin + len("The class of the")
    made = windows.make(["what"] * 2, [context] * 2, wordpiece, SMALL)
    starts, ends = windows.positions(made, [begin, 0], [end, 0])
    assert not starts[made.question == 1].any() and not ends[made.question == 1].any()
    has_all = 0
    for row in np.flatnonzero(made.question == 0):
        at, first = made.row_start[row], made.context_start[row]
        texts = made.offsets[0][first : first + made.size[row]]
        inside = texts[0, 0] <= begin and end <= texts[-1, 1]
        assert (starts[row] > 0) == (ends[row] > 0) == inside
        if inside:
            assert texts[starts[row] - at, 0] == begin
            assert texts[ends[row] - at, 1] == end
        has_all += inside
    assert 0 < has_all < np.sum(made.question == 0)


def test_questions_whose_answer_is_elsewhere_are_not_trained_on(wordpiece, tmp_path):
    good, *wrong = (one_answer("b", at, id=f"q{at}")["data"][0] for at in (2, 1, -1))
    path, late = tmp_path / "all", tmp_path / "late"
    path.write_text(json.dumps({"data": [good, *wrong]}))
    late.write_text(json.dumps({"data": wrong[:1]}))
    config = dataclasses.replace(SMALL, train=str(path), eval=str(path))
    task = squad.Squad(config, wordpiece)
    assert task.description["train_examples"] == 1
    assert task.description["skipped_train_examples"] == 2
    # They are evaluated, by their text.
    assert task.held_out["eval"]["weights"].tolist() == [1, 0, 0]
    outputs = {name: np.zeros((3, 32)) for name in ("start_logits", "end_logits")}
    position = task.train["start_positions"][0]
    for values in outputs.values():
        values[:, position] = 9
    predictions = task.decode("eval", outputs)
    assert task.scores("eval", predictions) == {"exact_match": 100, "f1": 100}
    config = dataclasses.replace(config, train=str(late))
    with pytest.raises(UserError, match="late: no context has 'text' at 'answer_st"):
        squad.Squad(config, wordpiece)


@pytest.mark.parametrize("answers", [[], [{"text": "", "answer_start": -1}]])
def test_a_question_without_an_answer_may_say_so_by_none(answers, tmp_path):
    (tmp_path / "FILE").write_text(json.dumps(one_question(answers=answers)))
    [example] = reader.read(tmp_path / "FILE", no_answers=True)
    assert example.golds == ()
    with pytest.raises(UserError, match="q7 has no answer, .*task.no_answers=True"):
        reader.read(tmp_path / "FILE", no_answers=False)


def test_blanks_before_a_question_change_nothing(byte_bpe):
    made = [
        windows.make([f"{blanks}what is it"], ["It."], byte_bpe, SMALL).rows[
            "input_ids"
        ]
        for blanks in ("", "  \n ")
    ]
    assert np.array_equal(*made)


def test_truncated_questions_and_lost_answers_are_counted(wordpiece, tmp_path):
    context = " ".join([questions.CONTEXT] * 4)
    path = questions.write(
        tmp_path / "a.json",
        questions.paragraph(context, [("what", context[:200]), ("is", "an object")]),
        questions.paragraph(context, [("the value " * 9, "object")], "b"),
    )
    config = dataclasses.replace(SMALL, train=path, eval=path)
    description = squad.Squad(config, wordpiece).description
    assert description["train_answers_in_no_window"] == 1
    assert description["truncated_questions"] == 2  # once in each of the two files
    assert description["examples"] == description["train_examples"] == 3
    assert description["windows"] == description["train_windows"] > 3


def test_a_window_must_have_room_for_the_context():
    config_lib.check(config_lib.SquadConfig(length=69))
    with pytest.raises(UserError, match="max_question=64 must be at most 63, as a win"):
        config_lib.check(config_lib.SquadConfig(length=68))


def test_many_separators_leave_room_for_the_context(wordpiece):
    pipeline = tokenizers.Tokenizer.from_str(wordpiece.pipeline)
    special = [(token, pipeline.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    pipeline.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] [SEP] [SEP] $B [SEP]",
        special_tokens=special,
    )
    config = config_lib.SquadConfig(length=16, max_question=11)
    config_lib.check(config)
    tokenizer = tokenizer_lib.make(pipeline)
    made = windows.make(["what is it " * 9], ["the value " * 6], tokenizer, config)
    assert made.truncated.all() and (made.size == 1).all()
    assert made.rows["attention_mask"].all()


def test_windows_of_a_whole_book_fit_in_memory(wordpiece):
    """An array of windows times tokens would have 400 MB."""
    tracemalloc.start()
    made = windows.make(["what"], ["value " * 20_000], wordpiece, SMALL)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(made.question) > 2_000 and made.has_most_context.sum() == 20_000
    assert peak < 100e6


# ---- answers


def random_outputs(made):
    rng = np.random.default_rng(0)
    shape = made.rows["input_ids"].shape
    return {
        name: rng.normal(size=shape).astype(np.float32) * 3
        for name in ("start_logits", "end_logits")
    }


def test_answers_have_no_white_space_around(byte_bpe):
    config = dataclasses.replace(SMALL, nbest=32)
    context = "It.\n\n\nIs."
    made = windows.make(["what"], [context], byte_bpe, config)
    (ranking,) = answers.rank(made, random_outputs(made), config)
    assert len(ranking.answers) > 5
    for answer in ranking.answers:
        assert answer.text == answer.text.strip() != ""
        assert answer.text == context[answer.begin : answer.end]


def test_spans_without_a_new_text_hide_no_answer(byte_bpe):
    """White space scores highest, then a letter that occurs many times."""
    context = "\n\n" + "o " * 15 + "t"
    config = config_lib.SquadConfig(length=64, max_question=8, nbest=2, max_answer=1)
    made = windows.make(["what"], [context], byte_bpe, config)
    texts = [context[begin:end] for begin, end in made.offsets[0]]
    logits = np.full(made.rows["input_ids"].shape, -9, np.float32)
    for i, text in enumerate(texts):
        logits[0, made.row_start[0] + i] = {"o": 1, "t": 0}.get(text, 2)
    outputs = {"start_logits": logits, "end_logits": logits}
    for nbest in (1, 2):
        config = dataclasses.replace(config, nbest=nbest)
        [ranking] = answers.rank(made, outputs, config)
        assert [a.text for a in ranking.answers] == ["o", "t"][:nbest]


@pytest.mark.parametrize("no_answers", [False, True])
def test_answers_are_the_best_of_all_spans(no_answers, wordpiece):
    config = dataclasses.replace(SMALL, max_answer=5, nbest=6, no_answers=no_answers)
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
            inside = range(made.row_start[row], made.row_start[row] + made.size[row])
            for i in inside:
                for j in range(i, min(i + 5, inside.stop)):
                    if made.has_most_context[row, i]:
                        places = made.offsets[number][
                            np.array([i, j])
                            - made.row_start[row]
                            + made.context_start[row]
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
        assert ranking.best(np.inf).text == expected[0]
        if no_answers:
            assert got.pop("") == pytest.approx(min(null))
            odds = min(null) - best[expected[0]]
            assert ranking.null_odds == pytest.approx(odds, rel=1e-5)
            assert ranking.best(odds - 0.01).text == ""
            assert ranking.best(odds + 0.01).text == expected[0]
            # `best_thresholds` returns odds of questions, which are then answered.
            assert ranking.best(ranking.null_odds).text == expected[0]
        else:
            assert ranking.null_odds is None
            assert ranking.best(-1e3).text == expected[0]
        assert list(got) == expected[:6]
        for text, score in got.items():
            assert score == pytest.approx(best[text])
        for answer in ranking.answers:
            assert contexts[number][answer.begin : answer.end] == answer.text


@pytest.mark.parametrize("kind", tokenizer_training.TRAINERS)
def test_answers_keep_the_characters_of_the_context(kind, request):
    tokenizer = request.getfixturevalue(kind)
    context = "The  VALUE of\u00a0a Cafe\u0301 (naïve)  is 1854-object."
    for text in ("VALUE of\u00a0a Cafe\u0301", "naïve", "object", "The  VALUE"):
        assert_found(text, context, tokenizer)


def assert_found(text, context, tokenizer, expected=None):
    """Check that the answer at the positions of a text is this text, or another."""
    expected = expected or text
    made = windows.make(["what"], [context], tokenizer, SMALL)
    begin = context.index(text)
    starts, ends = windows.positions(made, [begin], [begin + len(text)])
    outputs = {
        "start_logits": np.eye(32, dtype=np.float32)[starts],
        "end_logits": np.eye(32, dtype=np.float32)[ends],
    }
    [ranking] = answers.rank(made, outputs, SMALL)
    best = ranking.best(0.0)
    assert (best.text, best.begin) == (expected, context.index(expected))


def test_answers_keep_a_vowel_sign_that_the_tokenizer_strips():
    """`StripAccents` removes spacing marks, too."""
    context = "भारत की राजधानी दिल्ली है"
    steps = [normalizers.NFKD(), normalizers.StripAccents()]
    pipeline = other_pipelines.wordpiece(
        [context] * 9, normalizers.Sequence(steps), pre_tokenizers.BertPreTokenizer()
    )
    assert_found("दिल्ली", context, tokenizer_lib.make(pipeline))


def test_answers_keep_a_syllable_that_the_tokenizer_composes():
    """SentencePiece composes; the offsets of a syllable are those of its first part."""
    context = "\u1112\u1161\u11ab\u1100\u116e\u11a8 \u1100\u1173\u11ab ﾊﾞ ﾊﾟ"
    tokenizer = tokenizer_training.train_sentencepiece([context] * 9, 30)
    for text in (context[:6], context[7:10], "ﾊﾞ"):
        assert_found(text, context, tokenizer)


def test_a_context_without_tokens_has_no_answer(wordpiece):
    for no_answers in (False, True):
        config = dataclasses.replace(SMALL, no_answers=no_answers)
        made = windows.make(["what", "is"], ["\x00", "It."], wordpiece, config)
        none, some = answers.rank(made, random_outputs(made), config)
        assert [a.text for a in none.answers] == [""]
        assert none.best(0.0).text == none.best(np.inf).text == ""
        assert some.best(np.inf).text in ("It", "It.", ".")
        assert none.null_odds is None or json.loads(json.dumps(none.null_odds)) > 1e6
    no_questions = windows.make([], [], wordpiece, SMALL)
    assert answers.rank(no_questions, random_outputs(no_questions), SMALL) == []


# ---- the task


def test_scores_and_files_of_version_2(wordpiece, tmp_path):
    """Use logits of the correct answers, then raise those of no answer."""
    files = questions.write_pair(tmp_path, no_answers=True)
    config = dataclasses.replace(SMALL, **files, no_answers=True, null_threshold=-1.5)
    v2 = squad.Squad(config, wordpiece)
    rows = v2.held_out["eval"]
    outputs = {
        "start_logits": 9 * np.eye(32, dtype=np.float32)[rows["start_positions"]],
        "end_logits": 9 * np.eye(32, dtype=np.float32)[rows["end_positions"]],
    }
    ranked = v2.decode("eval", outputs)
    scores = v2.scores("eval", ranked)
    assert (scores["exact"], scores["f1"], scores["total"]) == (100, 100, 8)
    assert (scores["HasAns_total"], scores["NoAns_total"]) == (6, 2)
    # The metrics of training are fractions, and have names of their own.
    assert not {*v2.objective(config_lib.EncoderConfig()).metrics} & {*scores}
    v2.write(tmp_path, "eval", ranked)
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
    # Equal logits of no answer everywhere shift the odds and the best threshold.
    for values in outputs.values():
        values[:, 0] += 10
    doubted = v2.scores("eval", v2.decode("eval", outputs))
    assert (doubted["exact"], doubted["HasAns_exact"]) == (25, 0)
    assert doubted["best_exact"] == doubted["best_f1"] == 100
    assert doubted["best_f1_thresh"] == pytest.approx(scores["best_f1_thresh"] + 20)


def test_a_published_model_abstains_if_asked_to():
    model = prediction.load(str(published.folder("answering")))
    asked = ["what is it"], ["The value of the name is an object."]
    for threshold, abstains in ((None, False), (1e6, False), (-1e6, True)):
        [answer] = model.answer(*asked, null_threshold=threshold)
        assert (answer.text == "") == abstains


# ---- real files


def test_windows_of_the_development_set():
    """Compare with the number of windows of the original, and recover all answers."""
    dev = reader.read(shared_data("squad/dev-v1.1.json.gz"), no_answers=False)
    vocabulary = shared_data("vocab/bert-base-uncased.txt")
    tokenizer = tokenizer_files.read_wordpiece(
        vocabulary, lower_case=True, strip_accents=True
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
            # Some answers end inside a word. No character is missing.
            assert gold.text.strip() in got
            recovered += got == gold.text
            total += 1
    assert (recovered, total) == (18154, 18216)
