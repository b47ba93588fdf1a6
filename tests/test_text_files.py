"""What becomes of files that people have: GLUE's, and those with numbers as labels."""

import gzip
import pathlib
import re
import subprocess

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks import classification

GLUE = pathlib.Path(__file__).parents[2] / "shared/data/glue"
HEADERS = {
    "SST-2": ("sentence\tlabel", ["text", "label"]),
    "MRPC": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        ["label", "text_a", "text_b"],
    ),
    "RTE": ("index\tsentence1\tsentence2\tlabel", ["text_a", "text_b", "label"]),
    "per cent": ("sentence\t100%\\n\tlabel", ["text", "label"]),
}


def refusal(path):
    with pytest.raises(UserError) as caught:
        classification.read_tsv(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def follow(message, folder):
    """Run the command in a message; the file that it makes."""
    command = re.search(r"to rename them: (.*)", message)[1]
    subprocess.run(["bash", "-c", command], cwd=folder, check=True)
    return folder / "NEW.tsv"


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("ending", [".tsv", ".tsv.gz"])
def test_the_advice_makes_a_file_that_can_be_read(name, ending, tmp_path):
    header, needed = HEADERS[name]
    columns = header.count("\t") + 1
    row = [f"field {i}" for i in range(columns)]
    data = f"{header}\r\n{chr(9).join(row)}\r\n".encode()
    path = tmp_path / f"it's a file{ending}"
    path.write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
    message = refusal(path)
    for column in header.removeprefix("\ufeff").split("\t"):
        assert repr(column) in message
    made = follow(message, tmp_path)
    [example] = classification.read_tsv(made)
    names = made.read_text().splitlines()[0].split("\t")
    fields = dict(zip(names, row, strict=True))
    assert [n for n in names if n in ("text", "text_a", "text_b", "label")] == needed
    first = fields.get("text") or fields["text_a"]
    second = fields.get("text_b", "")
    assert example == classification.Example(first, second, fields["label"])


@pytest.mark.parametrize(
    "first_line",
    [
        "gj04\t1\t\tThe sailors rode the breeze clear of the rocks.",  # CoLA
        "index\tquestion\tsentence\tlabel",  # QNLI: two texts, one of them unknown
        "sentence1\tsentence2\tscore",
        "text,label",
    ],
)
def test_other_files_get_general_advice(first_line, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(f"{first_line}\n{first_line}\n")
    message = refusal(path)
    assert "the columns text (or text_a and text_b) and label" in message
    assert "put a line with names in front of it" in message
    assert repr(first_line.split("\t")[0]) in message
    assert "clear of the rocks" not in message


@pytest.mark.parametrize(
    ("task", "examples", "first"),
    [
        ("SST-2", 872, ("it 's a charming and often affecting journey . ", "", "1")),
        ("MRPC", 408, None),
        ("RTE", 277, None),
    ],
)
def test_files_of_glue(task, examples, first, tmp_path):
    path = GLUE / task / "dev.tsv.gz"
    if not path.exists():
        pytest.skip("needs GLUE")
    read = classification.read_tsv(follow(refusal(path), tmp_path))
    assert len(read) == examples
    if first:
        assert read[0] == classification.Example(*first)


def labelled(*labels):
    return [classification.Example("a", "", label) for label in labels]


@pytest.mark.parametrize(
    "labels", [("3.8", "5.000", "0"), ("1", "1000"), ("-2.5", "2"), ("nan", "1")]
)
def test_numbers_to_predict_are_refused(labels):
    with pytest.raises(UserError, match=r"regression, which is not supported yet"):
        classification.label_names(labelled(*labels), [])


@pytest.mark.parametrize(
    "labels",
    [("0", "1"), ("-1", "1"), ("0.0", "1.0"), ("0", "999"), ("0.5", "half")],
)
def test_numbers_that_name_classes_are_classes(labels):
    assert classification.label_names(labelled(*labels), []) == sorted(labels)
