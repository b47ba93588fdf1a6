"""Texts and pairs of texts to rows of tokens."""

from collections.abc import Sequence

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.tasks import Arrays

# A text, or two that the model sees as two segments.
Text = str | tuple[str, str]


class TextError(UserError):
    """One of several texts cannot be asked about.

    Attributes:
      index: Which of them.
    """

    def __init__(self, index: int, message: str):
        super().__init__(message)
        self.index = index


def check_list(texts: Sequence[Text]) -> None:
    """Refuse a text alone, whose characters would be taken for texts.

    Raises:
      UserError: It is one.
    """
    if isinstance(texts, str):
        raise UserError(f"{shortened(texts)} is one text; give a list, [TEXT]")


def check_as_many(first: Sequence, second: Sequence, names: str) -> None:
    """Refuse two lists that do not go in pairs.

    Args:
      first: One list.
      second: The other one.
      names: What they hold, such as "questions and contexts".

    Raises:
      UserError: They have different lengths.
    """
    if len(first) != len(second):
        raise UserError(
            f"{names} are lists of one length, not {len(first)} and {len(second)}"
        )


def shortened(text: str) -> str:
    """A text in a message."""
    return repr(text if len(text) <= 60 else f"{text[:56]} ...")


def pairs_of(texts: Sequence[Text]) -> list[tuple[str, str]]:
    """Texts and pairs, all as pairs; the second of a text alone is ""."""
    return [(text, "") if isinstance(text, str) else tuple(text) for text in texts]


def shapes(batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of what `tasks.texts.to_rows` makes."""
    types = {"input_ids": np.int32, "segment_ids": np.int32, "attention_mask": bool}
    return {
        name: jax.ShapeDtypeStruct((batch_size, length), kind)
        for name, kind in types.items()
    }


def pad(tokenizer: tokenizer_lib.Tokenizer, rows: Sequence[Sequence[int]]) -> Arrays:
    """input_ids and attention_mask [rows, longest] of rows of tokens."""
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
    """Refuse a text that is longer than the model, where nothing may be cut off.

    Raises:
      TextError: It is.
    """
    if length > encoder.max_position_embeddings:
        raise TextError(
            index,
            f"{shortened(text)} has {length} tokens, the model has "
            f"{encoder.max_position_embeddings} positions",
        )
