"""Words and their tags in CoNLL columns.

A line has a word, its tag and perhaps other columns, with tabs between them if any line
of the file has tabs, and with spaces if none has. A blank line ends a sentence, and so
does one that begins with -DOCSTART-.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Sequence

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.tasks import task_files

_COMMENT = re.compile(r"#\s")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words of consecutive lines.

    Attributes:
      line: Number of the line of the first word, from 1.
      words: Words.
      tags: A tag for each word; none where the tags are not known.
    """

    line: int = dataclasses.field(repr=False)  # nothing is learnt from it
    words: list[str]
    tags: list[str]


@dataclasses.dataclass(frozen=True)
class File:
    """The content of a file.

    Attributes:
      path: Where it is, for messages.
      sentences: Sentences in their order.
      separator: What stands between columns.
      is_tagged: Whether it has tags.
    """

    path: str
    sentences: list[Sentence]
    separator: str
    is_tagged: bool

    def where(self, tag: str) -> str:
        """Path and line of the first word with a tag."""
        for sentence in self.sentences:
            if tag in sentence.tags:
                return f"{self.path}, line {sentence.line + sentence.tags.index(tag)}"
        raise ValueError(f"{self.path} has no tag {tag!r}")


def read(
    path: str | os.PathLike, word_column: int, tag_column: int, *, needs_tags: bool
) -> File:
    """Read a file; see the module.

    Args:
      path: Path or URL, plain or ending in .gz.
      word_column: Column of the words, from 0.
      tag_column: Column of the tags, from 0; -1 for the last.
      needs_tags: Whether tags must be there. A file that lacks the column of the tags
        has only words, and is otherwise as good.

    Raises:
      UserError: The file cannot be read, has no words, or a line has other columns.
      Unavailable: The store does not answer now.
    """
    lines = [line.removesuffix("\r") for line in task_files.read(path).split("\n")]
    separator = "\t" if any("\t" in line for line in lines if line.strip()) else " "
    columns = tags_at = 0
    is_tagged = False
    sentences: list[Sentence] = []
    current = None
    for number, line in enumerate(lines, 1):
        if not line.strip(" \t") or line.startswith("-DOCSTART-"):
            current = None
            continue
        where = f"{path}, line {number}"
        fields = line.split("\t") if separator == "\t" else line.split(" ")
        if separator == " ":
            fields = [field for field in fields if field]
        if not columns:
            columns = len(fields)
            tags_at = columns - 1 if tag_column == -1 else tag_column
            is_tagged = word_column != tags_at < columns
            _check_columns(where, columns, word_column, tags_at, needs_tags)
        if len(fields) != columns:
            raise UserError(f"{where}: {_wrong_columns(line, len(fields), columns)}")
        word, tag = fields[word_column], fields[tags_at] if is_tagged else ""
        if not word or (is_tagged and not tag):
            raise UserError(f"{where}: the {'tag' if word else 'word'} is empty")
        if current is None:
            current = Sentence(number, [], [])
            sentences.append(current)
        current.words.append(word)
        if is_tagged:
            current.tags.append(tag)
    if not sentences:
        raise UserError(f"{path} has no words")
    return File(os.fspath(path), sentences, separator, is_tagged)


def _check_columns(
    where: str, columns: int, word_column: int, tags_at: int, needs_tags: bool
) -> None:
    has = _count(columns)
    if word_column >= columns:
        raise UserError(
            f"{where}: {has}, from 0, but task.word_column={word_column}; the columns "
            "stand between tabs or between spaces"
        )
    if needs_tags and (tags_at >= columns or tags_at == word_column):
        raise UserError(
            f"{where}: {has}, and none for tags beside task.word_column={word_column}; "
            "a line has a word and its tag, with a tab or a space between them, and "
            "task.tag_column is the number of the column, from 0"
        )


def _wrong_columns(line: str, fields: int, columns: int) -> str:
    message = f"{_count(fields)}, not {columns} as in the first line with a word"
    if _COMMENT.match(line):
        message += (
            r"; of CoNLL-U, give the lines of words: grep -P '^(\d+\t|$)' FILE, with "
            "task.word_column=1 and task.tag_column=3"
        )
    return message


def _count(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"


def write(
    path: storage.Path, sentences: Iterable[Sequence[Sequence[str]]], separator: str
) -> None:
    """Write sentences.

    Args:
      path: File to write.
      sentences: For each sentence a list of columns, such as words and tags.
      separator: What to put between columns.

    Raises:
      UserError: The file cannot be written.
    """
    text = "".join(
        "".join(separator.join(row) + "\n" for row in zip(*columns, strict=True)) + "\n"
        for columns in sentences
    )
    with storage.writing(path.parent):
        storage.write_text(path, text)
