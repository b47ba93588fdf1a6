"""WordPiece: longest match first inside words (paper, 3)."""

import functools
import itertools
import re
from collections.abc import Sequence

import numpy as np
import tokenizers

from bert_jax.tokenizer import models

# Google's: google-research/bert, tokenization.py. It is saved only if it is another.
LONGEST_WORD = 200
_MAX_KNOWN_WORDS = 500_000
# Characters that are white space for `str.split`, but that BERT's normaliser removes.
_ODD_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85\u2028\u2029]")


class WordPiece:
    """The model of a `vocab.txt`; see `models.Model`."""

    special_tokens = models.SPECIAL_TOKENS

    def __init__(
        self, model: bytes, lower_case: bool, strip_accents: bool, longest_word: int
    ):
        """See `Tokenizer`."""
        self._model = model
        self._lower_case = lower_case
        self._strip_accents = strip_accents
        self._longest_word = longest_word
        self._known_words: dict[str, list[int]] = {}

    @functools.cached_property
    def tokens(self) -> list[str]:
        # Not `splitlines`: it also splits at characters that tokens may hold.
        return self._model.decode("utf-8").removesuffix("\n").split("\n")

    @functools.cached_property
    def texts(self) -> list[str]:
        return [token.removeprefix("##") for token in self.tokens]

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        return np.array([token.startswith("##") for token in self.tokens])

    @functools.cached_property
    def pipeline(self) -> tokenizers.Tokenizer:
        """All of it, without a cache of words."""
        model = tokenizers.models.WordPiece(
            models.first_ids(self.tokens),
            unk_token=models.UNK,
            max_input_chars_per_word=self._longest_word,
        )
        return wordpiece_pipeline(model, self._lower_case, self._strip_accents)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts, with a cache of words, which makes it five times as fast.

        WordPiece never looks across white space. What stands between two spaces can
        therefore be looked up, and only new words go through the pipeline.
        """
        words = [[text] if _ODD_SPACE.search(text) else text.split() for text in texts]
        known = self._known_words
        unknown = list(set().union(*words) - known.keys())
        if len(known) + len(unknown) > _MAX_KNOWN_WORDS:
            known.clear()
            unknown = list(set().union(*words))
        encodings = self.pipeline.encode_batch_fast(unknown, add_special_tokens=False)
        known.update(zip(unknown, (e.ids for e in encodings), strict=True))
        return [
            list(itertools.chain.from_iterable(map(known.__getitem__, w)))
            for w in words
        ]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[models.Encoding]:
        encoded = self.pipeline.encode_batch(texts, add_special_tokens=False)
        return [models.Encoding(list(e.ids), list(e.offsets)) for e in encoded]

    def encode_parts(self, parts: Sequence[str]) -> list[list[int]]:
        return self.encode_batch(parts)

    def decode(self, ids: Sequence[int]) -> str:
        pieces = [self.texts[i] for i in ids]
        return models.join_words(pieces, [self.continues_word[i] for i in ids])


def wordpiece_pipeline(
    model: tokenizers.models.WordPiece, lower_case: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    """A WordPiece model behind BERT's normaliser and its split into words."""
    pipeline = tokenizers.Tokenizer(model)
    pipeline.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=lower_case, strip_accents=strip_accents
    )
    pipeline.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return pipeline
