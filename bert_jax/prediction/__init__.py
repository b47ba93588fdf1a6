"""Predictions of a trained model.

`load("WORKDIR").fill(["The [MASK] sat on the mat."])` fills a blank. `Model` lists the
methods for pretrained and fine-tuned checkpoints.
"""

from bert_jax.prediction.answering import AnswerPrediction
from bert_jax.prediction.choosing import ChoicePrediction
from bert_jax.prediction.classifying import ClassPrediction, NumberPrediction
from bert_jax.prediction.features import Features
from bert_jax.prediction.filling import Guess
from bert_jax.prediction.model import Model, load
from bert_jax.prediction.tagging import TagPrediction
from bert_jax.prediction.text_inputs import Text, TextError
