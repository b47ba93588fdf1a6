"""Multiple choice: files, rows, the objective."""

import csv
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpora import COMPRESS
from toy import TINY, assert_close, batch_of, params_of, sums_of

from bert_jax import config as config_lib
from bert_jax import finetuning, storage
from bert_jax.errors import UserError
from bert_jax.model import randomness
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import choice as objective_lib
from bert_jax.tasks import choice, choice_files, token_rows
from bert_jax.tasks.choice_files import Question

# As the files of SWAG begin.
SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
    "ending0,ending1,ending2,ending3,label\n"
)


def read(path, text, needs_answers=True):
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(text.encode()))
    return choice_files.read(path, needs_answers=needs_answers)


# ---- files


def test_swag(tmp_path):
    name = "a.csv.gz"
    rows = '0,v,1,"Two. He",Two.,He,gold,"sits, sadly.",runs.,flies.,"says ""no"".",3\n'
    file = read(tmp_path / name, SWAG + rows)
    choices = ("He sits, sadly.", "He runs.", "He flies.", 'He says "no".')
    assert file.questions == [Question(2, "Two.", choices, 3)]
    assert file.skipped == 0
    unanswered = (SWAG + rows).replace(",label\n", "\n").replace(",3\n", "\n")
    file = read(tmp_path / name, unanswered, needs_answers=False)
    assert file.questions == [Question(2, "Two.", choices, -1)]


def test_the_label_of_swag_is_the_number_in_a_columns_name(tmp_path):
    names = ["label", *sorted(f"ending{i}" for i in range(11)), "sent2", "sent1"]
    row = [name.replace("ending", "e") for name in names]  # under ending10 is e10
    row[0] = "2"
    text = "".join(",".join(fields) + "\n" for fields in (names, row))
    (question,) = read(tmp_path / "a.csv", text).questions
    assert question.choices == tuple(f"sent2 e{i}" for i in range(11))
    assert question.answer == 2


def test_arc(tmp_path):
    text = (
        '"Which, of\nthese?",one,two,three,four,D\n'
        "State of matter?,gas,liquid,solid,,A\n"
        "Numbered?,1,,3,,3\n"
        "Lost answers,,,,,2\n"
        "A fifth answer,a,b,c,d,E\n"
    )
    file = read(tmp_path / "a.csv", text)
    assert file.questions == [
        Question(1, "Which, of\nthese?", ("one", "two", "three", "four"), 3),
        Question(3, "State of matter?", ("gas", "liquid", "solid"), 0),
        Question(4, "Numbered?", ("1", "3"), 1),
    ]
    assert file.skipped == 2
    named = read(tmp_path / "a.csv", "question,A,B,C,D,answer\nx,a,b,c,d,B\n")
    assert named.questions == [Question(2, "x", ("a", "b", "c", "d"), 1)]
    unknown = read(tmp_path / "a.csv", "x,a,b,\ny,c,d,\n", needs_answers=False)
    assert [q.answer for q in unknown.questions] == [-1, -1]


def test_json_lines_of_arc(tmp_path):
    expected = [
        Question(2, "Which of A and B?", ("dry (very)", "wet", "oil"), 1),
        Question(3, "What?", ("one", "two"), 0),
    ]
    lines = [""]
    for question, labels in zip(expected, ("ABC", "12"), strict=True):
        pairs = zip(question.choices, labels, strict=True)
        choices = [{"text": text, "label": label} for text, label in pairs]
        asked = {"stem": question.question, "choices": choices}
        key = labels[question.answer]
        lines.append(json.dumps({"id": "7", "question": asked, "answerKey": key}))
    assert read(tmp_path / "a.jsonl", "\n".join(lines)).questions == expected
    named = {"text": expected[0].choices, "label": ["A", "B", "C"]}
    line = {"question": expected[0].question, "choices": named, "answerKey": "B"}
    assert read(tmp_path / "b.jsonl", "\n" + json.dumps(line)).questions == expected[:1]
    # A number is a label, too, and not an index from 0.
    as_number = lines[2].replace('"answerKey": "1"', '"answerKey": 1')
    assert as_number != lines[2]
    assert read(tmp_path / "c.jsonl", "\n\n" + as_number).questions == expected[1:]
    text = "\n".join(lines)
    with pytest.raises(UserError, match="line 2: the answer 'D' is none of the 3"):
        read(tmp_path / "a.jsonl", text.replace('"answerKey": "B"', '"answerKey": "D"'))
    unknown = text.replace('"answerKey"', '"other"')
    file = read(tmp_path / "a.jsonl", unknown, needs_answers=False)
    assert [question.answer for question in file.questions] == [-1, -1]
    for value in (-1, "", None):
        asked = {"question": "x", "choices": ["a", "b"], "answer": value}
        file = read(tmp_path / "a.jsonl", json.dumps(asked), needs_answers=False)
        assert [question.answer for question in file.questions] == [-1]


@pytest.mark.parametrize(
    ("answer", "index"), [(0, 0), (2, 2), ("B", 1), ("C", 0), ("the\u2028 Rhine", 2)]
)
def test_json_lines(answer, index, tmp_path):
    """A text comes before a letter."""
    choices = ["C", "Nile", "the\u2028 Rhine"]
    line = json.dumps({"question": "x", "choices": choices, "answer": answer, "y": 1})
    file = read(tmp_path / "a.jsonl", f"\n{line}\r\n\n")
    assert file.questions == [Question(2, "x", tuple(choices), index)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "x", r"a.tsv: unknown format; .* must end in .csv, .jsonl, .json"),
        ("a.csv", "x,,,,,2\n", "no questions; 1 lack the text of the correct c"),
        ("a.csv", "x,a,b,A\nx,a,b,c,A\n", "line 2: 5 fields, not 4 as in the first"),
        ("a.csv", "x,a,A\n", "line 1: 3 fields; a row has the question, the answers"),
        ("a.csv", "x,a,b,b\n", "line 1: the last field is 'b', not the letter"),
        ("a.csv", "x,a,b,A\n,a,b,A\n", "line 2: the question is empty"),
        ("a.csv", "x,a,,A\n", "line 1: there are fewer than two choices"),
        ("a.csv", "x,a,b,A\nx,a,b,\n", "line 2: the answer is missing"),
        ("a.csv", "sent1,ending0,label\n", "SWAG's columns are .*: no column 'sent2'"),
        ("a.csv", SWAG.replace("g1", "g4"), "SWAG's .*: no column 'ending1'"),
        ("a.csv", SWAG.replace("g1", "g2"), "SWAG's .*: no column 'ending1'"),
        ("a.csv", SWAG + "0,,,,x,y,,a,b,c,d,4\n", "the answer 4 is .* from 0 to 3"),
        ("a.csv", SWAG + "0,,,,x,y,,a,,c,d,1\n", "line 2: a choice is empty"),
        (
            "a.csv",
            SWAG.replace("l\n", "x\n") + "0,,,,x,y,,a,b,c,d,1\n",
            "the answer is m",
        ),
        ("a.jsonl", '{"question": 1, "choices": []}', "'question' must be a text"),
        ("a.jsonl", '{"question": "x", "choices": "ab"}', "a list of texts"),
        ("a.jsonl", '{"question": "x", "choices": ["a", " "]}', "a choice is empty"),
        (
            "a.jsonl",
            '{"question": "x", "choices": ["a", "b"], "answer": null}',
            "line 1: the answer is missing",
        ),
        (
            "a.csv",
            "AnswerKey,question,subject,category\n",
            "not .* give its JSON lines",
        ),
    ],
)
def test_invalid_files_are_refused(name, text, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / name, text)
    assert "\n" not in str(caught.value)


def test_labels_of_swag_may_have_spaces_or_be_unknown(tmp_path):
    file = read(tmp_path / "a.csv", SWAG + "0,,,,x,y,,a,b,c,d, 1\n")
    assert [question.answer for question in file.questions] == [1]
    for label in ("", "-1"):
        unknown = SWAG + f"0,,,,x,y,,a,b,c,d,{label}\n"
        file = read(tmp_path / "b.csv", unknown, needs_answers=False)
        assert [question.answer for question in file.questions] == [-1]
        with pytest.raises(UserError, match="line 2: the answer is missing"):
            read(tmp_path / "b.csv", unknown)


@pytest.mark.parametrize("answer", [2, -2, True, 1.0, "D", "1"])
def test_answers_that_are_no_choice_are_refused(answer, tmp_path):
    choices = ["same", "other"]
    line = json.dumps({"question": "x", "choices": choices, "answer": answer})
    hint = ".without quotes." * (answer == "1")
    with pytest.raises(UserError, match=f"line 1: the answer .* is none of .*{hint}"):
        read(tmp_path / "a.jsonl", line)


# ---- rows


def test_a_row_for_each_choice(wordpiece):
    questions = [
        Question(1, "the value " * 9, ("a name", "the object", "a"), 2),
        Question(2, "a class", ("is", "of the"), -1),
    ]
    pairs = [(q.question, text) for q in questions for text in q.choices]
    rows, _ = token_rows.to_rows(pairs, wordpiece, 12)
    arrays, truncated = choice.make_rows(questions, wordpiece, 12, 3)
    for name, values in rows.items():
        assert arrays[name].shape == (2, 3, 12)
        assert np.array_equal(arrays[name].reshape(6, 12)[:5], values)
    # The second question lacks the last choice.
    assert not arrays["attention_mask"][1, 2].any()
    assert (arrays["input_ids"][1, 2] == wordpiece.pad_id).all()
    assert arrays["labels"].tolist() == [2, 0]
    assert arrays["weights"].tolist() == [1, 0]
    assert truncated.tolist() == [True, False]


# ---- the objective

LENGTH, ROWS, CHOICES = 12, 4, 3
OBJECTIVE = objective_lib.Choice(dataclasses.replace(TINY, num_layers=1), CHOICES)


@pytest.fixture(scope="module")
def batch():
    """Return a batch in which every other question lacks the last choice."""
    labels, weights = jnp.array([1, 2, 0, 0]), jnp.array([1.0, 1.0, 1.0, 0.0])
    return batch_of(OBJECTIVE, ROWS, LENGTH) | {"labels": labels, "weights": weights}


@pytest.fixture(scope="module")
def params():
    return params_of(OBJECTIVE.init)


def test_loss_and_accuracy_by_hand(batch, params):
    """From the scores of the choices, one sequence at a time."""
    score = jax.jit(lambda inputs: OBJECTIVE.model.apply({"params": params}, inputs))
    logits = np.full((ROWS, CHOICES), -np.inf)
    for row in range(ROWS):
        for column in range(CHOICES):
            names = ("input_ids", "attention_mask", "segment_ids")
            inputs = Inputs(*(batch[name][row, column][None] for name in names))
            if inputs.attention_mask.any():
                logits[row, column] = score(inputs)[0, 0]
    outputs = np.asarray(jax.jit(OBJECTIVE.outputs)(params, batch)["logits"])
    is_there = np.isfinite(logits)
    assert_close(outputs[is_there], logits[is_there], 1e-5)
    assert (outputs[~is_there] == -1e9).all()
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    losses = -np.log(probabilities[np.arange(ROWS), batch["labels"]])
    got = sums_of(OBJECTIVE, params, batch)
    assert got["choice_loss"].count == OBJECTIVE.counts(batch)["choice_loss"] == 3
    assert float(got["choice_loss"].sum) == pytest.approx(losses[:3].sum(), rel=1e-5)
    correct = (logits.argmax(1) == np.asarray(batch["labels"]))[:3].sum()
    assert float(got["accuracy"].sum) == correct
    expected = 1 - np.asarray(batch["attention_mask"]).mean()
    padding = got["padding_fraction"]
    assert float(padding.sum / padding.count) == pytest.approx(expected, rel=1e-6)


def test_dropout_depends_on_row_and_choice(batch, params):
    """Equal choices get different masks; the order of rows changes nothing."""
    logits = jax.jit(OBJECTIVE.logits)
    keys = randomness.row_keys(0, "dropout", jnp.int32(0), jnp.arange(ROWS))
    same = {
        name: batch[name][:1, :1].repeat(CHOICES, 1).repeat(ROWS, 0)
        for name in ("input_ids", "attention_mask", "segment_ids")
    }
    scores = np.asarray(logits(params, same, keys))
    assert len(np.unique(scores)) == ROWS * CHOICES
    reversed_scores = logits(params, same, keys[::-1])
    assert_close(np.asarray(reversed_scores)[::-1], scores, 1e-5)


# ---- the task


@pytest.fixture
def files(tmp_path):
    def written(name, rows):
        with open(tmp_path / name, "w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows(rows)
        return str(tmp_path / name)

    rows = [("the value", "a", "the name", "", "A"), ("is", "of", "in", "to", "C")]
    return {
        "train": written("train.csv", rows),
        "eval": written("eval.csv", [("a class,", "is", "", "of", "C")]),
        "test": written("test.csv", rows[::-1]),
    }


def make(files, tokenizer, **more):
    config = config_lib.ChoiceConfig(**{**files, "length": 16, **more})
    return choice.Choice(config, tokenizer)


def test_scores_and_files(files, wordpiece, tmp_path):
    task = make(files, wordpiece)
    assert task.description == {
        "examples": 1,
        "train_examples": 2,
        "choices": 3,
        "skipped": {"train": 0, "eval": 0, "test": 0},
        "truncated": {"train": 0, "eval": 0, "test": 0},
    }
    outputs = {
        "eval": {"logits": np.array([[0, np.log(3), -1e9]], np.float32)},
        "test": {"logits": np.array([[0, 1, 0], [9, 0, -1e9]], np.float32)},
    }
    predictions = {n: task.decode(n, x) for n, x in outputs.items()}
    assert finetuning.all_scores(task, predictions) == {
        "accuracy": 1.0,
        "test_accuracy": 0.5,
    }
    for name, predicted in predictions.items():
        task.write(storage.path(tmp_path), name, predicted)
    lines = (tmp_path / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"line": 1, "prediction": 1, "choice": "of", "probabilities": [0.25, 0.75]}
    ]
    lines = (tmp_path / "test_predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["choice"] for line in lines] == ["in", "a"]


def test_a_test_file_with_more_choices_leaves_training_batches_alone(
    files, wordpiece, tmp_path
):
    wider = tmp_path / "wider.csv"
    wider.write_text("the value,a,the name,,,A\nis,of,in,to,the name,D\n")
    task = make(files, wordpiece, test=str(wider))
    objective = task.objective(OBJECTIVE.encoder)
    assert objective == OBJECTIVE
    assert task.train["input_ids"].shape == (2, 3, 16)
    assert task.held_out["eval"]["input_ids"].shape == (1, 3, 16)
    assert task.held_out["test"]["input_ids"].shape == (2, 4, 16)
    params = params_of(objective.init)
    outputs = jax.jit(objective.outputs)
    four = outputs(params, task.held_out["test"])["logits"]
    assert_close(four[:, :3], outputs(params, task.train)["logits"], 1e-5)
