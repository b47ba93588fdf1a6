"""Masked word prediction: the most probable words for each `[MASK]` of a text."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax import knobs, terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.model import heads, replaced_tokens
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch
from bert_jax.prediction import text_rows as rows_lib
from bert_jax.prediction.trained import Trained


@dataclasses.dataclass(frozen=True)
class Guess:
    """A word for a blank, with its probability among all tokens."""

    word: str
    probability: float


@dataclasses.dataclass(frozen=True)
class Blanks:
    """The most probable words at some positions; see `inference.Question`.

    Attributes:
      encoder: Architecture of the encoder.
      tokenizer: Tokenizer with the words.
      top: Number of words for each position.
    """

    encoder: config_lib.EncoderConfig
    tokenizer: tokenizer_lib.Tokenizer
    top: int

    encoder_path = "encoder"

    @property
    def _model(self) -> heads.PretrainingModel:
        return heads.PretrainingModel(self.encoder, sentence_head="")

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of rows with one blank; rows may have more."""
        tokens = batch_size, length
        return {
            "input_ids": jax.ShapeDtypeStruct(tokens, jnp.int32),
            "attention_mask": jax.ShapeDtypeStruct(tokens, jnp.bool_),
            "mlm_positions": jax.ShapeDtypeStruct((batch_size, 1), jnp.int32),
        }

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
    rows_lib.check_list(texts)
    tokenizer = model.tokenizer
    top = min(top, int(is_word(tokenizer).sum()))
    question = _question(model, top)
    model.check_has(
        question, "to fill blanks", "give a pretraining run with masked tokens"
    )
    if not texts:
        return []
    rows = rows_lib.pad(
        tokenizer, [_with_blanks(model, i, text) for i, text in enumerate(texts)]
    )
    blanks = [np.flatnonzero(row == tokenizer.mask_id) for row in rows["input_ids"]]
    # Rounded up to a power of two, so that few shapes are compiled.
    most = 1 << (max(map(len, blanks)) - 1).bit_length()
    positions = np.zeros((len(texts), most), np.int32)
    for i, blank in enumerate(blanks):
        positions[i, : len(blank)] = blank
    best = model.outputs(question, rows | {"mlm_positions": positions})
    words = tokenizer.texts
    return [
        [
            [
                Guess(words[token], float(probability))
                for token, probability in zip(
                    best["ids"][i, j], best["probabilities"][i, j], strict=True
                )
            ]
            for j in range(len(blank))
        ]
        for i, blank in enumerate(blanks)
    ]


def _question(model: Trained, top: int) -> Blanks:
    """Return the question for the objective that the checkpoint was pretrained with."""
    saved = model.metadata.config.get("objective")
    kind = knobs.kind_of(config_lib.ReplacedTokensConfig)
    if not isinstance(saved, dict) or saved.get("kind") != kind:
        return Blanks(model.encoder, model.tokenizer, top)
    try:
        objective = knobs.from_dict(config_lib.ReplacedTokensConfig, saved)
    except UserError as error:
        raise UserError(f"{model.source} cannot be used: {error}") from error
    generator = objective.generator(model.encoder)
    return GeneratorBlanks(model.encoder, model.tokenizer, top, generator)


def _with_blanks(model: Trained, index: int, text: str) -> list[int]:
    tokenizer = model.tokenizer
    ids = tokenizer.encode_with_blanks(text)
    if tokenizer.mask_id not in ids:
        raise rows_lib.TextError(
            index, f"there is no {tokenizer_lib.MASK} in {rows_lib.shortened(text)}"
        )
    ids = [tokenizer.cls_id, *ids, tokenizer.sep_id]
    rows_lib.check_fits(model.encoder, index, text, len(ids))
    return ids


def table(text: str, blanks: Sequence[Sequence[Guess]]) -> str:
    """Format a text and, below it, a table of guesses with a column for each blank."""
    columns = []
    for number, guesses in enumerate(blanks, 1):
        cells = [(guess.word, f"{guess.probability:.1%}") for guess in guesses]
        width = max((len(word) for word, _ in cells), default=0)
        lines = [f"{word:<{width}}  {percent:>6}" for word, percent in cells]
        title = f"blank {number}" if len(blanks) > 1 else ""
        columns.append([title, *lines] if title else lines)
    widths = [max(map(len, column), default=0) for column in columns]
    lines = [
        "    " + "    ".join(f"{c:<{w}}" for c, w in zip(cells, widths, strict=True))
        for cells in zip(*columns, strict=True)
    ]
    return "\n".join([terminal.printable(text), *(line.rstrip() for line in lines)])
