"""Pipelines in which special tokens are plain text, and a cache of words."""

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from bert_jax.tokenizer import token_texts

# Normalisers that treat each word alike, whatever is around it.
_LOCAL = (
    *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Precompiled"),
    *("Sequence", "Strip", "StripAccents"),
)
# Words in the cache of a BPE model; ten times the library's default.
_KNOWN_WORDS = 100_000


def pipeline(values: dict[str, Any], special: Sequence[str]) -> tokenizers.Tokenizer:
    """Build a pipeline that never makes a special token from text that spells one.

    Nor does it make a token for a byte, such as `<0xE5>`.
    """
    added = [
        token | {"special": token["special"] or token["content"] in special}
        for token in values["added_tokens"]
    ]
    text = json.dumps(values | {"added_tokens": added})
    result = tokenizers.Tokenizer.from_str(text)
    result.encode_special_tokens = True
    model = values["model"]
    # Patterns of the first character and the rest of each such token.
    spelled = [(re.escape(t[0]), re.escape(t[1:])) for t in special if t]
    if model.get("byte_fallback"):
        spelled.append(("<", "0x[0-9A-F]{2}>"))
    if model["type"] == "BPE":
        result.model._resize_cache(_KNOWN_WORDS)
        # A model that learned from text with "<s>" may merge its characters.
        is_spelled = re.compile("|".join(map("".join, spelled))).fullmatch
        pairs = (p if isinstance(p, list) else p.split(" ") for p in model["merges"])
        merges_one = any(is_spelled("".join(pair)) for pair in pairs)
        if not (model.get("ignore_merges") or merges_one):
            return result
    # Other models emit every word or piece that is in the vocabulary, even a special
    # token or a byte. So the text of each is split after its first character.
    firsts = "|".join(f"{first}(?={rest})" for first, rest in spelled)
    cut = pre_tokenizers.Split(tokenizers.Regex(firsts), "merged_with_previous")
    steps = [result.pre_tokenizer, cut] if result.pre_tokenizer else [cut]
    result.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return result


def token_ids(pipeline: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts, without special tokens around them."""
    encoded = pipeline.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in encoded]


class WordCache:
    """Cache of the ids of words, which makes pipelines several times as fast.

    Most pipelines never look across a space between two words. Words can therefore be
    cached, and only new words go through the pipeline.
    """

    # Characters of all words. A sentence without spaces counts as a word.
    _MAX_CHARACTERS = 4_000_000
    # Words with one space between them. The ranges have no white space, no combining
    # marks, and no character whose normal form contains white space. So a word is
    # normalised alone as it is in its text.
    _WORD = (
        r"[!-~\u00c0-\u024f\u0391-\u03ce\u0400-\u0482\u048a-\u052f\u2010-\u2016"
        r"\u2018-\u2027\u3001-\u3029\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff"
        r"\uac00-\ud7a3]"
    )
    # Possessive, so that a long text takes no memory to go back.
    _WORDS = re.compile(f" ?{_WORD}++(?: {_WORD}++)*+")

    def __init__(self, pipeline: tokenizers.Tokenizer):
        self._pipeline = pipeline
        self._known: dict[str, list[int]] = {}
        self._characters = 0

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts, without special tokens around them."""
        split = [self._split(text) for text in texts]
        words = set().union(*filter(None, split))
        known = self._known
        # The difference of sets would visit all known words.
        unknown = [word for word in words if word not in known]
        self._characters += sum(map(len, unknown))
        if self._characters > self._MAX_CHARACTERS:
            known = self._known = {}  # other threads keep theirs
            unknown = list(words)
            self._characters = sum(map(len, unknown))
        known.update(zip(unknown, token_ids(self._pipeline, unknown), strict=True))
        others = [text for text, words in zip(texts, split, strict=True) if not words]
        encoded = iter(token_ids(self._pipeline, others))
        return [
            list(itertools.chain.from_iterable(map(known.__getitem__, words)))
            if words
            else next(encoded)
            for words in split
        ]

    def _split(self, text: str) -> list[str]:
        """Return words with the spaces before them; [] if a text needs the pipeline."""
        if not self._WORDS.fullmatch(text):
            return []
        first, *others = text.split(" ")
        words = [f" {word}" for word in others]
        return [first, *words] if first else words


def is_word_by_word(values: dict[str, Any]) -> bool:
    """Return whether a pipeline never looks across a space between two words."""
    splitter = values["pre_tokenizer"] or {}
    kind = splitter.get("type")
    # Whether words without a space before them are marked as beginnings, too.
    splits = is_marked = kind == "BertPreTokenizer"
    if kind == "ByteLevel":
        splits, is_marked = splitter["use_regex"], splitter["add_prefix_space"]
    elif kind == "Metaspace":
        splits, is_marked = splitter["split"], splitter["prepend_scheme"] == "always"
    # These are found after the whole text is normalised.
    has_normalized = any(
        token["normalized"] and not token["special"] for token in values["added_tokens"]
    )
    normalizers = token_texts.all_steps(values["normalizer"])
    strips = any(step.get("strip_left") for step in normalizers)
    return (
        splits
        and all(map(_is_local, normalizers))
        # It would remove the space before a word that is encoded alone.
        and not (strips and (has_normalized or not is_marked))
        and all(map(_is_within_words, values["added_tokens"]))
    )


def _is_local(step: dict[str, Any]) -> bool:
    """Return whether a normaliser treats each word alike, whatever is around it."""
    if step["type"] == "Replace":
        pattern, content = step["pattern"], step["content"]
        if pattern.get("Regex") in (" {2,}", r"\p{Mn}"):
            return True
        # No word may become empty, or two.
        is_word = content != "" and not any(map(str.isspace, content))
        return is_word and " " not in pattern.get("String", " ")
    return step["type"] in _LOCAL


def _is_within_words(token: dict[str, Any]) -> bool:
    """Return whether an added token is plain text, or cannot reach across a space."""
    content = token["content"]
    is_run = content.isspace() and len(content) > 1
    is_alone = " " not in content and not (token["lstrip"] or token["rstrip"])
    return token["special"] or is_run or is_alone
