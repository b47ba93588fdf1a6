"""Multiple-choice questions in several formats.

- SWAG's CSV: a header names the columns `sent1`, `sent2`, `ending0` and so on, and
  `label`, the number of the correct ending, from 0, or -1 if it is unknown. The
  question is `sent1`; each answer is `sent2`, a space and an ending. Other columns are
  ignored.
- ARC's CSV, without a header: the question, the answers, and the letter of the correct
  one (or its number, from 1). Unused answers are empty. A first line
  `question,A,B,...,answer` is skipped.
- JSON lines: `{"question": TEXT, "choices": [TEXT, ...], "answer": ...}`, where the
  answer is the number of a choice, from 0, or its text, or its letter.

The JSON lines of ARC are read, too: AI2's `{"question": {"stem": TEXT, "choices":
[{"text": TEXT, "label": LABEL}, ...]}, "answerKey": LABEL}`, and Hugging Face's
`{"question": TEXT, "choices": {"text": [TEXT, ...], "label": [LABEL, ...]},
"answerKey": LABEL}`.

Some questions in the CSV of ARC without a header lost their correct answer when the
files were made. They are skipped and counted.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from bert_jax import terminal
from bert_jax.errors import UserError
from bert_jax.tasks import task_files

UNKNOWN = -1
_SWAG_NEEDS = {"sent1", "sent2", "ending0"}
_SWAG_COLUMNS = "SWAG's columns are sent1, sent2, ending0, ending1 and so on, and label"


@dataclasses.dataclass(frozen=True)
class Question:
    """Question with answers to choose from; it begins in line `line`, from 1."""

    line: int = dataclasses.field(repr=False)  # not part of the fingerprint
    question: str
    choices: tuple[str, ...]  # at least two
    answer: int  # index of the correct one; -1 if unknown


@dataclasses.dataclass(frozen=True)
class QuestionFile:
    """Questions of a file, and how many were skipped because their answer is lost."""

    questions: list[Question]
    skipped: int = 0


def read(path: str | os.PathLike, *, needs_answers: bool) -> QuestionFile:
    """Read a file in one of the formats of this module.

    Raises:
      UserError: The file cannot be read, a question is incomplete, or correct answers
        are missing and needed.
    """
    path = os.fspath(path)
    suffix = task_files.check_suffix(path, (".csv", ".jsonl", ".json"))
    parse = _read_csv if suffix == ".csv" else task_files.json_objects
    questions, skipped = [], 0
    for line, fields in parse(path, task_files.read(path)):
        if fields is None:
            skipped += 1
        else:
            questions.append(_question(path, line, fields))
    needs_answers |= any(question.answer != UNKNOWN for question in questions)
    for question in questions:
        problem = ""
        if not question.question.strip():
            problem = "the question is empty"
        elif len(question.choices) < 2:
            problem = "there are fewer than two choices"
        elif "" in map(str.strip, question.choices):
            problem = "a choice is empty"
        elif needs_answers and question.answer == UNKNOWN:
            problem = "the answer is missing"
        if problem:
            raise UserError(f"{path}, line {question.line}: {problem}")
    if not questions:
        lost = f"; {skipped} lack the text of the correct choice" if skipped else ""
        raise UserError(f"{path} has no questions{lost}")
    return QuestionFile(questions, skipped)


def _question(path: str, line: int, fields: dict[str, Any]) -> Question:
    """Return a question with the fields of a line, of CSV or JSON."""
    where, fields = f"{path}, line {line}", _from_arc(fields)
    question, choices = fields.get("question"), fields.get("choices")
    texts = [question, *choices] if isinstance(choices, list) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(
            f"{where}: 'question' must be a text, and 'choices' a list of texts"
        )
    answer = UNKNOWN
    if fields.get("answer") not in (None, "", UNKNOWN) and len(choices) > 1:
        answer = _find_answer(where, choices, fields["answer"])
    return Question(line, question, tuple(choices), answer)


def _read_csv(path: str, text: str) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield line and fields of questions; None if the correct choice has no text."""
    rows = [(line, row) for line, row in task_files.csv_rows(path, text) if row]
    header = rows[0][1] if rows else [""]
    if not _SWAG_NEEDS & set(header):
        is_header = (header[0].lower(), header[-1].lower()) == ("question", "answer")
        yield from _read_arc(path, rows[is_header:])
        return
    endings = {f"ending{i}" for i in range(len(_endings(header)))}
    for name in sorted(_SWAG_NEEDS | endings):
        task_files.find_column(f"{path} ({_SWAG_COLUMNS})", header, name)
    for line, row in rows[1:]:
        fields = task_files.by_column(f"{path}, line {line}", header, row)
        yield line, _from_swag(fields)


def _endings(header: Iterable[str]) -> list[str]:
    """Return the columns ending0, ending1 and so on, in any order, by number."""
    names = [name for name in header if re.fullmatch("ending[0-9]+", name)]
    return sorted(names, key=lambda name: int(name.removeprefix("ending")))


def _from_swag(fields: dict[str, str]) -> dict[str, Any]:
    endings = [fields[name] for name in _endings(fields)]
    choices = [x.strip() and f"{fields['sent2']} {x}".strip() for x in endings]
    asked: dict[str, Any] = {"question": fields["sent1"], "choices": choices}
    label = fields.get("label", "").strip()
    if label not in ("", "-1"):  # -1: Hugging Face's test set, without answers
        asked["answer"] = int(label) if label.isdecimal() else label
    return asked


def _read_arc(
    path: str, rows: list[tuple[int, list[str]]]
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    for line, row in rows:
        where, size = f"{path}, line {line}", len(rows[0][1])
        fields = terminal.pluralise(len(row), "field")
        if len(row) < 4:
            raise UserError(
                f"{where}: {fields}; a row has the question, the answers, and "
                f"the letter of the correct one, or a header names columns; "
                f"{_SWAG_COLUMNS}"
            )
        if len(row) != size:
            raise UserError(f"{where}: {fields}, not {size} as in the first row")
        question, *cells, key = row
        key = key.strip()
        if key and not re.fullmatch("[A-Z]|[1-9]", key):
            raise UserError(
                f"{where}: the last field is {task_files.shorten(key)}, not the letter "
                "of the correct answer; if this is AI2's CSV, give its JSON lines"
            )
        choices = {i: cell for i, cell in enumerate(cells) if cell.strip()}
        asked = {"question": question, "choices": list(choices.values())}
        if key:
            index = int(key) - 1 if key.isdigit() else ord(key) - ord("A")
            if index in choices:
                asked["answer"] = list(choices).index(index)
            else:
                asked = None
        yield line, asked


def _find_answer(where: str, choices: list[str], answer: object) -> int:
    if type(answer) is int and 0 <= answer < len(choices):
        return answer
    letters = [chr(ord("A") + i) for i in range(len(choices))]
    # A text before a letter: the choices may be letters.
    for names in (choices, letters):
        if answer in names:
            return names.index(answer)
    hint = " (without quotes)" * (isinstance(answer, str) and answer.isdecimal())
    raise UserError(
        f"{where}: the answer {task_files.shorten(answer)} is none of the "
        f"{len(choices)} choices; give its number from 0 to {len(choices) - 1}{hint}, "
        "its letter or its text"
    )


def _from_arc(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a question of ARC's JSON lines in the format of this module.

    Other fields are returned as they are.
    """
    question, choices = fields.get("question"), fields.get("choices")
    try:
        if isinstance(question, dict):
            names = ("text", "label")
            choices = {name: [c[name] for c in question["choices"]] for name in names}
            question = question["stem"]
        asked = {"question": question, "choices": choices["text"]}
        labels = list(map(str, choices["label"]))
    except (KeyError, TypeError):
        return fields
    key = fields.get("answerKey")
    if key not in (None, ""):
        key = str(key)
        asked["answer"] = labels.index(key) if key in labels else key
    return asked
