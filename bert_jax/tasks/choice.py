"""Multiple choice: find the correct one of several answers to a question.

Each answer forms a sequence with the question, [CLS] question [SEP] answer [SEP]. The
answers of a question go through the model together. Their number may differ between
questions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.objectives import choice
from bert_jax.tasks import Arrays, choice_files, task_files, token_rows
from bert_jax.tasks.choice_files import Question

# The probability of each answer of each question.
Probabilities = list[list[float]]


class Choice:
    """Multiple choice with questions in files; see `tasks.Task`."""

    def __init__(
        self, config: config_lib.ChoiceConfig, tokenizer: tokenizer_lib.Tokenizer
    ):
        paths = task_files.paths_by_set(config, "FILE.csv or FILE.jsonl")
        self._files = {
            name: choice_files.read(path, needs_answers=name != "test")
            for name, path in paths.items()
        }
        questions = {name: file.questions for name, file in self._files.items()}
        # A test file is not part of the run, so it must not change training batches.
        self._num_choices = max(
            len(q.choices) for name in ("train", "eval") for q in questions[name]
        )
        rows = {
            name: make_rows(qs, tokenizer, config.length, self._num_choices)
            for name, qs in questions.items()
        }
        arrays = {name: values for name, (values, _) in rows.items()}
        self.train, self.held_out = arrays.pop("train"), arrays
        self.metrics = ("accuracy",)
        self.settings: dict[str, Any] = {}
        self.fingerprint = task_files.fingerprint(questions["train"], questions["eval"])
        self.description = {
            "examples": len(questions["eval"]),
            "train_examples": len(questions["train"]),
            "choices": self._num_choices,
            "skipped": {name: file.skipped for name, file in self._files.items()},
            "truncated": {name: int(lost.sum()) for name, (_, lost) in rows.items()},
        }

    def objective(self, encoder: config_lib.EncoderConfig) -> choice.Choice:
        return choice.Choice(encoder, self._num_choices)

    def decode(self, name: str, outputs: Arrays) -> Probabilities:
        return decode(self._files[name].questions, outputs["logits"])

    def scores(self, name: str, predictions: Probabilities) -> dict[str, float]:
        """Return the accuracy, if the file has answers."""
        if not self.held_out[name]["weights"].all():
            return {}
        is_true = list(map(np.argmax, predictions)) == self.held_out[name]["labels"]
        return {"accuracy": float(is_true.mean())}

    def write(
        self, folder: storage.Path, name: str, predictions: Probabilities
    ) -> None:
        """Write predictions.jsonl, or test_predictions.jsonl for a test file.

        A line describes a question: the line of its file in which it begins, the index
        and text of the chosen answer, and the probability of each answer.
        """
        lines = []
        questions = self._files[name].questions
        for question, probabilities in zip(questions, predictions, strict=True):
            best = int(np.argmax(probabilities))
            line = {
                "line": question.line,
                "prediction": best,
                "choice": question.choices[best],
                "probabilities": [round(p, 6) for p in probabilities],
            }
            lines.append(line)
        file = task_files.prefix_with_set(name, "predictions.jsonl")
        task_files.write_json_lines(folder / file, lines)


def make_rows(
    questions: Sequence[Question],
    tokenizer: tokenizer_lib.Tokenizer,
    length: int,
    min_choices: int = 1,
) -> tuple[Arrays, np.ndarray]:
    """Encode each choice of each question as [CLS] question [SEP] choice [SEP].

    C is the largest number of choices, at least `min_choices`. Missing choices are all
    padding.

    Returns:
      input_ids, segment_ids int32 [R, C, L], attention_mask bool [R, C, L], labels
      int32 [R], weights float32 [R], 0 for an unknown answer; and whether each question
      lost tokens, bool [R].
    """
    asked = tokenizer.encode_batch([question.question for question in questions])
    answers = [text for question in questions for text in question.choices]
    counts = [len(question.choices) for question in questions]
    num_choices = max([*counts, min_choices])
    row = np.repeat(np.arange(len(questions)), counts)
    column = np.array([i for count in counts for i in range(count)], int)
    pairs, is_truncated = token_rows.join_pairs(
        [asked[i] for i in row], tokenizer.encode_batch(answers), tokenizer, length
    )
    arrays = {}
    for name, values in pairs.items():
        padding = tokenizer.pad_id if name == "input_ids" else 0
        shape = (len(questions), num_choices, length)
        arrays[name] = np.full(shape, padding, values.dtype)
        arrays[name][row, column] = values
    truncated = np.zeros(len(questions), bool)
    truncated[row[is_truncated]] = True
    answer = np.array([question.answer for question in questions], np.int32)
    is_known = answer != choice_files.UNKNOWN
    arrays["labels"] = np.where(is_known, answer, 0).astype(np.int32)
    arrays["weights"] = is_known.astype(np.float32)
    return arrays, truncated


def decode(questions: Sequence[Question], logits: np.ndarray) -> Probabilities:
    """Return the probability of each choice, from logits [R, C]."""
    from scipy import special  # slow to import

    probabilities = special.softmax(logits.astype(np.float64), axis=-1).tolist()
    return [
        row[: len(question.choices)]
        for question, row in zip(questions, probabilities, strict=True)
    ]
