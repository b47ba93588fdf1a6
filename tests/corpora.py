"""Files of corpora: how to damage and to compare them."""


def content(folder):
    """Files in a folder, by name."""
    return {p.name: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def flipped(data, place):
    """The bytes with one bit of one of them changed; from the end if negative."""
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)
