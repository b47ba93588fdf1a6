"""Text to token ids and back: WordPiece and SentencePiece behind one interface.

On disk, a tokenizer is a folder with `tokenizer.json` (kind and normalisation) and with
`vocab.txt` (WordPiece: one token per line, the format of the original) or `spm.model`.
Checkpoints carry it as one JSON text (`dumps`, `loads`).

Special tokens are only made from ids. Text that contains the characters `[MASK]` is
tokenised like any other text.
"""

import base64
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece
import tokenizers

from bert_jax import storage
from bert_jax.errors import UserError

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
KINDS = ("wordpiece", "sentencepiece")
_SETTINGS_FILE = "tokenizer.json"
_MODEL_FILES = {"wordpiece": "vocab.txt", "sentencepiece": "spm.model"}
_SETTINGS = ("kind", "lower_case", "strip_accents", "fingerprint")
_TEMPORARY = re.compile(r"(tokenizer\.json|vocab\.txt|spm\.model)\.[0-9a-f]+\.tmp")
# Google's: google-research/bert, tokenization.py. It is saved only if it is another.
_LONGEST_WORD = 200
_MAX_KNOWN_WORDS = 500_000
# Characters that are white space for `str.split`, but that BERT's normaliser removes.
_ODD_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85\u2028\u2029]")


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
    longest_word: int = _LONGEST_WORD

    def __post_init__(self):
        _check_kind(self.kind)
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
                f"{_MODEL_FILES[self.kind]} is damaged: {reason}"
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
        if self.kind == "wordpiece":
            return self._encode_words(texts)
        return self._sentencepiece.encode([self._normalise(t) for t in texts])

    def encode_with_offsets(self, texts: Sequence[str]) -> list["Encoding"]:
        """Ids of each of many texts, and which characters each of them is from.

        The ids are those of `encode_batch`, which is several times faster.
        """
        if self.kind == "wordpiece":
            encoded = self._wordpiece.encode_batch(texts, add_special_tokens=False)
            return [Encoding(list(e.ids), list(e.offsets)) for e in encoded]
        return [self._pieces_with_offsets(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text. Padding is omitted, other special tokens are shown."""
        prefix = "##" if self.kind == "wordpiece" else "▁"
        words: list[str] = []
        for i in ids:
            piece = self.tokens[i].removeprefix(prefix)
            if i == self.pad_id:
                continue
            if words and self.continues_word[i]:
                words[-1] += piece
            else:
                words.append(piece)
        return " ".join(filter(None, words))  # a lone `▁` gives an empty word

    # ---- the vocabulary

    @functools.cached_property
    def tokens(self) -> list[str]:
        """Token of each id."""
        if self.kind == "wordpiece":
            # Not `splitlines`: it also splits at characters that tokens may hold.
            return self.model.decode("utf-8").removesuffix("\n").split("\n")
        model = self._sentencepiece
        return [model.id_to_piece(i) for i in range(model.get_piece_size())]

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        """bool[vocab_size]: whether a token continues the word of the token before.

        A word is a token and all that follow and continue it. In WordPiece, tokens with
        `##` continue, and `[UNK]` stands for a whole word. In SentencePiece, all tokens
        continue but control symbols and those that begin with `▁`, as words do; `[UNK]`
        stands for characters inside a word and continues it.
        """
        if self.kind == "wordpiece":
            return np.array([token.startswith("##") for token in self.tokens])
        model = self._sentencepiece
        return np.array(
            [
                not token.startswith("▁")
                and not model.is_control(i)
                and (token not in SPECIAL_TOKENS or model.is_unknown(i))
                for i, token in enumerate(self.tokens)
            ]
        )

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
        ids: dict[str, int] = {}
        for i, token in enumerate(self.tokens):
            ids.setdefault(token, i)
        return ids

    # ---- identity, disk, checkpoints

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of everything that determines the ids of a text."""
        values = [self.kind, self.lower_case, self.strip_accents]
        if self.longest_word != _LONGEST_WORD:
            values.append(self.longest_word)
        settings = json.dumps(values)
        return hashlib.sha256(settings.encode() + b"\0" + self.model).hexdigest()[:16]

    def dumps(self) -> str:
        """The tokenizer as one JSON text."""
        model = base64.b64encode(self.model).decode("ascii")
        return json.dumps(self._settings() | {"model": model})

    @classmethod
    def loads(cls, text: str) -> "Tokenizer":
        """The inverse of `dumps`.

        Raises:
          UserError: The text is damaged.
        """
        try:
            values = _json_object(text)
            model = base64.b64decode(values.get("model"), validate=True)
            return cls._from_settings(values, model)
        except (ValueError, TypeError, UserError) as error:
            raise UserError(f"the saved tokenizer is damaged: {error}") from error

    def save(self, folder: str | os.PathLike) -> None:
        """Write the tokenizer's two files, and create the folder if needed.

        The settings come first: a folder that has them, but no model, is known to be
        left over from a save that was interrupted (`is_unfinished`).

        Raises:
          UserError: The folder cannot be written.
          Unavailable: A store does not answer now.
        """
        folder = storage.path(folder)
        settings = json.dumps(self._settings(), indent=2) + "\n"
        with storage.writing(folder):
            storage.make_folder(folder)
            storage.write_text(folder / _SETTINGS_FILE, settings)
            storage.write_bytes(folder / _MODEL_FILES[self.kind], self.model)
            for left in folder.glob("*.tmp"):  # by processes that were killed
                if _TEMPORARY.fullmatch(left.name):
                    left.unlink()

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "Tokenizer":
        """Read what `save` wrote.

        Raises:
          UserError: The folder holds no tokenizer, or a damaged one.
          Unavailable: A store does not answer now.
        """
        folder = storage.path(folder)
        storage.check(folder)
        hint = "run.train_tokenizer makes one"
        try:
            text = (folder / _SETTINGS_FILE).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UserError(
                f"no tokenizer in {folder}: {_SETTINGS_FILE} is missing; {hint}"
            ) from error
        except (OSError, ValueError) as error:
            raise storage.failure(error)(
                f"the tokenizer in {folder} cannot be read: {error}; {hint}"
            ) from error
        try:
            settings = _json_object(text)
            kind = settings.get("kind")
            _check_kind(kind)
            model = (folder / _MODEL_FILES[kind]).read_bytes()
            return cls._from_settings(settings, model)
        except (OSError, ValueError, TypeError, UserError) as error:
            raise storage.failure(error)(
                f"the tokenizer in {folder} is damaged: {error}; {hint}"
            ) from error

    @classmethod
    def _from_settings(cls, settings: dict, model: bytes) -> "Tokenizer":
        """Check settings and model against each other.

        Raises:
          UserError, ValueError: They are damaged, or do not belong together.
        """
        *fields, _ = _SETTINGS
        _check_kind(settings.get("kind"))
        missing = [name for name in fields if name not in settings]
        if missing:
            raise ValueError(f"{missing[0]} is missing")
        longest = settings.get("longest_word", _LONGEST_WORD)
        tokenizer = cls(*(settings[name] for name in fields), model, longest)
        # Older versions did not save the fingerprint.
        if settings.get("fingerprint", tokenizer.fingerprint) != tokenizer.fingerprint:
            raise ValueError("settings or model have changed since they were saved")
        return tokenizer

    def _settings(self) -> dict[str, str | bool | int]:
        values = {name: getattr(self, name) for name in _SETTINGS}
        if self.longest_word != _LONGEST_WORD:
            values["longest_word"] = self.longest_word
        return values

    # ---- the two models

    @functools.cached_property
    def _wordpiece(self) -> tokenizers.Tokenizer:
        model = tokenizers.models.WordPiece(
            self._ids, unk_token=UNK, max_input_chars_per_word=self.longest_word
        )
        return wordpiece_pipeline(model, self.lower_case, self.strip_accents)

    def _encode_words(self, texts: Sequence[str]) -> list[list[int]]:
        """WordPiece with a cache of words, which makes it five times as fast.

        WordPiece never looks across white space. What stands between two spaces can
        therefore be looked up, and only new words go through the pipeline.
        """
        words = [[text] if _ODD_SPACE.search(text) else text.split() for text in texts]
        known = self._known_words
        unknown = list(set().union(*words) - known.keys())
        if len(known) + len(unknown) > _MAX_KNOWN_WORDS:
            known.clear()
            unknown = list(set().union(*words))
        encodings = self._wordpiece.encode_batch_fast(unknown, add_special_tokens=False)
        known.update(zip(unknown, (e.ids for e in encodings), strict=True))
        return [
            list(itertools.chain.from_iterable(map(known.__getitem__, w)))
            for w in words
        ]

    @functools.cached_property
    def _known_words(self) -> dict[str, list[int]]:
        return {}

    @functools.cached_property
    def _sentencepiece(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def _pieces_with_offsets(self, text: str) -> "Encoding":
        # SentencePiece counts the bytes of what it is given, which is not the text but
        # its normal form; both are traced to the characters of the text.
        normal = [self._normalise(character) for character in text]
        given = self._normalise(text)
        if len(given) != sum(map(len, normal)):
            raise ValueError(
                f"the normal form of {text!r} is not that of its characters"
            )
        origin = [i for i, part in enumerate(normal) for _ in part] + [len(text)]
        of_byte = [i for i, c in enumerate(given) for _ in c.encode("utf-8")]
        of_byte.append(len(given))
        proto = self._sentencepiece.encode(given, return_type="proto")
        ids, offsets = [], []
        for piece in proto.pieces:
            begin, end = origin[of_byte[piece.begin]], origin[of_byte[piece.end]]
            if piece.end > piece.begin:  # a part of a character is all of it
                end = max(end, origin[of_byte[piece.end - 1]] + 1)
            while begin < end and text[begin].isspace():
                begin += 1
            ids.append(piece.id)
            offsets.append((begin, end))
        return Encoding(ids, offsets)

    def _normalise(self, text: str) -> str:
        return normalise(text, self.lower_case, self.strip_accents)

    def __getstate__(self):
        # The models behind the cached properties cannot be pickled.
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Encoding:
    """The tokens of a text.

    Attributes:
      ids: Id of each token.
      offsets: Where the characters of each token begin and end in the text; a token may
        have none, and several may be of one character.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]


def _check_kind(kind: object) -> None:
    if kind not in KINDS:
        raise UserError(f"kind is {kind!r}, not {' or '.join(map(repr, KINDS))}")


def _json_object(text: str) -> dict:
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deep") from error
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    return values


def is_unfinished(folder: storage.Path) -> bool:
    """Whether a folder is empty, or holds only what an interrupted `save` left."""
    names = {path.name for path in folder.glob("*")}
    names -= {name for name in names if _TEMPORARY.fullmatch(name)}
    if names != {_SETTINGS_FILE}:
        return not names
    try:
        text = (folder / _SETTINGS_FILE).read_text(encoding="utf-8")
        # Other projects use the file name, too.
        return _json_object(text).keys() - {"longest_word"} == set(_SETTINGS)
    except (OSError, ValueError):
        return False


def normalise(text: str, lower_case: bool, strip_accents: bool) -> str:
    """Normalise text for SentencePiece, which then applies NFKC."""
    if lower_case:
        text = text.lower()
    if strip_accents:
        decomposed = unicodedata.normalize("NFD", text)
        text = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
    return text


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
