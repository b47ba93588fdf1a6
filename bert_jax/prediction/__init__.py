"""Predictions of a trained model.

`load("WORKDIR").fill(["The [MASK] sat on the mat."])` fills a blank. `Model` lists the
methods for pretrained and fine-tuned checkpoints.
"""

from bert_jax.prediction.answering import Answered
from bert_jax.prediction.choosing import Chosen
from bert_jax.prediction.classifying import Classified, Measured
from bert_jax.prediction.features import Features
from bert_jax.prediction.filling import Guess
from bert_jax.prediction.model import Model, load
from bert_jax.prediction.tagging import Tagged
from bert_jax.prediction.text_rows import Text, TextError

__all__ = [
    "Answered",
    "Chosen",
    "Classified",
    "Features",
    "Guess",
    "Measured",
    "Model",
    "Tagged",
    "Text",
    "TextError",
    "load",
]
