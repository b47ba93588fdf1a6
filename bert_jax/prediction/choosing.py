"""Which of several answers to a question is true, from a model fine-tuned to choose."""

import dataclasses
from collections.abc import Sequence

from bert_jax import config as config_lib
from bert_jax.objectives import choice as objectives_choice
from bert_jax.prediction import text_rows as rows_lib
from bert_jax.prediction.trained import Trained
from bert_jax.tasks import choice, choice_files


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What a model chooses.

    Attributes:
      index: Number of the most probable choice, from 0.
      text: That choice.
      probabilities: Probability of each choice.
      truncated: Whether question and choices were longer than those of the fine-tuning,
        and lost tokens.
    """

    index: int
    text: str
    probabilities: list[float]
    truncated: bool


def choose(
    model: Trained, questions: Sequence[str], choices: Sequence[Sequence[str]]
) -> list[Chosen]:
    """See `Model.choose`."""
    rows_lib.check_list(questions)
    rows_lib.check_as_many(questions, choices, "questions and choices")
    config, _ = model.task(config_lib.ChoiceConfig)
    if not questions:
        return []
    asked = []
    for i, (question, texts) in enumerate(zip(questions, choices, strict=True)):
        rows_lib.check_list(texts)
        if len(texts) < 2:
            raise rows_lib.TextError(
                i,
                f"{rows_lib.shortened(question)} has {len(texts)} choices, and needs "
                "two at least",
            )
        asked.append(
            choice_files.Question(i + 1, question, tuple(texts), choice_files.UNKNOWN)
        )
    most = max(len(each.choices) for each in asked)
    rows, truncated = choice.make_rows(asked, model.tokenizer, config.length, most)
    objective = objectives_choice.Choice(model.encoder, most)
    outputs = model.outputs(objective, rows)
    chosen = []
    for each, probabilities, lost in zip(
        asked, choice.decode(asked, outputs["logits"]), truncated, strict=True
    ):
        index = probabilities.index(max(probabilities))
        chosen.append(Chosen(index, each.choices[index], probabilities, bool(lost)))
    return chosen
