"""Tokenizers of Hugging Face and TensorFlow folders, in and out.

The library `tokenizers` reads a `tokenizer.json`. If bert_jax would give other ids than
its pipeline, the folder is refused. Settings that `tokenizer_config.json` lacks are
those of the pipeline, or the defaults of `transformers`. A written `tokenizer.json`
holds the whole pipeline, because defaults differ between versions.
"""

import dataclasses
import itertools
import json
import pathlib
import re
from typing import Any

import tokenizers

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.interop import json_files, sentencepiece_model
from bert_jax.interop.families import BERT, FAMILIES
from bert_jax.interop.families.family import Family
from bert_jax.tokenizer import UNK, Tokenizer, byte_bpe

SETTINGS = "tokenizer_config.json"
_PIPELINE = "tokenizer.json"
_SENTENCEPIECE = "spiece.model"
_ADDED = "added_tokens.json"
# Longest word of `transformers`' BERT tokenizers, in characters.
_LONGEST_WORD = 100
# Classes of `transformers` that split texts as their model does, or as BERT's.
_CLASSES = (
    "(Albert|Bert|DistilBert|Electra|GPT2|PreTrained|Roberta|XLNet)Tokenizer(Fast)?"
    "|TokenizersBackend"
)
# Parts of a model that are compared as ids, or that concern unknown bytes only.
_NOT_COMPARED = {
    "WordPiece": {"vocab"},
    "BPE": {"vocab", "merges", "unk_token", "fuse_unk"},
}


# ---- in


def is_published(folder: pathlib.Path) -> bool:
    """Return whether a folder has a vocabulary that is no tokenizer of bert_jax."""
    if (folder / _PIPELINE).exists():
        return "kind" not in json_files.read(folder / _PIPELINE)
    return any((folder / name).exists() for name in (_SENTENCEPIECE, "vocab.txt"))


def read(folder: pathlib.Path) -> Tokenizer:
    """Read the tokenizer of a folder.

    Raises:
      UserError: The tokenizer is missing, damaged or unsupported.
    """
    settings = json_files.read_if_there(folder / SETTINGS)
    model = json_files.read_if_there(folder / "config.json")
    families = [each for each in FAMILIES if each.model_type == model.get("model_type")]
    family = families[0] if families else BERT
    path, pipeline = folder / _PIPELINE, None
    if path.exists():
        try:
            pipeline = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library has no class of errors
            raise UserError(f"{path} cannot be used: {error}") from error
        pipeline.no_padding()
        pipeline.no_truncation()
    try:
        tokenizer = _read(folder, pipeline, settings, family)
    except UserError as error:
        reason = str(error).replace("spm.model", _SENTENCEPIECE)
        where = "" if str(folder) in reason else f"{folder}: "
        raise UserError(f"{where}{reason}") from error
    _check_added_tokens(folder, tokenizer, pipeline)
    if pipeline and tokenizer.kind != "sentencepiece":
        _check_steps(path, tokenizer, pipeline)
    else:  # the class may split texts before its model does
        name = settings.get("tokenizer_class") or model.get("tokenizer_class")
        if name and not re.fullmatch(_CLASSES, str(name)):
            raise UserError(
                f"{folder}: the tokenizer_class {name!r} splits texts in its own way, "
                "which bert_jax does not support"
            )
    if pipeline:
        has_segments = model.get("type_vocab_size") not in (None, 0, 1)
        _check_pairs(path, tokenizer, pipeline, family.cls_is_last, has_segments)
    return tokenizer


def _read(
    folder: pathlib.Path,
    pipeline: tokenizers.Tokenizer | None,
    settings: dict[str, Any],
    family: Family,
) -> Tokenizer:
    normaliser = pipeline.normalizer if pipeline else None
    lower_case, strip_accents = _normalisation(settings, normaliser, family)
    if (folder / _SENTENCEPIECE).exists():
        content = (folder / _SENTENCEPIECE).read_bytes()
        model = sentencepiece_model.with_native_names(content)
        # Only bert_jax writes `strip_accents`.
        keep_accents = not settings.get("strip_accents", True)
        strip_accents = not settings.get("keep_accents", keep_accents)
        return Tokenizer("sentencepiece", lower_case, strip_accents, model)
    if pipeline is None:
        if tokenizer_lib.is_published_bpe(folder):
            return tokenizer_lib.from_published_bpe(folder)
        path = folder / "vocab.txt"
        if not path.exists():
            raise UserError(
                f"there is no {path.name}, {_PIPELINE}, {_SENTENCEPIECE}, or vocab.json"
                " with merges.txt"
            )
        tokenizer = tokenizer_lib.from_vocab_file(path, lower_case, strip_accents)
        return dataclasses.replace(tokenizer, longest_word=_LONGEST_WORD)
    ids = pipeline.get_vocab()
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(
            f"the ids in {_PIPELINE} must be 0 to {len(ids) - 1}, each once"
        )
    if isinstance(pipeline.model, tokenizers.models.WordPiece):
        model = "".join(f"{token}\n" for token in sorted(ids, key=ids.get)).encode()
        longest_word = pipeline.model.max_input_chars_per_word
        return Tokenizer("wordpiece", lower_case, strip_accents, model, longest_word)
    if isinstance(pipeline.model, tokenizers.models.BPE):
        merges = json.loads(pipeline.to_str())["model"]["merges"]
        space = settings.get("add_prefix_space")
        if space is None:
            space = getattr(pipeline.pre_tokenizer, "add_prefix_space", False)
        model = byte_bpe.content(ids, merges)
        return Tokenizer("byte_bpe", False, False, model, add_prefix_space=space)
    raise UserError(
        f"the model in {_PIPELINE} is {type(pipeline.model).__name__}; bert_jax "
        f"supports WordPiece and BPE there, and Unigram in a {_SENTENCEPIECE}"
    )


def _normalisation(
    settings: dict[str, Any], normaliser: Any, family: Family
) -> tuple[bool, bool]:
    """Return `lower_case` and `strip_accents` of a tokenizer.

    Args:
      settings: Values of the tokenizer_config.json.
      normaliser: Normaliser of the pipeline, if there is one.
      family: Family of the model.
    """
    for name in ("tokenize_chinese_chars", "do_basic_tokenize"):
        if settings.get(name) is False:
            raise UserError(
                f"{name} is false in {SETTINGS}; bert_jax always splits Chinese "
                "characters and punctuation"
            )
    lower_case = settings.get("do_lower_case")
    if lower_case is None:
        lower_case = getattr(normaliser, "lowercase", family.lower_case)
    strip_accents = settings.get(
        "strip_accents", getattr(normaliser, "strip_accents", None)
    )
    return lower_case, lower_case if strip_accents is None else strip_accents


def _check_added_tokens(
    folder: pathlib.Path,
    tokenizer: Tokenizer,
    pipeline: tokenizers.Tokenizer | None,
) -> None:
    """Refuse tokens that `transformers` finds anywhere in a text, even inside words."""
    known = {tokenizer.tokens.index(token) for token in tokenizer.special_tokens}
    if tokenizer.kind == "sentencepiece":  # has control symbols
        known = {*range(tokenizer.vocab_size)}
    added = json_files.read_if_there(folder / _ADDED)
    if pipeline:
        decoder = pipeline.get_added_tokens_decoder()
        added |= {token.content: i for i, token in decoder.items()}
    if unknown := [token for token, i in added.items() if i not in known]:
        raise UserError(
            f"{folder}: the vocabulary has added tokens, such as {unknown[0]!r}; "
            "bert_jax does not support them, because they are also found inside words"
        )


def _check_steps(
    path: pathlib.Path, tokenizer: Tokenizer, pipeline: tokenizers.Tokenizer
) -> None:
    """Check that a pipeline normalises and splits text as bert_jax does."""
    given, native = _steps(pipeline), _steps(_PIPELINES[tokenizer.kind](tokenizer))
    for step, expected in native.items():
        if given[step] != expected:
            raise UserError(
                f"{path}: {step} is {json.dumps(given[step])}; with the settings in "
                f"{SETTINGS}, bert_jax supports {json.dumps(expected)} only"
            )


def _steps(pipeline: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the settings of a pipeline that affect the ids of texts."""
    values = json.loads(pipeline.to_str())
    normalizer, splitter = values["normalizer"], values["pre_tokenizer"]
    if normalizer and normalizer.get("strip_accents", False) is None:
        normalizer["strip_accents"] = normalizer["lowercase"]
    if splitter:
        splitter.pop("trim_offsets", None)
    # BPE has "" or null for parts of words that are not marked.
    model = {
        name: value or None
        for name, value in values["model"].items()
        if name not in _NOT_COMPARED[values["model"]["type"]]
    }
    return {"normalizer": normalizer, "pre_tokenizer": splitter, "model": model}


def _check_pairs(
    path: pathlib.Path,
    tokenizer: Tokenizer,
    pipeline: tokenizers.Tokenizer,
    cls_is_last: bool,
    has_segments: bool,
) -> None:
    """Check that a pipeline joins texts as bert_jax does, if it adds special tokens."""
    texts = [pipeline.encode(text, add_special_tokens=False) for text in ("a", "b")]
    given = pipeline.post_process(*texts)
    native = _joined_texts(tokenizer, cls_is_last).process(*texts)
    if not any(given.special_tokens_mask):
        return
    if given.ids != native.ids:
        raise UserError(
            f"{path} joins text pairs as {_template(given)}; with {tokenizer.kind}, "
            f"bert_jax supports {_template(native)} only"
        )
    if has_segments and given.type_ids != native.type_ids:
        raise UserError(
            f"{path} gives the segments {given.type_ids} to the pair "
            f"{_template(given)}; bert_jax supports {native.type_ids} only"
        )


def _template(pair: tokenizers.Encoding) -> str:
    """Return the special tokens of a pair, and letters for its texts."""
    letters, parts = iter("AB"), []
    tokens = zip(pair.special_tokens_mask, pair.tokens, strict=True)
    for is_special, group in itertools.groupby(tokens, lambda token: token[0]):
        parts += [token for _, token in group] if is_special else [next(letters)]
    return " ".join(parts)


# ---- out


def write(
    tokenizer: Tokenizer,
    folder: pathlib.Path,
    encoder: config_lib.EncoderConfig,
    *,
    cls_is_last: bool = False,
) -> None:
    """Write a tokenizer as `AutoTokenizer.from_pretrained` reads it.

    Args:
      tokenizer: Tokenizer.
      folder: Folder to write into.
      encoder: Config of the encoder.
      cls_is_last: Whether [CLS] follows the text, in a third segment, as in XLNet.
    """
    special = tokenizer.special_tokens
    normalisation = {
        "do_lower_case": tokenizer.lower_case,
        "strip_accents": tokenizer.strip_accents,
        "tokenize_chinese_chars": True,
    }
    if tokenizer.kind == "wordpiece":
        (folder / "vocab.txt").write_bytes(tokenizer.model)
    elif tokenizer.kind == "sentencepiece":
        (folder / _SENTENCEPIECE).write_bytes(tokenizer.model)
    else:
        vocabulary, _, merges = tokenizer.model.partition(b"\n")
        (folder / "vocab.json").write_bytes(vocabulary + b"\n")
        (folder / "merges.txt").write_bytes(merges)
        normalisation = {"add_prefix_space": tokenizer.add_prefix_space}
    pipeline = _PIPELINES[tokenizer.kind](tokenizer)
    # With bytes, [MASK] stands for a token with the space in front of it.
    mask = tokenizers.AddedToken(special.mask, lstrip=tokenizer.kind == "byte_bpe")
    pipeline.add_special_tokens([*special[:-1], mask])
    pipeline.post_processor = _joined_texts(tokenizer, cls_is_last)
    json_files.write(folder / _PIPELINE, json.loads(pipeline.to_str()))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    if encoder.type_vocab_size < 2:  # the model has no segments
        names.remove("token_type_ids")
    json_files.write(
        folder / SETTINGS,
        {
            # BertTokenizer would build its own pipeline, in which words of more than
            # 100 characters are unknown; in google-research/bert, the limit is 200.
            "tokenizer_class": "PreTrainedTokenizerFast",
            **normalisation,
            "model_max_length": encoder.max_position_embeddings,
            "model_input_names": names,
            # XLNet pools the last token.
            "padding_side": "left" if cls_is_last else "right",
            "clean_up_tokenization_spaces": False,
            **{f"{name}_token": token for name, token in special._asdict().items()},
        },
    )


def _joined_texts(
    tokenizer: Tokenizer, cls_is_last: bool
) -> tokenizers.processors.PostProcessor:
    """Return a post-processor that adds the special tokens of bert_jax's tasks."""
    cls, sep = tokenizer.special_tokens.cls, tokenizer.special_tokens.sep
    between = " ".join([f"{sep}:0"] * len(tokenizer.pair_separators))
    texts = f"$A:0 {sep}:0", f"$A:0 {between} $B:1 {sep}:1"
    single, pair = (f"{t} {cls}:2" if cls_is_last else f"{cls}:0 {t}" for t in texts)
    return tokenizers.processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[(cls, tokenizer.cls_id), (sep, tokenizer.sep_id)],
    )


def _wordpiece(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    model = tokenizers.models.WordPiece(
        {token: i for i, token in reversed(list(enumerate(tokenizer.tokens)))},
        unk_token=UNK,
        max_input_chars_per_word=tokenizer.longest_word,
    )
    pipeline = tokenizer_lib.wordpiece_pipeline(
        model, tokenizer.lower_case, tokenizer.strip_accents
    )
    pipeline.decoder = tokenizers.decoders.WordPiece(prefix="##")
    return pipeline


def _byte_bpe(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    vocabulary, _, merges = tokenizer.model.partition(b"\n")
    ids, pairs = byte_bpe.parse(vocabulary, merges)
    unknown = tokenizer.special_tokens.unk
    pipeline = byte_bpe.pipeline(tokenizers.models.BPE(ids, pairs, unk_token=unknown))
    pipeline.pre_tokenizer.add_prefix_space = tokenizer.add_prefix_space
    pipeline.decoder = tokenizers.decoders.ByteLevel()
    return pipeline


# Functions that build the pipeline of a kind of tokenizer.
_PIPELINES = {
    "wordpiece": _wordpiece,
    "sentencepiece": sentencepiece_model.pipeline,
    "byte_bpe": _byte_bpe,
}
