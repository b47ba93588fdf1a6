"""SentencePiece: unigram pieces of raw text, as ALBERT and XLNet use them."""

import functools
import unicodedata
from collections.abc import Sequence

import numpy as np
import sentencepiece

from bert_jax.tokenizer import models


class SentencePiece:
    """The model of an `spm.model`; see `models.Model`."""

    special_tokens = models.SPECIAL_TOKENS

    def __init__(self, model: bytes, lower_case: bool, strip_accents: bool):
        """See `Tokenizer`.

        Raises:
          RuntimeError: The model is damaged.
        """
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._lower_case = lower_case
        self._strip_accents = strip_accents

    @functools.cached_property
    def tokens(self) -> list[str]:
        model = self._processor
        return [model.id_to_piece(i) for i in range(model.get_piece_size())]

    @functools.cached_property
    def texts(self) -> list[str]:
        return [token.removeprefix("▁") for token in self.tokens]

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        model = self._processor
        return np.array(
            [
                not token.startswith("▁")
                and not model.is_control(i)
                and (token not in models.SPECIAL_TOKENS or model.is_unknown(i))
                for i, token in enumerate(self.tokens)
            ]
        )

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._processor.encode([self._normalise(t) for t in texts])

    def encode_with_offsets(self, texts: Sequence[str]) -> list[models.Encoding]:
        return [self._pieces_with_offsets(text) for text in texts]

    def encode_parts(self, parts: Sequence[str]) -> list[list[int]]:
        return self.encode_batch(parts)

    def decode(self, ids: Sequence[int]) -> str:
        pieces = [self.texts[i] for i in ids]
        return models.join_words(pieces, [self.continues_word[i] for i in ids])

    def _pieces_with_offsets(self, text: str) -> models.Encoding:
        # SentencePiece counts the bytes of what it is given, which is not the text but
        # its normal form; both are traced to the characters of the text.
        normal = [self._normalise(character) for character in text]
        given = self._normalise(text)
        if len(given) != sum(map(len, normal)):
            raise ValueError(
                f"the normal form of {text!r} is not that of its characters"
            )
        origin = [i for i, part in enumerate(normal) for _ in part] + [len(text)]
        of_byte = [i for i, c in enumerate(given) for _ in c.encode("utf-8")]
        of_byte.append(len(given))
        proto = self._processor.encode(given, return_type="proto")
        ids, offsets = [], []
        for piece in proto.pieces:
            begin, end = origin[of_byte[piece.begin]], origin[of_byte[piece.end]]
            if piece.end > piece.begin:  # a part of a character is all of it
                end = max(end, origin[of_byte[piece.end - 1]] + 1)
            while begin < end and text[begin].isspace():
                begin += 1
            ids.append(piece.id)
            offsets.append((begin, end))
        return models.Encoding(ids, offsets)

    def _normalise(self, text: str) -> str:
        return normalise(text, self._lower_case, self._strip_accents)


def normalise(text: str, lower_case: bool, strip_accents: bool) -> str:
    """Normalise text for SentencePiece, which then applies NFKC."""
    if lower_case:
        text = text.lower()
    if strip_accents:
        decomposed = unicodedata.normalize("NFD", text)
        text = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
    return text
