"""The class of a text or of a pair of texts, from a model fine-tuned for it."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.objectives import classification
from bert_jax.prediction import rows as rows_lib
from bert_jax.prediction.trained import Trained


@dataclasses.dataclass(frozen=True)
class Classified:
    """What a model says of a text.

    Attributes:
      label: The most probable label.
      probabilities: Probability of each label.
      truncated: Whether the text was longer than those of the fine-tuning, and lost
        tokens.
    """

    label: str
    probabilities: dict[str, float]
    truncated: bool


def classify(model: Trained, texts: Sequence[rows_lib.Text]) -> list[Classified]:
    """See `Model.classify`."""
    rows_lib.check_list(texts)
    config, settings = model.task(config_lib.ClassificationConfig)
    labels = settings.get("labels")
    if not isinstance(labels, list) or not labels:
        raise UserError(f"{model.source} has no names of classes; give another run")
    if not texts:
        return []
    rows, truncated = rows_lib.pack(model.tokenizer, texts, config.length)
    objective = classification.Classification(model.encoder, len(labels))
    logits = model.outputs(objective, rows)["logits"].astype(np.float64)
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    probabilities = odds / odds.sum(axis=-1, keepdims=True)
    return [
        Classified(
            label=labels[int(row.argmax())],
            probabilities=dict(zip(labels, row.tolist(), strict=True)),
            truncated=bool(lost),
        )
        for row, lost in zip(probabilities, truncated, strict=True)
    ]
