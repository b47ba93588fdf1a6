"""Byte-level BPE: pairs of bytes joined in the order of a list, as in RoBERTa.

Text is split into words, numbers and other signs, each with the space before it; their
bytes are joined, pair by pair, in the order in which pairs were learnt. No character is
unknown, and ids give the text back exactly. In `vocab.json` and `merges.txt` each byte
is written as a character that can be seen: a space is `Ġ`.

The special tokens are RoBERTa's, wherever the vocabulary has them. No text gives the id
of one: each has letters beside other signs, and these are never joined.

Source: Radford et al. 2019 (GPT-2), 2.2, and encoder.py of openai/gpt-2; Liu et al.
2019 (RoBERTa), 4.4.
"""

import functools
import json
from collections.abc import Mapping, Sequence

import numpy as np
import tokenizers

from bert_jax.errors import UserError
from bert_jax.tokenizer import models

SPECIAL_TOKENS = models.SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")
# Distinct words whose ids are kept; the library's default is a tenth of it.
_KNOWN_WORDS = 100_000
_FIRST_LINE = "#version: 0.2"

Merges = Sequence[tuple[str, str]]


class ByteBpe:
    """The model of a `vocab.json` and a `merges.txt`; see `models.Model`."""

    special_tokens = SPECIAL_TOKENS

    def __init__(self, model: bytes, add_prefix_space: bool):
        """See `Tokenizer`.

        Raises:
          UserError: The model is damaged.
        """
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

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        begin = {*SPECIAL_TOKENS} - {SPECIAL_TOKENS.unk}
        return np.array([not t.startswith("Ġ") and t not in begin for t in self.tokens])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode(texts, [self._needs_space(text) for text in texts])

    def encode_with_offsets(self, texts: Sequence[str]) -> list[models.Encoding]:
        added = [self._needs_space(text) for text in texts]
        encoded = self._pipeline.encode_batch(_with_spaces(texts, added))
        encodings = []
        for text, shift, encoding in zip(texts, added, encoded, strict=True):
            offsets = []
            for begin, end in encoding.offsets:
                # The space before a word is part of its first token, but not of the
                # word.
                begin, end = max(0, begin - shift), end - shift
                while begin < end and text[begin].isspace():
                    begin += 1
                offsets.append((begin, end))
            encodings.append(models.Encoding(encoding.ids, offsets))
        return encodings

    def encode_parts(self, parts: Sequence[str]) -> list[list[int]]:
        # The space before a blank belongs to what fills it, as to any word.
        parts = [*(part.rstrip() for part in parts[:-1]), *parts[-1:]]
        first = self._needs_space(parts[0])
        return self._encode(parts, [first, *[False] * (len(parts) - 1)])

    def decode(self, ids: Sequence[int]) -> str:
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
    """A BPE model behind GPT-2's split into words."""
    result = tokenizers.Tokenizer(model)
    result.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return result


def _with_spaces(texts: Sequence[str], added: Sequence[bool]) -> list[str]:
    return [" " * add + text for text, add in zip(texts, added, strict=True)]


# ---- the two files


def content(ids: Mapping[str, int], merges: Merges) -> bytes:
    """Both files, one after the other; `vocab.json` is the first line.

    Args:
      ids: Id of each token.
      merges: Pairs of tokens that are joined, the first ones first.
    """
    by_id = dict(sorted(ids.items(), key=lambda item: item[1]))
    lines = [_FIRST_LINE, *(" ".join(pair) for pair in merges)]
    text = json.dumps(by_id, ensure_ascii=False) + "\n" + "\n".join(lines) + "\n"
    return text.encode("utf-8")


def parse(vocabulary: bytes, merges: bytes) -> tuple[dict[str, int], Merges]:
    """The inverse of `content`, of any such files.

    Args:
      vocabulary: Content of `vocab.json`.
      merges: Content of `merges.txt`.

    Returns:
      Id of each token, in their order; and the pairs.

    Raises:
      UserError: A file is damaged, or they do not belong together.
    """
    ids = _vocabulary(vocabulary)
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
            raise UserError(f"merges.txt, line {number}: {line!r} is no pair of tokens")
        missing = [token for token in (*pair, "".join(pair)) if token not in ids]
        if missing:
            raise UserError(
                f"merges.txt, line {number}: {missing[0]!r} is not in vocab.json"
            )
        pairs.append(pair)
    return ids, pairs


def _vocabulary(text: bytes) -> dict[str, int]:
    try:
        ids = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"vocab.json is damaged: {error}") from error
    if not isinstance(ids, dict) or {type(i) for i in ids.values()} - {int}:
        raise UserError("vocab.json is damaged: no JSON object of tokens and ids")
    try:
        "".join(ids).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"vocab.json is damaged: {error}") from error
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(
            f"vocab.json is damaged: the ids are not 0 to {len(ids) - 1}, each once"
        )
    return dict(sorted(ids.items(), key=lambda item: item[1]))
