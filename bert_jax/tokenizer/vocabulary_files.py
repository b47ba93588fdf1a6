"""Vocabulary files: `vocab.txt` of BERT; `vocab.json` and `merges.txt` of GPT-2."""

import json

from bert_jax.errors import UserError


def parse_wordpiece(text: bytes) -> list[str]:
    """Parse a `vocab.txt`, with one token per line.

    Raises:
      UserError: It is not UTF-8, or a line is empty.
    """
    try:
        # Not `splitlines`, which also splits at characters that tokens may contain.
        lines = text.decode("utf-8-sig").replace("\r\n", "\n").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"vocab.txt is damaged: {error}") from error
    if "" in lines:
        raise UserError(
            f"vocabulary, line {lines.index('') + 1}: no token on this line"
        )
    return lines


def parse_byte_bpe(
    vocabulary: bytes, merges: bytes
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Parse the `vocab.json` and the `merges.txt` of a byte-level BPE vocabulary.

    Returns:
      Id of each token, and the pairs of tokens to merge, in order.

    Raises:
      UserError: A file is damaged, or the files do not belong together.
    """
    try:
        ids = json.loads(vocabulary)
        if not isinstance(ids, dict) or {type(i) for i in ids.values()} - {int}:
            raise ValueError("no JSON object of tokens and ids")
        "".join(ids).encode("utf-8")
        if sorted(ids.values()) != list(range(len(ids))):
            raise ValueError(f"the ids are not 0 to {len(ids) - 1}, each once")
    except (ValueError, RecursionError) as error:
        raise UserError(f"vocab.json is damaged: {error}") from error
    try:
        lines = merges.decode("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"merges.txt is damaged: {error}") from error
    pairs = []
    for number, line in enumerate(lines, 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        first, _, second = line.partition(" ")
        if not (first and second) or " " in second:
            raise UserError(
                f"merges.txt, line {number}: {line!r} is not a pair of tokens"
            )
        missing = [t for t in (first, second, first + second) if t not in ids]
        if missing:
            raise UserError(
                f"merges.txt, line {number}: {missing[0]!r} is not in vocab.json"
            )
        pairs.append((first, second))
    return ids, pairs
