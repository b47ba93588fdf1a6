"""Tokenizers in the format of earlier versions: settings, and a `vocab.txt`."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import tokenizers

from bert_jax.tokenizer import pipelines


def is_legacy(values: Any) -> bool:
    """Return whether the JSON of a tokenizer is in the legacy format."""
    return isinstance(values, dict) and "kind" in values


def read(
    settings: dict[str, Any], read_vocabulary: Callable[[], bytes]
) -> tuple[tokenizers.Tokenizer, str]:
    """Return the pipeline, and the fingerprint that it had.

    Raises:
      ValueError: It is no WordPiece vocabulary, or has changed since it was saved.
    """
    if settings["kind"] != "wordpiece":
        raise ValueError(
            f"an earlier version of bert_jax saved it as {settings['kind']!r}; only "
            "'wordpiece' is still read"
        )
    vocabulary = read_vocabulary()
    values = [settings[name] for name in ("kind", "lower_case", "strip_accents")]
    if (longest := settings.get("longest_word")) not in (None, pipelines.LONGEST_WORD):
        values.append(longest)
    content = json.dumps(values).encode() + b"\0" + vocabulary
    fingerprint = hashlib.sha256(content).hexdigest()[:16]
    # The oldest versions did not save the fingerprint.
    if settings.get("fingerprint", fingerprint) != fingerprint:
        raise ValueError("settings or vocabulary have changed since they were saved")
    tokens = pipelines.parse_wordpiece(vocabulary)
    return pipelines.wordpiece(tokens, *values[1:]), fingerprint
