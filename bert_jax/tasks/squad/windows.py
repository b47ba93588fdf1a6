"""Windows: rows of tokens in which a question is followed by a part of its context.

[CLS] question [SEP] part of the context [SEP]; the parts overlap. Nothing here knows
answers, so that new questions get the same rows as those of a file.

Source: google-research/bert, run_squad.py, convert_examples_to_features.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.tasks import Arrays


@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows of several questions, in the order of the questions.

    Attributes:
      rows: input_ids, segment_ids int32 [W, L], attention_mask bool [W, L].
      question: Question that each window is of, int [W].
      first: Position in the row of the window's first token of the context, int [W].
      token: Which token of the context that one is, int [W].
      count: Tokens of the context in the window, int [W].
      has_most_context: Which positions hold a token of the context that has more
        context on its two sides here than in any other window, bool [W, L].
      contexts: Context of each question.
      offsets: For each question, where the characters of each token of its context
        begin and end, int [T, 2].
      truncated: Which questions were too long and lost tokens at their end, bool [Q].
    """

    rows: Arrays
    question: np.ndarray
    first: np.ndarray
    token: np.ndarray
    count: np.ndarray
    has_most_context: np.ndarray
    contexts: list[str]
    offsets: list[np.ndarray]
    truncated: np.ndarray


def make(
    questions: Sequence[str],
    contexts: Sequence[str],
    tokenizer: tokenizer_lib.Tokenizer,
    config: config_lib.SquadConfig,
) -> Windows:
    """Windows of questions, each with a context.

    Args:
      questions: Questions.
      contexts: Context of each question.
      tokenizer: Tokenizer of the encoder.
      config: Length, stride and max_question; nothing else matters.
    """
    encoded_questions = tokenizer.encode_batch(questions)
    # Several questions are on one context.
    unique = list(dict.fromkeys(contexts))
    encodings = tokenizer.encode_with_offsets(unique)
    ids = {c: np.array(e.ids, np.int32) for c, e in zip(unique, encodings, strict=True)}
    offsets = {
        c: np.array(e.offsets, np.int32).reshape(-1, 2)
        for c, e in zip(unique, encodings, strict=True)
    }
    between = tokenizer.pair_separators
    special = 2 + len(between)
    question_ids = [tokens[: config.max_question] for tokens in encoded_questions]
    spans = [
        _spans(len(ids[context]), config.length - len(q) - special, config.stride)
        for q, context in zip(question_ids, contexts, strict=True)
    ]
    shape = (sum(map(len, spans)), config.length)
    input_ids = np.full(shape, tokenizer.pad_id, np.int32)
    segment_ids = np.zeros(shape, np.int32)
    has_most_context = np.zeros(shape, bool)
    first = np.zeros(len(input_ids), np.int32)
    row = 0
    for tokens, context, parts in zip(question_ids, contexts, spans, strict=True):
        prefix = [tokenizer.cls_id, *tokens, *between]
        begin = len(prefix)
        best = _window_with_most_context(parts, len(ids[context]))
        for i, (token, count) in enumerate(parts):
            end = begin + count
            input_ids[row, :begin] = prefix
            input_ids[row, begin:end] = ids[context][token : token + count]
            input_ids[row, end] = tokenizer.sep_id
            segment_ids[row, begin : end + 1] = 1
            has_most_context[row, begin:end] = best[token : token + count] == i
            first[row] = begin
            row += 1
    flat = np.array([span for parts in spans for span in parts], np.int32)
    token, count = flat.reshape(-1, 2).T
    return Windows(
        rows={
            "input_ids": input_ids,
            "segment_ids": segment_ids,
            "attention_mask": np.arange(config.length) <= (first + count)[:, None],
        },
        question=np.repeat(np.arange(len(spans)), [len(parts) for parts in spans]),
        first=first,
        token=token,
        count=count,
        has_most_context=has_most_context,
        contexts=list(contexts),
        offsets=[offsets[context] for context in contexts],
        truncated=np.array(
            [len(t) > config.max_question for t in encoded_questions], bool
        ),
    )


def positions(
    windows: Windows, begins: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where answers are in the rows, for training.

    An answer is at the tokens that have any of its characters: a boundary inside a word
    is one of tokens, too, if the vocabulary cuts the word there.

    Args:
      windows: Windows.
      begins: First character of the answer of each question in its context.
      ends: Character behind its last one; not after `begins` if there is no answer.

    Returns:
      Positions of the first and of the last token in each window, int32 [W]; 0, which
      is [CLS], in windows that do not have all of the answer.

    Source: google-research/bert, run_squad.py.
    """
    starts, stops = np.zeros((2, len(windows.first)), np.int32)
    tokens = np.array(
        [
            _tokens_at(offsets, begin, end)
            for offsets, begin, end in zip(windows.offsets, begins, ends, strict=True)
        ]
    ).reshape(-1, 2)
    start, stop = (tokens[windows.question] - windows.token[:, None]).T
    inside = (start >= 0) & (start <= stop) & (stop < windows.count)
    starts[inside] = (windows.first + start)[inside]
    stops[inside] = (windows.first + stop)[inside]
    return starts, stops


def _tokens_at(offsets: np.ndarray, begin: int, end: int) -> tuple[int, int]:
    """First and last token with one of these characters; (-1, -1) if there is none."""
    first, last = np.maximum(offsets[:, 0], begin), np.minimum(offsets[:, 1], end)
    has_some = np.flatnonzero(first < last)
    return (has_some[0], has_some[-1]) if len(has_some) else (-1, -1)


def _spans(total: int, room: int, stride: int) -> list[tuple[int, int]]:
    """First token and number of tokens of each window on a context; at least one."""
    spans = [(0, min(total, room))]
    while sum(spans[-1]) < total:
        begin = spans[-1][0] + min(spans[-1][1], stride)
        spans.append((begin, min(total - begin, room)))
    return spans


def _window_with_most_context(spans: list[tuple[int, int]], total: int) -> np.ndarray:
    """Which window each token of a context has the most context in, int [T].

    That is, the most on the side where there is less; then, roughly, the longest
    window; then the first.
    """
    tokens = np.arange(total)
    begin, count = np.array(spans).T[:, :, None]
    least = np.minimum(tokens - begin, begin + count - 1 - tokens)
    # In hundredths, so that the original's comparison is one of integers.
    return np.argmax(np.where(least >= 0, 100 * least + count, -1), axis=0)
