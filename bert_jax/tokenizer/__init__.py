"""Tokenizers: text to token ids and back, three kinds behind one interface.

On disk, a tokenizer is a folder with `tokenizer.json` (kind and normalisation) and with
`vocab.txt` (WordPiece: one token per line, as in google-research/bert), `spm.model`
(SentencePiece), or `vocab.json` and `merges.txt` (byte-level BPE, as RoBERTa's).
Checkpoints carry it as one JSON text (`dumps`, `loads`).

Special tokens are only made from ids. Text that contains the characters `[MASK]` is
tokenised like any other text.
"""

import base64
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.tokenizer import base, byte_bpe, unspaced
from bert_jax.tokenizer.base import MASK, Encoding, SpecialTokens
from bert_jax.tokenizer.base import SPECIAL_TOKENS as SPECIAL_TOKENS
from bert_jax.tokenizer.base import UNK as UNK
from bert_jax.tokenizer.sentence_piece import SentencePiece
from bert_jax.tokenizer.wordpiece import LONGEST_WORD, WordPiece
from bert_jax.tokenizer.wordpiece import wordpiece_pipeline as wordpiece_pipeline

SETTINGS_FILE = "tokenizer.json"
_MODEL_FILES = {
    "wordpiece": ("vocab.txt",),
    "sentencepiece": ("spm.model",),
    "byte_bpe": byte_bpe.FILES,
}
KINDS = tuple(_MODEL_FILES)
# Texts of a blank for `encode_with_blanks`. [MASK] works with every tokenizer.
BLANKS = (MASK, byte_bpe.SPECIAL_TOKENS.mask)


def describe_missing_blank(text: str) -> str:
    """Describe, for a message, that a text has no blank, and how it may be written."""
    similar = re.search(r"[\[<({]\s*mask\s*[\])}>]|_{2,}", text, re.IGNORECASE)
    hint = f"; write {MASK} instead of {similar[0]}" if similar else ""
    short = text if len(text) <= 60 else f"{text[:56]} ..."
    return f"there is no {MASK} in {short!r}{hint}"


# Errors of a damaged tokenizer.
_DAMAGE = (ValueError, TypeError, KeyError, RecursionError, UserError)


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Vocabulary, and the normalisation of text before it is looked up.

    Attributes:
      kind: "wordpiece" (BERT paper, section 3: normalise, split at spaces and
        punctuation, then longest match first), "sentencepiece" (unigram pieces of raw
        text) or "byte_bpe" (merged pairs of bytes, as in GPT-2 and RoBERTa; text is not
        normalised).
      lower_case: Whether text is converted to lower case.
      strip_accents: Whether combining marks are removed after decomposition. Google's
        code ties this to `lower_case`, which breaks languages in which accents carry
        meaning.
      model: Content of `vocab.txt` or `spm.model`; or of `vocab.json`, in one line,
        followed by `merges.txt`.
      longest_word: Most characters in a word, for WordPiece; a longer word becomes
        [UNK]. It is 200 in google-research/bert and 100 in `transformers`.
      add_prefix_space: For byte-level BPE: whether to put a space before a text that
        does not begin with white space, so that its first word has the same ids as
        elsewhere. RoBERTa was trained without.

    Raises:
      UserError: A setting is invalid, the model is damaged, or a special token is
        missing.
    """

    kind: str
    lower_case: bool
    strip_accents: bool
    model: bytes = dataclasses.field(repr=False)
    longest_word: int = LONGEST_WORD
    add_prefix_space: bool = False

    def __post_init__(self):
        if self.kind not in KINDS:
            known = " or ".join(map(repr, KINDS))
            raise UserError(f"kind is {self.kind!r}, not {known}")
        for name in ("lower_case", "strip_accents", "add_prefix_space"):
            if type(getattr(self, name)) is not bool:
                raise UserError(
                    f"{name} must be true or false, got {getattr(self, name)!r}"
                )
        if type(self.longest_word) is not int or self.longest_word < 1:
            raise UserError(f"longest_word is {self.longest_word!r}, not at least 1")
        try:
            tokens = self.tokens
        except (UnicodeDecodeError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            name = " or ".join(_MODEL_FILES[self.kind])
            raise UserError(f"{name} is damaged: {reason}") from error
        if "" in tokens:
            line = tokens.index("") + 1
            raise UserError(f"vocabulary, line {line}: no token on this line")
        missing = [t for t in self.special_tokens if t not in self._ids]
        if missing:
            raise UserError(f"the vocabulary has no {', '.join(missing)}")

    # ---- text and ids

    def encode(self, text: str) -> list[int]:
        """Encode a text, without special tokens around it."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts; several times faster than `encode` for each text."""
        return self._model.encode_batch(texts)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode texts, and return the position of each token in its text.

        `encode_batch` gives the same ids, and is several times faster.
        """
        return self._model.encode_with_offsets(texts)

    def encode_with_blanks(self, text: str) -> list[int]:
        """Encode a text in which `[MASK]` marks a blank, which becomes `mask_id`.

        The text of the vocabulary's own mask token, such as `<mask>`, is a blank, too.
        In all other methods, both are plain text.
        """
        blanks = dict.fromkeys((MASK, self.special_tokens.mask))
        parts = re.split("|".join(map(re.escape, blanks)), text)
        first, *following = self._model.encode_parts(parts)
        return first + [i for part in following for i in (self.mask_id, *part)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return readable text. Padding is omitted, other special tokens are shown.

        Byte-level BPE gives the exact text. Bytes that are not UTF-8 are shown as
        U+FFFD. With `add_prefix_space`, a leading space is lost.
        """
        return self._model.decode([i for i in ids if i != self.pad_id])

    # ---- the vocabulary

    @property
    def tokens(self) -> list[str]:
        """Token of each id."""
        return self._model.tokens

    @property
    def texts(self) -> list[str]:
        """Text of each token, without markers such as `##` and without spaces."""
        return self._model.texts

    @property
    def special_tokens(self) -> SpecialTokens:
        """Texts of the special tokens in the vocabulary."""
        return self._model.special_tokens

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @property
    def continues_word(self) -> np.ndarray:
        """bool[vocab_size]: whether a token continues the word of the token before.

        A word is a token and all following tokens that continue it. In WordPiece,
        tokens with `##` continue, and `[UNK]` is a whole word. In SentencePiece, all
        tokens continue except control symbols and tokens that begin with `▁`; `[UNK]`
        is a part of a word and continues it. In byte-level BPE, as in fairseq, all
        tokens continue except special tokens and tokens that begin with a space, `Ġ`;
        `<unk>` is a byte and continues.
        """
        return self._model.continues_word

    @functools.cached_property
    def begins_word(self) -> np.ndarray:
        """bool[vocab_size]: whether a token begins a unit that is masked as a word.

        A token that continues no word does. So does each token that begins with a
        character of a script without spaces (`unspaced.py`), where a sentence would
        otherwise be one word.
        """
        is_unspaced = map(unspaced.begins_unspaced, self._model.token_bytes)
        return ~self.continues_word | np.fromiter(is_unspaced, bool)

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
        """Ids between the two texts of a pair: one [SEP], or two for byte-level BPE.

        Source: facebookresearch/fairseq, models/roberta/hub_interface.py, encode.
        """
        return [self.sep_id] * (2 if self.kind == "byte_bpe" else 1)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return base.first_ids(self.tokens)

    @functools.cached_property
    def _model(self) -> base.Model:
        if self.kind == "byte_bpe":
            return byte_bpe.ByteBpe(self.model, self.add_prefix_space)
        settings = self.model, self.lower_case, self.strip_accents
        if self.kind == "wordpiece":
            return WordPiece(*settings, self.longest_word)
        return SentencePiece(*settings)

    # ---- identity, disk, checkpoints

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of everything that determines the ids of a text."""
        values = [self.kind, self.lower_case, self.strip_accents]
        if self.longest_word != LONGEST_WORD:
            values.append(self.longest_word)
        if self.add_prefix_space:
            values.append(True)
        settings = json.dumps(values)
        return hashlib.sha256(settings.encode() + b"\0" + self.model).hexdigest()[:16]

    def dumps(self) -> str:
        """Return the tokenizer as one JSON text."""
        encoded = base64.b64encode(self.model).decode("ascii")
        return json.dumps(self._settings() | {"model": encoded})

    @classmethod
    def loads(cls, text: str) -> "Tokenizer":
        """Read the result of `dumps`."""
        try:
            settings = json.loads(text)
            model = base64.b64decode(settings["model"], validate=True)
            return cls._from_settings(settings, model)
        except _DAMAGE as error:
            raise UserError(f"the saved tokenizer is damaged: {error}") from error

    def save(self, folder: str | os.PathLike) -> None:
        """Write the tokenizer's files, and create the folder if needed.

        The settings are written last: a folder without them is incomplete.
        """
        folder = storage.path(folder)
        first_line, _, rest = self.model.partition(b"\n")
        contents = (
            [first_line + b"\n", rest] if self.kind == "byte_bpe" else [self.model]
        )
        with storage.writing(folder):
            storage.make_folder(folder)
            for name, content in zip(_MODEL_FILES[self.kind], contents, strict=True):
                storage.write_bytes(folder / name, content)
            text = json.dumps(self._settings(), indent=2) + "\n"
            storage.write_text(folder / SETTINGS_FILE, text)

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "Tokenizer":
        """Read a folder written by `save`."""
        folder = storage.path(folder)
        storage.check(folder)
        hint = "run.train_tokenizer makes one"
        try:
            is_published = (folder / "tokenizer_config.json").exists()
            if not is_published:
                text = (folder / SETTINGS_FILE).read_text(encoding="utf-8")
                is_published = '"model"' in text and '"kind"' not in text
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UserError(
                f"no tokenizer in {folder}: {SETTINGS_FILE} is missing; {hint}"
            ) from error
        except (OSError, ValueError) as error:
            raise storage.failure(error)(
                f"the tokenizer in {folder} cannot be read: {error}; {hint}"
            ) from error
        if is_published:
            raise UserError(
                f"{folder} has a tokenizer of Hugging Face; give its vocab.txt, or "
                "convert the checkpoint with run.convert --to=ours and give the folder "
                "`tokenizer` in the result"
            )
        try:
            settings = json.loads(text)
            names = _MODEL_FILES.get(settings["kind"], ())
            model = b"".join((folder / name).read_bytes() for name in names)
            return cls._from_settings(settings, model)
        except (OSError, *_DAMAGE) as error:
            raise storage.failure(error)(
                f"the tokenizer in {folder} is damaged: {error}; {hint}"
            ) from error

    @classmethod
    def _from_settings(cls, settings: dict[str, Any], model: bytes) -> "Tokenizer":
        names = [f.name for f in dataclasses.fields(cls) if f.name in settings]
        values = {name: settings[name] for name in names} | {"model": model}
        tokenizer = cls(**values)
        # Older versions did not save the fingerprint.
        if settings.get("fingerprint", tokenizer.fingerprint) != tokenizer.fingerprint:
            raise ValueError("settings or model have changed since they were saved")
        return tokenizer

    def _settings(self) -> dict[str, Any]:
        values = self.__getstate__() | {"fingerprint": self.fingerprint}
        del values["model"]
        return values

    def __getstate__(self):
        # The cached models cannot be pickled.
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


def from_vocab_file(
    path: str | os.PathLike, lower_case: bool, strip_accents: bool
) -> Tokenizer:
    """Make a WordPiece tokenizer from a `vocab.txt`, with one token per line."""
    try:
        text = storage.path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise storage.failure(error)(
            f"cannot read the vocabulary {path}: {reason}"
        ) from error
    model = (text.replace("\r\n", "\n").rstrip("\n") + "\n").encode("utf-8")
    try:
        return Tokenizer("wordpiece", lower_case, strip_accents, model)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def is_published_bpe(folder: storage.Path) -> bool:
    """Return whether a folder has `vocab.json`, `merges.txt` and no native settings.

    Its `tokenizer.json` may be Hugging Face's, which has a "model".
    """
    if not all((folder / name).exists() for name in byte_bpe.FILES):
        return False
    path = folder / SETTINGS_FILE
    return not path.exists() or '"model"' in path.read_text(encoding="utf-8")


def from_published_bpe(folder: str | os.PathLike) -> Tokenizer:
    """Make a byte-level BPE tokenizer from a `vocab.json` and a `merges.txt`.

    `add_prefix_space` is read from `tokenizer_config.json`. Without it, the value is
    false, as RoBERTa's.
    """
    folder = storage.path(folder)
    config = folder / "tokenizer_config.json"
    values = {}
    try:
        files = [(folder / name).read_bytes() for name in byte_bpe.FILES]
        if config.exists():
            values = json.loads(config.read_text(encoding="utf-8"))
        add_prefix_space = values.get("add_prefix_space") or False
        model = byte_bpe.content(*byte_bpe.parse(*files))
        return Tokenizer(
            "byte_bpe", False, False, model, add_prefix_space=add_prefix_space
        )
    except OSError as error:
        raise storage.failure(error)(
            f"cannot read the vocabulary in {folder}: {error}"
        ) from error
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    except (ValueError, AttributeError) as error:
        raise UserError(f"{config} is damaged: {error}") from error
