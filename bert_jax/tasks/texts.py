"""Texts and pairs of texts with labels, and the rows of a batch they become."""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.tasks import Arrays


@dataclasses.dataclass(frozen=True)
class Example:
    """One text or pair. `text_b` is "" where there is one text.

    Attributes:
      text_a: The text, or the first of a pair.
      text_b: The second of a pair.
      label: As it stands in the file; "" where it is not known.
      where: File and line, for messages.
    """

    text_a: str
    text_b: str
    label: str
    where: str = dataclasses.field(default="", compare=False, repr=False)

    @property
    def fields(self) -> tuple[str, str, str]:
        """What is learnt from."""
        return self.text_a, self.text_b, self.label


@dataclasses.dataclass(frozen=True)
class ExampleSets:
    """What the files of a task hold.

    Attributes:
      train: Examples to train on.
      labelled: Held-out sets with labels, "eval" among them.
      unlabelled: Held-out sets to predict for.
      about: What results.json says of the files.
    """

    train: list[Example]
    labelled: dict[str, list[Example]]
    unlabelled: dict[str, list[Example]]
    about: dict[str, dict]


def write_tsv(path: pathlib.Path, examples: Sequence[Example]) -> None:
    """Write examples of two texts each, for `text_files`. Tabs become spaces."""
    rows = [
        "\t".join(field.replace("\t", " ") for field in example.fields)
        for example in examples
    ]
    text = "\n".join(["text_a\ttext_b\tlabel", *rows]) + "\n"
    path.write_text(text, encoding="utf-8")


def to_rows(
    texts: Sequence[tuple[str, str]],
    tokenizer: tokenizer_lib.Tokenizer,
    length: int,
) -> tuple[Arrays, np.ndarray]:
    """[CLS] a [SEP], or [CLS] a [SEP] b [SEP], for each text or pair.

    With byte-level BPE there are two [SEP] between two texts, as in RoBERTa.

    What is too long loses tokens at the end, of two texts the longer one first.

    Args:
      texts: Pairs; the second is "" where there is one text.
      tokenizer: Tokenizer of the encoder.
      length: Tokens in a row.

    Returns:
      input_ids, segment_ids int32 [E, length], attention_mask bool [E, length]; and
      which rows lost tokens, bool [E].

    Source: google-research/bert, run_classifier.py, convert_single_example.
    """
    firsts = tokenizer.encode_batch([a for a, _ in texts])
    seconds = tokenizer.encode_batch([b for _, b in texts])
    shape = (len(texts), length)
    ids = np.full(shape, tokenizer.pad_id, np.int32)
    segments = np.zeros(shape, np.int32)
    mask = np.zeros(shape, bool)
    truncated = np.zeros(len(texts), bool)
    for row, (a, b) in enumerate(zip(firsts, seconds, strict=True)):
        behind_a = tokenizer.pair_separators if b else [tokenizer.sep_id]
        limit = length - 1 - len(behind_a) - bool(b)
        truncated[row] = len(a) + len(b) > limit
        a, b = truncate(a, b, limit)
        tokens = [tokenizer.cls_id, *a, *behind_a]
        boundary = len(tokens)
        if b:
            tokens += [*b, tokenizer.sep_id]
        ids[row, : len(tokens)] = tokens
        segments[row, boundary : len(tokens)] = 1
        mask[row, : len(tokens)] = True
    arrays = {"input_ids": ids, "segment_ids": segments, "attention_mask": mask}
    return arrays, truncated


def truncate(a: list[int], b: list[int], limit: int) -> tuple[list[int], list[int]]:
    """Shorten the longer list, the second one if they are equal, to `limit` in all."""
    b = b[: max(limit - len(a), limit // 2)]
    return a[: limit - len(b)], b
