"""Classes or numbers for texts and for pairs of texts.

The examples are those of a task of GLUE (`glue.py`, `glue_tfds.py`) or of one's own
files (`text_files.py`).
"""

import math
from collections.abc import Sequence

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
    task_files,
    text_files,
    texts,
)
from bert_jax.tasks.texts import Example


class Classification:
    """The task of some files, for one tokenizer; see `tasks.Task`."""

    def __init__(
        self,
        config: config_lib.ClassificationConfig,
        tokenizer: tokenizer_lib.Tokenizer,
    ):
        """Read the files.

        Raises:
          UserError: A file is not given or cannot be used.
        """
        self._config = config
        self._glue = config.name.removeprefix("glue/")
        sets = _read(config)
        self._labels = self._label_names(sets.train)
        self._metrics = self._metric_names()
        self._scored = tuple(sets.labelled)
        self.length = config.length
        made, truncated = {}, {}
        labelled = {"train": sets.train, **sets.labelled}
        for name, examples in (labelled | sets.unlabelled).items():
            pairs = [(example.text_a, example.text_b) for example in examples]
            rows, is_truncated = texts.to_rows(pairs, tokenizer, self.length)
            truncated[name] = int(is_truncated.sum())
            made[name] = rows | self._labels_of(examples, name in labelled)
        self.train = made.pop("train")
        self.held_out = made
        self.settings = {"labels": self._labels}
        self.fingerprint = task_files.fingerprint(sets.train, *sets.labelled.values())
        self.description = {
            "examples": len(sets.labelled["eval"]),
            "train_examples": len(sets.train),
            "labels": self._labels,
            "truncated": truncated,
            **sets.about,
        }

    def objective(self, encoder: config_lib.EncoderConfig) -> TaskObjective:
        """A classifier of as many classes as there are labels, or one number."""
        weights = (
            balanced_weights(self.train["labels"], len(self._labels))
            if self._config.class_weights == "balanced"
            else ()
        )
        return make_objective(self._config, encoder, len(self._labels), weights)

    def decode(self, outputs: dict[str, Arrays]) -> dict[str, np.ndarray]:
        """A class or a number for each example."""
        if self._config.predicts_numbers:
            return {name: of_set["predictions"] for name, of_set in outputs.items()}
        return {name: of_set["logits"].argmax(-1) for name, of_set in outputs.items()}

    def scores(self, predictions: dict[str, np.ndarray]) -> dict[str, float]:
        """GLUE's metrics of a task of GLUE; of others, those that suit any.

        Those of other sets than "eval" have its name in front.
        """
        scores = {}
        for name in self._scored:
            labels = self.held_out[name]["labels"]
            values = (
                classification_scores.of_numbers(predictions[name], labels)
                if self._config.predicts_numbers
                else classification_scores.of_classes(
                    predictions[name], labels, len(self._labels)
                )
            )
            prefix = "" if name == "eval" else f"{name}_"
            scores |= {prefix + metric: values[metric] for metric in self._metrics}
        return scores

    def write(self, folder: storage.Path, predictions: dict[str, np.ndarray]) -> None:
        """Write predictions.tsv, those of other sets, and confusion.png.

        Those for GLUE's tests have the names and the form that are submitted.
        """
        for name, predicted in predictions.items():
            words = self._words(predicted)
            file = "predictions.tsv" if name == "eval" else f"{name}_predictions.tsv"
            if self._glue and name not in self._scored:
                file = glue.submission(self._glue, name)
                if self._config.predicts_numbers:
                    words = [f"{value:.3f}" for value in np.clip(predicted, 0, 5)]
            write_predictions(folder / file, words)
        if not self._config.predicts_numbers:
            confusion.draw(
                folder / "confusion.png",
                predictions["eval"],
                self.held_out["eval"]["labels"],
                self._labels,
            )

    def _label_names(self, train: Sequence[Example]) -> list[str]:
        if self._config.predicts_numbers:
            return []
        if self._glue:
            return list(glue.TASKS[self._glue].labels)
        return label_names(train)

    def _metric_names(self) -> tuple[str, ...]:
        if self._glue:
            return glue.TASKS[self._glue].metrics
        if self._config.predicts_numbers:
            return ("pearson", "spearman")
        return ("accuracy", "macro_f1", "matthews")

    def _labels_of(self, examples: Sequence[Example], labelled: bool) -> Arrays:
        """Labels and weights of a set."""
        if not labelled:
            return _no_labels(len(examples), self._config.predicts_numbers)
        labels = (
            to_numbers(examples)
            if self._config.predicts_numbers
            else to_classes(examples, self._labels)
        )
        return {"labels": labels, "weights": np.ones(len(examples), np.float32)}

    def _words(self, predicted: np.ndarray) -> list[str]:
        if self._config.predicts_numbers:
            return [str(value) for value in predicted]  # all digits of a float32
        return [self._labels[c] for c in predicted]


def _read(config: config_lib.ClassificationConfig) -> texts.ExampleSets:
    """The examples, wherever they are."""
    if not config.name:
        return text_files.read_all(config)
    name = config.name.removeprefix("glue/")
    if config.folder.startswith(glue_tfds.PREFIX):
        return glue_tfds.read(name, config.folder.removeprefix(glue_tfds.PREFIX))
    return glue.read(name, config.folder)


def make_objective(
    config: config_lib.ClassificationConfig,
    encoder: config_lib.EncoderConfig,
    num_classes: int,
    class_weights: tuple[float, ...] = (),
) -> TaskObjective:
    """What the model says of a text: logits of classes, or a number.

    Args:
      config: Config of the task.
      encoder: Shape of the encoder.
      num_classes: Number of classes, if it is classes that are predicted.
      class_weights: Their weights in the loss, which predictions do not depend on.
    """
    if config.predicts_numbers:
        return regression.Regression(encoder)
    return classification.Classification(
        encoder, num_classes, class_weights, config.label_smoothing
    )


def new_rows(
    pairs: Sequence[tuple[str, str]],
    tokenizer: tokenizer_lib.Tokenizer,
    config: config_lib.ClassificationConfig,
) -> tuple[Arrays, np.ndarray]:
    """Rows for texts without labels, to predict for.

    Args:
      pairs: Texts; the second of each is "" where there is one text.
      tokenizer: Tokenizer of the encoder.
      config: Config of the task that the model was fine-tuned for.

    Returns:
      Arrays that fit the objective of the task, with labels and weights of 0; and which
      texts lost tokens, bool [R].
    """
    rows, truncated = texts.to_rows(pairs, tokenizer, config.length)
    return rows | _no_labels(len(pairs), config.predicts_numbers), truncated


def _no_labels(count: int, are_numbers: bool) -> Arrays:
    return {
        "labels": np.zeros(count, np.float32 if are_numbers else np.int32),
        "weights": np.zeros(count, np.float32),
    }


# ---- labels

# Whole numbers from here on are taken to be quantities.
_MAX_CLASS = 1000


def _are_quantities(names: Sequence[str]) -> bool:
    """Whether labels are numbers to predict, and not names of classes."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return False
    return not all(abs(n) < _MAX_CLASS and math.floor(n) == n for n in numbers)


def label_names(train: Sequence[Example]) -> list[str]:
    """The labels of the training examples, sorted; each label's index is its class.

    Raises:
      UserError: There is only one, or they are numbers to predict.
    """
    names = sorted({example.label for example in train})
    if _are_quantities(names):
        raise UserError(
            f"the labels of the training examples are numbers: {', '.join(names[:3])}"
            f"{', ...' if names[3:] else ''}; to predict numbers, pass "
            f"--config.task.target=number; classes are words, or whole numbers below "
            f"{_MAX_CLASS}"
        )
    if len(names) < 2:
        raise UserError(f"all training examples have the label {names[0]!r}")
    return names


def to_classes(examples: Sequence[Example], labels: Sequence[str]) -> np.ndarray:
    """Classes of examples, int32 [E].

    Raises:
      UserError: An example has a label that is not among these.
    """
    classes = {name: i for i, name in enumerate(labels)}
    for example in examples:
        if example.label not in classes:
            known = ", ".join(map(repr, labels[:20])) + ", ..." * (len(labels) > 20)
            raise UserError(
                f"{example.where}: the label {example.label!r} is not among those to "
                f"learn, which are {known}"
            )
    return np.array([classes[example.label] for example in examples], np.int32)


def to_numbers(examples: Sequence[Example]) -> np.ndarray:
    """Labels that are numbers, float32 [E].

    Raises:
      UserError: A label is no number.
    """
    numbers = np.zeros(len(examples), np.float32)
    for i, example in enumerate(examples):
        try:
            number = float(example.label)
        except ValueError:
            number = math.nan
        if not abs(number) < float(np.finfo(np.float32).max):
            raise UserError(
                f"{example.where}: the label {example.label!r} is no finite number; "
                "for classes, leave task.target=class"
            )
        numbers[i] = number
    return numbers


def balanced_weights(labels: np.ndarray, num_classes: int) -> tuple[float, ...]:
    """Weights n / (C n_c) of classes with n_c of n examples; 0 for one without."""
    counts = np.bincount(labels, minlength=num_classes)
    weights = len(labels) / (num_classes * np.maximum(counts, 1)) * (counts > 0)
    return tuple(weights.tolist())


def write_predictions(path: storage.Path, words: Sequence[str]) -> None:
    """Write GLUE's format: `index`, `prediction`."""
    rows = [f"{i}\t{word}\n" for i, word in enumerate(words)]
    with storage.writing(path.parent):
        storage.write_text(path, "index\tprediction\n" + "".join(rows))
