"""Tokenizers of published folders, in and out.

A `tokenizer.json` is used as it is. Older folders have vocabularies instead;
their pipelines follow from the family of the model.
"""

import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import tokenizers

from bert_jax import config as config_lib
from bert_jax import io_errors, storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.interop import json_files, special_token_layout, tokenizer_settings
from bert_jax.interop.families import BERT, FAMILIES
from bert_jax.tokenizer import (
    PIPELINE_FILE,
    SETTINGS_FILE,
    Tokenizer,
    pipelines,
    sentencepiece_model,
    token_texts,
)
from bert_jax.tokenizer.special_tokens import MASK, SPECIAL_TOKENS

_SENTENCEPIECE = "spiece.model"
_DEBERTA = "spm.model"
_FAIRSEQ = "sentencepiece.bpe.model"
# First tokens of the vocabularies of facebookresearch/fairseq, by the beginning of the
# tokenizer's class name in `transformers`. The last is `<mask>`.
_FIRST_TOKENS = {
    "Camembert": ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"),
    "XLMRoberta": ("<s>", "<pad>", "</s>", "<unk>"),
}
_BYTE_BPE = ("vocab.json", "merges.txt")
_WORDPIECE = "vocab.txt"
# Longest word of `transformers`' BERT tokenizers, in characters.
_LONGEST_WORD = 100
# Classes of `transformers` that split the texts of older folders as bert_jax does.
_CLASSES = (
    "(Albert|Bert|DebertaV2|DistilBert|Electra|GPT2|PreTrained|Roberta|XLNet)Tokenizer(Fast)?"
    "|TokenizersBackend"
)
# Classes of release 5 of `transformers` that number the two texts of a pair by default.
_WITH_SEGMENTS = ("BertTokenizer", "DebertaV2Tokenizer")
# Classes of earlier releases that give both texts segment 0 by default.
_WITHOUT_SEGMENTS = "(Camembert|DistilBert|GPT2|Roberta|XLMRoberta)Tokenizer(Fast)?"


# ---- in


def read(folder: storage.Path, overrides: Mapping[str, str] | None = None) -> Tokenizer:
    """Read the tokenizer of a folder. `overrides` has special tokens by field.

    Raises:
      UserError: The tokenizer is missing, damaged or unsupported.
    """
    settings = tokenizer_settings.read(folder)
    settings |= overrides or {}
    if (folder / PIPELINE_FILE).exists():
        tokenizer = Tokenizer.load(folder, settings)
        model = tokenizer.steps()["model"]
        if model["type"] == "Unigram" and model["unk_id"] is None:
            raise UserError(
                f"{folder}: unk_id of the Unigram model in {PIPELINE_FILE} is null; "
                "set it to the id of the unknown token"
            )
        tokenizer_settings.check(folder, tokenizer, settings)
        return tokenizer
    config = folder / "config.json"
    # A checkpoint of google-research/electra has no config.
    of_google = json_files.GOOGLE_CONFIG, json_files.ALBERT_CONFIG, "*.index"
    if any(any(folder.glob(name)) for name in of_google) and not config.exists():
        if overrides:
            raise UserError(
                f"--special_tokens does not apply to {folder}: its vocabulary has "
                "BERT's special tokens"
            )
        return read_google(folder)
    model = json_files.read_or_empty(config)
    name = settings.get("tokenizer_class") or model.get("tokenizer_class")
    is_fairseq = (folder / _FAIRSEQ).exists()
    if name and not is_fairseq and not re.fullmatch(_CLASSES, str(name)):
        raise UserError(
            f"{folder}: the tokenizer_class {name!r} splits texts in its own way; "
            f"bert_jax reads it from a {PIPELINE_FILE} only"
        )
    try:
        if is_fairseq:
            name = str(name or model.get("model_type"))
            pipeline = _fairseq_pipeline(folder, settings, name)
        else:
            pipeline = _older_pipeline(folder, settings, model.get("model_type"))
        return tokenizer_lib.make(pipeline, settings)
    except (UserError, ValueError, OSError) as error:
        raise io_errors.wrap_error(error, f"{folder}: {error}") from error


def _older_pipeline(
    folder: storage.Path, settings: Mapping[str, Any], model_type: str | None
) -> tokenizers.Tokenizer:
    """Build the pipeline of a folder without `tokenizer.json`."""
    family = next((each for each in FAMILIES if each.model_type == model_type), BERT)
    lower_case = settings.get("do_lower_case", family.lower_case)
    if (folder / _SENTENCEPIECE).exists():
        strip_accents = not settings.get("keep_accents", False)
        content = (folder / _SENTENCEPIECE).read_bytes()
        return sentencepiece_model.pipeline(
            content, lower_case, strip_accents, settings=settings
        )
    if (folder / _DEBERTA).exists():
        if settings.get("split_by_punct"):
            raise UserError(
                f"split_by_punct is true in {SETTINGS_FILE}; bert_jax reads such a "
                f"tokenizer from a {PIPELINE_FILE} only"
            )
        content = (folder / _DEBERTA).read_bytes()
        return sentencepiece_model.pipeline(
            content, lower_case, False, [MASK], settings=settings
        )
    if all((folder / name).exists() for name in _BYTE_BPE):
        files = [(folder / name).read_bytes() for name in _BYTE_BPE]
        space = settings.get("add_prefix_space", False)
        return pipelines.byte_bpe(*pipelines.parse_byte_bpe(*files), space, settings)
    if not (folder / _WORDPIECE).exists():
        # Corpora and converted checkpoints have it one level below.
        below = folder / "tokenizer"
        hint = f"; give {below}" if (below / PIPELINE_FILE).exists() else ""
        in_run = folder.parent.name in ("checkpoints", "best")
        if in_run or (folder / "checkpoints").exists():
            hint = (
                "; of a run, give the tokenizer/ of its corpus, or the one that "
                "run.convert --to=native writes"
            )
        raise UserError(
            f"there is no {PIPELINE_FILE}, {_WORDPIECE}, {_SENTENCEPIECE}, {_DEBERTA}, "
            f"{_FAIRSEQ}, or {' with '.join(_BYTE_BPE)}{hint}"
        )
    for name in ("tokenize_chinese_chars", "do_basic_tokenize"):
        if settings.get(name) is False:
            raise UserError(
                f"{name} is false in {SETTINGS_FILE}; without a {PIPELINE_FILE}, "
                "bert_jax splits Chinese characters and punctuation"
            )
    strip_accents = settings.get("strip_accents", lower_case)
    tokens = pipelines.parse_wordpiece((folder / _WORDPIECE).read_bytes())
    return pipelines.wordpiece(
        tokens, lower_case, strip_accents, _LONGEST_WORD, settings
    )


def _fairseq_pipeline(
    folder: storage.Path, settings: Mapping[str, Any], name: str
) -> tokenizers.Tokenizer:
    """Build the pipeline of XLM-R or CamemBERT; `name` is a class or `model_type`."""
    for begin, first in _FIRST_TOKENS.items():
        if name.replace("-", "").lower().startswith(begin.lower()):
            content = (folder / _FAIRSEQ).read_bytes()
            return sentencepiece_model.pipeline(
                content,
                False,
                False,
                ["<mask>"],
                first,
                separators=2,
                settings=settings,
            )
    raise UserError(
        f"the ids of {_FAIRSEQ} depend on tokenizer_class in {SETTINGS_FILE}; expected "
        f"XLMRobertaTokenizer or CamembertTokenizer, got {name}"
    )


def read_google(folder: pathlib.Path) -> Tokenizer:
    """Read the vocabulary in a folder of google-research/bert, albert or electra.

    It is `vocab.txt`, or for ALBERT the only SentencePiece model.
    """
    if (folder / json_files.ALBERT_CONFIG).exists():
        models = sorted(folder.glob("*.model"))
        if len(models) != 1:
            raise UserError(f"{folder} has {len(models)} files *.model; expected one")
        with storage.reading(models[0]):
            content = models[0].read_bytes()
            return tokenizer_lib.make(sentencepiece_model.pipeline(content, True, True))
    settings = tokenizer_settings.read(folder)
    return read_wordpiece(
        folder / _WORDPIECE,
        settings.get("do_lower_case"),
        settings.get("strip_accents"),
    )


def read_wordpiece(
    path: str | os.PathLike, lower_case: bool | None, strip_accents: bool | None
) -> Tokenizer:
    """Read a `vocab.txt` of google-research/bert; see `pipelines.bert_steps`.

    If `lower_case` is None, text is lower-cased if no token has a capital letter. If
    `strip_accents` is None, it equals `lower_case`; but if both are None, and a token
    has an accent or a vowel sign, none are stripped.
    """
    with storage.reading(path):
        tokens = pipelines.parse_wordpiece(storage.path(path).read_bytes())
        if lower_case is None:
            # Not special tokens, such as [UNK], or <S> of Google's Chinese model.
            words = [t for t in tokens if not re.fullmatch(r"\[.*|<.*>", t)]
            lower_case = all(word == word.lower() for word in words)
            if strip_accents is None and any(map(pipelines.has_accents, words)):
                strip_accents = False
        if strip_accents is None:
            strip_accents = lower_case
        pipeline = pipelines.wordpiece(tokens, lower_case, strip_accents)
    return tokenizer_lib.make(pipeline)


def has_tokens_in_lines(folder: storage.Path) -> bool:
    """Return whether `read` takes the tokens from the lines of a `vocab.txt`."""
    first = PIPELINE_FILE, _SENTENCEPIECE, _DEBERTA, _FAIRSEQ, _BYTE_BPE[0]
    return not any((folder / name).exists() for name in first)


def has_one_segment(folder: storage.Path, tokenizer: Tokenizer) -> bool:
    """Return whether `transformers` gives segment 0 to both texts of a pair."""
    settings = json_files.JsonFile(
        folder / SETTINGS_FILE, tokenizer_settings.read(folder)
    )
    model = json_files.read_or_empty(folder / "config.json")
    name = settings.values.get("tokenizer_class") or model.get("tokenizer_class")
    has_ids = not re.fullmatch(_WITHOUT_SEGMENTS, str(name))
    if "backend" in settings.values:  # saved by release 5 or later
        has_ids = name in _WITH_SEGMENTS
    default = ["token_type_ids"] if has_ids else []
    if "token_type_ids" not in settings.value("model_input_names", list, default):
        return True
    given = pipelines.post_process(2, json.loads(tokenizer.pipeline)["post_processor"])
    return any(given.special_tokens_mask) and not any(given.type_ids)


# ---- out


def with_space_before_words(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer of a tagger, which has seen a space before each word.

    `transformers` gives the words of `is_split_into_words` to the pipeline one by one,
    so the pipeline has to add the space: a byte-level splitter, or an early step.
    """
    values = json.loads(tokenizer.pipeline)
    steps = [
        step
        for step in token_texts.all_steps(values["normalizer"])
        if step["type"] != "Sequence"
    ]
    splitters = token_texts.all_steps(values["pre_tokenizer"])
    if splitters and splitters[0]["type"] == "ByteLevel":
        splitters[0]["add_prefix_space"] = True
    elif tokenizer.space_marker and not any(map(_adds_space, [*steps, *splitters])):
        # EuroBERT and mmBERT. Behind another splitter, ByteLevel would add a space
        # inside words, too. `Strip` would remove the space.
        stripping = [i for i, step in enumerate(steps) if step["type"] == "Strip"]
        first = stripping[-1] + 1 if stripping else 0
        steps.insert(first, {"type": "Prepend", "prepend": " "})
        values["normalizer"] = {"type": "Sequence", "normalizers": steps}
    return tokenizer_lib.make(values, tokenizer.settings())


def _adds_space(step: dict[str, Any]) -> bool:
    return (
        step["type"] == "Prepend"
        or step.get("add_prefix_space", False)
        or step.get("prepend_scheme", "never") != "never"
    )


def write(
    tokenizer: Tokenizer,
    folder: pathlib.Path,
    encoder: config_lib.EncoderConfig,
    *,
    cls_is_last: bool = False,
) -> None:
    """Write a tokenizer as `AutoTokenizer.from_pretrained` reads it."""
    has_segments = encoder.type_vocab_size > 1
    tokenizer = special_token_layout.apply(
        tokenizer, cls_is_last=cls_is_last, has_segments=has_segments
    )
    tokenizer.save(folder)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    if not has_segments:
        names.remove("token_type_ids")
    json_files.write(
        folder / SETTINGS_FILE,
        {
            **tokenizer.settings(),
            "model_max_length": encoder.max_position_embeddings,
            "model_input_names": names,
            # XLNet pools the last token.
            "padding_side": "left" if cls_is_last else "right",
        },
    )


def write_wordpiece(tokenizer: Tokenizer, folder: pathlib.Path) -> None:
    """Write a `vocab.txt` for google-research/bert, and the settings that it needs.

    Raises:
      UserError: google-research/bert splits texts differently.
    """
    steps = tokenizer.steps()
    normaliser = steps["normalizer"] or {}
    lower_case = normaliser.get("lowercase", False)
    strip_accents = normaliser.get("strip_accents")
    strip_accents = lower_case if strip_accents is None else strip_accents
    bert = pipelines.wordpiece(SPECIAL_TOKENS, lower_case, strip_accents)
    expected = tokenizer_lib.make(bert).steps()
    normaliser = {**normaliser, "strip_accents": strip_accents}
    added = {token["content"] for token in steps["added_tokens"]}
    if (
        tokenizer.model_type != "WordPiece"
        or tokenizer.special_tokens != SPECIAL_TOKENS
        or steps["model"]["continuing_subword_prefix"] != "##"
        or not added <= {*SPECIAL_TOKENS}
        or normaliser != expected["normalizer"]
        or steps["pre_tokenizer"] != expected["pre_tokenizer"]
    ):
        raise UserError(
            f"google-research/bert has no {tokenizer.model_type} tokenizer that splits "
            "texts like this one; convert --to=huggingface"
        )
    # A line for each id. An id that the vocabulary skips gets a token that no text has.
    lines = [token or f"[unused-{i}]" for i, token in enumerate(tokenizer.tokens)]
    content = "".join(f"{line}\n" for line in lines)
    (folder / _WORDPIECE).write_text(content, encoding="utf-8")
    settings = {"do_lower_case": lower_case, "strip_accents": strip_accents}
    json_files.write(folder / SETTINGS_FILE, settings)
