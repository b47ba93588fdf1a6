"""Rows of tokens made from texts and pairs of texts."""

from collections.abc import Callable, Sequence

import numpy as np

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.tasks import Arrays


def to_rows(
    texts: Sequence[tuple[str, str]],
    tokenizer: tokenizer_lib.Tokenizer,
    length: int,
    bucket: Callable[[int], int] | None = None,
) -> tuple[Arrays, np.ndarray]:
    """Encode each text as [CLS] a [SEP], and each pair as [CLS] a [SEP] b [SEP].

    The second text is "" for a single text. See `join_pairs` for the result.
    """
    firsts = tokenizer.encode_batch([a for a, _ in texts])
    seconds = tokenizer.encode_batch([b for _, b in texts])
    return join_pairs(firsts, [b or None for b in seconds], tokenizer, length, bucket)


def join_pairs(
    firsts: Sequence[list[int]],
    seconds: Sequence[list[int] | None],
    tokenizer: tokenizer_lib.Tokenizer,
    length: int,
    bucket: Callable[[int], int] | None = None,
) -> tuple[Arrays, np.ndarray]:
    """Join token sequences to rows with special tokens.

    The second sequence of a single text is None. `tokenizer.pair_separators` separate a
    pair: one [SEP], or two in RoBERTa. Tokens that do not fit are cut off at the end,
    from the longer of the two first. With `bucket`, L is the length that it returns for
    the longest row, but at most `length`; else it is `length`.

    Returns:
      input_ids, segment_ids int32 [R, L], attention_mask bool [R, L]; and whether each
      row lost tokens, bool [R].

    Source: google-research/bert, run_classifier.py, convert_single_example.
    """
    rows, boundaries, truncated = [], [], []
    for first, second in zip(firsts, seconds, strict=True):
        is_single = second is None
        after_first = [tokenizer.sep_id] if is_single else tokenizer.pair_separators
        after_second = [] if is_single else [tokenizer.sep_id]
        limit = length - 1 - len(after_first) - len(after_second)
        truncated.append(len(first) + len(second or []) > limit)
        first, second = truncate(first, second or [], limit)
        begin = [tokenizer.cls_id, *first, *after_first]
        boundaries.append(len(begin))
        rows.append([*begin, *second, *after_second])
    if bucket:
        length = min(length, bucket(max(map(len, rows), default=0)))
    ids, mask = pad(rows, length, tokenizer.pad_id)
    is_second = np.arange(length) >= np.array(boundaries, int)[:, None]  # [R, L]
    segments = (is_second & mask).astype(np.int32)
    arrays = {"input_ids": ids, "segment_ids": segments, "attention_mask": mask}
    return arrays, np.array(truncated, bool)


def pad(
    rows: Sequence[Sequence[int]], length: int, value: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return padded rows int32 [R, length], and their mask, bool [R, length]."""
    padded = np.full((len(rows), length), value, np.int32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    lengths = np.array([len(row) for row in rows], int)
    return padded, np.arange(length) < lengths[:, None]


def truncate(a: list[int], b: list[int], limit: int) -> tuple[list[int], list[int]]:
    """Shorten the longer list, the second one in a tie, to `limit` items in total."""
    b = b[: max(limit - len(a), limit // 2)]
    return a[: limit - len(b)], b


def best_window(
    begins: Sequence[int], scores: Sequence[np.ndarray], size: int
) -> np.ndarray:
    """Return the window in which each of `size` items scores highest, int [size].

    `begins` has the first item of each window, and `scores` the scores of its items, at
    least 0. The first of several equal windows wins. A whole book may be one sequence,
    so there is no array [windows, items].
    """
    window, highest = np.full((2, size), -1)
    for i, (begin, values) in enumerate(zip(begins, scores, strict=True)):
        part = slice(begin, begin + len(values))
        window[part] = np.where(values > highest[part], i, window[part])
        highest[part] = np.maximum(values, highest[part])
    return window
