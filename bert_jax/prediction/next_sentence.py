"""Next sentence prediction (BERT paper, 3.1)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model import heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch
from bert_jax.prediction import text_inputs
from bert_jax.prediction.trained_model import TrainedModel
from bert_jax.tasks import token_rows


@dataclasses.dataclass(frozen=True)
class NextSentence(text_inputs.TextComputation):
    """Probability that segment B follows segment A."""

    @property
    def _model(self) -> heads.PretrainingModel:
        return heads.PretrainingModel(self.encoder, sentence_head="nsp_head")

    def init(self, key: jax.Array) -> Any:
        return heads.init(self._model, key, jnp.zeros((1, 1), jnp.int32))

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return probabilities [B]."""
        # XLA drops the logits of this token, because nothing uses them.
        no_blanks = jnp.zeros((len(batch["input_ids"]), 1), jnp.int32)
        logits = self._model.apply({"params": params}, Inputs.of(batch), no_blanks)
        # Class 0 is "follows", see `data/segment_pairs.py`.
        return {"probability": jax.nn.softmax(logits.sentence)[:, 0]}


def next_probability(model: TrainedModel, first: str, second: str) -> float:
    """Return the probability that the second text follows the first."""
    text_inputs.check_texts([first, second])
    engine = model.engine(
        NextSentence(model.encoder),
        "for next sentences",
        "give a pretraining run with objective.segments='next_sentence'",
    )
    counts = list(map(len, model.tokenizer.encode_batch([first, second])))
    for text, count in zip((first, second), counts, strict=True):
        if not count:
            raise text_inputs.TextError(
                0, f"{text_inputs.shortened(text)} has no tokens"
            )
    length = sum(counts) + 2 + len(model.tokenizer.pair_separators)
    text_inputs.check_fits(model.encoder, 0, f"{first} {second}", length)
    rows, _ = token_rows.to_rows([(first, second)], model.tokenizer, length)
    return float(engine.outputs(rows, 1)["probability"][0])
