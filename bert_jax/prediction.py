"""Using a trained model: load a checkpoint, and ask it.

`load("WORKDIR").fill(["The [MASK] sat on the mat."])` fills a blank.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.model import heads
from bert_jax.model.inputs import Inputs
from bert_jax.training import sharding, stored


@dataclasses.dataclass(frozen=True)
class Guess:
    """A word for a blank, and how probable the model finds it among all tokens."""

    word: str
    probability: float


@dataclasses.dataclass(frozen=True)
class Model:
    """A trained model on one device.

    Attributes:
      source: Checkpoint that it is from.
      encoder: Shape of the encoder.
      tokenizer: From text to ids.
    """

    source: str
    encoder: config_lib.EncoderConfig
    tokenizer: tokenizer_lib.Tokenizer

    def fill(self, texts: list[str], top: int = 5) -> list[list[list[Guess]]]:
        """The most probable words for each `[MASK]` of each text.

        Words that the vocabulary has as one token: pieces and punctuation are left out.
        Only here does `[MASK]` in a text mean a blank; the tokenizer takes it as text.

        Args:
          texts: Texts with at least one blank each.
          top: Number of guesses.

        Returns:
          For each text, for each blank, guesses from the best down.

        Raises:
          UserError: A text has no blank or is too long, or the model has no head for
            masked tokens.
        """
        params = self._masked_lm_params
        rows = [self._with_blanks(text) for text in texts]
        length = max(map(len, rows))
        ids = np.full((len(rows), length), self.tokenizer.pad_id, np.int32)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        blanks = [np.flatnonzero(row == self.tokenizer.mask_id) for row in ids]
        positions = np.zeros((len(rows), max(map(len, blanks))), np.int32)
        for i, blank in enumerate(blanks):
            positions[i, : len(blank)] = blank
        inputs = Inputs(ids, ids != self.tokenizer.pad_id)
        probabilities = np.asarray(self._probabilities(params, inputs, positions))
        return [
            [self._best(probabilities[i, j], top) for j in range(len(blank))]
            for i, blank in enumerate(blanks)
        ]

    def _with_blanks(self, text: str) -> list[int]:
        parts = text.split(tokenizer_lib.MASK)
        if len(parts) < 2:
            raise UserError(f"there is no {tokenizer_lib.MASK} in {text!r}")
        ids = [self.tokenizer.cls_id]
        for i, part in enumerate(self.tokenizer.encode_batch(parts)):
            ids += [self.tokenizer.mask_id] * (i > 0) + part
        ids.append(self.tokenizer.sep_id)
        if len(ids) > self.encoder.max_position_embeddings:
            raise UserError(
                f"a text has {len(ids)} tokens, the model has "
                f"{self.encoder.max_position_embeddings} positions"
            )
        return ids

    def _best(self, probabilities: np.ndarray, top: int) -> list[Guess]:
        words = [token.removeprefix("▁") for token in self.tokenizer.tokens]
        is_word = np.array([word.isalpha() for word in words])
        candidates = np.flatnonzero(is_word & ~self.tokenizer.continues_word)
        order = np.argsort(-probabilities[candidates], kind="stable")[:top]
        return [Guess(words[i], float(probabilities[i])) for i in candidates[order]]

    @functools.cached_property
    def _masked_lm_params(self) -> Any:
        ids = jnp.zeros((1, 1), jnp.int32)

        def init(key):
            return self._masked_lm.init(key, Inputs(ids, ids == 0), ids)["params"]

        mesh = sharding.make_mesh(config_lib.MeshConfig(), jax.devices()[:1])
        shapes = sharding.state_shapes(init, mesh)
        source = stored.absolute(self.source)
        loaded = stored.load_params(source, shapes)
        if loaded.new:
            raise UserError(
                f"{source} has no head to fill blanks; give a pretraining run"
            )
        return stored.merge({}, loaded)

    @property
    def _masked_lm(self) -> heads.PretrainingModel:
        return heads.PretrainingModel(self.encoder, sentence_head="")

    @functools.cached_property
    def _probabilities(self):
        def probabilities(params, inputs, positions):
            logits = self._masked_lm.apply({"params": params}, inputs, positions)
            return jax.nn.softmax(logits.mlm)

        return jax.jit(probabilities)


def load(path: str) -> Model:
    """Load a trained model.

    Args:
      path: Workdir of a run, or one checkpoint in it.

    Raises:
      UserError: There is no such checkpoint.
    """
    source = stored.find(path)
    metadata = stored.read_metadata(source)
    return Model(
        source=str(source),
        encoder=metadata.encoder,
        tokenizer=metadata.tokenizer,
    )


def describe(texts: list[str], filled: list[list[list[Guess]]]) -> str:
    """Texts and guesses for people."""
    lines = []
    for text, blanks in zip(texts, filled, strict=True):
        lines.append(text)
        for guesses in blanks:
            words = (f"{g.word} ({g.probability:.0%})" for g in guesses)
            lines.append("    " + ", ".join(words))
    return "\n".join(lines)
