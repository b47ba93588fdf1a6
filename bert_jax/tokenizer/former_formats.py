"""Tokenizers in the formats of earlier versions, which had a kind and a model file.

Settings are the `tokenizer.json` of a folder, or the text in a checkpoint. Settings
that a version did not have yet are missing, and get defaults here.
"""

import base64
import hashlib
import json
from typing import Any

import tokenizers

from bert_jax import storage
from bert_jax.tokenizer import pipelines, sentencepiece_model

_MODEL_FILES = {
    "wordpiece": ("vocab.txt",),
    "sentencepiece": ("spm.model",),
    "byte_bpe": ("vocab.json", "merges.txt"),
}


def is_former(settings: Any) -> bool:
    """Return whether settings are in a former format."""
    return isinstance(settings, dict) and settings.get("kind") in _MODEL_FILES


def read_model(folder: storage.Path, settings: dict[str, Any]) -> bytes:
    """Return the model in a folder."""
    names = _MODEL_FILES[settings["kind"]]
    return b"".join((folder / name).read_bytes() for name in names)


def saved_model(settings: dict[str, Any]) -> bytes:
    """Return the model that settings in a checkpoint contain."""
    return base64.b64decode(settings["model"], validate=True)


def fingerprint(settings: dict[str, Any], model: bytes) -> str:
    """Return the fingerprint that earlier versions gave to a tokenizer."""
    values = [settings[name] for name in ("kind", "lower_case", "strip_accents")]
    longest_word = settings.get("longest_word", pipelines.LONGEST_WORD)
    if longest_word != pipelines.LONGEST_WORD:
        values.append(longest_word)
    if settings.get("add_prefix_space"):
        values.append(True)
    content = json.dumps(values).encode() + b"\0" + model
    return hashlib.sha256(content).hexdigest()[:16]


def pipeline(settings: dict[str, Any], model: bytes) -> tokenizers.Tokenizer:
    """Return the pipeline of a tokenizer.

    Raises:
      UserError: The model is damaged.
    """
    normalisation = settings["lower_case"], settings["strip_accents"]
    if settings["kind"] == "byte_bpe":
        vocabulary, _, merges = model.partition(b"\n")
        ids, pairs = pipelines.parse_byte_bpe(vocabulary, merges)
        return pipelines.byte_bpe(ids, pairs, settings.get("add_prefix_space", False))
    if settings["kind"] == "wordpiece":
        longest_word = settings.get("longest_word", pipelines.LONGEST_WORD)
        tokens = pipelines.parse_wordpiece(model)
        return pipelines.wordpiece(tokens, *normalisation, longest_word)
    return sentencepiece_model.pipeline(model, *normalisation)
