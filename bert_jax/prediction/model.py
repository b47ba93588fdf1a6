"""A trained model, with a method for each kind of prediction."""

from bert_jax.interop import checkpoints
from bert_jax.prediction import (
    answering,
    choosing,
    classifying,
    embedding,
    features,
    filling,
    minimal_pairs,
    next_sentence,
    tagging,
)
from bert_jax.prediction.trained_model import TrainedModel


class Model(TrainedModel):
    """A trained model on one device.

    Each method needs a checkpoint of the right kind and raises `UserError` otherwise.
    Texts are given as a list; a pair of texts is a tuple.
    """

    fill = filling.fill
    next_probability = next_sentence.next_probability
    classify = classifying.classify
    answer = answering.answer
    tag = tagging.tag
    choose = choosing.choose
    embed = embedding.embed
    features = features.extract
    score_pairs = minimal_pairs.score_pairs


def load(path: str) -> Model:
    """Load a trained model.

    The path is a workdir, a checkpoint in it, or the folder of a published model
    (docs/interop.md).
    """
    source = checkpoints.find(path)
    return Model(str(source), checkpoints.read_metadata(source))
