"""What the kinds of tokenizers have in common."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np


class SpecialTokens(NamedTuple):
    """The text of each special token in a vocabulary, by what it is for."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


SPECIAL_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS


@dataclasses.dataclass(frozen=True)
class Encoding:
    """The tokens of a text.

    Attributes:
      ids: Id of each token.
      offsets: Where the characters of each token begin and end in the text; a token may
        have none, and several may be of one character.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]


class Model(Protocol):
    """What `Tokenizer` asks of the model of a kind; it documents the methods.

    Attributes:
      special_tokens: Those of the vocabulary.
      tokens: Token of each id.
      texts: What each token stands for in a text, without what marks or separates
        words.
      continues_word: bool[vocab_size]; see `Tokenizer`.
    """

    special_tokens: SpecialTokens

    @property
    def tokens(self) -> list[str]: ...

    @property
    def texts(self) -> list[str]: ...

    @property
    def continues_word(self) -> np.ndarray: ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Encoding]: ...

    def encode_parts(self, parts: Sequence[str]) -> list[list[int]]:
        """Ids of the parts of a text that stand between blanks."""

    def decode(self, ids: Sequence[int]) -> str: ...


def first_ids(tokens: Sequence[str]) -> dict[str, int]:
    """Id of each token, the smallest where several are alike."""
    ids: dict[str, int] = {}
    for i, token in enumerate(tokens):
        ids.setdefault(token, i)
    return ids


def join_words(pieces: Sequence[str], continues: Sequence[bool]) -> str:
    """Words with spaces between them.

    Args:
      pieces: Text of each token.
      continues: Whether each token continues the word before it.
    """
    words: list[str] = []
    for piece, same in zip(pieces, continues, strict=True):
        if words and same:
            words[-1] += piece
        else:
            words.append(piece)
    return " ".join(filter(None, words))  # a lone `▁` gives an empty word
