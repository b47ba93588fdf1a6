"""Masked word prediction: the most probable words for each `[MASK]` of a text."""

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax import terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.model import heads, replaced_tokens
from bert_jax.objectives import Batch
from bert_jax.prediction import text_inputs
from bert_jax.prediction.trained_model import BATCH_SIZE, TrainedModel
from bert_jax.tasks import token_rows
from bert_jax.tokenizer import unspaced
from bert_jax.tokenizer.special_tokens import MASK

_BATCH_BLANKS = 512  # largest number of blanks in a batch; each has logits [V]
_LIKE_A_BLANK = re.compile(r"[\[<({]\s*mask\s*[\])}>]|_{2,}", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Guess:
    """A word for a blank, with its probability among all tokens."""

    word: str
    probability: float


@dataclasses.dataclass(frozen=True)
class MaskedPositionLogits(text_inputs.TextComputation):
    """Base class of computations about the tokens at some positions.

    Attributes:
      generator: Generator of an ELECTRA checkpoint, which predicts in place of
        its discriminator, `encoder`; None for other checkpoints.
    """

    generator: config_lib.EncoderConfig | None = None

    model_arguments = ("mlm_positions",)

    @property
    def model(self) -> heads.PretrainingModel | replaced_tokens.ReplacedTokensModel:
        if self.generator is None:
            return heads.PretrainingModel(self.encoder, sentence_head="")
        return replaced_tokens.ReplacedTokensModel(self.encoder, self.generator)

    @property
    def method(self) -> str | None:
        return "generate" if self.generator else None

    def logits(self, params: Any, batch: Batch) -> jax.Array:
        """Return the logits of all tokens at the positions, [B, P, V]."""
        logits = self.apply(params, batch)
        return logits if self.generator else logits.mlm.compute()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlankFilling(MaskedPositionLogits):
    """The most probable words at some positions."""

    tokenizer: tokenizer_lib.Tokenizer
    top: int  # number of words for each position

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return ids and probabilities [B, P, top], the best word first."""
        probabilities = jax.nn.softmax(self.logits(params, batch))  # [B, P, V]
        words = np.zeros(probabilities.shape[-1], bool)
        words[: self.tokenizer.vocab_size] = is_word(self.tokenizer)
        # On ties, the smaller id comes first.
        best, ids = jax.lax.top_k(jnp.where(words, probabilities, -1.0), self.top)
        return {"ids": ids, "probabilities": best}


@functools.lru_cache(maxsize=1)
def is_word(tokenizer: tokenizer_lib.Tokenizer) -> np.ndarray:
    """Return bool [vocab_size]: True for tokens that are whole words.

    Words have letters, combining marks and digits. In a script without spaces, a piece
    that continues a word is a word, too, unless the pipeline splits the text at each
    character, as BERT's does with Han characters: then no text contains the piece.
    """
    joined = _joined_characters(tokenizer)

    def consists_of_words(token: int) -> bool:
        text = tokenizer.texts[token]
        kinds = {unicodedata.category(char)[0] for char in text}
        if not kinds & {"L", "N"} or not kinds <= set("LMN"):
            return False
        if suffix := tokenizer.word_suffix:
            return tokenizer.tokens[token].endswith(suffix)
        return not tokenizer.continues_word[token] or joined.issuperset(text)

    return np.array([consists_of_words(i) for i in range(tokenizer.vocab_size)])


def _joined_characters(tokenizer: tokenizer_lib.Tokenizer) -> set[str]:
    """Return characters of scripts without spaces that the pipeline does not split.

    They make one token, or a token that continues another. The pipeline may also drop
    them, as it does with marks of Thai if it strips accents.
    """
    all_characters = sorted(set("".join(tokenizer.texts)))
    chars = [c for c in all_characters if unspaced.begins_unspaced(c.encode())]
    encoded = tokenizer.encode_batch([2 * char for char in chars])
    return {
        char
        for char, ids in zip(chars, encoded, strict=True)
        if len(ids) == 1 or tokenizer.continues_word[ids[-1:]].any()
    }


def fill(
    model: TrainedModel, texts: Sequence[str], top: int = 5
) -> list[list[list[Guess]]]:
    """Predict the most probable words for each `[MASK]` of each text.

    Only words that are one token of the vocabulary are predicted (`is_word`), not word
    pieces or punctuation. The vocabulary's own mask token, such as RoBERTa's `<mask>`,
    marks a blank too. Return guesses for each blank of each text, the best first.

    Raises:
      TextError: A text has no blank or is too long.
      UserError: The checkpoint has no head for blanks, or `top` is invalid.
    """
    text_inputs.check_texts(texts)
    if top < 1:
        raise UserError(f"top={top} must be at least 1")
    tokenizer = model.tokenizer
    top = min(top, int(is_word(tokenizer).sum()))
    electra = model.saved_config("objective", config_lib.ReplacedTokensConfig)
    generator = electra and electra.generator(model.encoder)
    computation = BlankFilling(model.encoder, generator, tokenizer=tokenizer, top=top)
    hint = "give a pretraining run with masked tokens"
    if electra:  # a published discriminator
        hint = "give the folder of its generator"
    engine = model.engine(computation, "to fill blanks", hint)
    encoded = [_encode(model, i, text) for i, text in enumerate(texts)]
    length = engine.bucket(2 + max(map(len, encoded), default=0))
    rows, _ = token_rows.join_pairs(encoded, [None] * len(encoded), tokenizer, length)
    blanks = [np.flatnonzero(ids == tokenizer.mask_id) for ids in rows["input_ids"]]
    # Powers of two from 4 on, so that few shapes are compiled.
    sizes = np.array([max(4, 1 << (len(at) - 1).bit_length()) for at in blanks], int)
    filled: list[list[list[Guess]]] = [[]] * len(texts)
    for size in np.unique(sizes).tolist():
        chosen = np.flatnonzero(sizes == size)
        some = {name: values[chosen] for name, values in rows.items()}
        some["mlm_positions"], _ = token_rows.pad([blanks[i] for i in chosen], size, 0)
        batch_size = max(1, min(BATCH_SIZE, _BATCH_BLANKS // size))
        best = engine.outputs(some, batch_size)  # [R, P, top]
        words, probabilities = best["ids"].tolist(), best["probabilities"].tolist()
        for i, *guesses in zip(chosen, words, probabilities, strict=True):
            by_blank = [
                [Guess(tokenizer.texts[t], p) for t, p in zip(*each, strict=True)]
                for each in zip(*guesses, strict=True)
            ]
            filled[i] = by_blank[: len(blanks[i])]  # without padding
    return filled


def _encode(model: TrainedModel, index: int, text: str) -> list[int]:
    """Encode a text with blanks that fits the model."""
    ids = model.tokenizer.encode_with_blanks(text)
    if model.tokenizer.mask_id not in ids:
        similar = _LIKE_A_BLANK.search(text)
        hint = f"; write {MASK} instead of {similar[0]}" if similar else ""
        quoted = text_inputs.shortened(text)
        raise text_inputs.TextError(index, f"there is no {MASK} in {quoted}{hint}")
    text_inputs.check_fits(model.encoder, index, text, ids)
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
