"""Questions with several answers to choose from, in three formats.

- SWAG's CSV: a header that names the columns `sent1`, `sent2`, `ending0` and so on, and
  `label`, the number of the ending that is true, from 0. The question is `sent1`; each
  answer is `sent2`, a space and an ending. Other columns are left alone.
- ARC's CSV, without a header: the question, the answers, and the letter of the one that
  is true (or its number, from 1). Answers that a question does not have are empty. A
  line `question,A,B,...,answer` at the beginning is left out.
- JSON lines: `{"question": TEXT, "choices": [TEXT, ...], "answer": ...}`, where the
  answer is the number of a choice, from 0, or its text, or its letter.

There are questions in ARC's files that lack their true answer, because it was left out
when the files were made. They are no mistake of the reader's, and are counted.
"""

import csv
import dataclasses
import io
import json
import os
import re
from collections.abc import Iterator

from bert_jax.errors import UserError
from bert_jax.tasks import task_files

UNKNOWN = -1
_ENDING = re.compile(r"ending[0-9]+")
_SWAG = "sent1, sent2, ending0, ending1 and so on"


@dataclasses.dataclass(frozen=True)
class Question:
    """A question with answers to choose from.

    Attributes:
      line: Number of the line that it begins in, from 1.
      question: What is asked.
      choices: Answers, at least two.
      answer: Which of them is true, from 0; -1 if that is not known.
    """

    line: int = dataclasses.field(repr=False)  # nothing is learnt from it
    question: str
    choices: tuple[str, ...]
    answer: int


@dataclasses.dataclass(frozen=True)
class File:
    """The content of a file.

    Attributes:
      path: Where it is, for messages.
      questions: Questions in their order.
      skipped: Number of questions that were left out, as their true answer is missing.
    """

    path: str
    questions: list[Question]
    skipped: int = 0

    @property
    def is_answered(self) -> bool:
        """Whether the answers are known."""
        return all(question.answer != UNKNOWN for question in self.questions)


def read(path: str | os.PathLike, *, needs_answers: bool) -> File:
    """Read a file; see the module.

    Args:
      path: Path or URL, ending in .csv, .jsonl or .json, or in one of them and .gz.
      needs_answers: Whether the true answers must be there.

    Raises:
      UserError: The file cannot be read, or a question is incomplete.
      Unavailable: The store does not answer now.
    """
    path = os.fspath(path)
    name = path.removesuffix(".gz")
    if name.endswith((".jsonl", ".json")):
        file = _read_json_lines(path, task_files.read(path))
    elif name.endswith(".csv"):
        file = _read_csv(path, task_files.read(path))
    else:
        raise UserError(
            f"{path} ends in neither .csv nor .jsonl, perhaps with .gz behind it; the "
            "name has to say which of them it is"
        )
    for question in file.questions:
        _check(path, question)
    unknown = [q for q in file.questions if q.answer == UNKNOWN]
    if unknown and (needs_answers or len(unknown) < len(file.questions)):
        raise UserError(f"{path}, line {unknown[0].line}: there is no answer")
    if not file.questions:
        skipped = f"; the true answer of {file.skipped} is missing" * bool(file.skipped)
        raise UserError(f"{path} has no questions{skipped}")
    return file


def _check(path: str, question: Question) -> None:
    where = f"{path}, line {question.line}"
    if not question.question.strip():
        raise UserError(f"{where}: the question is empty")
    if len(question.choices) < 2:
        raise UserError(f"{where}: there are fewer than two answers to choose from")
    for i, choice in enumerate(question.choices):
        if not choice.strip():
            raise UserError(f"{where}: answer {i}, from 0, is empty")


# ---- CSV


def _read_csv(path: str, text: str) -> File:
    rows = list(_rows(path, text))
    if not rows:
        return File(path, [])
    header = rows[0][1]
    if {"sent1", "sent2", "ending0"} & set(header):
        return _read_swag(path, header, rows[1:])
    if (header[0].lower(), header[-1].lower()) == ("question", "answer"):
        del rows[0]
    return _read_arc(path, rows)


def _rows(path: str, text: str) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, and the line that each begins in."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}: the row that begins in line {line} is no CSV: {error}; a field "
            "with commas or quotation marks stands between quotation marks, and those "
            "inside are doubled"
        ) from error


def _read_swag(path: str, header: list[str], rows: list[tuple[int, list[str]]]) -> File:
    endings = [i for i, name in enumerate(header) if _ENDING.fullmatch(name)]
    missing = [name for name in ("sent1", "sent2") if name not in header]
    if missing or not endings:
        raise UserError(
            f"{path} has no column {' or '.join(missing) or 'ending0'}; SWAG's columns "
            f"are {_SWAG}, and label"
        )
    first, second = header.index("sent1"), header.index("sent2")
    label = header.index("label") if "label" in header else None
    questions = []
    for line, row in rows:
        where = f"{path}, line {line}"
        if len(row) != len(header):
            raise UserError(
                f"{where}: {len(row)} fields, not {len(header)} as in the header"
            )
        answer = UNKNOWN
        if label is not None:
            answer = _number(row[label], len(endings))
            if answer is None:
                raise UserError(
                    f"{where}: the label is {row[label]!r}, not a number from 0 to "
                    f"{len(endings) - 1}"
                )
        for i in endings:
            if not row[i].strip():
                raise UserError(f"{where}: {header[i]} is empty")
        choices = tuple(f"{row[second]} {row[i]}".strip() for i in endings)
        questions.append(Question(line, row[first], choices, answer))
    return File(path, questions)


def _number(text: str, count: int) -> int | None:
    """A number below `count`."""
    is_number = re.fullmatch("[0-9]{1,9}", text) and int(text) < count
    return int(text) if is_number else None


def _read_arc(path: str, rows: list[tuple[int, list[str]]]) -> File:
    questions, skipped = [], 0
    for line, row in rows:
        where = f"{path}, line {line}"
        if len(row) < 4 or len(row) != len(rows[0][1]):
            raise UserError(
                f"{where}: {len(row)} fields"
                + (f", not {len(rows[0][1])} as in the first row" * (len(row) > 3))
                + "; a row is the question, the answers, and the letter of the true "
                f"one; or a header names SWAG's columns: {_SWAG}, and label"
            )
        question, *cells, key = row
        key = key.strip()
        if key and not re.fullmatch("[A-Z]|[1-9]", key):
            raise UserError(
                f"{where}: the last field is {_shortened(key)}, not the letter of the "
                "true answer"
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
    return File(path, questions, skipped)


# ---- JSON lines


def _read_json_lines(path: str, text: str) -> File:
    questions = []
    for line, one in enumerate(text.split("\n"), 1):
        if not one.strip():
            continue
        where = f"{path}, line {line}"
        try:
            values = json.loads(one)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: no JSON: {error}") from error
        if not isinstance(values, dict):
            raise UserError(f"{where}: {_shortened(one)} is no object")
        for name in ("question", "choices"):
            if name not in values:
                raise UserError(
                    f"{where}: there is no {name!r}; a line is "
                    '{"question": TEXT, "choices": [TEXT, ...], "answer": NUMBER}'
                )
        question, choices = values["question"], values["choices"]
        texts = [question, *choices] if isinstance(choices, list) else [None]
        if not all(isinstance(x, str) for x in texts):
            raise UserError(
                f"{where}: 'question' has to be a text, and 'choices' a list of texts"
            )
        answer = UNKNOWN
        if "answer" in values:
            answer = _answer(where, choices, values["answer"])
        questions.append(Question(line, question, tuple(choices), answer))
    return File(path, questions)


def _answer(where: str, choices: list[str], answer: object) -> int:
    if type(answer) is int and 0 <= answer < len(choices):
        return answer
    # A text before a letter: the choices may be letters.
    if isinstance(answer, str):
        if choices.count(answer) == 1:
            return choices.index(answer)
        if re.fullmatch("[A-Z]", answer) and ord(answer) - ord("A") < len(choices):
            return ord(answer) - ord("A")
    raise UserError(
        f"{where}: the answer {_shortened(str(answer))} is none of the "
        f"{len(choices)} choices; give its number, from 0, its letter or its text"
    )


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:36]} ...")
