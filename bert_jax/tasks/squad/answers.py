"""Decoding of start and end logits to ranked answers, which are parts of the context.

This module does not know correct answers, so that questions of a user are answered like
the questions of a file.
"""

import dataclasses
import itertools
import unicodedata

import numpy as np

from bert_jax import config as config_lib
from bert_jax.tasks import Arrays
from bert_jax.tasks.squad import windows as windows_lib

# JSON has no infinity.
_NULL_ODDS_OF_EMPTY_CONTEXT = 1e9


@dataclasses.dataclass(frozen=True)
class Answer:
    """A part of a context; empty for no answer."""

    text: str  # `context[begin:end]`
    begin: int
    end: int
    probability: float  # softmax over the answers of a ranking
    start_logit: float  # of its first token
    end_logit: float  # of its last token


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Answers to one question."""

    # The best first, with different texts. "" is one of them if `no_answers` is set or
    # the context has no tokens.
    answers: tuple[Answer, ...]
    # Logit of no answer minus logit of the best one; None if there must be an answer.
    null_odds: float | None

    def best(self, null_threshold: float) -> Answer:
        """Return the best answer, or the empty one if its odds exceed a threshold.

        With an infinite threshold it is empty only if the context has no tokens.
        """
        is_null = self.null_odds is not None and self.null_odds > null_threshold
        wanted = [a for a in self.answers if (a.text == "") == is_null]
        return (wanted or self.answers)[0]


def rank(
    windows: windows_lib.Windows, outputs: Arrays, config: config_lib.SquadConfig
) -> list[Ranking]:
    """Rank the answers to each question over all of its windows.

    An answer lies in one window and has at most `max_answer` tokens. It begins at a
    token that has the most context in that window. Its score is the sum of its two
    logits. The score of no answer is the score of [CLS], the lowest of all windows.

    `outputs` has the arrays start_logits and end_logits [W, L] of the rows of the
    windows.

    Source: google-research/bert, run_squad.py, write_predictions. The original only
    tries the n best starts and n best ends of a window. This function tries all pairs.
    """
    start_logits, end_logits = outputs["start_logits"], outputs["end_logits"]
    cuts = np.searchsorted(windows.question, np.arange(len(windows.contexts) + 1))
    rankings = []
    for i, (first, last) in enumerate(itertools.pairwise(cuts)):
        rows = range(first, last)
        spans = [s for row in rows for s in _best_spans(windows, row, outputs, config)]
        answers: dict[str, tuple[int, int, float, float]] = {}
        for _, row, start, end in sorted(spans):
            if len(answers) == config.nbest:
                break
            begin, stop = _characters(windows, row, start, end)
            logits = float(start_logits[row, start]), float(end_logits[row, end])
            answers.setdefault(windows.contexts[i][begin:stop], (begin, stop, *logits))
        odds = None
        if config.no_answers or not answers:
            row = min(rows, key=lambda row: start_logits[row, 0] + end_logits[row, 0])
            null = start_logits[row, 0], end_logits[row, 0]
            odds = _NULL_ODDS_OF_EMPTY_CONTEXT
            if answers:
                odds = float(sum(null) - sum(next(iter(answers.values()))[2:]))
            answers[""] = 0, 0, *map(float, null)
        rankings.append(Ranking(_ranked(answers), odds if config.no_answers else None))
    return rankings


def _best_spans(
    windows: windows_lib.Windows,
    row: int,
    outputs: Arrays,
    config: config_lib.SquadConfig,
) -> list[tuple[float, int, int, int]]:
    """Return (-score, row, start, end) of the best span of each of the n best texts.

    Many spans of a row may have one text, or none: white space is no answer.
    """
    length = outputs["start_logits"].shape[1]
    longest = min(config.max_answer, length)
    is_start = windows.has_most_context[row]
    starts = np.where(is_start, outputs["start_logits"][row], -np.inf)  # [L]
    context = slice(windows.row_start[row], windows.row_start[row] + windows.size[row])
    ends = np.full(length + longest - 1, -np.inf, np.float32)
    ends[context] = outputs["end_logits"][row, context]
    # Row i has the logits of the ends of spans that start at position i.
    ends_by_start = np.lib.stride_tricks.sliding_window_view(ends, longest)
    scores = (starts[:, None] + ends_by_start).ravel()  # [L * longest]
    spans: dict[str, tuple[float, int, int, int]] = {}
    allowed = np.flatnonzero(scores > -np.inf)
    for i in allowed[np.argsort(-scores[allowed], kind="stable")]:
        if len(spans) == config.nbest:
            break
        start, offset = divmod(int(i), longest)
        begin, stop = _characters(windows, row, start, start + offset)
        if text := windows.contexts[windows.question[row]][begin:stop]:
            spans.setdefault(text, (-scores[i], row, start, start + offset))
    return list(spans.values())


def _characters(
    windows: windows_lib.Windows, row: int, start: int, end: int
) -> tuple[int, int]:
    """Return begin and end of a span in the context, without white space around it."""
    question = windows.question[row]
    offsets, context = windows.offsets[question], windows.contexts[question]
    shift = windows.context_start[row] - windows.row_start[row]
    begin, stop = int(offsets[start + shift, 0]), int(offsets[end + shift, 1])
    # What the tokenizer strips or composes belongs to the letter before.
    while stop < len(context) and _is_part_of_letter(context[stop]):
        stop += 1
    # Byte-level BPE has tokens of white space.
    text = context[begin:stop]
    return begin + len(text) - len(text.lstrip()), begin + len(text.rstrip())


def _is_part_of_letter(char: str) -> bool:
    """Return whether a character is an accent, a vowel sign, or the like.

    Vowels and finals of decomposed Hangul are letters in Unicode, as are the voicing
    marks of half-width Kana.
    """
    is_hangul = "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7ff"
    is_kana = char in ("\uff9e", "\uff9f")
    return is_hangul or is_kana or unicodedata.category(char)[0] == "M"


def _ranked(answers: dict[str, tuple[int, int, float, float]]) -> tuple[Answer, ...]:
    """Sort answers by falling score; compute their probabilities."""
    items = sorted(answers.items(), key=lambda item: -sum(item[1][2:]))
    scores = np.array([sum(place[2:]) for _, place in items])
    weights = np.exp(scores - scores.max())
    return tuple(
        Answer(text, begin, end, float(weight), first, last)
        for (text, (begin, end, first, last)), weight in zip(
            items, weights / weights.sum(), strict=True
        )
    )
