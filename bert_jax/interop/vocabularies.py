"""Tokenizers of Hugging Face and TensorFlow folders, in and out.

Settings are read from `tokenizer_config.json`. If it lacks them, they are read from the
pipeline in `tokenizer.json`, or are the defaults of `transformers`. A written
`tokenizer.json` holds the whole pipeline, because defaults differ between versions.
"""

import json
import pathlib
import re
from typing import Any

import sentencepiece
import tokenizers

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.interop import json_files, sentencepiece_model, templates
from bert_jax.interop.families import BERT
from bert_jax.interop.families.family import Family
from bert_jax.tokenizer import UNK, Tokenizer, byte_bpe

SETTINGS = "tokenizer_config.json"
_SENTENCEPIECE = "spiece.model"
_ADDED = "added_tokens.json"


def read(folder: pathlib.Path, family: Family = BERT) -> Tokenizer:
    """Read the tokenizer of a folder.

    Args:
      folder: Folder.
      family: Family of the model in the folder.

    Raises:
      UserError: The tokenizer is missing, damaged or unsupported.
    """
    path = folder / "tokenizer.json"
    pipeline = json_files.read_if_there(path)
    tokenizer = _read(folder, pipeline, family.lower_case)
    templates.check(path, pipeline, tokenizer, cls_is_last=family.cls_is_last)
    return tokenizer


def _read(
    folder: pathlib.Path, pipeline: dict[str, Any], usually_lower_case: bool
) -> Tokenizer:
    config = folder / SETTINGS
    settings = json_files.read_if_there(config)
    if (folder / _SENTENCEPIECE).exists():
        kind, content = "sentencepiece", (folder / _SENTENCEPIECE).read_bytes()
        model, pipeline = sentencepiece_model.with_native_names(content), {}
    elif pipeline:
        if _type(pipeline.get("model")) == "BPE":
            return _read_byte_bpe(folder / "tokenizer.json", pipeline, settings)
        kind, model = "wordpiece", _vocabulary(folder / "tokenizer.json", pipeline)
    elif (folder / "vocab.txt").exists():
        kind, model = "wordpiece", _lines(folder / "vocab.txt")
    elif tokenizer_lib.is_published_bpe(folder):
        return tokenizer_lib.from_published_bpe(folder)
    else:
        raise UserError(
            f"{folder} has no vocabulary: no vocab.txt, tokenizer.json, "
            f"{_SENTENCEPIECE}, or vocab.json with merges.txt"
        )
    normaliser = pipeline.get("normalizer")
    normaliser = normaliser if isinstance(normaliser, dict) else {}

    def setting(name, in_pipeline):
        value = settings.get(name)
        return normaliser.get(in_pipeline) if value is None else value

    splits = setting("tokenize_chinese_chars", "handle_chinese_chars")
    if splits is False or settings.get("do_basic_tokenize") is False:
        raise UserError(
            f"{config} switches off the split of Chinese characters or of "
            "punctuation; bert_jax always splits them"
        )
    lower_case = setting("do_lower_case", "lowercase")
    lower_case = usually_lower_case if lower_case is None else lower_case is not False
    strip_accents = setting("strip_accents", "strip_accents")
    if isinstance(settings.get("keep_accents"), bool):  # SentencePiece only
        strip_accents = not settings["keep_accents"]
    if strip_accents is None:  # defaults of the original code
        strip_accents = lower_case or kind == "sentencepiece"
    try:
        if kind == "sentencepiece":
            return Tokenizer(kind, lower_case, strip_accents, model)
        # The default is that of `transformers`' BERT tokenizers.
        longest = (pipeline.get("model") or {}).get("max_input_chars_per_word", 100)
        return Tokenizer(kind, lower_case, strip_accents, model, longest)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error


def _lines(path: pathlib.Path) -> bytes:
    """Read a vocab.txt, and append the tokens of an added_tokens.json."""
    text = path.read_bytes().replace(b"\r\n", b"\n").rstrip(b"\n") + b"\n"
    path = path.with_name(_ADDED)
    first = text.count(b"\n")
    added = {
        token: i
        for token, i in json_files.read_if_there(path).items()
        if not (isinstance(i, int) and i < first)  # already in vocab.txt
    }
    ids = range(first, first + len(added))
    if sorted(added.values(), key=str) != sorted(ids, key=str):
        raise UserError(
            f"{path}: the ids must continue the {first} tokens of vocab.txt, from "
            f"{first} on"
        )
    more = sorted(added, key=added.get)
    return text + "".join(f"{token}\n" for token in more).encode("utf-8")


def _type(part: Any) -> Any:
    """Return the type of a part of a pipeline."""
    return part.get("type") if isinstance(part, dict) else None


def _vocabulary(path: pathlib.Path, pipeline: dict[str, Any]) -> bytes:
    """Return the vocabulary of a WordPiece pipeline as the text of a vocab.txt."""
    model = pipeline.get("model")
    if _type(model) != "WordPiece":
        raise UserError(
            f"{path}: unknown model type {_type(model)}; expected WordPiece or BPE"
        )
    if model.get("continuing_subword_prefix", "##") != "##":
        raise UserError(f"{path}: continuing_subword_prefix must be ##")
    ids = _ids(path, pipeline)
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(
            f"{path}: the ids of the vocabulary must be 0 to {len(ids) - 1}, each once"
        )
    return "".join(f"{token}\n" for token in sorted(ids, key=ids.get)).encode("utf-8")


def _ids(path: pathlib.Path, pipeline: dict[str, Any]) -> dict[str, int]:
    """Return the id of each token of a pipeline."""
    try:
        ids = {str(token): int(i) for token, i in pipeline["model"]["vocab"].items()}
        for added in pipeline.get("added_tokens") or ():
            ids.setdefault(str(added["content"]), int(added["id"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: the vocabulary is damaged") from error
    return ids


def _read_byte_bpe(
    path: pathlib.Path, pipeline: dict[str, Any], settings: dict[str, Any]
) -> Tokenizer:
    """Return the tokenizer of a pipeline that is byte-level BPE and nothing else."""
    splitter, model = pipeline.get("pre_tokenizer"), pipeline["model"]
    if _type(splitter) != "ByteLevel" or splitter.get("use_regex") is False:
        raise UserError(f"{path}: bert_jax supports the byte-level BPE of GPT-2 only")
    if pipeline.get("normalizer") or model.get("byte_fallback"):
        raise UserError(
            f"{path} normalises text; bert_jax supports byte-level BPE without it only"
        )
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise UserError(f"{path}: the merges are damaged")
    lines = [" ".join(pair) if isinstance(pair, list) else str(pair) for pair in merges]
    prefix = settings.get("add_prefix_space", splitter.get("add_prefix_space"))
    try:
        parts = byte_bpe.parse(
            json.dumps(_ids(path, pipeline)).encode(), "\n".join(lines).encode()
        )
        return Tokenizer(
            "byte_bpe",
            False,
            False,
            byte_bpe.content(*parts),
            add_prefix_space=prefix is True,
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


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
      cls_is_last: Whether [CLS] follows the text.
    """
    special = tokenizer.special_tokens
    mask = tokenizers.AddedToken(special.mask)
    if tokenizer.kind == "wordpiece":
        (folder / "vocab.txt").write_bytes(tokenizer.model)
        pipeline = _wordpiece(tokenizer)
    elif tokenizer.kind == "sentencepiece":
        (folder / _SENTENCEPIECE).write_bytes(tokenizer.model)
        pipeline = _sentencepiece(tokenizer)
    else:
        vocabulary, _, merges = tokenizer.model.partition(b"\n")
        (folder / "vocab.json").write_bytes(vocabulary + b"\n")
        (folder / "merges.txt").write_bytes(merges)
        pipeline = _byte_bpe(tokenizer)
        # As in bert_jax, [MASK] stands for a token with the space in front of it.
        mask = tokenizers.AddedToken(special.mask, lstrip=True)
    pipeline.add_special_tokens([*special[:-1], mask])
    pipeline.post_processor = templates.processor(tokenizer, cls_is_last=cls_is_last)
    json_files.write(folder / "tokenizer.json", json.loads(pipeline.to_str()))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    if encoder.type_vocab_size < 2:  # the model has no segments
        names.remove("token_type_ids")
    normalisation = {
        "do_lower_case": tokenizer.lower_case,
        "strip_accents": tokenizer.strip_accents,
        "tokenize_chinese_chars": True,
    }
    if tokenizer.kind == "byte_bpe":
        normalisation = {"add_prefix_space": tokenizer.add_prefix_space}
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
    pipeline = tokenizers.Tokenizer(
        tokenizers.models.BPE(ids, pairs, unk_token=unknown)
    )
    pipeline.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=tokenizer.add_prefix_space
    )
    pipeline.decoder = tokenizers.decoders.ByteLevel()
    return pipeline


def _sentencepiece(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Build a pipeline of the unigram model and SentencePiece's normalisation."""
    model = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    scores = [(token, model.get_score(i)) for i, token in enumerate(tokenizer.tokens)]
    pipeline = tokenizers.Tokenizer(
        tokenizers.models.Unigram(scores, unk_id=tokenizer.unk_id)
    )
    # Fields of NormalizerSpec in sentencepiece_model.proto, field 3 of ModelProto.
    fields = sentencepiece_model.fields
    spec = fields(fields(tokenizer.model).get(3, b""))
    steps: list[Any] = []
    if tokenizer.lower_case:
        steps.append(tokenizers.normalizers.Lowercase())
    if tokenizer.strip_accents:
        # `StripAccents` would remove vowels of Indic scripts, too.
        marks = tokenizers.Regex(r"\p{Mn}")
        steps += [
            tokenizers.normalizers.NFD(),
            tokenizers.normalizers.Replace(marks, ""),
        ]
    if spec.get(2):
        if tokenizer.strip_accents:
            # SentencePiece composes Hangul; the rules below do not.
            steps.append(tokenizers.normalizers.NFC())
        steps.append(tokenizers.normalizers.Precompiled(spec[2]))
    if spec.get(4, True):  # strip and collapse white space
        steps += [
            tokenizers.normalizers.Strip(),
            tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    pipeline.normalizer = tokenizers.normalizers.Sequence(steps)
    scheme = "always" if spec.get(3, True) else "never"
    symbols = [
        token
        for i, token in enumerate(tokenizer.tokens)
        if model.is_control(i) or model.is_unknown(i)
    ]
    pipeline.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme),
            _never_whole(symbols),
        ]
    )
    pipeline.decoder = tokenizers.decoders.Metaspace(prepend_scheme=scheme)
    return pipeline


def _never_whole(symbols: list[str]) -> tokenizers.pre_tokenizers.PreTokenizer:
    """Return a splitter that cuts a spelt-out control symbol after its first character.

    The library `tokenizers` finds control symbols in text; SentencePiece does not.
    """
    first = "|".join(f"{re.escape(s[0])}(?={re.escape(s[1:])})" for s in symbols)
    return tokenizers.pre_tokenizers.Split(
        tokenizers.Regex(first), "merged_with_previous"
    )
