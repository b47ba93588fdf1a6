"""SentencePiece models (`spm.model`, `spiece.model`) as pipelines.

A model is a message of protobuf, read without a schema: the schema that comes with
sentencepiece needs a newer protobuf than TensorFlow allows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sentencepiece
import tokenizers
from google.protobuf import empty_pb2, unknown_fields
from google.protobuf.message import DecodeError
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.errors import UserError
from bert_jax.tokenizer import pipelines

_UNIGRAM = 1


def normalizer(
    lower_case: bool,
    strip_accents: bool,
    spec: dict[int, Any] | None = None,
    *,
    strip_left: bool = True,
) -> normalizers.Sequence:
    """Return the normalizer of text before SentencePiece, which applies NFKC itself.

    With `spec`, a NormalizerSpec by field, SentencePiece's own steps follow. Where a
    splitter adds a space before a text, one that is there may stay (`strip_left`).
    """
    steps: list[Any] = []
    if lower_case:
        steps.append(normalizers.Lowercase())
    if strip_accents:
        # `StripAccents` would remove vowels of Indic scripts, too.
        marks = tokenizers.Regex(r"\p{Mn}")
        steps += [normalizers.NFD(), normalizers.Replace(marks, "")]
    if spec and spec.get(2):
        # SentencePiece composes characters. With the same rules, `Precompiled` loses
        # marks or leaves characters decomposed, such as Hangul and half-width Kana.
        rules = normalizers.Precompiled(spec[2])
        steps += [normalizers.NFC(), rules, normalizers.NFC()]
    if spec is not None and spec.get(4, True):  # strip and collapse white space
        spaces = tokenizers.Regex(" {2,}")
        strip = normalizers.Strip(left=strip_left)
        steps += [strip, normalizers.Replace(spaces, " ")]
    return normalizers.Sequence(steps)


def pipeline(
    model: bytes,
    lower_case: bool,
    strip_accents: bool,
    more_symbols: Sequence[str] = (),
    first: Sequence[str] = (),
    separators: int = 1,
    settings: Mapping[str, Any] | None = None,
    prepend_scheme: str = "always",
) -> tokenizers.Tokenizer:
    """Return a pipeline of `normalizer` and a unigram model.

    Where two segmentations have one score, SentencePiece may choose the other.

    Args:
      model: Content of the file.
      lower_case: See `normalizer`.
      strip_accents: See `normalizer`.
      more_symbols: Special tokens that the model lacks; they get the last ids.
      first: Special tokens with the first ids. They replace the model's pieces of the
        same names.
      separators: Number of separators between two texts.
      settings: See `special_tokens.find`.
      prepend_scheme: Whether a space is added to a text only, "first", or also after
        special tokens, as `transformers` does with published models, "always".

    Raises:
      UserError: The model is damaged, or not a unigram model.
    """
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        message = _fields(model)
        # Fields of ModelProto in sentencepiece_model.proto: TrainerSpec is field 2,
        # with the type of the model in its field 3, split_by_whitespace in field 22 and
        # treat_whitespace_as_suffix in field 24, and NormalizerSpec is field 3.
        trained = _fields(message.get(2, b""))
        spec = _fields(message.get(3, b""))
    except (RuntimeError, DecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the SentencePiece model is damaged: {reason}") from error
    if not model:
        raise UserError("the SentencePiece model is empty")
    for is_unsupported, reason in (
        (trained.get(3, _UNIGRAM) != _UNIGRAM, "is not a unigram model"),
        (trained.get(24, False), "has treat_whitespace_as_suffix"),
    ):
        if is_unsupported:
            raise UserError(
                f"the SentencePiece model {reason}; bert_jax reads such models from a "
                "tokenizer.json only"
            )
    count = processor.get_piece_size()
    pieces = [processor.id_to_piece(i) for i in range(count)]
    unk = pieces[processor.unk_id()]
    kept = [i for i in range(count) if pieces[i] not in first]
    scores = [(piece, 0.0) for piece in first]
    scores += [(pieces[i], processor.get_score(i)) for i in kept]
    names = [name for name, _ in scores]
    has_bytes = any(map(processor.is_byte, range(count)))
    unigram = models.Unigram(scores, names.index(unk), byte_fallback=has_bytes)
    result = tokenizers.Tokenizer(unigram)
    scheme = prepend_scheme if spec.get(3, True) else "never"
    # "first" adds no space to a text whose space was stripped.
    strip_left = scheme != "first"
    try:
        result.normalizer = normalizer(
            lower_case, strip_accents, spec, strip_left=strip_left
        )
    except Exception as error:  # the library has no class of errors
        raise UserError(f"the SentencePiece model is damaged: {error}") from error
    splits = bool(trained.get(22, True))  # else pieces may have several words
    result.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=splits)
    words = decoders.Metaspace(prepend_scheme=scheme)
    joined = [decoders.ByteFallback(), words]
    result.decoder = decoders.Sequence(joined) if has_bytes else words
    symbols = [
        pieces[i] for i in kept if processor.is_control(i) or processor.is_unknown(i)
    ]
    result.add_special_tokens([*first, *symbols, *more_symbols])
    pipelines.add_special_tokens(result, unk, settings, separators=separators)
    return result


def _fields(message: bytes) -> dict[int, Any]:
    """Decode the fields of a message by number. The last field of a number wins."""
    fields = unknown_fields.UnknownFieldSet(empty_pb2.Empty.FromString(message))
    return {field.field_number: field.data for field in fields}
