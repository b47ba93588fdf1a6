"""Text to token ids and back: WordPiece and SentencePiece behind one interface.

On disk, a tokenizer is a folder with `tokenizer.json` (kind and normalisation) and with
`vocab.txt` (WordPiece: one token per line, the format of the original) or `spm.model`.
Checkpoints carry it as one JSON text (`dumps`, `loads`).

Special tokens are only made from ids. Text that contains the characters `[MASK]` is
tokenised like any other text.
"""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Sequence

import numpy as np

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.tokenizer import files, models
from bert_jax.tokenizer.files import is_unfinished
from bert_jax.tokenizer.models import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    Encoding,
)
from bert_jax.tokenizer.sentence_piece import SentencePiece, normalise
from bert_jax.tokenizer.wordpiece import LONGEST_WORD, WordPiece, wordpiece_pipeline

__all__ = [
    "CLS",
    "KINDS",
    "MASK",
    "PAD",
    "SEP",
    "SPECIAL_TOKENS",
    "UNK",
    "Encoding",
    "Tokenizer",
    "from_vocab_file",
    "is_unfinished",
    "normalise",
    "wordpiece_pipeline",
]

KINDS = tuple(files.MODEL_FILES)


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A vocabulary, and the normalisation of text before it is looked up.

    Attributes:
      kind: "wordpiece" (paper, 3: normalise, split at spaces and punctuation, then
        longest match first) or "sentencepiece" (unigram pieces of raw text).
      lower_case: Whether text is converted to lower case.
      strip_accents: Whether combining marks are removed after decomposition. The
        original ties this to `lower_case`, which breaks languages in which accents
        carry meaning; here it is a setting of its own.
      model: Content of `vocab.txt` or `spm.model`.
      longest_word: Characters of a word, at most, for WordPiece; a longer one becomes
        [UNK]. It is 200 in the original and 100 in `transformers`.

    Raises:
      UserError: A field has a wrong value, the model is damaged, or a special token is
        missing.
    """

    kind: str
    lower_case: bool
    strip_accents: bool
    model: bytes = dataclasses.field(repr=False)
    longest_word: int = LONGEST_WORD

    def __post_init__(self):
        files.check_kind(self.kind)
        if type(self.longest_word) is not int or self.longest_word < 1:
            raise UserError(f"longest_word is {self.longest_word!r}, not at least 1")
        for name in ("lower_case", "strip_accents"):
            if type(getattr(self, name)) is not bool:
                raise UserError(f"{name} is {getattr(self, name)!r}, not true or false")
        try:
            tokens = self.tokens
        except (UnicodeDecodeError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{files.MODEL_FILES[self.kind]} is damaged: {reason}"
            ) from error
        if "" in tokens:
            line = tokens.index("") + 1
            raise UserError(f"vocabulary, line {line}: no token on this line")
        missing = [t for t in SPECIAL_TOKENS if t not in self._ids]
        if missing:
            raise UserError(f"the vocabulary has no {', '.join(missing)}")

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

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text. Padding is omitted, other special tokens are shown."""
        return self._model.decode([i for i in ids if i != self.pad_id])

    # ---- the vocabulary

    @property
    def tokens(self) -> list[str]:
        """Token of each id."""
        return self._model.tokens

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @property
    def continues_word(self) -> np.ndarray:
        """bool[vocab_size]: whether a token continues the word of the token before.

        A word is a token and all that follow and continue it. In WordPiece, tokens with
        `##` continue, and `[UNK]` stands for a whole word. In SentencePiece, all tokens
        continue but control symbols and those that begin with `▁`, as words do; `[UNK]`
        stands for characters inside a word and continues it.
        """
        return self._model.continues_word

    @property
    def pad_id(self) -> int:
        return self._ids[PAD]

    @property
    def unk_id(self) -> int:
        return self._ids[UNK]

    @property
    def cls_id(self) -> int:
        return self._ids[CLS]

    @property
    def sep_id(self) -> int:
        return self._ids[SEP]

    @property
    def mask_id(self) -> int:
        return self._ids[MASK]

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return models.first_ids(self.tokens)

    @functools.cached_property
    def _model(self) -> models.Model:
        settings = self.model, self.lower_case, self.strip_accents
        if self.kind == "wordpiece":
            return WordPiece(*settings, self.longest_word)
        return SentencePiece(*settings)

    # ---- identity, disk, checkpoints

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of everything that determines the ids of a text."""
        values = [self.kind, self.lower_case, self.strip_accents]
        if self.longest_word != LONGEST_WORD:
            values.append(self.longest_word)
        settings = json.dumps(values)
        return hashlib.sha256(settings.encode() + b"\0" + self.model).hexdigest()[:16]

    def dumps(self) -> str:
        """The tokenizer as one JSON text."""
        return files.to_text(self._settings(), self.model)

    @classmethod
    def loads(cls, text: str) -> "Tokenizer":
        """The inverse of `dumps`.

        Raises:
          UserError: The text is damaged.
        """
        return files.from_text(text, cls._from_settings)

    def save(self, folder: str | os.PathLike) -> None:
        """Write the tokenizer's files, and create the folder if needed.

        Raises:
          UserError: The folder cannot be written.
          Unavailable: A store does not answer now.
        """
        files.write(folder, self._settings(), self.model)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "Tokenizer":
        """Read what `save` wrote.

        Raises:
          UserError: The folder holds no tokenizer, or a damaged one.
          Unavailable: A store does not answer now.
        """
        return files.read(folder, cls._from_settings)

    @classmethod
    def _from_settings(cls, settings: files.Settings, model: bytes) -> "Tokenizer":
        """Check settings and model against each other.

        Raises:
          UserError, ValueError: They are damaged, or do not belong together.
        """
        *fields, _ = files.SETTINGS
        files.check_kind(settings.get("kind"))
        missing = [name for name in fields if name not in settings]
        if missing:
            raise ValueError(f"{missing[0]} is missing")
        longest = settings.get("longest_word", LONGEST_WORD)
        tokenizer = cls(*(settings[name] for name in fields), model, longest)
        # Older versions did not save the fingerprint.
        if settings.get("fingerprint", tokenizer.fingerprint) != tokenizer.fingerprint:
            raise ValueError("settings or model have changed since they were saved")
        return tokenizer

    def _settings(self) -> files.Settings:
        values = {name: getattr(self, name) for name in files.SETTINGS}
        if self.longest_word != LONGEST_WORD:
            values["longest_word"] = self.longest_word
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
