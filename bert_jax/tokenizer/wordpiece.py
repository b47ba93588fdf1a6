"""WordPiece tokenizer: longest match first inside words (BERT paper, section 3)."""

import functools
import itertools
import re
from collections.abc import Sequence

import numpy as np
import tokenizers

from bert_jax.tokenizer import base

# Default of google-research/bert, tokenization.py. Other values are saved.
LONGEST_WORD = 200
_MAX_KNOWN_WORDS = 500_000
# Characters that `str.split` splits at, but that BERT's normaliser removes.
_ODD_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85\u2028\u2029]")


class WordPiece(base.Model):
    """Model of a `vocab.txt`."""

    def __init__(
        self, model: bytes, lower_case: bool, strip_accents: bool, longest_word: int
    ):
        self._model = model
        self._lower_case = lower_case
        self._strip_accents = strip_accents
        self._longest_word = longest_word
        self._known_words: dict[str, list[int]] = {}

    @functools.cached_property
    def tokens(self) -> list[str]:
        # Not `splitlines`, which also splits at characters that tokens may contain.
        return self._model.decode("utf-8").removesuffix("\n").split("\n")

    @functools.cached_property
    def texts(self) -> list[str]:
        return [token.removeprefix("##") for token in self.tokens]

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        return np.array([token.startswith("##") for token in self.tokens])

    @functools.cached_property
    def pipeline(self) -> tokenizers.Tokenizer:
        """Complete pipeline, without the cache of words."""
        model = tokenizers.models.WordPiece(
            base.first_ids(self.tokens),
            unk_token=base.UNK,
            max_input_chars_per_word=self._longest_word,
        )
        return wordpiece_pipeline(model, self._lower_case, self._strip_accents)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts with a cache of words, which is five times as fast.

        WordPiece never looks across white space. Words between two spaces can therefore
        be cached, and only new words go through the pipeline.
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

    def encode_with_offsets(self, texts: Sequence[str]) -> list[base.Encoding]:
        encoded = self.pipeline.encode_batch(texts, add_special_tokens=False)
        return [base.Encoding(list(e.ids), list(e.offsets)) for e in encoded]


def wordpiece_pipeline(
    model: tokenizers.models.WordPiece, lower_case: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    """Return a pipeline of BERT's normaliser, its split into words, and a model."""
    pipeline = tokenizers.Tokenizer(model)
    pipeline.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=lower_case, strip_accents=strip_accents
    )
    pipeline.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return pipeline
