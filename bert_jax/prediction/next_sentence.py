"""Next sentence prediction (BERT paper, 3.1)."""

import dataclasses
from typing import Any

import jax
import numpy as np

from bert_jax.model import heads
from bert_jax.objectives import Batch
from bert_jax.prediction import text_inputs
from bert_jax.prediction.trained_model import TrainedModel
from bert_jax.tasks import token_rows


@dataclasses.dataclass(frozen=True)
class NextSentence(text_inputs.TextComputation):
    """Probability that segment B follows segment A."""

    model_arguments = ("mlm_positions",)

    @property
    def model(self) -> heads.PretrainingModel:
        return heads.PretrainingModel(self.encoder, sentence_head="nsp_head")

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return probabilities [B]."""
        # Class 0 is "follows", see `data/segment_pairs.py`.
        logits = self.apply(params, batch).sentence
        return {"probability": jax.nn.softmax(logits)[:, 0]}


def next_probability(model: TrainedModel, first: str, second: str) -> float:
    """Return the probability that the second text follows the first."""
    text_inputs.check_texts([first, second])
    engine = model.engine(
        NextSentence(model.encoder),
        "for next sentences",
        "give a pretraining run with objective.segments='next_sentence'",
    )
    encoded = model.tokenizer.encode_batch([first, second])
    for index, (text, ids) in enumerate(zip((first, second), encoded, strict=True)):
        text_inputs.check_fits(model.encoder, index, text, ids)
    joined = [*encoded[0], *model.tokenizer.pair_separators, *encoded[1]]
    text_inputs.check_fits(model.encoder, 0, f"{first} {second}", joined)
    length = engine.bucket(2 + len(joined))
    rows, _ = token_rows.join_pairs(encoded[:1], encoded[1:], model.tokenizer, length)
    # XLA drops the logits of this token, because nothing uses them.
    rows["mlm_positions"] = np.zeros((1, 1), np.int32)
    return float(engine.outputs(rows, 1)["probability"][0])
