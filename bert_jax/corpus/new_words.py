"""Addition of the frequent words of a text to a WordPiece vocabulary."""

import collections
import dataclasses
import json
import re
from collections.abc import Iterable, Sequence

import tokenizers

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.tokenizer import Tokenizer

# Placeholders in the vocabularies of google-research/bert, about a thousand.
_UNUSED = re.compile(r"\[unused\d+\]")


@dataclasses.dataclass(frozen=True)
class NewWord:
    """Word that is not in a vocabulary.

    Attributes:
      word: Normalised word.
      count: Number of occurrences in the text.
      pieces: Ids of its pieces in the current vocabulary.
    """

    word: str
    count: int
    pieces: tuple[int, ...]

    @property
    def saved(self) -> int:
        """Number of tokens that the word saves; an unknown word counts as two."""
        return self.count * max(1, len(self.pieces) - 1)


def find(tokenizer: Tokenizer, texts: Iterable[str], min_count: int) -> list[NewWord]:
    """Find words that consist of several pieces or are unknown, the most useful first.

    The most useful words save the most tokens: count times saved tokens per occurrence.
    Numbers and words that are too long for the tokenizer are left out.

    Raises:
      UserError: The tokenizer is not a WordPiece tokenizer.
    """
    pipeline = tokenizers.Tokenizer.from_str(tokenizer.pipeline)
    if tokenizer.model_type != "WordPiece" or not pipeline.pre_tokenizer:
        raise UserError(
            "words can be added to a WordPiece vocabulary only, and the checkpoint has "
            f"a {tokenizer.model_type} vocabulary"
        )
    between_spaces: collections.Counter[str] = collections.Counter()
    for text in texts:
        between_spaces.update(text.split())
    counts: collections.Counter[str] = collections.Counter()
    for text, count in between_spaces.items():
        normal = text
        if pipeline.normalizer:
            normal = pipeline.normalizer.normalize_str(text)
        for word, _ in pipeline.pre_tokenizer.pre_tokenize_str(normal):
            counts[word] += count
    known = frozenset(tokenizer.tokens)
    candidates = [
        word
        for word, count in counts.items()
        if count >= min_count
        and not word.isdigit()
        and len(word) <= pipeline.model.max_input_chars_per_word
        and word not in known
    ]
    pieces = tokenizer.encode_batch(candidates)
    found = [
        NewWord(word, counts[word], tuple(ids))
        for word, ids in zip(candidates, pieces, strict=True)
    ]
    return sorted(found, key=lambda new: (-new.saved, new.word))


def extend(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[Tokenizer, list[int]]:
    """Return the tokenizer with words added, and the id of each word.

    Words replace `[unused...]` tokens first, then extend the vocabulary. All other
    tokens keep their ids. Longer words that begin with a new word may be split
    differently than before: WordPiece takes the longest piece first.
    """
    tokens = list(tokenizer.tokens)
    free = [i for i, token in enumerate(tokens) if _UNUSED.fullmatch(token)]
    ids = [*free, *range(len(tokens), len(tokens) + len(words))][: len(words)]
    tokens += [""] * (len(words) - len(free))
    for i, word in zip(ids, words, strict=True):
        tokens[i] = word
    values = json.loads(tokenizer.pipeline)
    values["model"]["vocab"] = {t: i for i, t in enumerate(tokens) if t}
    return tokenizer_lib.make(values, tokenizer.settings()), ids
