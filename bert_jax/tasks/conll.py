"""Words and their tags in CoNLL columns.

A line has a word, its tag and perhaps other columns. They are separated by tabs if any
line of the file has a tab, and by spaces otherwise. A blank line ends a sentence, and
so does a line that begins with -DOCSTART-.
"""

import dataclasses
import os

from bert_jax import terminal
from bert_jax.errors import UserError
from bert_jax.tasks import task_files

# Largest number of tagged words in the only sentence of a file.
_LONGEST = 500


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Sentence that begins in a line, from 1. `tags` is empty if it is not tagged."""

    line: int = dataclasses.field(repr=False)  # not part of the fingerprint
    words: list[str]
    tags: list[str]


@dataclasses.dataclass(frozen=True)
class TaggedFile:
    """Sentences of a file, whose path is for messages."""

    path: str
    sentences: list[Sentence]
    separator: str
    is_tagged: bool

    @property
    def tags(self) -> set[str]:
        return {tag for sentence in self.sentences for tag in sentence.tags}

    def where(self, tag: str) -> str:
        """Return path and line of the first word with a tag."""
        return next(
            f"{self.path}, line {sentence.line + sentence.tags.index(tag)}"
            for sentence in self.sentences
            if tag in sentence.tags
        )


def read(
    path: str | os.PathLike, word_column: int, tag_column: int, *, needs_tags: bool
) -> TaggedFile:
    """Read a file. Columns count from 0; `tag_column` -1 is the last.

    Raises:
      UserError: The file cannot be read, has no words, or has lines with other columns.
    """
    lines = [line.removesuffix("\r") for line in task_files.read(path).split("\n")]
    with_tabs = [i for i, x in enumerate(lines, 1) if "\t" in x and x.strip()]
    separator, reason = " ", ""
    if with_tabs:
        separator, reason = "\t", f" separated by tabs, as in line {with_tabs[0]}"
    columns, is_tagged = 0, False
    sentences: list[Sentence] = []
    current = None
    for number, line in enumerate(lines, 1):
        if not line.strip(" \t") or line.startswith("-DOCSTART-"):
            current = None
            continue
        where = f"{path}, line {number}"
        fields = line.split(separator)
        if separator == " ":
            fields = [field for field in fields if field]
        found = f"{where}: {terminal.pluralise(len(fields), 'column')}{reason}"
        if not columns:
            columns = len(fields)
            tag_column = columns - 1 if tag_column == -1 else tag_column
            is_tagged = tag_column < columns and tag_column != word_column
            _check_columns(found, columns, word_column, tag_column, needs_tags)
        if len(fields) != columns:
            raise UserError(
                f"{found}, not {columns} as in the first line with a word; files in "
                r"CoNLL-U need grep -P '^(\d+\t|$)' FILE first, and "
                "task.word_column=1 and task.tag_column=3"
            )
        word = fields[word_column]
        tag = fields[tag_column].strip(" ") if is_tagged else ""
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
    if needs_tags and len(sentences) == 1 and len(sentences[0].words) > _LONGEST:
        raise UserError(
            f"{path}: all {len(sentences[0].words)} words are one sentence; a blank "
            "line must end each sentence"
        )
    return TaggedFile(os.fspath(path), sentences, separator, is_tagged)


def _check_columns(
    found: str, count: int, word_column: int, tag_column: int, needs_tags: bool
) -> None:
    """Check that a file has its columns. Messages begin with what was `found`."""
    needed = {"word_column": word_column}
    if needs_tags:
        needed["tag_column"] = tag_column
    for name, column in needed.items():
        if column >= count:
            raise UserError(
                f"{found}, but task.{name}={column}, counted from 0; columns are "
                "separated by tabs or by spaces"
            )
    if needs_tags and tag_column == word_column:
        raise UserError(
            f"{found}, and none for tags beside task.word_column={word_column}; "
            "separate a word and its tag by a tab or a space"
        )
