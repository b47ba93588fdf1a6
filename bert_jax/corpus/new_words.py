"""Words of a text that a vocabulary lacks, and the vocabulary with them."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence

import tokenizers

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.tokenizer import Tokenizer

# What google-research/bert left room with: its vocabularies have about a thousand.
_UNUSED = re.compile(r"\[unused\d+\]")


@dataclasses.dataclass(frozen=True)
class NewWord:
    """A word that is not in a vocabulary.

    Attributes:
      word: As the tokenizer normalises it.
      count: How often the text has it.
      pieces: Ids that stand for it now.
    """

    word: str
    count: int
    pieces: tuple[int, ...]

    @property
    def saved(self) -> int:
        """Tokens that the text has fewer with it; an unknown word counts as two."""
        return self.count * max(1, len(self.pieces) - 1)


def find(tokenizer: Tokenizer, texts: Iterable[str], min_count: int) -> list[NewWord]:
    """Words that consist of several pieces or are unknown, the most useful first.

    Useful is what makes the text shorter: how often a word comes, times the tokens that
    it saves. Numbers, and what is too long for the tokenizer, are no words.

    Args:
      tokenizer: A WordPiece tokenizer.
      texts: Text to look at.
      min_count: How often a word comes, at least.

    Raises:
      UserError: The tokenizer is of another kind.
    """
    check(tokenizer)
    between_spaces: collections.Counter[str] = collections.Counter()
    for text in texts:
        between_spaces.update(text.split())
    counts: collections.Counter[str] = collections.Counter()
    pipeline = tokenizer_lib.wordpiece_pipeline(
        tokenizers.models.WordPiece(), tokenizer.lower_case, tokenizer.strip_accents
    )
    for text, count in between_spaces.items():
        normal = pipeline.normalizer.normalize_str(text)
        for word, _ in pipeline.pre_tokenizer.pre_tokenize_str(normal):
            counts[word] += count
    candidates = [
        word
        for word, count in counts.items()
        if count >= min_count
        and not word.isdigit()
        and len(word) <= tokenizer.longest_word
    ]
    known = frozenset(tokenizer.tokens)
    candidates = [word for word in candidates if word not in known]
    pieces = tokenizer.encode_batch(candidates)
    found = [
        NewWord(word, counts[word], tuple(ids))
        for word, ids in zip(candidates, pieces, strict=True)
    ]
    return sorted(found, key=lambda new: (-new.saved, new.word))


def extend(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[Tokenizer, list[int]]:
    """The tokenizer with words added, and the id of each of them.

    Words take the places of `[unused...]` tokens, then new ones at the end. All other
    tokens keep their ids. Longer words that begin with a new one may be split in
    another way than before: WordPiece takes the longest piece first.

    Args:
      tokenizer: A WordPiece tokenizer.
      words: New words, as it normalises them.

    Raises:
      UserError: The tokenizer is of another kind.
    """
    check(tokenizer)
    tokens = list(tokenizer.tokens)
    free = [i for i, token in enumerate(tokens) if _UNUSED.fullmatch(token)]
    ids = []
    for number, word in enumerate(words):
        if number < len(free):
            tokens[free[number]] = word
            ids.append(free[number])
        else:
            ids.append(len(tokens))
            tokens.append(word)
    model = "".join(f"{token}\n" for token in tokens).encode("utf-8")
    return dataclasses.replace(tokenizer, model=model), ids


def check(tokenizer: Tokenizer) -> None:
    """Check that words can be added.

    Raises:
      UserError: The tokenizer is of another kind than WordPiece.
    """
    if tokenizer.kind != "wordpiece":
        raise UserError(
            f"words can be added to a WordPiece vocabulary only, not to a "
            f"{tokenizer.kind} one"
        )
