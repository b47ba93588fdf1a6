"""Byte-level BPE tokenizer: pairs of bytes are merged in the order of a list.

Text is split into words, numbers and other characters, each with the space before it.
Their bytes are merged, pair by pair, in the order in which the pairs were learned. No
character is unknown, and ids give the text back exactly. In `vocab.json` and
`merges.txt`, each byte is written as a visible character: a space is `Ġ`.

The special tokens are RoBERTa's. No text gives their ids: they mix letters with other
characters, which are never merged.

Source: Radford et al. 2019 (GPT-2), 2.2, and encoder.py of openai/gpt-2; Liu et al.
2019 (RoBERTa), 4.4.
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tokenizers

from bert_jax.errors import UserError
from bert_jax.tokenizer import base

FILES = ("vocab.json", "merges.txt")
SPECIAL_TOKENS = base.SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")
# Number of words in the cache; ten times the library's default.
_KNOWN_WORDS = 100_000
_FIRST_LINE = "#version: 0.2"

Merges = Sequence[tuple[str, str]]


class ByteBpe(base.Model):
    """Model of a `vocab.json` and a `merges.txt`. Damaged files raise a UserError."""

    special_tokens = SPECIAL_TOKENS

    def __init__(self, model: bytes, add_prefix_space: bool):
        vocabulary, _, merges = model.partition(b"\n")
        self.ids, self.merges = parse(vocabulary, merges)
        self._add_prefix_space = add_prefix_space
        self._decoder = tokenizers.decoders.ByteLevel()

    @functools.cached_property
    def tokens(self) -> list[str]:
        return list(self.ids)

    @functools.cached_property
    def texts(self) -> list[str]:
        return [self._decoder.decode([t]).removeprefix(" ") for t in self.tokens]

    @property
    def token_bytes(self) -> list[bytes]:
        # A printable byte stands for itself, and the others for characters from 256 on.
        characters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        printable = [ord(c) for c in characters if ord(c) < 256]
        others = [byte for byte in range(256) if byte not in set(printable)]
        byte_of = dict(zip(characters, [*printable, *others], strict=True))
        return [bytes(byte_of.get(c, 0) for c in token) for token in self.tokens]

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        begin = {*SPECIAL_TOKENS} - {SPECIAL_TOKENS.unk}
        return np.array([not t.startswith("Ġ") and t not in begin for t in self.tokens])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode(texts, [self._needs_space(text) for text in texts])

    def encode_with_offsets(self, texts: Sequence[str]) -> list[base.Encoding]:
        added = [self._needs_space(text) for text in texts]
        encoded = self._pipeline.encode_batch(_with_spaces(texts, added))
        encodings = []
        for text, shift, encoding in zip(texts, added, encoded, strict=True):
            offsets = []
            for begin, end in encoding.offsets:
                # The space before a word is part of the token, but not of the word.
                begin, end = max(0, begin - shift), end - shift
                while begin < end and text[begin].isspace():
                    begin += 1
                offsets.append((begin, end))
            encodings.append(base.Encoding(encoding.ids, offsets))
        return encodings

    def encode_parts(self, parts: Sequence[str]) -> list[list[int]]:
        # The space before a blank belongs to the word that fills the blank.
        parts = [*(part.rstrip() for part in parts[:-1]), *parts[-1:]]
        first = self._needs_space(parts[0])
        return self._encode(parts, [first, *[False] * (len(parts) - 1)])

    def decode(self, ids: Iterable[int]) -> str:
        text = self._decoder.decode([self.tokens[i] for i in ids])
        return text.removeprefix(" ") if self._add_prefix_space else text

    def _needs_space(self, text: str) -> bool:
        return self._add_prefix_space and bool(text) and not text[0].isspace()

    def _encode(self, texts: Sequence[str], added: Sequence[bool]) -> list[list[int]]:
        encoded = self._pipeline.encode_batch_fast(_with_spaces(texts, added))
        return [e.ids for e in encoded]

    @functools.cached_property
    def _pipeline(self) -> tokenizers.Tokenizer:
        # A byte that the vocabulary lacks is unknown.
        model = tokenizers.models.BPE(
            self.ids,
            self.merges,
            unk_token=SPECIAL_TOKENS.unk,
            cache_capacity=_KNOWN_WORDS,
        )
        return pipeline(model)


def pipeline(model: tokenizers.models.BPE) -> tokenizers.Tokenizer:
    """Return a pipeline of GPT-2's split into words and a BPE model."""
    result = tokenizers.Tokenizer(model)
    result.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return result


def _with_spaces(texts: Sequence[str], added: Sequence[bool]) -> list[str]:
    return [" " * add + text for text, add in zip(texts, added, strict=True)]


# ---- the two files


def content(ids: Mapping[str, int], merges: Merges) -> bytes:
    """Concatenate both files; `vocab.json` is the first line.

    Args:
      ids: Id of each token.
      merges: Pairs of tokens to merge, in order.
    """
    by_id = dict(sorted(ids.items(), key=lambda item: item[1]))
    lines = [_FIRST_LINE, *(" ".join(pair) for pair in merges)]
    text = json.dumps(by_id, ensure_ascii=False) + "\n" + "\n".join(lines) + "\n"
    return text.encode("utf-8")


def parse(vocabulary: bytes, merges: bytes) -> tuple[dict[str, int], Merges]:
    """Parse `vocab.json` and `merges.txt`.

    Returns:
      Id of each token, in the order of ids; and the pairs of tokens to merge.

    Raises:
      UserError: A file is damaged, or the files do not belong together.
    """
    try:
        ids = json.loads(vocabulary)
        if not isinstance(ids, dict) or {type(i) for i in ids.values()} - {int}:
            raise ValueError("no JSON object of tokens and ids")
        "".join(ids).encode("utf-8")
        if sorted(ids.values()) != list(range(len(ids))):
            raise ValueError(f"the ids are not 0 to {len(ids) - 1}, each once")
    except (ValueError, RecursionError) as error:
        raise UserError(f"vocab.json is damaged: {error}") from error
    ids = dict(sorted(ids.items(), key=lambda item: item[1]))
    try:
        lines = merges.decode("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"merges.txt is damaged: {error}") from error
    pairs = []
    for number, line in enumerate(lines, 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = tuple(line.split(" "))
        if len(pair) != 2 or not all(pair):
            raise UserError(
                f"merges.txt, line {number}: {line!r} is not a pair of tokens"
            )
        missing = [token for token in (*pair, "".join(pair)) if token not in ids]
        if missing:
            raise UserError(
                f"merges.txt, line {number}: {missing[0]!r} is not in vocab.json"
            )
        pairs.append(pair)
    return ids, pairs
