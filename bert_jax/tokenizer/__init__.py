"""Tokenizers: text to token ids and back, with offsets.

A tokenizer is a pipeline of the library `tokenizers`, used and saved as it is, with the
names of its special tokens. On disk it is a folder with `tokenizer.json`, the pipeline,
and `tokenizer_config.json`, which names the special tokens; `transformers` reads such a
folder, too. Checkpoints carry it as one JSON text (`dumps`, `loads`).

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from bert_jax import io_errors, storage
from bert_jax.errors import UserError
from bert_jax.tokenizer import (
    continuations,
    legacy_format,
    pipelines,
    plain_text,
    special_tokens,
    token_texts,
    unspaced,
)
from bert_jax.tokenizer.special_tokens import MASK, SpecialTokens
from bert_jax.tokenizer.special_tokens import SPECIAL_TOKENS as SPECIAL_TOKENS

PIPELINE_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"  # in older folders
# Parts of a pipeline that do not affect the ids of a text.
_IRRELEVANT_TO_IDS = ("version", "truncation", "padding", "post_processor", "decoder")
# Errors of a damaged tokenizer.
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, UserError)


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Tokens of a text: their ids, and where their characters begin and end in it.

    Offsets leave out leading white space. A token may have no characters, and several
    tokens may share one.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A pipeline from text to ids, and its special tokens.

    Build one with `make`, which checks the pipeline.
    """

    # JSON of a `tokenizers.Tokenizer`, without truncation and padding.
    pipeline: str = dataclasses.field(repr=False)
    special_tokens: SpecialTokens
    # Fingerprint of a tokenizer that was read in the legacy format; "": another format.
    legacy_fingerprint: str = dataclasses.field(default="", compare=False)

    # ---- text and ids

    def encode(self, text: str) -> list[int]:
        """Encode a text, without special tokens around it."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts; several times faster than `encode` for each text."""
        if self._words:
            return self._words.encode_batch(texts)
        return plain_text.token_ids(self._pipeline, texts)

    def encode_continuations(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts as parts of a line that begins before them.

        The pipeline adds no space before them, and keeps the space that they have.
        """
        return self._inside_line.encode_batch(texts)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode texts, and return the position of each token in its text.

        `encode_batch` gives the same ids, and is several times faster.
        """
        encoded = self._pipeline.encode_batch(texts, add_special_tokens=False)
        encodings = []
        for text, encoding in zip(texts, encoded, strict=True):
            offsets = []
            for begin, end in encoding.offsets:
                # The space before a word is part of the token, but not of the word.
                while begin < end and text[begin].isspace():
                    begin += 1
                offsets.append((begin, end))
            encodings.append(Encoding(encoding.ids, offsets))
        return encodings

    def word_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the number of each token's word, counted from 1 in each text.

        A word ends where the pipeline splits the text, such as at punctuation, and
        before a token that begins one (`begins_word`).
        """
        numbers = []
        for encoding in self._pipeline.encode_batch(texts, add_special_tokens=False):
            begins = np.diff(np.array(encoding.word_ids, int), prepend=-1) != 0
            begins |= self.begins_word[np.array(encoding.ids, int)]
            numbers.append(np.cumsum(begins).tolist())
        return numbers

    def encode_with_blanks(self, text: str) -> list[int]:
        """Encode a text in which `[MASK]` marks a blank, which becomes `mask_id`.

        The text of the vocabulary's own mask token, such as `<mask>`, is a blank, too.
        In all other methods, both are plain text.
        """
        blanks = dict.fromkeys((MASK, self.special_tokens.mask))
        parts = re.split("|".join(map(re.escape, blanks)), text)
        if self.space_marker:
            # The space before a blank belongs to the word that fills the blank.
            parts = [*(part.rstrip() for part in parts[:-1]), parts[-1]]
        ids = self.encode(parts[0])
        steps = token_texts.all_steps(self._values["pre_tokenizer"])
        # A space after special tokens, too, as in `transformers`.
        is_always = any(step.get("prepend_scheme") == "always" for step in steps)
        after_blank = self if is_always else self._inside_line
        for part in after_blank.encode_batch(parts[1:]):
            ids += [self.mask_id, *part]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return readable text. Padding is omitted, other special tokens are shown.

        Byte-level BPE gives the exact text, but for a leading space that the pipeline
        adds to all texts. Bytes that are not UTF-8 are shown as U+FFFD.
        """
        shown = [i for i in ids if i != self.pad_id]
        text = self._pipeline.decode(shown, skip_special_tokens=False)
        adds_space = any(
            step.get("add_prefix_space") or step.get("prepend_scheme") == "first"
            for step in token_texts.all_steps(self._values["pre_tokenizer"])
        )
        return text.removeprefix(" ") if adds_space else text

    # ---- the vocabulary

    @property
    def model_type(self) -> str:
        """Class of the model: "WordPiece", "BPE", "Unigram" or "WordLevel"."""
        return self._values["model"]["type"]

    @functools.cached_property
    def tokens(self) -> list[str]:
        """Token of each id; "" for an id that the vocabulary skips."""
        by_id = {i: token for token, i in self._pipeline.get_vocab().items()}
        return [by_id.get(i, "") for i in range(max(by_id) + 1)]

    @functools.cached_property
    def texts(self) -> list[str]:
        """Text of each token, without markers such as `##` and the space before it."""
        return [each.decode("utf-8", "replace") for each in self._token_bytes]

    @functools.cached_property
    def space_marker(self) -> str:
        """First character of tokens that include the space before a word; "": none."""
        return token_texts.space_marker(self._values)

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @functools.cached_property
    def continues_word(self) -> np.ndarray:
        """bool[vocab_size]: whether a token continues the word of the token before.

        A word is a token and all following tokens that continue it. In WordPiece,
        tokens with `##` continue, and `[UNK]` is a whole word. Where tokens include the
        space before a word, as with SentencePiece and bytes, all tokens continue except
        special tokens and tokens that begin with the space. There, unknown text is a
        part of a word and continues it. In a vocabulary without markers, each token is
        a word.
        """
        if marker := self.space_marker:
            added = {token["content"] for token in self._values["added_tokens"]}
            begins = [t.startswith(marker) or t in added for t in self.tokens]
            begins[self.unk_id] = False
            return ~np.array(begins)
        prefix = self._values["model"].get("continuing_subword_prefix")
        return np.array([bool(prefix) and t.startswith(prefix) for t in self.tokens])

    @property
    def word_suffix(self) -> str:
        """Suffix of tokens that end a word, as in HerBERT; "": none marks an end.

        Then no token tells whether it begins a word: `begins_word` is always True.
        """
        return self._values["model"].get("end_of_word_suffix") or ""

    @functools.cached_property
    def begins_word(self) -> np.ndarray:
        """bool[vocab_size]: whether a token begins a unit that is masked as a word.

        A token that continues no word does. So does each token that begins with a
        character of a script without spaces (`unspaced.py`), where a sentence would
        otherwise be one word.
        """
        is_unspaced = map(unspaced.begins_unspaced, self._token_bytes)
        return ~self.continues_word | np.fromiter(is_unspaced, bool)

    @property
    def pad_id(self) -> int:
        return self._id(self.special_tokens.pad)

    @property
    def unk_id(self) -> int:
        """Id of unknown text; `mask_id` if the vocabulary has no token for it."""
        return self._id(self.special_tokens.unk)

    @property
    def cls_id(self) -> int:
        return self._id(self.special_tokens.cls)

    @property
    def sep_id(self) -> int:
        return self._id(self.special_tokens.sep)

    @property
    def mask_id(self) -> int:
        return self._id(self.special_tokens.mask)

    @functools.cached_property
    def pair_separators(self) -> list[int]:
        """Ids between the texts of a pair: one [SEP], or what the pipeline inserts.

        RoBERTa's inserts two.
        """
        joined = pipelines.post_process(2, self._values["post_processor"])
        sources = joined.sequence_ids  # 0 and 1 for the texts, None for special tokens
        if {None, 0, 1} <= {*sources}:
            end = len(sources) - sources[::-1].index(0)
            if between := joined.ids[end : sources.index(1)]:
                return between
        return [self.sep_id]

    def _id(self, token: str) -> int:
        return self._pipeline.token_to_id(token)

    @functools.cached_property
    def _values(self) -> dict[str, Any]:
        return json.loads(self.pipeline)

    @functools.cached_property
    def _token_bytes(self) -> list[bytes]:
        return token_texts.token_bytes(self.tokens, self._values)

    @functools.cached_property
    def _pipeline(self) -> tokenizers.Tokenizer:
        # Tokens without a role, too: their text is not the token.
        added = [t["content"] for t in self._values["added_tokens"] if t["special"]]
        special = sorted({*self.special_tokens, *added}, key=lambda t: (-len(t), t))
        return plain_text.pipeline(self._values, special)

    @functools.cached_property
    def _inside_line(self) -> "Tokenizer":
        """Tokenizer for a text inside a line: it neither adds nor removes a space."""
        values = continuations.pipeline(self._values)
        if values == self._values:
            return self
        return dataclasses.replace(self, pipeline=json.dumps(values))

    @functools.cached_property
    def _words(self) -> plain_text.WordCache | None:
        if not plain_text.is_word_by_word(self._values):
            return None
        return plain_text.WordCache(self._pipeline)

    # ---- identity, disk, checkpoints

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of everything that determines the ids of a text.

        Scores of a Unigram vocabulary count as float32, and merges of BPE as pairs.
        When `transformers` saves a tokenizer, last digits of scores and the form of
        older merges, "a b", change.
        """
        steps = self.steps()
        if self.model_type == "Unigram":
            vocab = [(t, float(np.float32(x))) for t, x in steps["model"]["vocab"]]
            steps["model"] = {**steps["model"], "vocab": vocab}
        if self.model_type == "BPE":
            merges = [
                m.split(" ") if isinstance(m, str) else m
                for m in steps["model"]["merges"]
            ]
            steps["model"] = {**steps["model"], "merges": merges}
        return _hash([steps, self.special_tokens])

    def has_fingerprint(self, saved: str) -> bool:
        """Return whether a saved fingerprint is this tokenizer's.

        Earlier versions hashed scores and merges as saved, or had their own format.
        """
        exact = _hash([self.steps(), self.special_tokens])
        return saved in {self.fingerprint, exact, self.legacy_fingerprint} - {""}

    def steps(self) -> dict[str, Any]:
        """Return the steps of the pipeline that determine the ids of a text."""
        return {k: v for k, v in self._values.items() if k not in _IRRELEVANT_TO_IDS}

    def settings(self) -> dict[str, Any]:
        """Return the fields of `tokenizer_config.json`."""
        named = self.special_tokens._asdict()
        if self.special_tokens.unk == self.special_tokens.mask:
            del named["unk"]
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{f"{name}_token": token for name, token in named.items()},
        }

    def dumps(self) -> str:
        """Return the tokenizer as one JSON text."""
        values = {"pipeline": self._values, "settings": self.settings()}
        return json.dumps(values | {"fingerprint": self.fingerprint})

    @classmethod
    def loads(cls, text: str) -> "Tokenizer":
        """Read the result of `dumps`."""
        try:
            values = json.loads(text)
            if legacy_format.is_legacy(values):
                return _from_legacy(
                    values, lambda: base64.b64decode(values["model"], validate=True)
                )
            tokenizer = make(values["pipeline"], values["settings"])
            if not tokenizer.has_fingerprint(values["fingerprint"]):
                raise ValueError("it has changed since it was saved")
            return tokenizer
        except _DAMAGE as error:
            raise UserError(f"the saved tokenizer cannot be used: {error}") from error

    def save(self, folder: str | os.PathLike) -> None:
        """Write the tokenizer's files, and create the folder if needed."""
        folder = storage.path(folder)
        files = {PIPELINE_FILE: self._values, SETTINGS_FILE: self.settings()}
        with storage.writing(folder):
            storage.make_folder(folder)
            for name, values in files.items():
                text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
                storage.write_text(folder / name, text)

    @classmethod
    def load(
        cls, folder: str | os.PathLike, settings: Mapping[str, Any] | None = None
    ) -> "Tokenizer":
        """Read a folder with a `tokenizer.json`, of bert_jax or any other origin.

        `settings` has special tokens by field, such as `mask_token`, and added tokens;
        None: the fields of `tokenizer_config.json` and `special_tokens_map.json`. A
        special token that has no field is found by its usual names.

        Raises:
          UserError: A file is missing or damaged, or a special token is missing.
        """
        folder = storage.path(folder)
        if not (folder / PIPELINE_FILE).exists():
            raise UserError(
                f"no tokenizer in {folder}: {PIPELINE_FILE} is missing; "
                "run.train_tokenizer makes one"
            )
        try:
            values = json.loads((folder / PIPELINE_FILE).read_text(encoding="utf-8"))
            if legacy_format.is_legacy(values):
                return _from_legacy(values, (folder / "vocab.txt").read_bytes)
            if settings is None:
                fields = [
                    json.loads((folder / name).read_text(encoding="utf-8"))
                    if (folder / name).exists()
                    else {}
                    for name in (SETTINGS_FILE, SPECIAL_TOKENS_FILE)
                ]
                settings = special_tokens.merge_files(*fields)
            return make(values, settings)
        except (OSError, *_DAMAGE) as error:
            raise io_errors.wrap_error(
                error, f"the tokenizer in {folder} cannot be used: {error}"
            ) from error

    def __getstate__(self):
        # The cached pipelines cannot be pickled.
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


def make(
    pipeline: tokenizers.Tokenizer | dict[str, Any],
    settings: Mapping[str, Any] | None = None,
) -> Tokenizer:
    """Return the tokenizer of a pipeline.

    `settings` has fields of `tokenizer_config.json`: special tokens and added tokens.

    Raises:
      UserError: The library cannot use the pipeline, or a special token is missing.
    """
    given = pipeline if isinstance(pipeline, dict) else json.loads(pipeline.to_str())
    try:
        built = tokenizers.Tokenizer.from_str(json.dumps(given))
    except Exception as error:  # the library has no class of errors
        raise UserError(f"{PIPELINE_FILE} is damaged: {error}") from error
    added = {token.content for token in built.get_added_tokens_decoder().values()}
    pipelines.add_listed_tokens(built, settings or {}, added)
    # The library writes its present format; files of 2020, such as camembert-base's,
    # lack fields. Only the model stays as it is: scores change in their last digits.
    values = json.loads(built.to_str())
    model = values["model"] | given["model"]
    if "dropout" in model:  # of BPE: a text would have other ids each time
        model["dropout"] = None
    values |= {"model": model, "truncation": None, "padding": None}
    unk = model.get("unk_token")
    if model["type"] == "Unigram" and model["unk_id"] is not None:
        unk, _ = model["vocab"][model["unk_id"]]
    special = special_tokens.find(built.get_vocab(), unk, settings or {})
    return Tokenizer(json.dumps(values), special)


def _hash(values: Any) -> str:
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _from_legacy(
    settings: dict[str, Any], read_vocabulary: Callable[[], bytes]
) -> Tokenizer:
    pipeline, fingerprint = legacy_format.read(settings, read_vocabulary)
    return dataclasses.replace(make(pipeline), legacy_fingerprint=fingerprint)
