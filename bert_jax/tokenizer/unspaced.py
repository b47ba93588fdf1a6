"""Scripts that are written without spaces between words."""

# First and last characters: Thai, Lao, Tibetan and Myanmar; Khmer; Han, Kana and
# Bopomofo, with the punctuation and wide forms that go with them.
_RANGES = (
    (0x0E00, 0x109F),
    (0x1780, 0x17FF),
    (0x2E80, 0x312F),
    (0x31A0, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE4F),
    (0xFF00, 0xFF9F),
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x3FFFF),
)
# UTF-8 sorts as code points do.
_BYTES = [(chr(first).encode(), chr(last).encode()) for first, last in _RANGES]
# Number of bytes of a character, by the upper half of its first byte.
_SIZES = {0b1110: 3, 0b1111: 4}
_CONTINUATIONS = bytes(range(0x80, 0xC0))


def begins_unspaced(token: bytes) -> bool:
    """Return whether the first character of a token is of a script without spaces.

    Byte-level tokens may begin and end inside characters. Bytes before the first
    character are skipped. If the token ends inside the first character, the result is
    True if any character that begins with these bytes is of such a script.
    """
    token = token.lstrip(_CONTINUATIONS)
    size = _SIZES.get(token[0] >> 4) if token else None
    if not size:
        return False
    lowest, highest = (token[:size].ljust(size, fill) for fill in (b"\x80", b"\xbf"))
    return any(lowest <= last and first <= highest for first, last in _BYTES)
