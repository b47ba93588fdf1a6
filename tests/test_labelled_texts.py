"""Tables of labelled texts in TSV, CSV and JSON lines."""

import json

import numpy as np
import pytest
from corpora import COMPRESS

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.tasks import classification, labelled_texts, task_files
from bert_jax.tasks.labelled_texts import Example


def refusal(path, *columns, **options):
    with pytest.raises(UserError) as caught:
        labelled_texts.read(path, *columns, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"sentence\tlabel\nx\t1\n", "there are 'sentence', 'label'; the fir"),
        ("a.tsv", b"text\ttext\tlabel\nx\ty\t1\n", "a.tsv: two columns 'text'"),
        ("a.tsv", b"text\tlabel\nx\t1\ty\n", "a.tsv, line 2: 3 fields, not 2"),
        ("a.tsv", b"text\tlabel\n", "has no examples"),
        ("a.tsv", b"text\tlabel\nx\t1\n \t1\n", "a.tsv, line 3: text is empty"),
        ("a.csv", b"text,label\n\nx,1,2\n", "a.csv, line 3: 3 fields, not 2"),
        ("a.csv", b'text,label\n"x,1\n', "a.csv: the row that begins in line 2 is no"),
        ("a.jsonl", b'{"text": "x", "label": 1}\n{"text"}\n', "line 2: not JSON: "),
        ("a.jsonl", b'{"text": ["x"], "label": 1}\n', 'text is ["x"], not a text'),
        ("a.jsonl", b'["x", 1]\n', "line 1: '[\"x\", 1]' is not a JSON object"),
        ("a.jsonl", b'{"text": "x", "label": NaN}\n', "label is NaN, not a label"),
        ("a.jsonl", b'{"text": "x"}\n\n{"a": "y"}\n', "line 3: columns 'a', but the f"),
        ("a.txt", b"text\tlabel\nx\t1\n", "must end in .tsv, .csv, .jsonl, or in one"),
        ("a.csv", b"PAR1\xff\x00\x00\n", "Parquet file; for a corpus use --format=par"),
        ("a.tsv", "text\n漢字\n".encode("utf-16"), "is UTF-16; iconv -f UTF-16 -t UTF"),
        ("a.tsv", COMPRESS[".gz"](b"text\n"), "is compressed; rename it to end in .gz"),
        ("a.tsv", b"text\ncaf\xe9\tx\n", "line 2: not UTF-8 (invalid continuation byte "
         "at byte 8 of the file); iconv -f LATIN1 -t UTF-8"),
        ("a.tsv.zst", COMPRESS[".zst"](b"text\tlabel\nx\t1\n")[:-9], "cannot read"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert message in refusal(tmp_path / name)


def test_files_in_an_object_store():
    path = storage.path("memory://texts/a.tsv")
    storage.write_text(path, "text\tlabel\nx\tyes\n")
    assert labelled_texts.read(path) == [Example("x", "", "yes")]
    assert labelled_texts.read(str(path)) == labelled_texts.read(path)
    assert "memory://texts/b.tsv" in refusal("memory://texts/b.tsv")


def test_a_missing_file_is_named_once(tmp_path):
    path = tmp_path / "none.tsv"
    assert refusal(path) == f"cannot read {path}: No such file or directory"


def test_quotes_line_ends_byte_order_marks_and_long_fields(tmp_path):
    path = tmp_path / "a.tsv"
    text = '\ufeffid\ttext_a\ttext_b\tlabel\r\n7\t"a\tb"\tyes\r\n\r\n'
    path.write_bytes(text.encode())
    assert labelled_texts.read(path) == [Example('"a', 'b"', "yes")]
    path.write_bytes("text\tlabel\r漢字\tя\r".encode())
    assert labelled_texts.read(path) == [Example("漢字", "", "я")]
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\r\n"two\r\nlines",1\r\n')
    assert labelled_texts.read(path) == [Example("two\r\nlines", "", "1")]
    long = "字" * 200_000  # csv has a limit of 131,072 by default
    path.write_text(f"text,label\n{long},я\n")
    assert labelled_texts.read(path) == [Example(long, "", "я")]


@pytest.mark.parametrize("ending", ["", *COMPRESS])
def test_formats_give_the_same_examples(ending, tmp_path):
    rows = [('say "hi"', "b, c", "1"), ("a\u2028é", "", "0"), ("c", "d", "2.5")]
    expected = [Example(*row) for row in rows]
    lines = {
        "a.tsv": ["text_a\ttext_b\tlabel", *("\t".join(row) for row in rows)],
        "a.csv": [
            "label,text_b,more,text_a",
            '1,"b, c",x,"say ""hi"""',
            "0,,x,a\u2028é",
            "2.5,d,x,c",
        ],
        "a.jsonl": [
            json.dumps({"text_a": a, "text_b": b, "label": json.loads(label)})
            for a, b, label in rows
        ],
    }
    for name, content in lines.items():
        data = "".join(line + "\n" for line in content).encode()
        path = tmp_path / (name + ending)
        path.write_bytes(COMPRESS.get(ending, bytes)(data))
        read = labelled_texts.read(path)
        assert read == expected, name
        assert task_files.fingerprint(read) == task_files.fingerprint(expected)
        where = f"{path}, line {2 + (not name.endswith('.jsonl'))}"
        assert read[1].where == where


def test_a_written_table_is_read_back(tmp_path):
    examples = [Example('say "hi"', "b, c", "1"), Example("a\tb", "é", "0")]
    labelled_texts.write_tsv(tmp_path / "a.tsv", examples)
    expected = [examples[0], Example("a b", "é", "0")]
    assert labelled_texts.read(tmp_path / "a.tsv") == expected


def test_spaces_around_a_label_make_no_class(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\nx\tyes \ny\t yes\nz\tno\n")
    assert [e.label for e in labelled_texts.read(path)] == ["yes", "yes", "no"]
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x", "label": {" yes": 0.75, "no ": 0.25}}\n')
    [example] = labelled_texts.read(path)
    assert json.loads(example.label) == {"yes": 0.75, "no": 0.25}
    for names in ('" yes": 0.5, "yes": 0.5', '"yes": 1, " ": 0'):
        path.write_text(f'{{"text": "x", "label": {{{names}}}}}\n')
        assert "with one label twice" in (got := refusal(path)) or "not a label" in got


def test_columns_can_be_named(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("q\ta\ttext\tlabel\tkind\none\ttwo\tthree\tno\tyes\n")
    assert labelled_texts.read(path) == [Example("three", "", "no")]
    assert labelled_texts.read(path, "q", "a", "kind") == [Example("one", "two", "yes")]
    assert "no column 'b'; there are 'q', 'a'" in refusal(path, "q", "b", "sort")


@pytest.mark.parametrize("header", ["text\tnumber", "text\tlabel"])
def test_a_test_file_may_lack_labels(header, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(f"{header}\none\t \ntwo\t\n")
    unlabelled = [Example("one", "", ""), Example("two", "", "")]
    assert labelled_texts.read(path, needs_labels=False) == unlabelled
    path.write_text(f"{header}\none\t0\ntwo\t1\n")
    labelled = [Example("one", "", "0"), Example("two", "", "1")]
    expected = labelled if "label" in header else unlabelled
    assert labelled_texts.read(path, needs_labels=False) == expected
    path.write_text("text\tlabel\none\t0\ntwo\t\n")
    assert 'line 3: label is "", not a label' in refusal(path, needs_labels=False)
    path = tmp_path / "a.jsonl"
    for unknown in ("null", "NaN", "-1", "-1.0", '" "'):
        rows = [{"text": text, "label": "UNKNOWN"} for text in ("one", "two")]
        lines = "\n".join(map(json.dumps, rows))
        path.write_text(lines.replace('"UNKNOWN"', unknown))
        assert labelled_texts.read(path, needs_labels=False) == unlabelled
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\none\tNaN\ntwo\t\n")
    assert labelled_texts.read(path, needs_labels=False) == unlabelled
    path.write_text("text\tlabel\none\t-1\ntwo\t1\n")
    read = labelled_texts.read(path, needs_labels=False)
    assert [example.label for example in read] == ["-1", "1"]
    # To skip a blank line would shift all later predictions.
    path.write_text("text\none\n\ntwo\n")
    assert "line 3: text is empty" in refusal(path, needs_labels=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folder": "GLUE"}, "folder='GLUE' is for a task of GLUE; pass --config.task"),
        ({"name": "glue/rte", "train": "a"}, "task.train=a does not go with task.name"),
        ({"name": "glue/rte", "target": "number"}, "glue/rte has classes; set task.t"),
        ({"name": "glue/imdb"}, "task.name='glue/imdb' must be one of"),
        ({"target": "number", "label_smoothing": 0.1}, "=0.1 does not go with"),
        ({"name": "glue/stsb", "class_weights": "balanced"}, "balanced does not go"),
    ],
)
def test_contradicting_settings_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        config_lib.check(config_lib.ClassificationConfig(**changes), "task.")


def task_of(tmp_path, tokenizer, labels):
    lines = [f"the value {i}\t{label}\n" for i, label in enumerate(labels)]
    path = str(tmp_path / "a.tsv")
    (tmp_path / "a.tsv").write_text("".join(["text\tlabel\n", *lines]))
    config = config_lib.ClassificationConfig(train=path, eval=path, length=12)
    return classification.Classification(config, tokenizer)


def test_integer_labels_are_sorted_by_value(wordpiece, tmp_path):
    task = task_of(tmp_path, wordpiece, ["10", "2", "0", "1"])
    assert task.settings == {"labels": ["0", "1", "2", "10"], "pairs": False}
    assert task.train["labels"].tolist() == [3, 2, 0, 1]
    examples = labelled_texts.read(tmp_path / "a.tsv")
    # A run whose checkpoint has the classes sorted as text must not continue.
    assert task.fingerprint != task_files.fingerprint(examples, examples)
    ages = task_of(tmp_path, wordpiece, ["10_20", "0_10", "1_000"])
    assert ages.settings["labels"] == ["0_10", "10_20", "1_000"]
    task = task_of(tmp_path, wordpiece, ["b", "2", "10"])
    assert task.settings == {"labels": ["10", "2", "b"], "pairs": False}
    examples = labelled_texts.read(tmp_path / "a.tsv")
    assert task.fingerprint == task_files.fingerprint(examples, examples)


def test_predictions_have_a_line_each(wordpiece, tmp_path):
    labels = ["a\tb\nc", "two  words"]
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": "x", "label": label}) for label in labels]
    path.write_text("\n".join(lines))
    files = {"train": str(path), "eval": str(path)}
    config = config_lib.ClassificationConfig(length=12, **files)
    task = classification.Classification(config, wordpiece)
    logits = np.log(np.float32([[1, 3], [4, 1]]))
    task.write(tmp_path, "eval", task.decode("eval", {"logits": logits}))
    assert (tmp_path / "predictions.tsv").read_text() == (
        "index\tprediction\ta b c\ttwo  words\n"
        "0\ttwo  words\t0.250000\t0.750000\n"
        "1\ta b c\t0.800000\t0.200000\n"
    )
