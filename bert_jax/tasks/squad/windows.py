"""Windows of SQuAD: rows of tokens with a question and a part of its context.

[CLS] question [SEP] part of the context [SEP]; the parts overlap. This module does not
know answers, so that questions of a user are encoded like the questions of a file.

Source: google-research/bert, run_squad.py, convert_examples_to_features.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.tasks import Arrays, token_rows


@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows of several questions, in the order of the questions."""

    rows: Arrays  # input_ids, segment_ids int32 [W, L], attention_mask bool [W, L]
    question: np.ndarray  # int [W]; index of the question of each window
    row_start: np.ndarray  # int [W]; position in the row of the first context token
    context_start: np.ndarray  # int [W]; index of that token in the context
    size: np.ndarray  # int [W]; number of context tokens in the window
    # Whether a position holds a context token that has more context on its two sides
    # than in any other window, bool [W, L].
    has_most_context: np.ndarray
    contexts: list[str]  # of each question
    # For each question, begin and end of the characters of each token of its context,
    # int [T, 2].
    offsets: list[np.ndarray]
    truncated: np.ndarray  # bool [Q]; whether a question was too long and lost tokens


def make(
    questions: Sequence[str],
    contexts: Sequence[str],
    tokenizer: tokenizer_lib.Tokenizer,
    config: config_lib.SquadConfig,
) -> Windows:
    """Make the windows of questions with their contexts."""
    # Some questions begin with spaces, which are tokens in byte-level BPE.
    encoded_questions = tokenizer.encode_batch([text.lstrip() for text in questions])
    unique = list(dict.fromkeys(contexts))  # several questions share a context
    encodings = tokenizer.encode_with_offsets(unique)
    encodings = dict(zip(unique, encodings, strict=True))
    offsets = {
        c: np.array(e.offsets, np.int32).reshape(-1, 2) for c, e in encodings.items()
    }
    # A row also has [CLS], all separators, and at least one token of the context.
    room = config.length - 3 - len(tokenizer.pair_separators)
    longest = min(config.max_question, room)
    firsts, seconds, spans, has_most_context = [], [], [], []
    for number, (tokens, context) in enumerate(
        zip(encoded_questions, contexts, strict=True)
    ):
        ids, asked = encodings[context].ids, tokens[:longest]
        row_start = 1 + len(asked) + len(tokenizer.pair_separators)
        parts = _spans(len(ids), config.length - row_start - 1, config.stride)
        best = _window_with_most_context(parts, len(ids))
        for i, (context_start, size) in enumerate(parts):
            part = slice(context_start, context_start + size)
            firsts.append(asked)
            seconds.append(ids[part])
            spans.append((number, row_start, context_start, size))
            has_most_context.append([*[0] * row_start, *(best[part] == i)])
    columns = np.array(spans, np.int32).reshape(-1, 4).T
    question, row_start, context_start, size = columns
    rows, _ = token_rows.join_pairs(firsts, seconds, tokenizer, config.length)
    return Windows(
        rows=rows,
        question=question,
        row_start=row_start,
        context_start=context_start,
        size=size,
        has_most_context=token_rows.pad(has_most_context, config.length, 0)[0] > 0,
        contexts=list(contexts),
        offsets=[offsets[context] for context in contexts],
        truncated=np.array([len(t) > longest for t in encoded_questions], bool),
    )


def positions(
    windows: Windows, begins: Sequence[int], ends: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Find the tokens of answers, for training.

    An answer covers each token with any of its characters, so that a boundary inside a
    word is a boundary of tokens if the vocabulary splits the word there.

    Args:
      windows: Windows.
      begins: First character of the answer of each question in its context.
      ends: One more than the last character; at most the begin for no answer.

    Returns:
      Positions of the first and of the last token in each window, int32 [W]; 0, which
      is [CLS], in windows without the complete answer.

    Source: google-research/bert, run_squad.py. There, an answer whose own tokens are
    not found in its words, separated by white space, covers these words.
    """
    starts, stops = np.zeros((2, len(windows.row_start)), np.int32)
    tokens = np.array(
        [
            _tokens_at(offsets, begin, end)
            for offsets, begin, end in zip(windows.offsets, begins, ends, strict=True)
        ]
    ).reshape(-1, 2)
    start, stop = (tokens[windows.question] - windows.context_start[:, None]).T
    inside = (start >= 0) & (start <= stop) & (stop < windows.size)
    starts[inside] = (windows.row_start + start)[inside]
    stops[inside] = (windows.row_start + stop)[inside]
    return starts, stops


def _tokens_at(offsets: np.ndarray, begin: int, end: int) -> tuple[int, int]:
    """Return the first and last token with any of these characters, or (-1, -1)."""
    first, last = np.maximum(offsets[:, 0], begin), np.minimum(offsets[:, 1], end)
    has_some = np.flatnonzero(first < last)
    return (has_some[0], has_some[-1]) if len(has_some) else (-1, -1)


def _spans(total: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return first token and number of tokens of each window of a context."""
    spans = [(0, min(total, room))]
    while sum(spans[-1]) < total:
        begin = spans[-1][0] + min(spans[-1][1], stride)
        spans.append((begin, min(total - begin, room)))
    return spans


def _window_with_most_context(spans: list[tuple[int, int]], total: int) -> np.ndarray:
    """Return the window in which each token has the most context, int [T].

    Context is measured on the side that has less of it. In a tie, a longer window wins,
    then the first.
    """
    # The original adds 0.01 * count. In hundredths, the comparison is one of integers.
    scores = [
        100 * np.minimum(np.arange(count), np.arange(count)[::-1]) + count
        for _, count in spans
    ]
    return token_rows.best_window([begin for begin, _ in spans], scores, total)
