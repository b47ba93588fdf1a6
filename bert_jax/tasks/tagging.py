"""A tag for each word of a sentence: named entities, parts of speech.

Words are given, and each is tokenised alone. Its first token carries the tag, as in the
paper (5.3); the other tokens and the special ones have no label. A sentence that is
longer than a row goes in several windows that overlap.
"""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.objectives import tagging
from bert_jax.tasks import Arrays, conll, entities, task_files

_NO_LABEL = -1
_WORD = re.compile(r"\w+|[^\w\s]")


class Tagging:
    """The task of some files, for one tokenizer; see `tasks.Task`."""

    def __init__(
        self, config: config_lib.TaggingConfig, tokenizer: tokenizer_lib.Tokenizer
    ):
        """Read the files.

        Raises:
          UserError: A file is not given or cannot be used.
        """
        task_files.check_given(config, "FILE.conll")
        names = ["train", "eval", *(["test"] if config.test else [])]
        self._files = {
            name: conll.read(
                getattr(config, name),
                config.word_column,
                config.tag_column,
                needs_tags=name != "test",
            )
            for name in names
        }
        train = self._files["train"]
        self._scheme = config.scheme or entities.scheme_of(train)
        for file in self._files.values():
            entities.check(file, self._scheme)
        self._tags = tag_names(train)
        self.length = config.length
        self._rows = {
            name: make_rows(
                [sentence.words for sentence in file.sentences],
                tokenizer,
                config.length,
                labels=labels_of(file, self._tags) if file.is_tagged else None,
            )
            for name, file in self._files.items()
        }
        self.train = self._rows["train"].arrays
        self.held_out = {name: self._rows[name].arrays for name in names[1:]}
        self.settings = {"tags": self._tags, "scheme": self._scheme}
        self.fingerprint = task_files.fingerprint(
            train.sentences, self._files["eval"].sentences
        )
        self.description = self._description()

    def _description(self) -> dict[str, Any]:
        rows = self._rows
        return {
            "examples": len(self._files["eval"].sentences),
            "train_examples": len(self._files["train"].sentences),
            "tags": self._tags,
            "scheme": self._scheme,
            "sentences_in_windows": {name: r.in_windows for name, r in rows.items()},
            "truncated_words": {
                name: int(r.truncated.sum()) for name, r in rows.items()
            },
            "invalid_transitions": {
                name: entities.count_invalid(file, self._scheme)
                for name, file in self._files.items()
                if file.is_tagged
            },
        }

    def objective(self, encoder: config_lib.EncoderConfig) -> tagging.Tagging:
        """A classifier of tokens, of as many classes as there are tags."""
        return tagging.Tagging(encoder, len(self._tags))

    def decode(self, outputs: dict[str, Arrays]) -> dict[str, list[list[str]]]:
        """The tag of each word of each sentence."""
        return {
            name: self._rows[name].decode(outputs[name]["predictions"], self._tags)
            for name in self.held_out
        }

    def scores(self, predictions: dict[str, list[list[str]]]) -> dict[str, Any]:
        """See `metrics`; those of the test file begin with "test_", if it has tags."""
        result = {}
        for name, predicted in predictions.items():
            if self._files[name].is_tagged:
                actual = [s.tags for s in self._files[name].sentences]
                prefix = "" if name == "eval" else f"{name}_"
                measured = metrics(actual, predicted, self._scheme)
                result |= {f"{prefix}{key}": value for key, value in measured.items()}
        return result

    def write(
        self, folder: storage.Path, predictions: dict[str, list[list[str]]]
    ) -> None:
        """Write predictions.conll: words, tags, predicted tags; of the test file too.

        That is test_predictions.conll, without tags if it has none.
        """
        for name, predicted in predictions.items():
            file = self._files[name]
            columns = [
                [s.words, *([s.tags] if file.is_tagged else []), tags]
                for s, tags in zip(file.sentences, predicted, strict=True)
            ]
            prefix = "" if name == "eval" else f"{name}_"
            path = folder / f"{prefix}predictions.conll"
            conll.write(path, columns, file.separator)


def tag_names(train: conll.File) -> list[str]:
    """The tags of the training file, sorted; each tag's index is its class.

    Raises:
      UserError: There is only one.
    """
    names = sorted({tag for sentence in train.sentences for tag in sentence.tags})
    if len(names) < 2:
        raise UserError(
            f"all words of {train.path} have the tag {names[0]!r}; task.tag_column is "
            "the number of the column of tags, from 0"
        )
    return names


def labels_of(file: conll.File, names: Sequence[str]) -> list[list[int]]:
    """The class of each word of each sentence.

    Raises:
      UserError: A tag is none of `names`.
    """
    classes = {name: i for i, name in enumerate(names)}
    unknown = {tag for s in file.sentences for tag in s.tags} - classes.keys()
    if unknown:
        tag = min(unknown)
        raise UserError(
            f"{file.where(tag)}: no word of the training file has the tag {tag!r}; "
            f"its tags are {', '.join(names)}"
        )
    return [[classes[tag] for tag in sentence.tags] for sentence in file.sentences]


# ---- rows


@dataclasses.dataclass(frozen=True)
class Rows:
    """Sentences as rows for the model, and which token stands for which word.

    Attributes:
      arrays: input_ids int32, attention_mask bool, labels int32 [R, L], where -1 is no
        label, and weights float32 [R].
      words: int32 [W, 2], the row and the position of the first token of each word of
        all sentences, one after the other. The row is the window in which the word has
        most context.
      lengths: Number of words of each sentence.
      in_windows: Number of sentences that have more than one row.
      truncated: Number of words of each sentence that are longer than a row, int [S].
    """

    arrays: Arrays
    words: np.ndarray
    lengths: list[int]
    in_windows: int
    truncated: np.ndarray

    def decode(self, predictions: np.ndarray, names: Sequence[str]) -> list[list[str]]:
        """The tag of each word of each sentence.

        Args:
          predictions: Class of each token [R, L], or less than L if all beyond is
            padding.
          names: Name of each class.
        """
        classes = predictions[self.words[:, 0], self.words[:, 1]]
        tags = iter([names[c] for c in classes])
        return [list(itertools.islice(tags, length)) for length in self.lengths]


def make_rows(
    sentences: Sequence[Sequence[str]],
    tokenizer: tokenizer_lib.Tokenizer,
    length: int,
    labels: Sequence[Sequence[int]] | None = None,
) -> Rows:
    """[CLS] words [SEP] for each sentence, or for each window of one.

    A word without tokens, such as a character that the tokenizer removes, is [UNK]. A
    word that is longer than a row loses tokens at its end. With labels, each word has
    its own in one row only, so that it counts once.

    Args:
      sentences: Words of each sentence; one without words has no row.
      tokenizer: Tokenizer of the encoder.
      length: Tokens in a row.
      labels: Class of each word; None if they are not known.
    """
    capacity = length - 2
    # The space before a word is a part of it in byte-level BPE, and nothing in others.
    texts = [" " + word for word in itertools.chain(*sentences)]
    encoded = iter(tokenizer.encode_batch(texts))
    rows, row_labels, words = [], [], []
    in_windows = 0
    truncated = np.zeros(len(sentences), np.int32)
    for number, sentence in enumerate(sentences):
        if not sentence:
            continue
        tokens = list(itertools.islice(encoded, len(sentence)))
        tokens = [ids or [tokenizer.unk_id] for ids in tokens]
        truncated[number] = sum(len(ids) > capacity for ids in tokens)
        tokens = [ids[:capacity] for ids in tokens]
        spans, owners = windows([len(ids) for ids in tokens], capacity)
        in_windows += len(spans) > 1
        words_begin = len(words)
        words += [(0, 0)] * len(sentence)
        for window, (begin, end) in enumerate(spans):
            row, classes = [tokenizer.cls_id], [_NO_LABEL]
            for i in range(begin, end):
                label = _NO_LABEL
                if owners[i] == window:
                    words[words_begin + i] = (len(rows), len(row))
                    if labels is not None:
                        label = labels[number][i]
                row += tokens[i]
                classes += [label, *[_NO_LABEL] * (len(tokens[i]) - 1)]
            rows.append([*row, tokenizer.sep_id])
            row_labels.append(classes)
    shape = (len(rows), length)
    ids = np.full(shape, tokenizer.pad_id, np.int32)
    mask = np.zeros(shape, bool)
    classes = np.full(shape, _NO_LABEL, np.int32)
    for i, (row, of_row) in enumerate(zip(rows, row_labels, strict=True)):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = True
        classes[i, : len(of_row)] = of_row
    return Rows(
        {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": classes,
            "weights": np.full(len(rows), labels is not None, np.float32),
        },
        np.array(words, np.int32).reshape(-1, 2),
        [len(sentence) for sentence in sentences],
        in_windows,
        truncated,
    )


def windows(
    lengths: Sequence[int], capacity: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Windows over the words of a sentence; they overlap by up to half of a window.

    Args:
      lengths: Tokens of each word, at most `capacity`.
      capacity: Tokens in a window.

    Returns:
      The first word of each window and the one after its last; and for each word the
      window that has most context for it: most tokens on the side that has fewer.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    spans = []
    begin = 0
    while True:
        end = int(np.searchsorted(ends, starts[begin] + capacity, side="right"))
        spans.append((begin, end))
        if end == len(lengths):
            break
        # The next word has to fit, or the next window would end where this one does.
        overlap = min(capacity // 2, capacity - lengths[end])
        begin = int(np.searchsorted(starts, starts[end] - overlap))
    context = np.full((len(spans), len(lengths)), -1)
    for i, (begin, end) in enumerate(spans):
        before = starts[begin:end] - starts[begin]
        after = ends[end - 1] - ends[begin:end]
        context[i, begin:end] = np.minimum(before, after)
    return spans, context.argmax(0).tolist()


def split(text: str) -> list[tuple[str, int, int]]:
    """Words of a text: runs of letters and digits, and each other sign by itself.

    Returns:
      Each word, where it begins, and where it ends.
    """
    return [(m.group(), m.start(), m.end()) for m in _WORD.finditer(text)]


# ---- scores


def metrics(
    actual: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str
) -> dict[str, Any]:
    """Accuracy of words; F1 averaged over tags, or what `entities.scores` gives.

    Args:
      actual: Tags of each sentence.
      predicted: The same, as predicted.
      scheme: What the tags mean; "none" if they name no entities.
    """
    from sklearn import metrics as sklearn_metrics  # takes a second

    flat = [list(itertools.chain(*tags)) for tags in (actual, predicted)]
    accuracy = {"accuracy": float(sklearn_metrics.accuracy_score(*flat))}
    if scheme != "none":
        return {**entities.scores(actual, predicted, scheme), **accuracy}
    f1 = sklearn_metrics.f1_score(*flat, average="macro", zero_division=0)
    return {**accuracy, "macro_f1": float(f1)}
