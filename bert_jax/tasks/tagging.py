"""Tagging: a label for each word of a sentence, such as entities or parts of speech.

Words are given, and each is tokenised alone. Its first token carries the tag, as in the
paper (5.3). Its other tokens and the special tokens have no label. A sentence that is
longer than a row is split into overlapping windows.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.objectives import tagging
from bert_jax.tasks import Arrays, conll, entities, task_files, token_rows

_NO_LABEL = -1
# A Han character is a word, as in BERT's tokenizer. Combining marks, such as the vowel
# signs of Devanagari, and joiners belong to a word, as do invisible characters inside
# it, such as a soft hyphen. Other invisible characters are dropped.
_LETTERS = r"\p{L}\p{N}_&&[^\p{Han}]"
_HIDDEN = r"[\p{Cf}&&[^\u200b]]++"  # U+200B separates words
# No repetition is tried again (`*+`), or a word of megabytes would exceed a limit.
_REST = rf"[[{_LETTERS}]\p{{M}}\u200c\u200d]*+"
_WORD = (
    rf"\p{{Han}}\p{{M}}*+|[{_LETTERS}]{_REST}(?:{_HIDDEN}(?=[{_LETTERS}]){_REST})*+"
    r"|[^\p{L}\p{N}_\p{Cf}\s\x1c-\x1f]"
)
_WORDS = pre_tokenizers.Split(tokenizers.Regex(_WORD), "removed", invert=True)


class Tagging:
    """Tagging of sentences in files; see `tasks.Task`."""

    def __init__(
        self, config: config_lib.TaggingConfig, tokenizer: tokenizer_lib.Tokenizer
    ):
        columns = config.word_column, config.tag_column
        self._files = {
            name: conll.read(path, *columns, needs_tags=name != "test")
            for name, path in task_files.paths_by_set(config, "FILE.conll").items()
        }
        train, evaluated = self._files["train"], self._files["eval"]
        self._scheme = config.scheme or entities.infer_scheme(train)
        for file in self._files.values():
            entities.check(file, self._scheme)
        self._tags = tag_names(train)
        self._rows = {
            name: make_rows(
                [sentence.words for sentence in file.sentences],
                tokenizer,
                config.length,
                labels=labels_of(file, self._tags) if file.is_tagged else None,
            )
            for name, file in self._files.items()
        }
        arrays = {name: rows.arrays for name, rows in self._rows.items()}
        self.train, self.held_out = arrays.pop("train"), arrays
        self.metrics = ("accuracy", "macro_f1")
        if self._scheme != "none":
            self.metrics = (*entities.METRICS, "accuracy")
        self.settings = {"tags": self._tags, "scheme": self._scheme}
        self.fingerprint = task_files.fingerprint(train.sentences, evaluated.sentences)
        rows = self._rows.items()
        self.description = {
            "examples": len(evaluated.sentences),
            "train_examples": len(train.sentences),
            "tags": self._tags,
            "scheme": self._scheme,
            "sentences_in_windows": {name: r.in_windows for name, r in rows},
            "truncated_words": {name: int(r.truncated.sum()) for name, r in rows},
            "stray_tags": {
                name: entities.count_invalid_tags(file, self._scheme)
                for name, file in self._files.items()
                if file.is_tagged
            },
        }

    def objective(self, encoder: config_lib.EncoderConfig) -> tagging.Tagging:
        return tagging.Tagging(encoder, len(self._tags))

    def decode(self, name: str, outputs: Arrays) -> list[list[str]]:
        return self._rows[name].decode(outputs["predictions"], self._tags)

    def scores(self, name: str, predictions: list[list[str]]) -> dict[str, Any]:
        """Return `metrics`, if the file has tags."""
        file = self._files[name]
        if not file.is_tagged:
            return {}
        actual = [sentence.tags for sentence in file.sentences]
        return metrics(actual, predictions, self._scheme)

    def write(
        self, folder: storage.Path, name: str, predictions: list[list[str]]
    ) -> None:
        """Write predictions.conll, or test_predictions.conll for a test file.

        The columns are words, tags if the file has them, and predicted tags.
        """
        file = self._files[name]
        lines = []
        for sentence, tags in zip(file.sentences, predictions, strict=True):
            known = [sentence.tags] if file.is_tagged else []
            rows = zip(sentence.words, *known, tags, strict=True)
            lines += [*map(file.separator.join, rows), ""]
        path = folder / task_files.prefix_with_set(name, "predictions.conll")
        task_files.write(path, "\n".join([*lines, ""]))


def tag_names(train: conll.TaggedFile) -> list[str]:
    """Return the sorted tags of the training file. Their indices are the classes."""
    names = sorted(train.tags)
    if len(names) < 2:
        raise UserError(
            f"all words of {train.path} have the tag {names[0]!r}; set "
            "--config.task.tag_column to the column of the tags, counted from 0"
        )
    return names


def labels_of(file: conll.TaggedFile, names: Sequence[str]) -> list[list[int]]:
    """Return the class of each word of each sentence."""
    classes = {name: i for i, name in enumerate(names)}
    if unknown := file.tags - classes.keys():
        tag = min(unknown)
        raise UserError(
            f"{file.where(tag)}: no word of the training file has the tag {tag!r}; "
            f"its tags are {', '.join(names)}; correct the tag, or add a sentence with "
            "it to the training file"
        )
    return [[classes[tag] for tag in sentence.tags] for sentence in file.sentences]


# ---- rows


@dataclasses.dataclass(frozen=True)
class Rows:
    """Sentences as rows for the model, with the position of each word."""

    # input_ids int32, attention_mask bool, labels int32 [R, L], where -1 is no label,
    # and weights float32 [R].
    arrays: Arrays
    # Row and position of the first token of each word, for the words of all sentences,
    # int32 [W, 2]. The row is the window with most context for the word.
    words: np.ndarray
    lengths: list[int]  # number of words of each sentence
    in_windows: int  # number of sentences that have more than one row
    truncated: np.ndarray  # int [S]; words of each sentence that are longer than a row

    def decode(self, predictions: np.ndarray, names: Sequence[str]) -> list[list[str]]:
        """Return the tag of each word of each sentence.

        `predictions` are the classes of tokens [R, L]; `names` are the tags by class.
        """
        classes = predictions[self.words[:, 0], self.words[:, 1]]  # [W]
        tags = iter([names[c] for c in classes])
        return [list(itertools.islice(tags, length)) for length in self.lengths]


def make_rows(
    sentences: Sequence[Sequence[str]],
    tokenizer: tokenizer_lib.Tokenizer,
    length: int,
    labels: Sequence[Sequence[int]] | None = None,
) -> Rows:
    """Encode each sentence, or each window of a long one, as [CLS] words [SEP].

    A word without tokens, such as a character that the tokenizer removes, is [UNK]. A
    word that is longer than a row is cut off at its end. Each word has its label in one
    row only, so that it counts once. A sentence without words has no row.
    """
    capacity = length - 2
    # Byte-level BPE makes the space a part of the word; other tokenizers ignore it.
    spaced = [" " + word for word in itertools.chain(*sentences)]
    encoded = iter(tokenizer.encode_continuations(spaced))
    rows, words = [], []
    in_windows = 0
    truncated = np.zeros(len(sentences), np.int32)
    for number, sentence in enumerate(sentences):
        if not sentence:
            continue
        tokens = list(itertools.islice(encoded, len(sentence)))
        truncated[number] = sum(len(ids) > capacity for ids in tokens)
        tokens = [ids[:capacity] or [tokenizer.unk_id] for ids in tokens]
        spans, owners = windows([len(ids) for ids in tokens], capacity)
        in_windows += len(spans) > 1
        places = [(0, 0)] * len(sentence)
        for window, (begin, end) in enumerate(spans):
            row = [tokenizer.cls_id]
            for i in range(begin, end):
                if owners[i] == window:
                    places[i] = (len(rows), len(row))
                row += tokens[i]
            rows.append([*row, tokenizer.sep_id])
        words += places
    ids, mask = token_rows.pad(rows, length, tokenizer.pad_id)  # [R, L]
    words = np.array(words, np.int32).reshape(-1, 2)  # [W, 2]
    row_labels = np.full_like(ids, _NO_LABEL)
    if labels is not None:
        row_labels[words[:, 0], words[:, 1]] = list(itertools.chain(*labels))
    arrays = {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": row_labels,
        "weights": np.full(len(rows), labels is not None, np.float32),
    }
    return Rows(arrays, words, list(map(len, sentences)), in_windows, truncated)


def windows(
    lengths: Sequence[int], capacity: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Split words into windows of `capacity` tokens that overlap by up to half of it.

    `lengths` are the tokens of each word, at most `capacity`.

    Returns:
      Begin and end of each window, in words; and for each word the window with most
      context, measured on the side of the word that has fewer tokens.
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
        # The next word must fit, or the next window would end where this one does.
        overlap = min(capacity // 2, capacity - lengths[end])
        begin = int(np.searchsorted(starts, starts[end] - overlap))
    context = [
        np.minimum(starts[i:j] - starts[i], ends[j - 1] - ends[i:j]) for i, j in spans
    ]
    begins = [begin for begin, _ in spans]
    return spans, token_rows.best_window(begins, context, len(lengths)).tolist()


def split(text: str) -> list[tuple[str, tuple[int, int]]]:
    """Split a text into runs of letters, marks and digits, and single other signs.

    Each Han character stands alone, too, and invisible signs are left out.

    Each has its begin and its end in the text.
    """
    return _WORDS.pre_tokenize_str(text)


# ---- scores


def metrics(
    actual: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str
) -> dict[str, Any]:
    """Return the accuracy of words, and `entities.scores` or F1 averaged over tags."""
    from sklearn import metrics as sklearn_metrics  # slow to import

    flat = [list(itertools.chain(*tags)) for tags in (actual, predicted)]
    accuracy = {"accuracy": float(sklearn_metrics.accuracy_score(*flat))}
    if scheme != "none":
        return {**entities.scores(actual, predicted, scheme), **accuracy}
    f1 = sklearn_metrics.f1_score(*flat, average="macro", zero_division=0)
    return {**accuracy, "macro_f1": float(f1)}
