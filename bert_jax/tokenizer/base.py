"""Types and base class that the kinds of tokenizers share."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np


class SpecialTokens(NamedTuple):
    """Texts of the special tokens in a vocabulary."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


SPECIAL_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Tokens of a text.

    Attributes:
      ids: Id of each token.
      offsets: Start and end of each token's characters in the text. A token may have no
        characters, and several tokens may share one.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]


class Model:
    """Model of one kind of tokenizer. `Tokenizer` documents its members."""

    special_tokens = SPECIAL_TOKENS
    tokens: list[str]
    texts: list[str]
    continues_word: np.ndarray

    @property
    def token_bytes(self) -> list[bytes]:
        """Text of each token in UTF-8."""
        return [text.encode("utf-8", "replace") for text in self.texts]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        raise NotImplementedError

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Encoding]:
        raise NotImplementedError

    def encode_parts(self, parts: Sequence[str]) -> list[list[int]]:
        """Encode the parts of a text that stand between blanks."""
        return self.encode_batch(parts)

    def decode(self, ids: Iterable[int]) -> str:
        """Join words with spaces."""
        words: list[str] = []
        for i in ids:
            if words and self.continues_word[i]:
                words[-1] += self.texts[i]
            else:
                words.append(self.texts[i])
        return " ".join(filter(None, words))  # a lone `▁` is an empty word


def first_ids(tokens: Sequence[str]) -> dict[str, int]:
    """Map tokens to ids, and repeated tokens to their smallest id."""
    ids: dict[str, int] = {}
    for i, token in enumerate(tokens):
        ids.setdefault(token, i)
    return ids
