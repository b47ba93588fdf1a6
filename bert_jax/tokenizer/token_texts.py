"""Texts of single tokens, and how a vocabulary marks the beginnings of words.

`values` is the JSON of a pipeline.
"""

import functools
import re
from collections.abc import Iterable
from typing import Any

import tokenizers

BYTE_SPACE, METASPACE = "Ġ", "▁"
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def token_bytes(tokens: Iterable[str], values: dict[str, Any]) -> list[bytes]:
    """Return the UTF-8 texts of tokens of a pipeline, without markers.

    The bytes of one token may be a part of a character.
    """
    model, marker = values["model"], space_marker(values)
    added = {token["content"] for token in values["added_tokens"]}
    prefix = model.get("continuing_subword_prefix") or ""
    suffix = model.get("end_of_word_suffix") or ""

    def bytes_of(token: str) -> bytes:
        if token in added:
            return token.encode()
        if marker == BYTE_SPACE:
            known = _byte_of_character()
            content = bytes(known[c] for c in token if c in known)
            return content.removeprefix(b" ")
        if model.get("byte_fallback") and (match := _BYTE.fullmatch(token)):
            return bytes.fromhex(match[1])
        if marker:
            token = token.removeprefix(METASPACE).replace(METASPACE, " ")
        return token.removeprefix(prefix).removesuffix(suffix).encode()

    return [bytes_of(token) for token in tokens]


def all_steps(values: Any) -> list[dict[str, Any]]:
    """Return all steps in a part of a pipeline, whose steps may be nested."""
    if isinstance(values, list):
        return [step for value in values for step in all_steps(value)]
    if not isinstance(values, dict):
        return []
    inner = [step for value in values.values() for step in all_steps(value)]
    return [values, *inner] if "type" in values else inner


def space_marker(values: dict[str, Any]) -> str:
    """Return the first character of tokens that include a space; "": none."""
    kinds = {step["type"] for step in all_steps(values["pre_tokenizer"])}
    if "ByteLevel" in kinds:
        return BYTE_SPACE
    replaced = [step.get("content") for step in all_steps(values["normalizer"])]
    return METASPACE if "Metaspace" in kinds or METASPACE in replaced else ""


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """Return the byte that each character of a byte-level token stands for."""
    # A printable byte stands for itself. Other bytes stand for characters from 256 on.
    characters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    printable = [ord(c) for c in characters if ord(c) < 256]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return dict(zip(characters, [*printable, *others], strict=True))
