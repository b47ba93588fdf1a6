"""Classification of texts and of pairs of texts, from TSV files.

A file begins with a header that names its columns, separated by tabs: `text`, or
`text_a` and `text_b`, and `label`; other columns are left alone. There is no quoting: a
quotation mark is a character like any other, as in GLUE's files.
"""

import dataclasses
import gzip
import hashlib
import math
import os
import pathlib
import shlex
import zlib
from collections.abc import Sequence

import numpy as np

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.objectives import classification
from bert_jax.tasks import Arrays


class Classification:
    """The task of one pair of files, for one tokenizer; see `tasks.Task`."""

    def __init__(
        self,
        config: config_lib.ClassificationConfig,
        tokenizer: tokenizer_lib.Tokenizer,
    ):
        """Read the files.

        Raises:
          UserError: A file is not given or cannot be used.
        """
        for name in ("train", "eval"):
            if not getattr(config, name):
                raise UserError(
                    f"task.{name} is empty; pass --config.task.{name}=FILE.tsv"
                )
        train, held_out = read_tsv(config.train), read_tsv(config.eval)
        self._labels = label_names(train, held_out)
        self.length = config.length
        self.train, evaluated = (
            to_features(examples, self._labels, tokenizer, config.length)
            for examples in (train, held_out)
        )
        self.held_out = {"eval": evaluated}
        self.settings = {"labels": self._labels}
        self.fingerprint = fingerprint(train, held_out)
        self.description = {
            "examples": len(held_out),
            "train_examples": len(train),
            "labels": self._labels,
        }

    def objective(
        self, encoder: config_lib.EncoderConfig
    ) -> classification.Classification:
        """A classifier of as many classes as there are labels."""
        return classification.Classification(encoder, len(self._labels))

    def scores(self, outputs: dict[str, Arrays]) -> dict[str, float]:
        """See `metrics`."""
        predicted = outputs["eval"]["logits"].argmax(-1)
        labels = self.held_out["eval"]["labels"]
        return metrics(predicted, labels, len(self._labels))

    def write(self, folder: storage.Path, outputs: dict[str, Arrays]) -> None:
        """Write predictions.tsv."""
        predicted = outputs["eval"]["logits"].argmax(-1)
        write_predictions(folder / "predictions.tsv", predicted, self._labels)


@dataclasses.dataclass(frozen=True)
class Example:
    """One row of a file. `text_b` is "" where there is one text."""

    text_a: str
    text_b: str
    label: str


def read_tsv(path: str | os.PathLike) -> list[Example]:
    """Examples of a TSV file, here or in an object store, plain or ending in .gz.

    Raises:
      UserError: The file is not there, not UTF-8, empty, or a row is incomplete.
      Unavailable: The store does not answer now.
    """
    path = storage.path(path)
    storage.check(path)
    try:
        data = path.read_bytes()
        if path.name.endswith(".gz"):
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise storage.failure(error)(f"cannot read {path}: {error}") from error
    rows = [line.rstrip("\r").split("\t") for line in text.split("\n")]
    header = rows[0]
    first = "text_a" if "text_a" in header else "text"
    missing = [name for name in (first, "label") if name not in header]
    if missing:
        raise UserError(
            f"{path} has no column {' or '.join(missing)}; the first line must name, "
            "with tabs between them, the columns text (or text_a and text_b) and "
            f"label, and has {_shortened(header)}; {_advice(path, header)}"
        )
    a, label = header.index(first), header.index("label")
    b = header.index("text_b") if "text_b" in header else None
    examples = []
    for number, row in enumerate(rows[1:], 2):
        if row == [""]:
            continue
        if len(row) != len(header):
            raise UserError(
                f"{path}, line {number}: {len(row)} fields, not {len(header)} as in "
                "the header"
            )
        examples.append(Example(row[a], row[b] if b is not None else "", row[label]))
    if not examples:
        raise UserError(f"{path} has no examples")
    return examples


# Columns of GLUE's files, with their names here.
_GLUE_COLUMNS = {
    "sentence": "text",
    "sentence1": "text_a",
    "sentence2": "text_b",
    "question": "text_a",
    "question1": "text_a",
    "question2": "text_b",
    "#1 String": "text_a",
    "#2 String": "text_b",
    "Quality": "label",
    "gold_label": "label",
    "is_duplicate": "label",
}


def _shortened(header: list[str]) -> str:
    """The names of columns, which may be sentences if there is no header."""
    return ", ".join(
        repr(name if len(name) <= 24 else f"{name[:20]} ...") for name in header
    )


def _advice(path: storage.Path, header: list[str]) -> str:
    """How to give a file the columns that it needs."""
    names = [_GLUE_COLUMNS.get(name, name) for name in header]
    needed = sorted({"text", "text_a", "text_b", "label"}.intersection(names))
    if needed not in (["label", "text"], ["label", "text_a", "text_b"]):
        return (
            "if that is an example, put a line with names in front of it; if a column "
            "has another name, rename it there"
        )
    escaped = [name.replace("\\", r"\\").replace("%", "%%") for name in names]
    line = "\\t".join(escaped) + "\\n"
    read = "zcat" if path.name.endswith(".gz") else "cat"
    return (
        f"to rename them: (printf {shlex.quote(line)}; "
        f"{read} {shlex.quote(str(path))} | tail -n +2) > NEW.tsv"
    )


def write_tsv(path: pathlib.Path, examples: Sequence[Example]) -> None:
    """Write examples of two texts each, for `read_tsv`. Tabs become spaces."""
    rows = [
        "\t".join(field.replace("\t", " ") for field in dataclasses.astuple(example))
        for example in examples
    ]
    text = "\n".join(["text_a\ttext_b\tlabel", *rows]) + "\n"
    path.write_text(text, encoding="utf-8")


# Whole numbers from here on are taken to be quantities.
_MAX_CLASS = 1000


def _are_quantities(names: Sequence[str]) -> bool:
    """Whether labels are numbers to predict, and not names of classes."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return False
    return not all(abs(n) < _MAX_CLASS and math.floor(n) == n for n in numbers)


def label_names(train: Sequence[Example], held_out: Sequence[Example]) -> list[str]:
    """The labels of the training examples, sorted; each label's index is its class.

    Raises:
      UserError: There is only one, evaluation has one that training has not, or they
        are numbers to predict.
    """
    names = sorted({example.label for example in train})
    if _are_quantities(names):
        raise UserError(
            f"the labels of the training examples are numbers: {', '.join(names[:3])}"
            f"{', ...' if names[3:] else ''}; to predict numbers is regression, which "
            f"is not supported yet; classes are words, or whole numbers below "
            f"{_MAX_CLASS}"
        )
    if len(names) < 2:
        raise UserError(f"all training examples have the label {names[0]!r}")
    unknown = sorted({example.label for example in held_out} - set(names))
    if unknown:
        raise UserError(
            f"the evaluation examples have the label {unknown[0]!r}, which no training "
            f"example has; those have {', '.join(map(repr, names))}"
        )
    return names


def fingerprint(*groups: Sequence[Example]) -> str:
    """A hash of examples, by which a continuation knows them again."""
    digest = hashlib.sha256()
    for group in groups:
        for example in group:
            digest.update(repr(dataclasses.astuple(example)).encode("utf-8"))
    return digest.hexdigest()[:16]


def to_features(
    examples: Sequence[Example],
    labels: Sequence[str],
    tokenizer: tokenizer_lib.Tokenizer,
    length: int,
) -> dict[str, np.ndarray]:
    """[CLS] a [SEP], or [CLS] a [SEP] b [SEP], for each example.

    What is too long loses tokens at the end, of two texts the longer one first.

    Args:
      examples: Examples of one file.
      labels: Labels, from `label_names`.
      tokenizer: Tokenizer of the encoder.
      length: Tokens in a row.

    Returns:
      input_ids, segment_ids int32 [E, length], attention_mask bool [E, length], labels
      int32 [E], weights float32 [E].

    Source: google-research/bert, run_classifier.py, convert_single_example.
    """
    a = tokenizer.encode_batch([example.text_a for example in examples])
    b = tokenizer.encode_batch([example.text_b for example in examples])
    shape = (len(examples), length)
    ids = np.full(shape, tokenizer.pad_id, np.int32)
    segments = np.zeros(shape, np.int32)
    mask = np.zeros(shape, bool)
    for row, (first, second) in enumerate(zip(a, b, strict=True)):
        first, second = _truncate(first, second, length - (3 if second else 2))
        tokens = [tokenizer.cls_id, *first, tokenizer.sep_id]
        boundary = len(tokens)
        if second:
            tokens += [*second, tokenizer.sep_id]
        ids[row, : len(tokens)] = tokens
        segments[row, boundary : len(tokens)] = 1
        mask[row, : len(tokens)] = True
    classes = {name: i for i, name in enumerate(labels)}
    return {
        "input_ids": ids,
        "segment_ids": segments,
        "attention_mask": mask,
        "labels": np.array([classes[example.label] for example in examples], np.int32),
        "weights": np.ones(len(examples), np.float32),
    }


def _truncate(a: list[int], b: list[int], limit: int) -> tuple[list[int], list[int]]:
    """Shorten the longer list, the second one if they are equal, to `limit` in all."""
    excess = max(len(a) + len(b) - limit, 0)
    from_longer = min(excess, abs(len(a) - len(b)))
    in_turn = excess - from_longer
    from_a = in_turn // 2 + (from_longer if len(a) > len(b) else 0)
    return a[: len(a) - from_a], b[: len(b) - (excess - from_a)]


def metrics(predicted: np.ndarray, labels: np.ndarray, num_classes: int) -> dict:
    """Accuracy, F1 averaged over classes, and Matthews' correlation coefficient.

    Args:
      predicted: Predicted class of each example.
      labels: Class of each example.
      num_classes: Number of classes.
    """
    confusion = np.zeros((num_classes, num_classes))
    np.add.at(confusion, (labels, predicted), 1)
    hits = np.diag(confusion)
    actual, claimed = confusion.sum(1), confusion.sum(0)
    f1 = 2 * hits / np.maximum(actual + claimed, 1)
    total = confusion.sum()
    # Gorodkin 2004; for two classes this is the coefficient that GLUE uses for CoLA.
    covariance = hits.sum() * total - claimed @ actual
    scale = (total**2 - claimed @ claimed) * (total**2 - actual @ actual)
    return {
        "accuracy": float(hits.sum() / total),
        "macro_f1": float(f1.mean()),
        "matthews": float(covariance / np.sqrt(scale)) if scale > 0 else 0.0,
    }


def write_predictions(
    path: storage.Path, predicted: np.ndarray, labels: Sequence[str]
) -> None:
    """Write GLUE's format: `index`, `prediction`."""
    rows = [f"{i}\t{labels[c]}\n" for i, c in enumerate(predicted)]
    with storage.writing(path.parent):
        storage.write_text(path, "index\tprediction\n" + "".join(rows))
