"""Classification and regression of texts or pairs with a fine-tuned model."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.objectives import classification, regression
from bert_jax.prediction import text_inputs
from bert_jax.prediction.trained_model import BATCH_SIZE, TrainedModel
from bert_jax.tasks import token_rows


@dataclasses.dataclass(frozen=True)
class ClassPrediction:
    """Class of a text or pair.

    Attributes:
      label: The most probable label.
      probabilities: Probability of each label.
      truncated: Whether the text was longer than `task.length`.
    """

    label: str
    probabilities: dict[str, float]
    truncated: bool


@dataclasses.dataclass(frozen=True)
class NumberPrediction:
    """Number that a regression model predicts for a text or pair.

    Attributes:
      number: The number.
      truncated: See `ClassPrediction`.
    """

    number: float
    truncated: bool


def classify(
    model: TrainedModel, texts: Sequence[text_inputs.Text]
) -> list[ClassPrediction] | list[NumberPrediction]:
    """Classify texts or pairs.

    A model that was fine-tuned to predict numbers returns a number for each.

    Raises:
      TextError: A text is invalid, or single where the model was fine-tuned on pairs,
        or the reverse.
    """
    from scipy import special  # slow to import

    config, settings = model.task(config_lib.ClassificationConfig)
    labels = settings.get("labels")
    if not labels and not config.predicts_numbers:  # saved by an old version
        raise UserError(f"{model.source} has no class names; use another run")
    objective = (
        regression.Regression(model.encoder)
        if config.predicts_numbers
        else classification.Classification(model.encoder, len(labels))
    )
    pairs = text_inputs.to_pairs(texts)
    if "pairs" in settings:  # older runs did not save it
        _check_pairs(texts, settings["pairs"])
    engine = model.engine(objective)
    rows, truncated = token_rows.to_rows(
        pairs, model.tokenizer, config.length, engine.bucket
    )
    outputs = engine.outputs(rows, BATCH_SIZE)
    if config.predicts_numbers:
        numbers = outputs["predictions"].tolist()
        return list(map(NumberPrediction, numbers, truncated.tolist()))
    predictions = []
    probabilities = special.softmax(outputs["logits"].astype(np.float64), axis=-1)
    for row, lost in zip(probabilities.tolist(), truncated.tolist(), strict=True):
        by_label = dict(zip(labels, row, strict=True))
        label = max(by_label, key=by_label.get)
        predictions.append(ClassPrediction(label, by_label, lost))
    return predictions


def _check_pairs(texts: Sequence[text_inputs.Text], expected: bool) -> None:
    """Check that all texts are pairs, or that none is. A second text may be empty."""
    wanted, remedy = ("pairs", "two texts") if expected else ("single texts", "one")
    for index, text in enumerate(texts):
        is_pair = not isinstance(text, str)
        is_right = is_pair if expected else not (is_pair and text[1])
        if not is_right:
            given = "a pair" if is_pair else "a single text"
            raise text_inputs.TextError(
                index,
                f"{text_inputs.shortened(text)} is {given}, but the model was "
                f"fine-tuned on {wanted}; give {remedy}",
            )
