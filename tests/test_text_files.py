"""One's own files of texts and labels, and what becomes of those that do not fit."""

import gzip
import json

import pytest

from bert_jax import config as config_lib
from bert_jax import knobs, storage
from bert_jax.errors import UserError
from bert_jax.tasks import task_files, text_files
from bert_jax.tasks.texts import Example


def refusal(path, *columns, **options):
    with pytest.raises(UserError) as caught:
        text_files.read(path, *columns, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "", "has no column text or label"),
        ("a.tsv", "sentence\tlabel\nx\t1\n", "no column text; .*'sentence', 'label'"),
        ("a.tsv", "text\tlabel\nx\t1\ty\n", "a.tsv, line 2: 3 fields, not 2"),
        ("a.tsv", "text\tlabel\n", "has no examples"),
        ("a.tsv", "text\tlabel\nx\t1\n \t1\n", "a.tsv, line 3: text is empty"),
        ("a.tsv", "text\tlabel\nx\t\n", 'a.tsv, line 2: label is "", not a label'),
        ("a.csv", "text,label\n\nx,1,2\n", "a.csv, line 3: 3 fields, not 2"),
        ("a.csv", 'text,label\n"x,1\n', "a.csv, line 2: unexpected end of data"),
        ("a.jsonl", '{"text": "x"}\n', "has no column label; .*'text'"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text"}\n', "line 2: no JSON: "),
        ("a.jsonl", '{"text": "x", "label": 1}\n["x"]\n', "line 2: not an object"),
        ("a.jsonl", '{"text": ["x"], "label": 1}\n', 'text is ."x"., not a text'),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "y"}', "2: label is null, n"),
        ("a.txt", "text\tlabel\nx\t1\n", "must end in .tsv, .csv, .jsonl, or in one"),
    ],
)
def test_what_cannot_be_read(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        text_files.read(path)


def test_files_that_are_no_text(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"text\tlabel\n\xff\t1\n")
    assert "a.tsv, line 2: not UTF-8" in refusal(path)
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"text\tlabel\nx\t1\n")[:-9])
    assert "cannot read" in refusal(tmp_path / "a.tsv.gz")


def test_files_in_an_object_store():
    path = storage.path("memory://texts/a.tsv")
    storage.write_text(path, "text\tlabel\nx\tyes\n")
    assert text_files.read(path) == [Example("x", "", "yes")]
    assert text_files.read(str(path)) == text_files.read(path)
    assert "memory://texts/b.tsv" in refusal("memory://texts/b.tsv")


def test_quotes_carriage_returns_and_marks_are_harmless(tmp_path):
    path = tmp_path / "a.tsv"
    text = '\ufeffid\ttext_a\ttext_b\tlabel\r\n7\t"a\tb"\tyes\r\n\r\n'
    path.write_bytes(text.encode())
    assert text_files.read(path) == [Example('"a', 'b"', "yes")]


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_the_same_examples_in_each_format(ending, tmp_path):
    """What a format can say at all: TSV has no tabs and line breaks in a field."""
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
        path.write_bytes(gzip.compress(data) if ending else data)
        read = text_files.read(path)
        assert read == expected, name
        assert task_files.fingerprint(read) == task_files.fingerprint(expected)
        where = f"{path}, line {2 + (not name.endswith('.jsonl'))}"
        assert read[1].where == where


def test_line_breaks_inside_quotes_of_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\r\n"two\r\nlines",1\r\n')
    assert text_files.read(path) == [Example("two\r\nlines", "", "1")]


def test_columns_have_the_names_given(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("q\ta\ttext\tlabel\tkind\none\ttwo\tthree\tno\tyes\n")
    assert text_files.read(path) == [Example("three", "", "no")]
    assert text_files.read(path, "q", "a", "kind") == [Example("one", "two", "yes")]
    message = refusal(path, "q", "b", "sort")
    assert "no column b or sort" in message and "'a', 'text', 'label'" in message
    # What is to be predicted for has no labels, or some that nobody looks at.
    assert text_files.read(path, "q", labelled=False) == [Example("one", "", "")]
    path.write_text("text\none\ntwo\n")
    assert [e.text_a for e in text_files.read(path, labelled=False)] == ["one", "two"]
    # Dropped, it would move all predictions after it by one.
    path.write_text("text\none\n\ntwo\n")
    assert "line 3: text is empty" in refusal(path, labelled=False)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("sentence\tlabel", "glue/sst2 and"),
        ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "glue/mrpc and"),
        ("index\tsentence1\tsentence2\tlabel", "glue/rte or glue/wnli and"),
        ("index\tgenre\tsentence1\tsentence2\tscore", "glue/stsb and"),
        ("index\tquestion\tsentence\tlabel", "glue/qnli and"),
        ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "glue/qqp and"),
        ("index\tsentence1\tsentence2\tlabel1\tgold_label", "glue/mnli and"),
        ("gj04\t1\t\tThe sailors rode the breeze clear of the rocks.", "glue/cola and"),
    ],
)
@pytest.mark.parametrize("ending", [".tsv", ".tsv.gz"])
def test_files_of_glue_are_recognised(header, name, ending, tmp_path):
    path = tmp_path / f"it's a file{ending}"
    data = f"{header}\r\n{header}\r\n".encode()
    path.write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
    message = refusal(path)
    assert f"--config.task.name={name} --config.task.folder=DIR" in message
    assert repr(header.removeprefix("\ufeff").split("\t")[0]) in message
    assert "clear of the rocks" not in message


@pytest.mark.parametrize("first_line", ["What a film!\t1", "text,label", "a\tb\tc\td"])
def test_other_files_get_general_advice(first_line, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(f"{first_line}\n{first_line}\n")
    message = refusal(path)
    assert "the columns text (or text_a and text_b) and label" in message
    assert "named by --config.task.text_a, text_b and label" in message
    assert "put a line with names in front of it" in message
    assert repr(first_line.split("\t")[0]) in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folder": "GLUE"}, "folder='GLUE' is for a task of GLUE; pass --config.task"),
        ({"name": "glue/rte", "train": "a"}, "train='a', but task.name='glue/rte' has"),
        ({"name": "glue/rte", "target": "number"}, "but glue/rte has classes"),
        ({"name": "glue/imdb"}, "task.name='glue/imdb' must be one of"),
        ({"target": "number", "label_smoothing": 0.1}, "smoothing=0.1 is for classes"),
        ({"name": "glue/stsb", "class_weights": "balanced"}, "'balanced' is for class"),
    ],
)
def test_settings_that_contradict_each_other(changes, message):
    config = config_lib.ClassificationConfig(**changes)
    with pytest.raises(UserError, match=message):
        knobs.check(config, "task.")


def test_files_have_to_be_given():
    with pytest.raises(UserError, match="pass --config.task.train=FILE.tsv, or .*glue"):
        text_files.read_all(config_lib.ClassificationConfig(eval="a.tsv"))
