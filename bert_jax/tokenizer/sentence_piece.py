"""SentencePiece tokenizer: unigram pieces of raw text, as ALBERT and XLNet use."""

import functools
import unicodedata
from collections.abc import Sequence

import numpy as np
import sentencepiece

from bert_jax.tokenizer import base


class SentencePiece(base.Model):
    """Model of an `spm.model`. A damaged one raises a RuntimeError."""

    def __init__(self, model: bytes, lower_case: bool, strip_accents: bool):
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
                and (token not in base.SPECIAL_TOKENS or model.is_unknown(i))
                for i, token in enumerate(self.tokens)
            ]
        )

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._processor.encode([self._normalise(t) for t in texts])

    def encode_with_offsets(self, texts: Sequence[str]) -> list[base.Encoding]:
        return [self._pieces_with_offsets(text) for text in texts]

    def _pieces_with_offsets(self, text: str) -> base.Encoding:
        # SentencePiece counts bytes of the normalised text. Map a byte to a normalised
        # character, and that to a character of the text.
        by_character = [self._normalise(character) for character in text]
        normalised = self._normalise(text)
        if len(normalised) != sum(map(len, by_character)):
            raise ValueError(f"normalising {text!r} joins or splits characters")
        original = [i for i, part in enumerate(by_character) for _ in part]
        origin = [
            i
            for i, c in zip(original, normalised, strict=True)
            for _ in c.encode("utf-8")
        ]
        origin.append(len(text))
        proto = self._processor.encode(normalised, return_type="proto")
        ids, offsets = [], []
        for piece in proto.pieces:
            begin, end = origin[piece.begin], origin[piece.end]
            if piece.end > piece.begin:  # a part of a character counts as all of it
                end = max(end, origin[piece.end - 1] + 1)
            while begin < end and text[begin].isspace():
                begin += 1
            ids.append(piece.id)
            offsets.append((begin, end))
        return base.Encoding(ids, offsets)

    def _normalise(self, text: str) -> str:
        return normalise(text, self._lower_case, self._strip_accents)


def normalise(text: str, lower_case: bool, strip_accents: bool) -> str:
    """Normalise text before SentencePiece, which itself applies NFKC."""
    if lower_case:
        text = text.lower()
    if strip_accents:
        decomposed = unicodedata.normalize("NFD", text)
        text = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
    return text
