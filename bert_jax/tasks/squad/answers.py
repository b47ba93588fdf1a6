"""From logits of starts and ends to answers: parts of the context, ranked.

Nothing here knows the answers that people gave, so that new questions are answered the
same way as those of a file.
"""

import dataclasses
import functools
import itertools
import textwrap
import unicodedata
from collections.abc import Iterator

import numpy as np

from bert_jax import config as config_lib
from bert_jax.tasks import Arrays
from bert_jax.tasks.squad import windows as windows_lib

# Windows that are decoded at once, which bounds the memory.
_CHUNK = 512
# The odds of no answer where there is nothing that could be one; JSON has no infinity.
_CERTAIN = 1e9


@dataclasses.dataclass(frozen=True)
class Answer:
    """A part of a context. No answer is an empty one.

    Attributes:
      text: `context[begin:end]`, as it stands there.
      begin: Its first character.
      end: The character behind its last one.
      probability: Softmax over the ranking that it is in.
      start_logit: Of its first token.
      end_logit: Of its last token.
    """

    text: str
    begin: int
    end: int
    probability: float
    start_logit: float
    end_logit: float


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Answers to one question.

    Attributes:
      answers: From the best down, no text twice. "" is among them if the question may
        have no answer.
      null_odds: How much the logits speak for no answer against the best one; None if
        the question must have one.
    """

    answers: tuple[Answer, ...]
    null_odds: float | None

    def best(self, null_threshold: float) -> Answer:
        """The best answer, or the empty one if the odds of it exceed a threshold."""
        is_null = self.null_odds is not None and self.null_odds > null_threshold
        # There is at least one of the two, and there may be one of them alone.
        first, *_ = sorted(self.answers, key=lambda a: (a.text == "") != is_null)
        return first

    @property
    def best_text(self) -> str:
        """The best answer that is not empty; "" if the context has no tokens."""
        return next((answer.text for answer in self.answers if answer.text), "")


def rank(
    windows: windows_lib.Windows, outputs: Arrays, config: config_lib.SquadConfig
) -> list[Ranking]:
    """The best answers to each question over all of its windows.

    An answer ends where or after it begins, in the same window, and has at most
    `max_answer` tokens; it begins at a token that has no more context in another
    window. Its score is the sum of its two logits. A question has no answer if that is
    what its windows say, all of them: the score of [CLS] is the lowest of theirs.

    Args:
      windows: Windows of the questions.
      outputs: start_logits, end_logits [W, L], from the rows of the windows.
      config: max_answer, nbest and no_answers; nothing else matters.

    Returns:
      A ranking for each question.

    Source: google-research/bert, run_squad.py, write_predictions. It only tries pairs
    of the n best starts and n best ends of a window, some of which are no answers; here
    the best pairs are the best of all.
    """
    start_logits, end_logits = outputs["start_logits"], outputs["end_logits"]
    spans = np.concatenate(
        [
            _best_spans(windows, start_logits, end_logits, config, rows)
            for rows in np.split(
                np.arange(len(windows.first)),
                range(_CHUNK, len(windows.first), _CHUNK),
            )
        ]
    )
    row, start, end = spans.T
    scores = start_logits[row, start] + end_logits[row, end]
    # By question, then from the best down; then in the order of the text.
    order = np.lexsort((end, start, row, -scores, windows.question[row]))
    spans, question = spans[order], windows.question[row[order]]
    cuts = np.searchsorted(question, np.arange(len(windows.contexts) + 1))
    nulls = _null_rows(windows, start_logits[:, 0] + end_logits[:, 0])
    rankings = []
    for i, (low, high) in enumerate(itertools.pairwise(cuts)):
        answers: dict[str, tuple[int, int, float, float]] = {}
        for place in _places(windows, spans[low:high], start_logits, end_logits):
            text = windows.contexts[i][slice(*place[:2])]
            if text and len(answers) < config.nbest:
                answers.setdefault(text, place)
        odds = None
        if config.no_answers or not answers:
            null = start_logits[nulls[i], 0], end_logits[nulls[i], 0]
            odds = _CERTAIN
            if answers:
                odds = float(sum(null) - sum(next(iter(answers.values()))[2:]))
            answers[""] = 0, 0, *map(float, null)
        rankings.append(Ranking(_ranked(answers), odds if config.no_answers else None))
    return rankings


def marked(context: str, begin: int, end: int, width: int = 80) -> str:
    """A context with an answer marked, >>like this<<, in lines for a terminal."""
    parts = context[:begin], context[begin:end], context[end:]
    return textwrap.fill("{}>>{}<<{}".format(*parts), width)


def _best_spans(
    windows: windows_lib.Windows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    config: config_lib.SquadConfig,
    rows: np.ndarray,
) -> np.ndarray:
    """The n best spans of each of some windows, as (row, start, end), int [S, 3]."""
    length = start_logits.shape[1]
    longest = min(config.max_answer, length)
    count = min(config.nbest, length)
    positions = np.arange(length)
    begin = windows.first[rows, None]
    is_context = (positions >= begin) & (positions < begin + windows.count[rows, None])
    starts = np.where(windows.has_most_context[rows], start_logits[rows], -np.inf)
    ends = np.where(is_context, end_logits[rows], -np.inf)
    ends = np.pad(ends, ((0, 0), (0, longest - 1)), constant_values=-np.inf)
    # The n best spans begin at the n starts that have the best spans.
    shifted = (ends[:, i : i + length] for i in range(longest))
    best = starts + functools.reduce(np.maximum, shifted)
    chosen = np.argpartition(-best, count - 1)[:, :count]
    bands = np.lib.stride_tricks.sliding_window_view(ends, longest, axis=1)
    index = np.arange(len(rows))[:, None]
    scores = starts[index, chosen][:, :, None] + bands[index, chosen]
    scores = scores.reshape(len(rows), count * longest)
    flat = np.argpartition(-scores, count - 1)[:, :count]
    start = np.take_along_axis(chosen, flat // longest, axis=1)
    end = start + flat % longest
    row = np.broadcast_to(rows[:, None], start.shape)
    is_span = np.take_along_axis(scores, flat, axis=1) > -np.inf
    return np.stack([row, start, end], axis=-1)[is_span]


def _null_rows(windows: windows_lib.Windows, scores: np.ndarray) -> np.ndarray:
    """For each question, its window with the lowest score of no answer."""
    order = np.lexsort((scores, windows.question))
    _, first = np.unique(windows.question[order], return_index=True)
    return order[first]


def _places(
    windows: windows_lib.Windows,
    spans: np.ndarray,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
) -> Iterator[tuple[int, int, float, float]]:
    """Characters and logits of spans of one question."""
    for row, start, end in spans.tolist():
        question = windows.question[row]
        offsets, context = windows.offsets[question], windows.contexts[question]
        shift = windows.token[row] - windows.first[row]
        begin, stop = int(offsets[start + shift, 0]), int(offsets[end + shift, 1])
        # Where accents are stripped, one that follows its letter is of no token.
        while stop < len(context) and unicodedata.category(context[stop]) == "Mn":
            stop += 1
        yield begin, stop, float(start_logits[row, start]), float(end_logits[row, end])


def _ranked(answers: dict[str, tuple[int, int, float, float]]) -> tuple[Answer, ...]:
    """Answers from the best down, with probabilities."""
    items = sorted(answers.items(), key=lambda item: -sum(item[1][2:]))
    scores = np.array([sum(place[2:]) for _, place in items])
    weights = np.exp(scores - scores.max())
    return tuple(
        Answer(text, begin, end, float(weight), first, last)
        for (text, (begin, end, first, last)), weight in zip(
            items, weights / weights.sum(), strict=True
        )
    )
