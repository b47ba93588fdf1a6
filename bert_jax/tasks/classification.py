"""Classification and regression of texts and of pairs of texts.

Examples come from a task of GLUE (`glue.py`, `glue_tfds.py`) or from tables of the user
(`labelled_texts.py`).
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.objectives import classification, regression
from bert_jax.tasks import (
    Arrays,
    TaskObjective,
    classification_scores,
    confusion,
    glue,
    glue_tfds,
    labelled_texts,
    task_files,
    token_rows,
)
from bert_jax.tasks.labelled_texts import Example

# Integers from here on are taken for quantities, not for names of classes.
_MAX_CLASS = 1000
_INTEGER = re.compile(r"[+-]?\d{1,18}")  # in any script


class Classification:
    """Classification or regression of texts in files; see `tasks.Task`."""

    def __init__(
        self,
        config: config_lib.ClassificationConfig,
        tokenizer: tokenizer_lib.Tokenizer,
    ):
        self._config = config
        self._glue = config.name.removeprefix("glue/")
        sets, about = _read(config)
        train = sets["train"]
        self._labels: list[str] = []
        if not config.predicts_numbers:
            given = glue.TASKS[self._glue].labels if self._glue else ()
            self._labels = list(given) or label_names(train)
        self._has_probabilities = any(e.probabilities for e in train)
        self._labelled = {name for name, examples in sets.items() if examples[0].label}
        self.metrics: tuple[str, ...] = ("accuracy", "macro_f1", "matthews")
        if self._glue:
            self.metrics = glue.TASKS[self._glue].metrics
        elif config.predicts_numbers:
            self.metrics = ("pearson", "spearman")
        rows, truncated = {}, {}
        for name, examples in sets.items():
            is_labelled = name in self._labelled
            pairs = [(example.text_a, example.text_b) for example in examples]
            rows[name], lost = token_rows.to_rows(pairs, tokenizer, config.length)
            truncated[name] = int(lost.sum())
            rows[name]["weights"] = np.full(len(pairs), is_labelled, np.float32)
            rows[name] |= self._label_arrays(examples, is_labelled)
        self.train = rows.pop("train")
        self.held_out = rows
        has_pairs = any(example.text_b for example in train)
        self.settings = {"labels": self._labels, "pairs": has_pairs}
        # Runs of older versions sorted integers as text. They must not continue with
        # another order of the classes, so an order by number is hashed, too.
        hashed = [sets[n] for n in sets if n in self._labelled and n != "test"]
        if self._labels != sorted(self._labels):
            hashed.append(self._labels)
        self.fingerprint = task_files.fingerprint(*hashed)
        self.description = {
            "examples": len(sets["eval"]),
            "train_examples": len(train),
            "labels": self._labels,
            "truncated": truncated,
            **about,
        }

    def _label_arrays(self, examples: Sequence[Example], is_labelled: bool) -> Arrays:
        """Return `labels`, and `probabilities` if the training examples have them."""
        if not is_labelled:
            label_type = np.float32 if self._config.predicts_numbers else np.int32
            return {"labels": np.zeros(len(examples), label_type)}
        if self._config.predicts_numbers:
            return {"labels": to_numbers(examples)}
        probabilities = to_probabilities(examples, self._labels)
        arrays = {"labels": probabilities.argmax(-1).astype(np.int32)}
        if self._has_probabilities:
            arrays["probabilities"] = probabilities
        return arrays

    def objective(self, encoder: config_lib.EncoderConfig) -> TaskObjective:
        if self._config.predicts_numbers:
            return regression.Regression(encoder)
        weights: tuple[float, ...] = ()
        if self._config.class_weights == "balanced":
            weights = balanced_weights(self.train["labels"], len(self._labels))
        return classification.Classification(
            encoder,
            len(self._labels),
            weights,
            self._config.label_smoothing,
            self._has_probabilities,
        )

    def decode(self, name: str, outputs: Arrays) -> np.ndarray:
        """Return the probability of each class, float64 [E, C]; or numbers [E]."""
        if self._config.predicts_numbers:
            return outputs["predictions"]
        from scipy import special  # slow to import

        return special.softmax(outputs["logits"].astype(np.float64), axis=-1)

    def scores(self, name: str, predictions: np.ndarray) -> dict[str, float]:
        """Return the metrics of GLUE for its tasks, general ones for other files."""
        if name not in self._labelled:
            return {}
        labels = self.held_out[name]["labels"]
        if self._config.predicts_numbers:
            values = classification_scores.score_numbers(predictions, labels)
        else:
            predicted, count = predictions.argmax(-1), len(self._labels)
            values = classification_scores.score_classes(predicted, labels, count)
        return {metric: values[metric] for metric in self.metrics}

    def write(self, folder: storage.Path, name: str, predictions: np.ndarray) -> None:
        """Write predictions.tsv or a file for another set; for "eval" confusion.png.

        Predictions for the test sets of GLUE have the names and format to submit. Other
        files have a column with the probability of each class, if there are classes.
        """
        numbers = self._config.predicts_numbers
        file = task_files.prefix_with_set(name, "predictions.tsv")
        is_submission = self._glue and name not in self._labelled
        header = ["index", "prediction"]
        if is_submission:
            file = glue.submission(self._glue, name)
        if numbers and is_submission:
            rows = [[f"{value:.3f}"] for value in np.clip(predictions, 0, 5)]
        elif numbers:
            rows = [[str(value)] for value in predictions]  # all digits of a float32
        else:
            # Labels from CSV and JSON may have tabs and line breaks.
            names = [re.sub(r"[\t\r\n]", " ", label) for label in self._labels]
            rows = [[names[c]] for c in predictions.argmax(-1)]
            if not is_submission:
                header += names
                for row, probabilities in zip(rows, predictions, strict=True):
                    row += [f"{p:.6f}" for p in probabilities]
        lines = [header, *([str(i), *row] for i, row in enumerate(rows))]
        text = "".join("\t".join(line) + "\n" for line in lines)
        task_files.write(folder / file, text)
        if name == "eval" and not numbers:
            actual = self.held_out[name]["labels"]
            predicted = predictions.argmax(-1)
            confusion.draw(folder / "confusion.png", predicted, actual, self._labels)


def _read(
    config: config_lib.ClassificationConfig,
) -> tuple[labelled_texts.ExampleSets, dict[str, Any]]:
    """Return the examples, and facts about their files, for results.json."""
    if config.name:
        name = config.name.removeprefix("glue/")
        if config.folder.startswith(glue_tfds.PREFIX):
            return glue_tfds.read(name, config.folder.removeprefix(glue_tfds.PREFIX))
        return glue.read(name, config.folder)
    advice = "FILE.tsv, or --config.task.name=glue/... and --config.task.folder=DIR"
    columns = (config.text_a, config.text_b, config.label)
    sets = {
        name: labelled_texts.read(path, *columns, needs_labels=name != "test")
        for name, path in task_files.paths_by_set(config, advice).items()
    }
    kinds = {
        name: "pairs of texts" if any(e.text_b for e in examples) else "single texts"
        for name, examples in sets.items()
    }
    for name, kind in kinds.items():
        if kind != kinds["train"]:
            raise UserError(
                f"{getattr(config, name)} has {kind}, but {config.train} has "
                f"{kinds['train']}; name the columns in task.text_a and task.text_b"
            )
    return sets, {}


# ---- labels


def label_names(train: Sequence[Example]) -> list[str]:
    """Return the sorted labels of the training examples, integers by value."""
    names = sorted({n for each in train for n in each.probabilities or [each.label]})
    try:
        numbers = [_number(name) for name in names]
    except ValueError:
        numbers = []
    for name, number in zip(names, numbers, strict=False):
        if not math.isfinite(number):
            where = next(
                each.where
                for each in train
                if name in (each.probabilities or [each.label])
            )
            raise UserError(
                f"{where}: the label {name!r} is not finite, and all labels are "
                "numbers; correct or remove the example"
            )
    if not all(abs(n) < _MAX_CLASS and n.is_integer() for n in numbers):
        raise UserError(
            f"the labels of the training examples are numbers: {', '.join(names[:3])}"
            f"{', ...' if names[3:] else ''}; to predict numbers, pass "
            f"--config.task.target=number; classes are words, or whole numbers below "
            f"{_MAX_CLASS}"
        )
    if len(set(numbers)) < len(numbers):
        same = [name for name in names if numbers.count(_number(name)) > 1]
        raise UserError(
            f"the training labels {', '.join(same[:20])} repeat numbers; write each "
            "number in one way"
        )
    if len(names) < 2:
        raise UserError(
            f"all training examples have the label {names[0]!r}, from "
            f"{train[0].where} on; give examples of two labels or more"
        )
    if all(map(_INTEGER.fullmatch, names)):
        names.sort(key=int)
    return names


def _number(label: str) -> float:
    """Return a label as a number. Python would read the class 10_20 as 1020."""
    if "_" in label:
        raise ValueError(label)
    return float(label)


def to_probabilities(examples: Sequence[Example], labels: Sequence[str]) -> np.ndarray:
    """Return the probability of each class, float32 [E, C]; 1 for a single label."""
    classes = {name: i for i, name in enumerate(labels)}
    probabilities = np.zeros((len(examples), len(labels)), np.float32)
    for row, example in zip(probabilities, examples, strict=True):
        given = example.probabilities or {example.label: 1.0}
        for name, probability in given.items():
            if name not in classes:
                known = ", ".join(map(repr, labels[:20])) + ", ..." * (len(labels) > 20)
                raise UserError(
                    f"{example.where}: unknown label {name!r}; the labels of the "
                    f"training examples are {known}"
                )
            row[classes[name]] = probability
        row /= row.sum()  # the file may round its probabilities
    return probabilities


def to_numbers(examples: Sequence[Example]) -> np.ndarray:
    """Return labels that are numbers, float32 [E]."""
    numbers = np.zeros(len(examples), np.float32)
    for i, example in enumerate(examples):
        try:
            number = _number(example.label)
        except ValueError:
            number = math.nan
        if not abs(number) < float(np.finfo(np.float32).max):
            raise UserError(
                f"{example.where}: the label {example.label!r} is not a finite number; "
                "for classes, leave task.target=class"
            )
        numbers[i] = number
    return numbers


def balanced_weights(labels: np.ndarray, num_classes: int) -> tuple[float, ...]:
    """Return weights n / (C n_c) of C classes, n_c of n examples each; 0 if n_c = 0."""
    counts = np.bincount(labels, minlength=num_classes)
    weights = len(labels) / (num_classes * np.maximum(counts, 1)) * (counts > 0)
    return tuple(weights.tolist())
