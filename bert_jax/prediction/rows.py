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


def shortened(text: str) -> str:
    """A text in a message."""
    return repr(text if len(text) <= 60 else f"{text[:56]} ...")


def pack(
    tokenizer: tokenizer_lib.Tokenizer, texts: Sequence[Text], length: int
) -> tuple[Arrays, np.ndarray]:
    """[CLS] a [SEP], or [CLS] a [SEP] b [SEP], for each text or pair.

    What is too long loses tokens at the end, of two texts the longer one first, as in
    google-research/bert, extract_features.py.

    Args:
      tokenizer: Tokenizer of the encoder.
      texts: Texts and pairs; a pair whose second text has no tokens counts as one text.
      length: Tokens in a row, at most.

    Returns:
      input_ids, segment_ids and attention_mask, all [texts, longest]; and which texts
      lost tokens, bool [texts].
    """
    pairs = [(text, "") if isinstance(text, str) else tuple(text) for text in texts]
    first = tokenizer.encode_batch([a for a, _ in pairs])
    second = tokenizer.encode_batch([b for _, b in pairs])
    rows, boundaries = [], []
    truncated = np.zeros(len(pairs), bool)
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        limit = length - (3 if b else 2)
        truncated[i] = len(a) + len(b) > limit
        a, b = _truncate(a, b, limit)
        boundaries.append(len(a) + 2)
        end = [*b, tokenizer.sep_id] if b else []
        rows.append([tokenizer.cls_id, *a, tokenizer.sep_id, *end])
    arrays = pad(tokenizer, rows)
    column = np.arange(arrays["input_ids"].shape[1])
    in_second = column >= np.array(boundaries, int)[:, None]
    segments = (in_second & arrays["attention_mask"]).astype(np.int32)
    return arrays | {"segment_ids": segments}, truncated


def shapes(batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of what `pack` makes."""
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


def _truncate(a: list[int], b: list[int], limit: int) -> tuple[list[int], list[int]]:
    """Shorten the longer list, the second one if they are equal, to `limit` in all."""
    excess = max(len(a) + len(b) - limit, 0)
    from_longer = min(excess, abs(len(a) - len(b)))
    in_turn = excess - from_longer
    from_a = in_turn // 2 + (from_longer if len(a) > len(b) else 0)
    return a[: len(a) - from_a], b[: len(b) - (excess - from_a)]


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
