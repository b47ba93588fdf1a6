"""Text to token ids and back: WordPiece and SentencePiece behind one interface.

A tokenizer is a folder: `tokenizer.json` (kind and normalisation) beside `vocab.txt`
(WordPiece, one token a line, the format of the original) or `spm.model`. It can also
travel as one JSON text (`dumps`, `loads`), which is how checkpoints carry it.

Special tokens come from ids alone. Text that contains the characters `[MASK]` is
tokenised like any other text.
"""

import base64
import collections
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import sentencepiece
import tokenizers

from bert_jax import storage
from bert_jax.errors import UserError

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
KINDS = ("wordpiece", "sentencepiece")
_MODEL_FILES = {"wordpiece": "vocab.txt", "sentencepiece": "spm.model"}
# A longer word becomes [UNK]; google-research/bert tokenization.py has 200 here.
_MAX_WORD_CHARS = 200
_MAX_KNOWN_WORDS = 500_000
# Characters that `str.split` takes for white space and BERT's normaliser removes.
_ODD_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85\u2028\u2029]")


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A vocabulary and how text is brought to it.

    Attributes:
      kind: "wordpiece" (paper, 3: normalise, split at spaces and punctuation, then
        longest match first) or "sentencepiece" (unigram pieces over raw text).
      lower_case: whether case is dropped.
      strip_accents: whether combining marks are dropped after decomposition. The
        original ties this to `lower_case`, which breaks languages where accents carry
        meaning, so here it is a setting of its own.
      model: content of `vocab.txt` or `spm.model`.
    """

    kind: str
    lower_case: bool
    strip_accents: bool
    model: bytes = dataclasses.field(repr=False)

    def __post_init__(self):
        missing = [t for t in SPECIAL_TOKENS if t not in self._ids]
        if missing:
            raise UserError(f"the vocabulary has no {', '.join(missing)}")

    # ---- text and ids

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens around it."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts; several times faster than one by one."""
        if self.kind == "wordpiece":
            return self._encode_words(texts)
        return self._sentencepiece.encode([self._normalise(t) for t in texts])

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text of ids. Padding is left out; other special tokens are shown."""
        tokens = [self.tokens[i] for i in ids if i != self.pad_id]
        words: list[str] = []
        for token in tokens:
            if self.kind == "sentencepiece":
                starts, piece = token.startswith("▁"), token.removeprefix("▁")
            else:
                starts, piece = not token.startswith("##"), token.removeprefix("##")
            if words and not starts and token not in SPECIAL_TOKENS:
                words[-1] += piece
            elif piece:
                words.append(piece)
        return " ".join(words)

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
        """bool[vocab_size]: whether a token continues the word of the token before."""
        if self.kind == "wordpiece":
            return np.array([token.startswith("##") for token in self.tokens])
        special = set(SPECIAL_TOKENS)
        return np.array(
            [
                not token.startswith("▁") and token not in special
                for token in self.tokens
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
        """A hash of all that decides which ids a text gets."""
        settings = json.dumps([self.kind, self.lower_case, self.strip_accents])
        return hashlib.sha256(settings.encode() + b"\0" + self.model).hexdigest()[:16]

    def dumps(self) -> str:
        """All of it as one JSON text."""
        model = base64.b64encode(self.model).decode("ascii")
        return json.dumps(self._settings() | {"model": model})

    @classmethod
    def loads(cls, text: str) -> "Tokenizer":
        """The inverse of `dumps`."""
        values = json.loads(text)
        return cls(**values | {"model": base64.b64decode(values["model"])})

    def save(self, folder: str | os.PathLike) -> None:
        """Write the tokenizer's two files, making the folder if needed."""
        folder = storage.path(folder)
        storage.make_folder(folder)
        (folder / _MODEL_FILES[self.kind]).write_bytes(self.model)
        text = json.dumps(self._settings(), indent=2) + "\n"
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "Tokenizer":
        """Read what `save` wrote.

        Raises:
          UserError: the folder holds no tokenizer.
        """
        folder = storage.path(folder)
        storage.check(folder)
        try:
            text = (folder / "tokenizer.json").read_text(encoding="utf-8")
            settings = json.loads(text)
            model = (folder / _MODEL_FILES[settings["kind"]]).read_bytes()
            return cls(**settings, model=model)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"no tokenizer in {folder}: {error}; run.train_tokenizer makes one"
            ) from error

    def _settings(self) -> dict[str, str | bool]:
        return {
            "kind": self.kind,
            "lower_case": self.lower_case,
            "strip_accents": self.strip_accents,
        }

    # ---- the two models

    @functools.cached_property
    def _wordpiece(self) -> tokenizers.Tokenizer:
        model = tokenizers.models.WordPiece(
            self._ids, unk_token=UNK, max_input_chars_per_word=_MAX_WORD_CHARS
        )
        return _wordpiece_pipeline(model, self.lower_case, self.strip_accents)

    def _encode_words(self, texts: Sequence[str]) -> list[list[int]]:
        """WordPiece with a memory for words, five times as fast as without.

        WordPiece never looks across white space, so what stands between two spaces can
        be looked up. Only what was not seen before goes through the pipeline.
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

    def _normalise(self, text: str) -> str:
        return normalise(text, self.lower_case, self.strip_accents)

    def __getstate__(self):
        # The models behind the cached properties do not travel between processes.
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


def normalise(text: str, lower_case: bool, strip_accents: bool) -> str:
    """What SentencePiece gets to see; its own NFKC normalisation comes on top."""
    if lower_case:
        text = text.lower()
    if strip_accents:
        decomposed = unicodedata.normalize("NFD", text)
        text = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
    return text


def from_vocab_file(
    path: str | os.PathLike, lower_case: bool, strip_accents: bool
) -> Tokenizer:
    """A WordPiece tokenizer from an existing `vocab.txt`, one token a line.

    Raises:
      UserError: the file cannot be read, is not UTF-8, or lacks a special token.
    """
    try:
        text = storage.path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the vocabulary {path}: {error}") from error
    tokens = text.rstrip("\n").split("\n")
    if "" in tokens:
        raise UserError(f"{path}, line {tokens.index('') + 1}: no token on this line")
    model = ("\n".join(tokens) + "\n").encode("utf-8")
    return Tokenizer("wordpiece", lower_case, strip_accents, model)


def train_wordpiece(
    texts: Collection[str],
    vocab_size: int,
    *,
    lower_case: bool = True,
    strip_accents: bool = True,
) -> Tokenizer:
    """Learn a WordPiece vocabulary by joining frequent pairs of pieces.

    The original's trainer was never released; this one is Hugging Face `tokenizers`'.
    Left alone it numbers the pieces of one character in the order of a hash table with
    a random key, and ties between pairs follow that order, so that equal text gives
    another vocabulary each time. Here those pieces are counted and numbered first.

    Args:
      texts: read twice.
      vocab_size: number of tokens, special tokens included.
      lower_case: see `Tokenizer`.
      strip_accents: see `Tokenizer`.

    Raises:
      UserError: there is too little text for so many tokens.
    """
    model = tokenizers.models.WordPiece(unk_token=UNK)
    pipeline = _wordpiece_pipeline(model, lower_case, strip_accents)
    alphabet = _frequent_characters(pipeline.normalizer.normalize_str(t) for t in texts)
    _check_room(len(SPECIAL_TOKENS) + 2 * len(alphabet), vocab_size)
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        special_tokens=[*SPECIAL_TOKENS, *alphabet, *("##" + c for c in alphabet)],
        show_progress=False,
    )
    pipeline.train_from_iterator(texts, trainer)
    vocabulary = pipeline.get_vocab()
    _check_trained_size(len(vocabulary), vocab_size)
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    text = "".join(token + "\n" for token in tokens)
    return Tokenizer("wordpiece", lower_case, strip_accents, text.encode("utf-8"))


def _frequent_characters(texts: Iterable[str], limit: int = 1000) -> list[str]:
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text)
    candidates = [c for c in counts if not c.isspace()]
    return sorted(sorted(candidates, key=lambda c: (-counts[c], c))[:limit])


def train_sentencepiece(
    texts: Collection[str],
    vocab_size: int,
    *,
    lower_case: bool = False,
    strip_accents: bool = False,
) -> Tokenizer:
    """Learn a SentencePiece unigram vocabulary, as ALBERT and XLNet use.

    The special tokens are control symbols: no text can produce them.

    Raises:
      UserError: there is too little text for so many tokens.
    """
    buffer = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(normalise(t, lower_case, strip_accents) for t in texts),
            model_writer=buffer,
            vocab_size=vocab_size,
            model_type="unigram",
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece=PAD,
            unk_piece=UNK,
            control_symbols=[CLS, SEP, MASK],
            # Enough for a vocabulary; above this a random part of the lines is used.
            input_sentence_size=2_000_000,
            minloglevel=2,
        )
    except RuntimeError as error:
        limit = re.search(r"set it to a value <= (\d+)", str(error))
        if limit:
            _check_trained_size(int(limit.group(1)), vocab_size)
        needed = re.search(r"required_chars\. \d+ vs (\d+)", str(error))
        if needed:
            _check_room(int(needed.group(1)), vocab_size)
        raise
    return Tokenizer("sentencepiece", lower_case, strip_accents, buffer.getvalue())


def _wordpiece_pipeline(
    model: tokenizers.models.WordPiece, lower_case: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    pipeline = tokenizers.Tokenizer(model)
    pipeline.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=lower_case, strip_accents=strip_accents
    )
    pipeline.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return pipeline


def _check_room(needed: int, vocab_size: int) -> None:
    if needed > vocab_size:
        raise UserError(
            f"vocab_size={vocab_size} has no room for the characters of the text; "
            f"give at least {needed}"
        )


def _check_trained_size(reached: int, wanted: int) -> None:
    if reached < wanted:
        raise UserError(
            f"the text gives only {reached} tokens, fewer than vocab_size={wanted}; "
            "give more text or a smaller --vocab_size"
        )
