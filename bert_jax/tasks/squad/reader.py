"""SQuAD's files, versions 1.1 and 2.0: from JSON to examples.

A file has articles, which have paragraphs, which have a context and questions on it
(Rajpurkar et al. 2016, 2018).
"""

import dataclasses
import json
import os
from typing import Any, TypeVar

from bert_jax import terminal
from bert_jax.errors import UserError
from bert_jax.tasks import task_files as task_files

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Gold:
    """An answer that a person gave: `context[begin : begin + len(text)] == text`."""

    text: str
    begin: int


@dataclasses.dataclass(frozen=True)
class Example:
    """A question on a context. It has no answer if `golds` is empty."""

    id: str
    question: str
    context: str
    golds: tuple[Gold, ...]


def read(path: str | os.PathLike, no_answers: bool) -> list[Example]:
    """Examples of a file, here or in an object store, plain or ending in .gz.

    Args:
      path: Path or URL.
      no_answers: Whether a question may have no answer: version 2.0.

    Raises:
      UserError: The file is not there, is no such file, or has a question that cannot
        be used.
      Unavailable: The store does not answer now.
    """
    try:
        content = json.loads(task_files.read(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    examples = []
    for article, in_file in _items(content, "data", f"{path}:"):
        for paragraph, in_article in _items(article, "paragraphs", in_file):
            context = _text(paragraph, "context", in_article)
            for question, in_paragraph in _items(paragraph, "qas", in_article):
                example = _example(question, context, in_paragraph, path)
                if not example.golds and not no_answers:
                    raise UserError(
                        f"{path}: question {example.id} has no answer (is_impossible), "
                        "as in SQuAD 2.0; pass --config.task.no_answers=True"
                    )
                examples.append(example)
    if not examples:
        raise UserError(f"{path} has no questions")
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise UserError(f"{path}: two questions have the id {example.id}")
        seen.add(example.id)
    return examples


def _example(value: Any, context: str, where: str, path: str | os.PathLike) -> Example:
    """One question, checked."""
    # From here on its id is a better name for it than where it is in the file.
    identifier = terminal.printable(_text(value, "id", where))
    where = f"{path}: question {identifier}"
    question = _text(value, "question", where)
    is_impossible = _field(value, "is_impossible", bool, where, False)
    golds = []
    for gold, in_list in _items(value, "answers", where, required=not is_impossible):
        text = _text(gold, "text", in_list)
        begin = _field(gold, "answer_start", int, in_list)
        if begin < 0 or context[begin : begin + len(text)] != text:
            there = context[max(begin, 0) : max(begin, 0) + len(text)]
            raise UserError(
                f"{where}: the answer {_short(text)} is not at character {begin} of "
                f"its context, where there is {_short(there)}"
            )
        golds.append(Gold(text, begin))
    if is_impossible and golds:
        raise UserError(f"{where} has is_impossible and an answer, {_short(text)}")
    if not golds and not is_impossible:
        raise UserError(
            f"{where} has no answers; one that cannot be answered needs "
            '"is_impossible": true'
        )
    return Example(identifier, question, context, tuple(golds))


_NAMES = {str: "a text", int: "a whole number", bool: "true or false", list: "a list"}


def _field(
    value: Any, name: str, kind: type[T], where: str, default: T | None = None
) -> T:
    """A field of a JSON object, checked for its type."""
    if not isinstance(value, dict):
        raise UserError(f"{where} is no JSON object, but {_short(value)}")
    field = value.get(name, default)
    if field is None:
        raise UserError(f"{where} has no {name!r}, as files of SQuAD have there")
    if type(field) is not kind:
        raise UserError(f"{where} has {_short(field)} for {name!r}, not {_NAMES[kind]}")
    return field


def _text(value: Any, name: str, where: str) -> str:
    """A field of a JSON object that is a text with something in it."""
    text = _field(value, name, str, where)
    if not text.strip():
        raise UserError(f"{where} has an empty text for {name!r}")
    return text


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def _items(
    value: Any, name: str, where: str, *, required: bool = True
) -> list[tuple[Any, str]]:
    """Items of a field that is a list, each with where it is."""
    items = _field(value, name, list, where, None if required else [])
    return [(item, f"{where} {name}[{i}]") for i, item in enumerate(items)]
