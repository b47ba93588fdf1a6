"""SentencePiece models in protobuf's wire format, read without a schema.

The schema that comes with sentencepiece needs a newer protobuf than TensorFlow allows.
"""

from collections.abc import Iterator
from typing import Any

from bert_jax.tokenizer import SPECIAL_TOKENS


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
            text = fields(value).get(1) if number == 1 else None
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


def fields(message: bytes) -> dict[int, Any]:
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
