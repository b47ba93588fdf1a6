"""Predictions of a fine-tuned model for the lines of a file."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.prediction import text_files, text_inputs
from bert_jax.prediction.model import Model

# Examples whose rows are in memory at once.
_WINDOW = 1024
# Fields of a question, by the kind of task.
_FIELDS = {"squad": ("question", "context"), "choice": ("question", "choices")}


def predict(
    model: Model,
    name: str,
    text_a: str = "",
    text_b: str = "",
    null_threshold: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the prediction for each example of a file, as JSON.

    Args:
      model: Fine-tuned model.
      name: File of texts, as `text_files.read_texts` reads it. The file has JSON lines
        with questions if the model answers or chooses.
      text_a: Column of a TSV file that has the texts; "": each line is a text.
      text_b: Column with the second texts, for a classifier of pairs.
      null_threshold: Threshold for a model that answers, as for `Model.answer`.

    Raises:
      UserError: The model was not fine-tuned, or the file or an example is invalid.
    """
    kind = model.metadata.config.get("task", {}).get("kind")
    if kind not in config_lib.FINETUNE_COMMANDS:
        raise UserError(
            f"{model.source} has no task to predict for: {model.description()}; give a "
            "workdir of a fine-tuning run"
        )
    if (text_a or text_b) and kind in _FIELDS:
        given = "text_a" if text_a else "text_b"
        raise UserError(f"{given} does not apply to {kind}, which reads JSON lines")
    if text_b and kind != "classification":
        raise UserError(f"text_b does not apply to {kind}, which reads single texts")
    if null_threshold is not None and kind != "squad":
        raise UserError(f"null_threshold does not apply to {kind}")
    if kind not in _FIELDS:
        text_files.check_suffix(name, text_a)
    compute: Callable[[list], Iterable] = {
        "classification": model.classify,
        "tagging": model.tag,
        "embedding": model.embed,
        "squad": lambda asked: model.answer(*zip(*asked, strict=True), null_threshold),
        "choice": lambda asked: model.choose(*zip(*asked, strict=True)),
    }[kind]
    examples = _examples(kind, name, text_a, text_b)
    while window := list(itertools.islice(examples, _WINDOW)):
        try:
            predictions = compute([example for _, example in window])
        except text_inputs.TextError as error:
            raise UserError(f"{window[error.index][0]}: {error}") from error
        yield from map(_to_json, predictions)


def _examples(
    kind: str, name: str, text_a: str, text_b: str
) -> Iterator[tuple[str, Any]]:
    """Yield each example after its place, such as "a.txt, line 3"."""
    if kind in _FIELDS:
        for where, asked in text_files.read_objects(name):
            if missing := [f for f in _FIELDS[kind] if f not in asked]:
                raise UserError(f"{where}: the field {missing[0]!r} is missing")
            if kind == "choice" and not isinstance(asked["choices"], list):
                raise UserError(f"{where}: 'choices' must be a list of texts")
            yield where, tuple(asked[field] for field in _FIELDS[kind])
    elif text_a or kind == "classification":
        yield from text_files.read_texts(name, text_a, text_b)
    else:
        yield from text_files.read_lines(name)


def _to_json(prediction: Any) -> dict[str, Any]:
    if isinstance(prediction, np.ndarray):
        return {"vector": prediction.astype(np.float64).round(6).tolist()}
    return dataclasses.asdict(prediction)
