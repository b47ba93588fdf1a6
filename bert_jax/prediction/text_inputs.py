"""Texts that a model is asked about: their checks, and computations on them."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.model import heads
from bert_jax.objectives import Batch, BatchShapes
from bert_jax.tasks import task_files

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


@dataclasses.dataclass(frozen=True)
class TextComputation:
    """Base class of an `inference.Computation` on texts and pairs of texts.

    A subclass adds its `model`, and `outputs`, which calls `apply`.
    """

    encoder: config_lib.EncoderConfig

    # Arrays that the model takes after `Inputs`, int32 [B, 1] or with more columns.
    model_arguments: ClassVar[tuple[str, ...]] = ()
    # Method of the model; None: the model itself.
    method: ClassVar[str | None] = None

    def init(self, key: jax.Array) -> Any:
        return heads.init(self.model, key, self.model_arguments, self.method)

    def apply(self, params: Any, batch: Batch) -> Any:
        """Return the output of the model."""
        return heads.apply(
            self.model, params, batch, self.model_arguments, method=self.method
        )

    def batch_shapes(self, batch_size: int, length: int) -> BatchShapes:
        """Return the shapes of `tasks.token_rows.to_rows` and `model_arguments`."""
        ids = jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
        mask = jax.ShapeDtypeStruct((batch_size, length), jnp.bool_)
        one = jax.ShapeDtypeStruct((batch_size, 1), jnp.int32)
        shapes = {"input_ids": ids, "segment_ids": ids, "attention_mask": mask}
        return shapes | dict.fromkeys(self.model_arguments, one)


def check_is_list(texts: Iterable) -> None:
    """Check that texts are a list and not one string."""
    if isinstance(texts, str):
        raise UserError(f"{shortened(texts)} is one text; give a list, [TEXT]")


def check_texts(
    texts: Sequence[str | Sequence[str]], first: int = 0, *, nested: bool = False
) -> None:
    """Check a list of texts, the first with the index `first`.

    Args:
      texts: List of texts.
      first: Index of the first text.
      nested: Whether an item may also be a list of texts.

    Raises:
      TextError: An item is not a text, or not one that UTF-8 can encode.
      UserError: `texts` is one string, or an iterator.
    """
    check_is_list(texts)
    if isinstance(texts, Iterator):  # this function would use it up
        raise UserError("the texts are an iterator; give a list, list(TEXTS)")
    for index, item in enumerate(texts, first):
        parts = item if nested and not isinstance(item, str) else [item]
        if not isinstance(parts, Collection) or not all(
            isinstance(text, str) for text in parts
        ):
            expected = "a text or a list of texts" if nested else "a text"
            raise TextError(index, f"expected {expected}, got {shortened(item)}")
        for text in parts:
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise TextError(
                    index,
                    f"{shortened(text)} has an unpaired surrogate, "
                    f"{text[error.start]!r}; decode it again, or remove it",
                ) from error


def check_same_length(first: Sequence, second: Sequence, names: str) -> None:
    """Check that two lists, described by `names`, have the same length."""
    if len(first) != len(second):
        raise UserError(
            f"{names} must have the same length, got {len(first)} and {len(second)}"
        )


def shortened(text: Any) -> str:
    """Quote a text for a message, and shorten it."""
    return task_files.shorten(text, 60)


def to_pairs(texts: Sequence[Text], first: int = 0) -> list[tuple[str, str]]:
    """Return texts and pairs as pairs; the second text of a single one is "".

    See `check_texts` for arguments and errors.
    """
    check_texts(texts, first, nested=True)
    for index, text in enumerate(texts, first):
        if not isinstance(text, str) and len(text) != 2:
            raise TextError(index, f"a pair must have two texts, got {len(text)}")
    return [(text, "") if isinstance(text, str) else tuple(text) for text in texts]


def check_fits(
    encoder: config_lib.EncoderConfig, index: int, text: str, ids: Sequence[int]
) -> None:
    """Check that a text has tokens, and fits the model's positions untruncated."""
    if not ids:
        raise TextError(index, f"{shortened(text)} has no tokens")
    if (length := 2 + len(ids)) > encoder.max_position_embeddings:
        raise TextError(
            index,
            f"{shortened(text)} has {length} tokens; shorten it to the "
            f"{encoder.max_position_embeddings} positions of the model",
        )
