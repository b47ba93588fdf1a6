"""Texts of single tokens, and how a vocabulary marks the beginnings of words."""

import functools
import json
import re
from typing import Any

import tokenizers

BYTE_SPACE, METASPACE = "Ġ", "▁"
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class TokenTexts:
    """Texts of the tokens of a pipeline.

    Attributes:
      tokens: Token of each id; "" where the vocabulary has none.
      added: Tokens that the pipeline finds before its model sees a text.
      space_marker: Character that stands for the space before a word, at the beginning
        of a token; "" if tokens do not include the space.
      continuation: Prefix of tokens that continue a word, such as `##`; "": none.
      word_suffix: Suffix of tokens that end a word, such as `</w>`; "": none.
    """

    def __init__(self, pipeline: tokenizers.Tokenizer):
        values = json.loads(pipeline.to_str())
        ids = pipeline.get_vocab()
        self.tokens = [""] * (max(ids.values()) + 1)
        for token, i in ids.items():
            self.tokens[i] = token
        added = pipeline.get_added_tokens_decoder().values()
        self.added = frozenset(token.content for token in added)
        self.space_marker = _space_marker(values)
        self.continuation = values["model"].get("continuing_subword_prefix") or ""
        self.word_suffix = values["model"].get("end_of_word_suffix") or ""
        self._has_bytes = values["model"].get("byte_fallback", False)

    def bytes_of(self, token: str) -> bytes:
        """Return the UTF-8 text of a token, without markers.

        The bytes of one token may be a part of a character.
        """
        if token in self.added:
            return token.encode()
        if self.space_marker == BYTE_SPACE:
            known = _byte_of_character()
            content = bytes(known[c] for c in token if c in known)
            return content.removeprefix(b" ")
        if self._has_bytes and (match := _BYTE.fullmatch(token)):
            return bytes.fromhex(match[1])
        if self.space_marker:
            token = token.removeprefix(METASPACE).replace(METASPACE, " ")
        token = token.removeprefix(self.continuation)
        return token.removesuffix(self.word_suffix).encode()

    def continues_word(self, token: str, unk: str) -> bool:
        """Return whether a token continues the word of the token before.

        Where tokens include spaces, unknown text is a part of a word.
        """
        if self.space_marker:
            is_begin = token.startswith(self.space_marker) or token in self.added
            return token == unk or not is_begin
        return bool(self.continuation) and token.startswith(self.continuation)


def parts(values: Any) -> list[dict[str, Any]]:
    """Return all steps in a part of a pipeline, whose steps may be nested."""
    if isinstance(values, list):
        return [step for value in values for step in parts(value)]
    if not isinstance(values, dict):
        return []
    inner = [step for value in values.values() for step in parts(value)]
    return [values, *inner] if "type" in values else inner


def _space_marker(values: dict[str, Any]) -> str:
    kinds = {step["type"] for step in parts(values["pre_tokenizer"])}
    if "ByteLevel" in kinds:
        return BYTE_SPACE
    replaced = [step.get("content") for step in parts(values["normalizer"])]
    return METASPACE if "Metaspace" in kinds or METASPACE in replaced else ""


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """Return the byte that each character of a byte-level token stands for."""
    # A printable byte stands for itself. Other bytes stand for characters from 256 on.
    characters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    printable = [ord(c) for c in characters if ord(c) < 256]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return dict(zip(characters, [*printable, *others], strict=True))
