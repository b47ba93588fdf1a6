"""Text to token ids and back: three kinds of tokenizers behind one interface.

On disk, a tokenizer is a folder with `tokenizer.json` (kind and normalisation) and with
`vocab.txt` (WordPiece: one token per line, the format of the original), `spm.model`
(SentencePiece), or `vocab.json` and `merges.txt` (byte-level BPE, as RoBERTa's).
Checkpoints carry it as one JSON text (`dumps`, `loads`).

Special tokens are only made from ids. Text that contains the characters `[MASK]` is
tokenised like any other text.
"""

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence

import numpy as np

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.tokenizer import byte_bpe, models, saved
from bert_jax.tokenizer.models import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    Encoding,
    SpecialTokens,
)
from bert_jax.tokenizer.saved import is_published_bpe, is_unfinished
from bert_jax.tokenizer.sentence_piece import SentencePiece, normalise
from bert_jax.tokenizer.wordpiece import LONGEST_WORD, WordPiece, wordpiece_pipeline

__all__ = [
    "BLANKS",
    "CLS",
    "KINDS",
    "MASK",
    "PAD",
    "SEP",
    "SPECIAL_TOKENS",
    "UNK",
    "Encoding",
    "SpecialTokens",
    "Tokenizer",
    "from_published_bpe",
    "from_vocab_file",
    "is_published_bpe",
    "is_unfinished",
    "normalise",
    "wordpiece_pipeline",
]

KINDS = tuple(saved.MODEL_FILES)
# What may stand for a blank in a text that `encode_with_blanks` is given: BERT's text
# for every tokenizer, and the text of its own mask token.
BLANKS = (MASK, byte_bpe.SPECIAL_TOKENS.mask)


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A vocabulary, and the normalisation of text before it is looked up.

    Attributes:
      kind: "wordpiece" (paper, 3: normalise, split at spaces and punctuation, then
        longest match first), "sentencepiece" (unigram pieces of raw text) or "byte_bpe"
        (pairs of bytes joined, as GPT-2 and RoBERTa do; nothing is normalised).
      lower_case: Whether text is converted to lower case.
      strip_accents: Whether combining marks are removed after decomposition. The
        original ties this to `lower_case`, which breaks languages in which accents
        carry meaning; here it is a setting of its own.
      model: Content of `vocab.txt` or `spm.model`; or of `vocab.json`, in one line,
        followed by that of `merges.txt`.
      longest_word: Characters of a word, at most, for WordPiece; a longer one becomes
        [UNK]. It is 200 in the original and 100 in `transformers`.
      add_prefix_space: For byte-level BPE: whether a text that does not begin with
        white space is treated as if a space stood before it, so that its first word has
        the ids that it has elsewhere. RoBERTa was trained without.

    Raises:
      UserError: A field has a wrong value, the model is damaged, or a special token is
        missing.
    """

    kind: str
    lower_case: bool
    strip_accents: bool
    model: bytes = dataclasses.field(repr=False)
    longest_word: int = LONGEST_WORD
    add_prefix_space: bool = False

    def __post_init__(self):
        saved.check_kind(self.kind)
        self._check_settings()
        try:
            tokens = self.tokens
        except (UnicodeDecodeError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            name = " or ".join(saved.MODEL_FILES[self.kind])
            raise UserError(f"{name} is damaged: {reason}") from error
        if "" in tokens:
            line = tokens.index("") + 1
            raise UserError(f"vocabulary, line {line}: no token on this line")
        missing = [t for t in self.special_tokens if t not in self._ids]
        if missing:
            raise UserError(f"the vocabulary has no {', '.join(missing)}")

    def _check_settings(self):
        if type(self.longest_word) is not int or self.longest_word < 1:
            raise UserError(f"longest_word is {self.longest_word!r}, not at least 1")
        switches = "lower_case", "strip_accents", "add_prefix_space"
        for name in switches:
            if type(getattr(self, name)) is not bool:
                raise UserError(f"{name} is {getattr(self, name)!r}, not true or false")
        is_bpe = self.kind == "byte_bpe"
        for name in switches[:2] if is_bpe else switches[2:]:
            if getattr(self, name):
                raise UserError(f"{name} is true, which {self.kind} does not know")

    # ---- text and ids

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens around it."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each of many texts; several times faster than `encode` for each."""
        return self._model.encode_batch(texts)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Encoding]:
        """Ids of each of many texts, and which characters each of them is from.

        The ids are those of `encode_batch`, which is several times faster.
        """
        return self._model.encode_with_offsets(texts)

    def encode_with_blanks(self, text: str) -> list[int]:
        """Ids of a text in which `[MASK]` stands for a blank, which gets `mask_id`.

        The text of the vocabulary's own mask token, such as `<mask>`, does so, too. In
        all other methods both are text.
        """
        blanks = dict.fromkeys((MASK, self.special_tokens.mask))
        parts = re.split("|".join(map(re.escape, blanks)), text)
        first, *others = self._model.encode_parts(parts)
        return first + [i for part in others for i in (self.mask_id, *part)]

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text. Padding is omitted, other special tokens are shown.

        Byte-level BPE gives the text itself, to the last character; what are no
        characters of UTF-8 is shown as U+FFFD. With `add_prefix_space` a space at the
        beginning is lost.
        """
        return self._model.decode([i for i in ids if i != self.pad_id])

    # ---- the vocabulary

    @property
    def tokens(self) -> list[str]:
        """Token of each id."""
        return self._model.tokens

    @property
    def texts(self) -> list[str]:
        """What each token stands for, without what marks or separates words."""
        return self._model.texts

    @property
    def special_tokens(self) -> SpecialTokens:
        """What the special tokens are called in the vocabulary."""
        return self._model.special_tokens

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @property
    def continues_word(self) -> np.ndarray:
        """bool[vocab_size]: whether a token continues the word of the token before.

        A word is a token and all that follow and continue it. In WordPiece, tokens with
        `##` continue, and `[UNK]` stands for a whole word. In SentencePiece, all tokens
        continue but control symbols and those that begin with `▁`, as words do; `[UNK]`
        stands for characters inside a word and continues it. In byte-level BPE, as in
        fairseq, all continue but special tokens and those that begin with a space, `Ġ`;
        `<unk>` stands for a byte and continues.
        """
        return self._model.continues_word

    @property
    def pad_id(self) -> int:
        return self._ids[self.special_tokens.pad]

    @property
    def unk_id(self) -> int:
        return self._ids[self.special_tokens.unk]

    @property
    def cls_id(self) -> int:
        return self._ids[self.special_tokens.cls]

    @property
    def sep_id(self) -> int:
        return self._ids[self.special_tokens.sep]

    @property
    def mask_id(self) -> int:
        return self._ids[self.special_tokens.mask]

    @property
    def pair_separators(self) -> list[int]:
        """Ids between the two texts of a pair: one [SEP], or the two of RoBERTa.

        Source: facebookresearch/fairseq, models/roberta/hub_interface.py, encode.
        """
        return [self.sep_id] * (2 if self.kind == "byte_bpe" else 1)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return models.first_ids(self.tokens)

    @functools.cached_property
    def _model(self) -> models.Model:
        if self.kind == "byte_bpe":
            return byte_bpe.ByteBpe(self.model, self.add_prefix_space)
        settings = self.model, self.lower_case, self.strip_accents
        if self.kind == "wordpiece":
            return WordPiece(*settings, self.longest_word)
        return SentencePiece(*settings)

    # ---- identity, disk, checkpoints

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of everything that determines the ids of a text."""
        values = [self.kind, self.lower_case, self.strip_accents]
        values += self._optional_settings().values()
        settings = json.dumps(values)
        return hashlib.sha256(settings.encode() + b"\0" + self.model).hexdigest()[:16]

    def dumps(self) -> str:
        """The tokenizer as one JSON text."""
        return saved.to_text(self._settings(), self.model)

    @classmethod
    def loads(cls, text: str) -> "Tokenizer":
        """The inverse of `dumps`.

        Raises:
          UserError: The text is damaged.
        """
        return saved.from_text(text, cls._from_settings)

    def save(self, folder: str | os.PathLike) -> None:
        """Write the tokenizer's files, and create the folder if needed.

        Raises:
          UserError: The folder cannot be written.
          Unavailable: A store does not answer now.
        """
        saved.write(folder, self._settings(), self.model)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "Tokenizer":
        """Read what `save` wrote.

        Raises:
          UserError: The folder holds no tokenizer, or a damaged one.
          Unavailable: A store does not answer now.
        """
        return saved.read(folder, cls._from_settings)

    @classmethod
    def _from_settings(cls, settings: saved.Settings, model: bytes) -> "Tokenizer":
        """Check settings and model against each other.

        Raises:
          UserError, ValueError: They are damaged, or do not belong together.
        """
        *fields, _ = saved.SETTINGS
        saved.check_kind(settings.get("kind"))
        missing = [name for name in fields if name not in settings]
        if missing:
            raise ValueError(f"{missing[0]} is missing")
        tokenizer = cls(
            *(settings[name] for name in fields),
            model,
            settings.get("longest_word", LONGEST_WORD),
            settings.get("add_prefix_space", False),
        )
        # Older versions did not save the fingerprint.
        if settings.get("fingerprint", tokenizer.fingerprint) != tokenizer.fingerprint:
            raise ValueError("settings or model have changed since they were saved")
        return tokenizer

    def _settings(self) -> saved.Settings:
        values = {name: getattr(self, name) for name in saved.SETTINGS}
        return values | self._optional_settings()

    def _optional_settings(self) -> saved.Settings:
        """Settings that most tokenizers do not have."""
        values: saved.Settings = {}
        if self.longest_word != LONGEST_WORD:
            values["longest_word"] = self.longest_word
        if self.add_prefix_space:
            values["add_prefix_space"] = True
        return values

    def __getstate__(self):
        # The model behind the cached property cannot be pickled.
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


def from_vocab_file(
    path: str | os.PathLike, lower_case: bool, strip_accents: bool
) -> Tokenizer:
    """A WordPiece tokenizer from an existing `vocab.txt`, with one token per line.

    Args:
      path: Path or URL of the file.
      lower_case: See `Tokenizer`.
      strip_accents: See `Tokenizer`.

    Raises:
      UserError: The file cannot be read, is not UTF-8, or lacks a special token.
      Unavailable: A store does not answer now.
    """
    try:
        text = storage.path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise storage.failure(error)(
            f"cannot read the vocabulary {path}: {error}"
        ) from error
    model = (text.rstrip("\n") + "\n").encode("utf-8")
    try:
        return Tokenizer("wordpiece", lower_case, strip_accents, model)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def from_published_bpe(folder: str | os.PathLike) -> Tokenizer:
    """A byte-level BPE tokenizer from a `vocab.json` and a `merges.txt`.

    Args:
      folder: Path or URL of the folder, as of a published RoBERTa.

    Raises:
      UserError: A file cannot be read or is damaged, or a special token is missing.
      Unavailable: A store does not answer now.
    """
    try:
        vocabulary, merges, add_prefix_space = saved.read_published_bpe(
            storage.path(folder)
        )
        model = byte_bpe.content(*byte_bpe.parse(vocabulary, merges))
        return Tokenizer(
            "byte_bpe", False, False, model, add_prefix_space=add_prefix_space
        )
    except OSError as error:
        raise storage.failure(error)(
            f"cannot read the vocabulary in {folder}: {error}"
        ) from error
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
