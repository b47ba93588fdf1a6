"""SentencePiece models in protobuf's wire format, read without a schema.

The schema that comes with sentencepiece needs a newer protobuf than TensorFlow allows.
"""

import re
from collections.abc import Iterator
from typing import Any

import sentencepiece
import tokenizers

from bert_jax.tokenizer import SPECIAL_TOKENS, Tokenizer


def with_native_names(model: bytes) -> bytes:
    """Return a SentencePiece model whose special tokens have the names of bert_jax.

    ALBERT and XLNet write some or all of them as <cls>, not [CLS]. Pieces are field 1
    of ModelProto, and the text of a piece is its field 1.
    """
    names = {
        f"<{token[1:-1].lower()}>".encode(): token.encode() for token in SPECIAL_TOKENS
    }
    if not any(name in model for name in names):
        return model
    renamed = []
    try:
        for number, raw, value in _parts(model):
            text = _fields(value).get(1) if number == 1 else None
            if text in names:
                old, new = (_delimited(1, t) for t in (text, names[text]))
                raw = _delimited(1, value.replace(old, new, 1))
            renamed.append(raw)
    except (IndexError, KeyError):  # damaged; loading it raises
        return model
    return b"".join(renamed)


def _delimited(number: int, value: bytes) -> bytes:
    """Encode a field of bytes in protobuf's wire format."""
    length, prefix = len(value), bytearray([number << 3 | 2])
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*prefix, length]) + value


def _fields(message: bytes) -> dict[int, Any]:
    """Decode the fields of a message by number. The last field of a number wins."""
    return {number: value for number, _, value in _parts(message)}


def _parts(message: bytes) -> Iterator[tuple[int, bytes, Any]]:
    """Yield number, encoded bytes and value of each field of a message, in order."""
    position = 0

    def varint():
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        start = position
        tag = varint()
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value = varint()
        else:
            length = {1: 8, 5: 4}[kind] if kind in (1, 5) else varint()
            value = message[position : position + length]
            position += length
        yield number, message[start:position], value


def pipeline(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Build a pipeline of the unigram model and SentencePiece's normalisation."""
    model = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    scores = [(token, model.get_score(i)) for i, token in enumerate(tokenizer.tokens)]
    result = tokenizers.Tokenizer(
        tokenizers.models.Unigram(scores, unk_id=tokenizer.unk_id)
    )
    # Fields of NormalizerSpec in sentencepiece_model.proto, field 3 of ModelProto.
    spec = _fields(_fields(tokenizer.model).get(3, b""))
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
    result.normalizer = tokenizers.normalizers.Sequence(steps)
    scheme = "always" if spec.get(3, True) else "never"
    symbols = [
        token
        for i, token in enumerate(tokenizer.tokens)
        if model.is_control(i) or model.is_unknown(i)
    ]
    result.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme),
            _never_whole(symbols),
        ]
    )
    result.decoder = tokenizers.decoders.Metaspace(prepend_scheme=scheme)
    return result


def _never_whole(symbols: list[str]) -> tokenizers.pre_tokenizers.PreTokenizer:
    """Return a splitter that cuts a spelt-out control symbol after its first character.

    The library `tokenizers` finds control symbols in text; SentencePiece does not.
    """
    first = "|".join(f"{re.escape(s[0])}(?={re.escape(s[1:])})" for s in symbols)
    return tokenizers.pre_tokenizers.Split(
        tokenizers.Regex(first), "merged_with_previous"
    )
