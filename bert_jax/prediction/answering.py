"""Question answering with a model fine-tuned on data like SQuAD."""

import dataclasses
from collections.abc import Sequence

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.objectives import spans
from bert_jax.prediction import text_inputs
from bert_jax.prediction.trained_model import BATCH_SIZE, TrainedModel
from bert_jax.tasks.squad import answers, windows


@dataclasses.dataclass(frozen=True)
class AnswerPrediction:
    """Answer to a question.

    Attributes:
      text: The answer, `context[begin:end]`; "" if there is none.
      begin: Its first character in the context.
      end: One more than its last character.
      probability: Probability among the candidates.
      candidates: The best answers, the most probable first. If "" is among them, the
        null odds decide, and the answer may not be the first candidate.
      truncated: Whether the question was longer than `max_question`.
    """

    text: str
    begin: int
    end: int
    probability: float
    candidates: tuple[answers.Answer, ...]
    truncated: bool


def answer(
    model: TrainedModel,
    questions: Sequence[str],
    contexts: Sequence[str],
    null_threshold: float | None = None,
) -> list[AnswerPrediction]:
    """Find the answer to each question in its context.

    Answers are chosen as in the prediction files of the fine-tuning run. A question has
    no answer if its null odds exceed `null_threshold`, also where the model does not
    know that this is allowed; None: the run's `task.null_threshold` when it trained.

    Raises:
      UserError: A text is invalid, or a threshold is given for a left-to-right encoder.
    """
    text_inputs.check_texts(questions)
    text_inputs.check_texts(contexts)
    text_inputs.check_same_length(questions, contexts, "questions and contexts")
    config, _ = model.task(config_lib.SquadConfig)
    if null_threshold is None:
        null_threshold = config.null_threshold
    elif model.encoder.causal:
        raise UserError(
            "null_threshold does not go with a left-to-right encoder, whose [CLS] "
            "has seen no question; leave it out"
        )
    else:
        config = dataclasses.replace(config, no_answers=True)
    made = windows.make(questions, contexts, model.tokenizer, config)
    outputs = model.engine(spans.Spans(model.encoder)).outputs(made.rows, BATCH_SIZE)
    ranked = answers.rank(made, outputs, config)
    answered = []
    for ranking, truncated in zip(ranked, made.truncated, strict=True):
        best = ranking.best(null_threshold)
        place = best.text, best.begin, best.end, best.probability
        answered.append(AnswerPrediction(*place, ranking.answers, bool(truncated)))
    return answered
