"""Masked word prediction: the most probable words for each `[MASK]` of a text."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax import terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.model import heads, replaced_tokens
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch
from bert_jax.prediction import text_rows as rows_lib
from bert_jax.prediction.trained import BATCH_SIZE, Trained
from bert_jax.tasks import texts as texts_lib


@dataclasses.dataclass(frozen=True)
class Guess:
    """A word for a blank, with its probability among all tokens."""

    word: str
    probability: float


@dataclasses.dataclass(frozen=True)
class Blanks(rows_lib.TextQuestion):
    """The most probable words at some positions.

    Attributes:
      tokenizer: Tokenizer with the words.
      top: Number of words for each position.
    """

    tokenizer: tokenizer_lib.Tokenizer
    top: int

    @property
    def _model(self) -> heads.PretrainingModel:
        return heads.PretrainingModel(self.encoder, sentence_head="")

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of rows with one blank; rows may have more."""
        blanks = jax.ShapeDtypeStruct((batch_size, 1), jnp.int32)
        return super().batch_shapes(batch_size, length) | {"mlm_positions": blanks}

    def init(self, key: jax.Array) -> Any:
        """Return initial parameters, boxed with the names of their dimensions."""
        return heads.init(self._model, key, jnp.zeros((1, 1), jnp.int32))

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return ids and probabilities [B, P, top], the best word first."""
        probabilities = jax.nn.softmax(self._logits(params, batch))
        words = np.zeros(probabilities.shape[-1], bool)
        words[: self.tokenizer.vocab_size] = is_word(self.tokenizer)
        # On ties, the smaller id comes first.
        best, ids = jax.lax.top_k(jnp.where(words, probabilities, -1.0), self.top)
        return {"ids": ids, "probabilities": best}

    def _logits(self, params: Any, batch: Batch) -> jax.Array:
        """Return the logits of all tokens at the blanks: [B, P, V]."""
        inputs, positions = Inputs.of(batch), batch["mlm_positions"]
        return self._model.apply({"params": params}, inputs, positions).mlm


@dataclasses.dataclass(frozen=True)
class GeneratorBlanks(Blanks):
    """The most probable words according to the generator of an ELECTRA checkpoint.

    Attributes:
      generator: Architecture of the generator; `encoder` is the discriminator.
    """

    generator: config_lib.EncoderConfig

    @property
    def _model(self) -> replaced_tokens.ReplacedTokensModel:
        return replaced_tokens.ReplacedTokensModel(self.encoder, self.generator)

    def init(self, key: jax.Array) -> Any:
        """Return initial parameters of the generator and of the shared embeddings."""
        ids = jnp.zeros((1, 1), jnp.int32)
        made = self._model.init(key, Inputs(ids, ids == 0), ids, method="generate")
        return made["params"]

    def _logits(self, params: Any, batch: Batch) -> jax.Array:
        inputs, positions = Inputs.of(batch), batch["mlm_positions"]
        return self._model.apply(
            {"params": params}, inputs, positions, method="generate"
        )


def is_word(tokenizer: tokenizer_lib.Tokenizer) -> np.ndarray:
    """Return bool [vocab_size]: True for tokens that are whole words of letters."""
    are_letters = [text.isalpha() for text in tokenizer.texts]
    return np.array(are_letters) & ~tokenizer.continues_word


def fill(model: Trained, texts: Sequence[str], top: int = 5) -> list[list[list[Guess]]]:
    """Predict the most probable words for each `[MASK]` of each text.

    Only words that are one token of the vocabulary are predicted, not word pieces or
    punctuation. The vocabulary's own mask token, such as RoBERTa's `<mask>`, marks a
    blank too.

    Args:
      model: Model that was pretrained with masked tokens.
      texts: Texts with at least one blank each.
      top: Number of guesses for each blank.

    Returns:
      For each text, for each blank, guesses, the best first.

    Raises:
      TextError: A text has no blank or is too long.
    """
    rows_lib.check_texts(texts)
    tokenizer = model.tokenizer
    top = min(top, int(is_word(tokenizer).sum()))
    question = Blanks(model.encoder, tokenizer, top)
    if objective := model.saved_config("objective", config_lib.ReplacedTokensConfig):
        generator = objective.generator(model.encoder)
        question = GeneratorBlanks(model.encoder, tokenizer, top, generator)
    engine = model.engine(
        question, "to fill blanks", "give a pretraining run with masked tokens"
    )
    encoded = [_encode(model, i, text) for i, text in enumerate(texts)]
    length = 2 + max(map(len, encoded), default=0)
    rows, _ = texts_lib.join_pairs(encoded, [None] * len(texts), tokenizer, length)
    is_blank = rows["input_ids"] == tokenizer.mask_id  # [R, L]
    # Rounded up to a power of two, so that few shapes are compiled.
    most = 1 << (int(is_blank.sum(axis=1).max(initial=1)) - 1).bit_length()
    blanks = [np.flatnonzero(row).tolist() for row in is_blank]
    positions, _ = texts_lib.pad(blanks, most, 0)  # [R, P]
    best = engine.outputs(rows | {"mlm_positions": positions}, BATCH_SIZE)
    words = tokenizer.texts
    return [
        [
            [Guess(words[token], float(p)) for token, p in zip(*guesses, strict=True)]
            for guesses in zip(ids[: len(blank)], probabilities, strict=False)
        ]
        for blank, ids, probabilities in zip(
            blanks, best["ids"], best["probabilities"], strict=True
        )
    ]


def _encode(model: Trained, index: int, text: str) -> list[int]:
    """Encode a text with blanks that fits the model."""
    ids = model.tokenizer.encode_with_blanks(text)
    if model.tokenizer.mask_id not in ids:
        raise rows_lib.TextError(
            index, f"there is no {tokenizer_lib.MASK} in {rows_lib.shortened(text)}"
        )
    rows_lib.check_fits(model.encoder, index, text, 2 + len(ids))
    return ids


def table(text: str, blanks: Sequence[Sequence[Guess]]) -> str:
    """Format a text and, below it, a table of guesses with a column for each blank."""
    columns = []
    for number, guesses in enumerate(blanks, 1):
        wide = max((len(guess.word) for guess in guesses), default=0)
        cells = [f"{g.word:<{wide}}  {g.probability:6.1%}" for g in guesses]
        if len(blanks) > 1:
            cells.insert(0, f"blank {number}")
        width = max(map(len, cells), default=0)
        columns.append([f"    {cell:<{width}}" for cell in cells])
    lines = ("".join(cells).rstrip() for cells in zip(*columns, strict=True))
    return "\n".join([terminal.printable(text), *lines])
