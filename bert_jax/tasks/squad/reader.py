"""Questions of SQuAD, versions 1.1 and 2.0, read from JSON.

A file has articles, which have paragraphs. A paragraph has a context and questions
(Rajpurkar et al. 2016, 2018).
"""

import dataclasses
import os
from typing import Any

from bert_jax import terminal
from bert_jax.errors import UserError
from bert_jax.tasks import task_files


@dataclasses.dataclass(frozen=True)
class Gold:
    """An answer by a person: `context[begin : begin + len(text)] == text`.

    `begin` is -1 if the text is not where its file says.
    """

    text: str
    begin: int


@dataclasses.dataclass(frozen=True)
class Example:
    """A question about a context. Without an answer, `golds` is empty."""

    id: str
    question: str
    context: str
    golds: tuple[Gold, ...]


def read(path: str | os.PathLike, no_answers: bool) -> list[Example]:
    """Read the questions of a local or remote file.

    `no_answers` allows questions without an answer, as in version 2.0.

    Raises:
      UserError: The file cannot be read or has an invalid question.
    """
    examples: dict[str, Example] = {}
    where = os.fspath(path)
    content = task_files.json_object(task_files.read(path), where)
    try:
        for i, article in enumerate(content["data"]):
            where = article_location = f"{path}: data[{i}]"
            for paragraph in article["paragraphs"]:
                where = article_location
                context = _text(paragraph, "context")
                for question in paragraph["qas"]:
                    where = article_location
                    identifier = _identifier(question)
                    where = f"{path}: question {terminal.printable(identifier)}"
                    example = _example(identifier, question, context, where)
                    if not example.golds and not no_answers:
                        raise UserError(
                            f"{where} has no answer, as in SQuAD 2.0; pass "
                            "--config.task.no_answers=True"
                        )
                    if identifier in examples:
                        raise UserError(f"{where}: two questions have this id")
                    examples[identifier] = example
    except KeyError as error:
        raise UserError(f"{where}: the field {error} of SQuAD is missing") from error
    except TypeError as error:
        raise UserError(f"{where} has a field of a wrong type: {error}") from error
    except ValueError as error:
        raise UserError(f"cannot read {where}: {error}") from error
    if not examples:
        raise UserError(f"{path} has no questions")
    return list(examples.values())


def _example(identifier: str, fields: Any, context: str, where: str) -> Example:
    is_impossible, golds = fields.get("is_impossible", False), []
    if type(is_impossible) is not bool:
        raise ValueError(f"'is_impossible' is {is_impossible!r}, not true or false")
    answers = fields.get("answers", []) if is_impossible else fields["answers"]
    if not isinstance(answers, list):
        raise ValueError(
            f"'answers' is {task_files.shorten(answers)}, not a list of objects with "
            "'text' and 'answer_start'"
        )
    for answer in answers:
        if answer["text"] == "":  # some files write no answer so
            continue
        text, begin = _text(answer, "text"), answer["answer_start"]
        if type(begin) is not int:
            raise ValueError(f"'answer_start' is {begin!r}, not a whole number")
        is_there = begin >= 0 and context.startswith(text, begin)
        golds.append(Gold(text, begin if is_there else -1))
    if is_impossible and golds:
        raise UserError(f"{where} has is_impossible and an answer")
    return Example(identifier, _text(fields, "question"), context, tuple(golds))


def _identifier(question: Any) -> str:
    given = question["id"]
    # Some files have numbers. predictions.json has names, which are texts.
    return str(given) if type(given) is int else _text(question, "id")


def _text(fields: Any, name: str) -> str:
    text = fields[name]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name!r} is {task_files.shorten(text)}, not a text")
    return text
