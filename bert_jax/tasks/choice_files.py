"""Multiple-choice questions in three formats.

- SWAG's CSV: a header names the columns `sent1`, `sent2`, `ending0` and so on, and
  `label`, the number of the correct ending, from 0. The question is `sent1`; each
  answer is `sent2`, a space and an ending. Other columns are ignored.
- ARC's CSV, without a header: the question, the answers, and the letter of the correct
  one (or its number, from 1). Unused answers are empty. A first line
  `question,A,B,...,answer` is skipped.
- JSON lines: `{"question": TEXT, "choices": [TEXT, ...], "answer": ...}`, where the
  answer is the number of a choice, from 0, or its text, or its letter.

Some questions in the files of ARC lost their correct answer when the files were made.
They are skipped and counted.
"""

import dataclasses
import os
import re

from bert_jax.errors import UserError
from bert_jax.tasks import task_files

UNKNOWN = -1
_SWAG_COLUMNS = "SWAG's columns are sent1, sent2, ending0, ending1 and so on, and label"


@dataclasses.dataclass(frozen=True)
class Question:
    """A question with answers to choose from.

    Attributes:
      line: Number of the line in which the question begins, from 1.
      question: Text of the question.
      choices: Answers, at least two.
      answer: Index of the correct answer; -1 if unknown.
    """

    line: int = dataclasses.field(repr=False)  # not part of the fingerprint
    question: str
    choices: tuple[str, ...]
    answer: int


@dataclasses.dataclass(frozen=True)
class File:
    """Questions of a file.

    Attributes:
      questions: Questions in their order.
      skipped: Number of questions skipped because their correct answer is missing.
    """

    questions: list[Question]
    skipped: int = 0

    @property
    def is_answered(self) -> bool:
        """True if all correct answers are known."""
        return all(question.answer != UNKNOWN for question in self.questions)


def read(path: str | os.PathLike, *, needs_answers: bool) -> File:
    """Read a file in one of the formats of this module.

    Args:
      path: Path or URL.
      needs_answers: Whether the file must have the correct answers.

    Raises:
      UserError: The file cannot be read, or a question is incomplete.
      Unavailable: The store does not answer now.
    """
    path = os.fspath(path)
    ending = task_files.check_ending(path, (".csv", ".jsonl", ".json"))
    parse = _read_csv if ending == ".csv" else _read_json_lines
    file = parse(path, task_files.read(path))
    for question in file.questions:
        where = f"{path}, line {question.line}"
        if not question.question.strip():
            raise UserError(f"{where}: the question is empty")
        if len(question.choices) < 2:
            raise UserError(f"{where}: there are fewer than two answers to choose from")
        if "" in map(str.strip, question.choices):
            raise UserError(f"{where}: an answer is empty")
    unknown = [q for q in file.questions if q.answer == UNKNOWN]
    if unknown and (needs_answers or len(unknown) < len(file.questions)):
        raise UserError(f"{path}, line {unknown[0].line}: there is no answer")
    if not file.questions:
        skipped = f"; the true answer of {file.skipped} is missing" * bool(file.skipped)
        raise UserError(f"{path} has no questions{skipped}")
    return file


def _read_csv(path: str, text: str) -> File:
    rows = [(line, row) for line, row in task_files.csv_rows(path, text) if row]
    header = rows[0][1] if rows else [""]
    if {"sent1", "sent2", "ending0"} & set(header):
        return _read_swag(path, header, rows[1:])
    is_header = (header[0].lower(), header[-1].lower()) == ("question", "answer")
    return _read_arc(path, rows[is_header:])


def _read_swag(path: str, header: list[str], rows: list[tuple[int, list[str]]]) -> File:
    first, second, _ = (
        task_files.find_column(f"{path} ({_SWAG_COLUMNS})", header, name)
        for name in ("sent1", "sent2", "ending0")
    )
    endings = [i for i, name in enumerate(header) if re.fullmatch("ending[0-9]+", name)]
    label = task_files.find_column(path, header, "label") if "label" in header else None
    questions = []
    for line, row in rows:
        where = f"{path}, line {line}"
        task_files.check_row(where, row, header)
        answer = UNKNOWN
        if label is not None:
            numbers = list(map(str, range(len(endings))))
            if row[label] not in numbers:
                raise UserError(
                    f"{where}: the label is {row[label]!r}, not a number from 0 to "
                    f"{numbers[-1]}"
                )
            answer = int(row[label])
        for i in endings:
            if not row[i].strip():
                raise UserError(f"{where}: {header[i]} is empty")
        choices = tuple(f"{row[second]} {row[i]}".strip() for i in endings)
        questions.append(Question(line, row[first], choices, answer))
    return File(questions)


def _read_arc(path: str, rows: list[tuple[int, list[str]]]) -> File:
    questions, skipped = [], 0
    for line, row in rows:
        where = f"{path}, line {line}"
        if len(row) < 4:
            raise UserError(
                f"{where}: {len(row)} fields; a row is the question, the answers, and "
                f"the letter of the true one; or a header names columns: "
                f"{_SWAG_COLUMNS}"
            )
        if len(row) != len(rows[0][1]):
            raise UserError(
                f"{where}: {len(row)} fields, not {len(rows[0][1])} as in the first row"
            )
        question, *cells, key = row
        key = key.strip()
        if key and not re.fullmatch("[A-Z]|[1-9]", key):
            raise UserError(
                f"{where}: the last field is {task_files.shorten(key)}, not the letter "
                "of the true answer"
            )
        present = [i for i, cell in enumerate(cells) if cell.strip()]
        answer = UNKNOWN
        if key:
            at = int(key) - 1 if key.isdigit() else ord(key) - ord("A")
            if at not in present:
                skipped += 1
                continue
            answer = present.index(at)
        choices = tuple(cells[i] for i in present)
        questions.append(Question(line, question, choices, answer))
    return File(questions, skipped)


def _read_json_lines(path: str, text: str) -> File:
    questions = []
    for line, fields in task_files.json_objects(path, text):
        where = f"{path}, line {line}"
        question, choices = fields.get("question"), fields.get("choices")
        texts = [question, *choices] if isinstance(choices, list) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise UserError(
                f"{where}: 'question' has to be a text, and 'choices' a list of texts"
            )
        answer = UNKNOWN
        if "answer" in fields:
            answer = _find_answer(where, choices, fields["answer"])
        questions.append(Question(line, question, tuple(choices), answer))
    return File(questions)


def _find_answer(where: str, choices: list[str], answer: object) -> int:
    if type(answer) is int and 0 <= answer < len(choices):
        return answer
    # A text before a letter: the choices may be letters.
    if isinstance(answer, str):
        if choices.count(answer) == 1:
            return choices.index(answer)
        if re.fullmatch("[A-Z]", answer) and ord(answer) - ord("A") < len(choices):
            return ord(answer) - ord("A")
    raise UserError(
        f"{where}: the answer {task_files.shorten(str(answer))} is none of the "
        f"{len(choices)} choices; give its number, from 0, its letter or its text"
    )
