"""Multiple choice: which of several answers to a question is true.

Each answer is a sequence with the question, [CLS] question [SEP] answer [SEP]. The
answers of one question go through the model at once, and questions may have different
numbers of them.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.objectives import choice
from bert_jax.tasks import Arrays, choice_files, task_files, texts
from bert_jax.tasks.choice_files import Question


class Choice:
    """The task of some files, for one tokenizer; see `tasks.Task`."""

    def __init__(
        self, config: config_lib.ChoiceConfig, tokenizer: tokenizer_lib.Tokenizer
    ):
        """Read the files.

        Raises:
          UserError: A file is not given or cannot be used.
        """
        task_files.check_given(config, "FILE.csv or FILE.jsonl")
        names = ["train", "eval", *(["test"] if config.test else [])]
        self._files = {
            name: choice_files.read(getattr(config, name), needs_answers=name != "test")
            for name in names
        }
        self._num_choices = max(
            len(question.choices)
            for file in self._files.values()
            for question in file.questions
        )
        self.length = config.length
        arrays, truncated = {}, {}
        for name, file in self._files.items():
            arrays[name], is_truncated = make_rows(
                file.questions, tokenizer, config.length, self._num_choices
            )
            truncated[name] = int(is_truncated.sum())
        self.train = arrays["train"]
        self.held_out = {name: arrays[name] for name in names[1:]}
        self.settings: dict[str, Any] = {}
        train, evaluated = self._files["train"], self._files["eval"]
        self.fingerprint = task_files.fingerprint(train.questions, evaluated.questions)
        self.description = {
            "examples": len(evaluated.questions),
            "train_examples": len(train.questions),
            "choices": self._num_choices,
            "skipped": {name: file.skipped for name, file in self._files.items()},
            "truncated": truncated,
        }

    def objective(self, encoder: config_lib.EncoderConfig) -> choice.Choice:
        """A choice among as many answers as the question with most of them has."""
        return choice.Choice(encoder, self._num_choices)

    def decode(self, outputs: dict[str, Arrays]) -> dict[str, list[list[float]]]:
        """The probability of each answer of each question."""
        return {
            name: decode(self._files[name].questions, outputs[name]["logits"])
            for name in self.held_out
        }

    def scores(self, predictions: dict[str, list[list[float]]]) -> dict[str, float]:
        """Accuracy; that of the test file is `test_accuracy`, if it has answers."""
        result = {}
        for name, rows in self.held_out.items():
            if self._files[name].is_answered:
                chosen = np.array([np.argmax(p) for p in predictions[name]])
                is_true = chosen == rows["labels"]
                prefix = "" if name == "eval" else f"{name}_"
                result[f"{prefix}accuracy"] = float(is_true.mean())
        return result

    def write(
        self, folder: storage.Path, predictions: dict[str, list[list[float]]]
    ) -> None:
        """Write predictions.jsonl, and test_predictions.jsonl for a test file.

        A line is a question: in which line of its file it begins, the number of the
        answer that is chosen, from 0, its text, and the probability of each answer.
        """
        for name, of_set in predictions.items():
            questions = self._files[name].questions
            lines = []
            for question, probabilities in zip(questions, of_set, strict=True):
                best = int(np.argmax(probabilities))
                values = {
                    "line": question.line,
                    "prediction": best,
                    "choice": question.choices[best],
                    "probabilities": [round(p, 6) for p in probabilities],
                }
                lines.append(json.dumps(values, ensure_ascii=False) + "\n")
            prefix = "" if name == "eval" else f"{name}_"
            with storage.writing(folder):
                path = folder / f"{prefix}predictions.jsonl"
                storage.write_text(path, "".join(lines))


def make_rows(
    questions: Sequence[Question],
    tokenizer: tokenizer_lib.Tokenizer,
    length: int,
    num_choices: int,
) -> tuple[Arrays, np.ndarray]:
    """[CLS] question [SEP] choice [SEP] for each choice of each question.

    What is too long loses tokens at the end, the longer of the two first. A question
    with fewer than `num_choices` choices is filled up with padding alone.

    Args:
      questions: Questions.
      tokenizer: Tokenizer of the encoder.
      length: Tokens in a sequence.
      num_choices: Most choices that a question has.

    Returns:
      input_ids, segment_ids int32 [R, C, L], attention_mask bool [R, C, L], labels
      int32 [R], weights float32 [R], 0 where the answer is not known; and which
      questions lost tokens, bool [R].
    """
    between = tokenizer.pair_separators
    room = length - 2 - len(between)
    asked = tokenizer.encode_batch([question.question for question in questions])
    answers = [text for question in questions for text in question.choices]
    encoded = iter(tokenizer.encode_batch(answers))
    shape = (len(questions), num_choices, length)
    ids = np.full(shape, tokenizer.pad_id, np.int32)
    segments = np.zeros(shape, np.int32)
    mask = np.zeros(shape, bool)
    truncated = np.zeros(len(questions), bool)
    for row, question in enumerate(questions):
        choices = [next(encoded) for _ in question.choices]
        longest = len(asked[row]) + max(map(len, choices))
        truncated[row] = longest > room
        for column, tokens in enumerate(choices):
            first, second = texts.truncate(asked[row], tokens, room)
            first = [tokenizer.cls_id, *first, *between]
            tokens = [*first, *second, tokenizer.sep_id]
            ids[row, column, : len(tokens)] = tokens
            segments[row, column, len(first) : len(tokens)] = 1
            mask[row, column, : len(tokens)] = True
    answers = np.array([question.answer for question in questions], np.int32)
    is_known = answers != choice_files.UNKNOWN
    arrays = {
        "input_ids": ids,
        "segment_ids": segments,
        "attention_mask": mask,
        "labels": np.where(is_known, answers, 0).astype(np.int32),
        "weights": is_known.astype(np.float32),
    }
    return arrays, truncated


def decode(questions: Sequence[Question], logits: np.ndarray) -> list[list[float]]:
    """The probability of each choice of each question.

    Args:
      questions: Questions.
      logits: Logits of their choices [R, C].
    """
    from scipy import special  # takes a while

    probabilities = special.softmax(logits.astype(np.float64), axis=-1).tolist()
    return [
        of_row[: len(question.choices)]
        for question, of_row in zip(questions, probabilities, strict=True)
    ]
