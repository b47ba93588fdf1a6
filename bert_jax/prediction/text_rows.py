"""Checks of texts and their conversion to rows of tokens."""

from collections.abc import Sequence

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.tasks import Arrays

# A text, or two texts that become two segments.
Text = str | tuple[str, str]


class TextError(UserError):
    """Error about one of several texts.

    Attributes:
      index: Index of the text.
    """

    def __init__(self, index: int, message: str):
        super().__init__(message)
        self.index = index


def check_list(texts: Sequence[Text]) -> None:
    """Check that texts are a list and not one string."""
    if isinstance(texts, str):
        raise UserError(f"{shortened(texts)} is one text; give a list, [TEXT]")


def check_as_many(first: Sequence, second: Sequence, names: str) -> None:
    """Check that two lists, described by `names`, have the same length."""
    if len(first) != len(second):
        raise UserError(
            f"{names} must have the same length, got {len(first)} and {len(second)}"
        )


def shortened(text: str) -> str:
    """Shorten a text for a message."""
    return repr(text if len(text) <= 60 else f"{text[:56]} ...")


def pairs_of(texts: Sequence[Text]) -> list[tuple[str, str]]:
    """Return texts and pairs as pairs; the second text of a single one is ""."""
    return [(text, "") if isinstance(text, str) else tuple(text) for text in texts]


def shapes(batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and types of the arrays of `tasks.texts.to_rows`."""
    types = {"input_ids": np.int32, "segment_ids": np.int32, "attention_mask": bool}
    return {
        name: jax.ShapeDtypeStruct((batch_size, length), kind)
        for name, kind in types.items()
    }


def pad(tokenizer: tokenizer_lib.Tokenizer, rows: Sequence[Sequence[int]]) -> Arrays:
    """Pad rows of tokens to input_ids and attention_mask [rows, longest]."""
    shape = len(rows), max(map(len, rows), default=0)
    ids = np.full(shape, tokenizer.pad_id, np.int32)
    mask = np.zeros(shape, bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = True
    return {"input_ids": ids, "attention_mask": mask}


def check_fits(
    encoder: config_lib.EncoderConfig, index: int, text: str, length: int
) -> None:
    """Check that a text, which must not be truncated, fits the model's positions."""
    if length > encoder.max_position_embeddings:
        raise TextError(
            index,
            f"{shortened(text)} has {length} tokens, the model has "
            f"{encoder.max_position_embeddings} positions",
        )
