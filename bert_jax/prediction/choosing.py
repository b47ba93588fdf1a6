"""Multiple choice with a fine-tuned model."""

import dataclasses
from collections.abc import Sequence

from bert_jax import config as config_lib
from bert_jax import terminal
from bert_jax.objectives import choice as objectives_choice
from bert_jax.prediction import text_inputs
from bert_jax.prediction.trained_model import BATCH_SIZE, TrainedModel
from bert_jax.tasks import choice, choice_files


@dataclasses.dataclass(frozen=True)
class ChoicePrediction:
    """Choice among the answers to a question.

    Attributes:
      index: Index of the most probable choice.
      text: Text of that choice.
      probabilities: Probability of each choice.
      truncated: Whether question and choices were longer than `task.length`.
    """

    index: int
    text: str
    probabilities: list[float]
    truncated: bool


def choose(
    model: TrainedModel, questions: Sequence[str], choices: Sequence[Sequence[str]]
) -> list[ChoicePrediction]:
    """Choose among the two or more answers to each question."""
    text_inputs.check_texts(questions)
    text_inputs.check_texts(choices, nested=True)
    text_inputs.check_same_length(questions, choices, "questions and choices")
    config, _ = model.task(config_lib.ChoiceConfig)
    asked = []
    for i, (question, texts) in enumerate(zip(questions, choices, strict=True)):
        text_inputs.check_is_list(texts)
        if len(texts) < 2:
            quoted = text_inputs.shortened(question)
            given = terminal.pluralise(len(texts), "choice")
            raise text_inputs.TextError(
                i, f"{quoted} has {given}; at least two are required"
            )
        asked.append(
            choice_files.Question(i + 1, question, tuple(texts), choice_files.UNKNOWN)
        )
    rows, truncated = choice.make_rows(asked, model.tokenizer, config.length)
    num_choices = rows["input_ids"].shape[1]
    objective = objectives_choice.Choice(model.encoder, num_choices)
    outputs = model.engine(objective).outputs(rows, max(1, BATCH_SIZE // num_choices))
    chosen = []
    decoded = choice.decode(asked, outputs["logits"])
    for each, probabilities, lost in zip(asked, decoded, truncated, strict=True):
        index = probabilities.index(max(probabilities))
        text = each.choices[index]
        chosen.append(ChoicePrediction(index, text, probabilities, bool(lost)))
    return chosen
