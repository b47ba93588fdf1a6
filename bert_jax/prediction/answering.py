"""Answers to questions in their contexts, from a model fine-tuned on SQuAD or alike."""

import dataclasses
from collections.abc import Sequence

from bert_jax import config as config_lib
from bert_jax.objectives import spans
from bert_jax.prediction import text_rows as rows_lib
from bert_jax.prediction.trained import Trained
from bert_jax.tasks.squad import answers, windows


@dataclasses.dataclass(frozen=True)
class Answered:
    """What a model answers to a question.

    Attributes:
      text: The answer, `context[begin:end]`; "" if there is none.
      begin: Its first character in the context.
      end: The character behind its last one.
      probability: Among the candidates.
      candidates: The best answers, from the most probable down. With "" among them, the
        null odds decide which is the answer, and it may be another than the first.
      truncated: Whether the question was longer than those of the fine-tuning, and lost
        tokens.
    """

    text: str
    begin: int
    end: int
    probability: float
    candidates: tuple[answers.Answer, ...]
    truncated: bool


def answer(
    model: Trained,
    questions: Sequence[str],
    contexts: Sequence[str],
    null_threshold: float | None,
) -> list[Answered]:
    """See `Model.answer`."""
    rows_lib.check_list(questions)
    rows_lib.check_list(contexts)
    rows_lib.check_as_many(questions, contexts, "questions and contexts")
    config, _ = model.task(config_lib.SquadConfig)
    if null_threshold is None:
        null_threshold = config.null_threshold
    if not questions:
        return []
    made = windows.make(questions, contexts, model.tokenizer, config)
    outputs = model.outputs(spans.Spans(model.encoder), made.rows)
    ranked = answers.rank(made, outputs, config)
    answered = []
    for ranking, lost in zip(ranked, made.truncated, strict=True):
        best = ranking.best(null_threshold)
        answered.append(
            Answered(
                text=best.text,
                begin=best.begin,
                end=best.end,
                probability=best.probability,
                candidates=ranking.answers,
                truncated=bool(lost),
            )
        )
    return answered
