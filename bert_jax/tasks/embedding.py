"""Vectors of texts, such that texts that belong together are close.

An example is a pair of texts, such as a question and a passage that answers it, or a
sentence and a paraphrase. It may have a third text that resembles the second one but
does not belong to the first.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.objectives import embedding
from bert_jax.tasks import Arrays, labelled_texts, task_files, token_rows

# Number of first texts whose similarities are in memory at once.
_CHUNK = 1024
# Dot products of equal vectors differ by less: columns of a matrix product are rounded
# differently.
_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class Example:
    """Two texts that belong together, from a line of a file."""

    line: int = dataclasses.field(repr=False)  # not part of the fingerprint
    text_a: str
    text_b: str
    negative: str  # does not belong to `text_a`; "" for none


@dataclasses.dataclass(frozen=True)
class Search:
    """Results of a search for each first text among second and third texts of a set.

    Attributes:
      ranks: int [examples]; rank of the second text, from 1. Equally similar texts
        rank before it, so that equal vectors do not look like a success.
      nearest: int [examples]; number of the most similar text.
      similarities: float [examples, 2]; cosine similarity of the second text, and of
        the most similar one.
    """

    ranks: np.ndarray
    nearest: np.ndarray
    similarities: np.ndarray


class Embedding:
    """Vectors of texts from pairs in files; see `tasks.Task`."""

    def __init__(
        self, config: config_lib.EmbeddingConfig, tokenizer: tokenizer_lib.Tokenizer
    ):
        self._config = config
        paths = task_files.paths_by_set(config, "FILE.tsv with text_a and text_b")
        self._sets = {name: read(path, config) for name, path in paths.items()}
        # A test set may change when a run resumes, and training must not.
        fixed = self._sets["train"] + self._sets["eval"]
        self._num_texts = 3 if any(example.negative for example in fixed) else 2
        if self._num_texts == 2 and any(e.negative for e in self._sets.get("test", ())):
            raise UserError(
                f"{config.test} has negatives, but {config.train} and {config.eval} "
                "have none; rename its column"
            )
        self._texts, rows, truncated = {}, {}, {}
        for name, examples in self._sets.items():
            self._texts[name], rows[name], truncated[name] = make_rows(
                examples, tokenizer, config.length, self._num_texts
            )
        self.train, self.held_out = rows.pop("train"), rows
        self.metrics = ("mrr", "recall_at_1", "recall_at_10")
        self.settings: dict[str, Any] = {}
        train, held_out = self._sets["train"], self._sets["eval"]
        self.fingerprint = task_files.fingerprint(train, held_out)
        self.description = {
            "examples": len(held_out),
            "train_examples": len(train),
            "truncated": truncated,
        }

    def objective(self, encoder: config_lib.EncoderConfig) -> embedding.Embedding:
        return embedding.Embedding(
            encoder, self._num_texts, self._config.pool, self._config.temperature
        )

    def decode(self, name: str, outputs: Arrays) -> Search:
        return search(outputs["vectors"], self.held_out[name]["texts"])

    def scores(self, name: str, predictions: Search) -> dict[str, float]:
        """Return the mean reciprocal rank of the second texts, and their recall.

        Each first text is compared with the second and third texts of the whole set.
        """
        ranks = predictions.ranks
        return {
            "mrr": float((1 / ranks).mean()),
            "recall_at_1": float((ranks <= 1).mean()),
            "recall_at_10": float((ranks <= 10).mean()),
        }

    def write(self, folder: storage.Path, name: str, predictions: Search) -> None:
        """Write predictions.jsonl, or test_predictions.jsonl for a test file.

        A line describes an example: the line of its file in which it begins, the rank
        and cosine similarity of its second text, and the text that was most similar.
        """
        lines = []
        for i, example in enumerate(self._sets[name]):
            similarity, highest = predictions.similarities[i].round(6).tolist()
            line = {
                "line": example.line,
                "rank": int(predictions.ranks[i]),
                "similarity": similarity,
                "nearest": self._texts[name][predictions.nearest[i]],
                "nearest_similarity": highest,
            }
            lines.append(line)
        file = task_files.prefix_with_set(name, "predictions.jsonl")
        task_files.write_json_lines(folder / file, lines)


def read(path: str | os.PathLike, config: config_lib.EmbeddingConfig) -> list[Example]:
    """Read the examples of a table.

    Raises:
      UserError: The file cannot be read, lacks a column, or a text is empty.
    """
    header, rows = task_files.read_table(path)
    negative = config.negative or ("negative" if "negative" in header else "")
    names = [config.text_a, config.text_b, *([negative] if negative else [])]
    advice = "; pass your column names as --config.task.text_a, text_b and negative"
    for name in names:
        task_files.find_column(os.fspath(path), header, name, advice)
    examples = []
    for line, fields in rows:
        where = f"{path}, line {line}"
        if negative and fields[negative] is None:  # null in JSON
            fields[negative] = ""
        a, b, *hard = (labelled_texts.text_of(fields, name, where) for name in names)
        for name, text in ((config.text_a, a), (config.text_b, b)):
            if not text.strip():
                raise UserError(f"{where}: {name} is empty")
        examples.append(Example(line, a, b, "".join(hard).strip()))
    return examples


def make_rows(
    examples: Sequence[Example],
    tokenizer: tokenizer_lib.Tokenizer,
    length: int,
    num_texts: int,
) -> tuple[list[str], Arrays, int]:
    """Encode each text of each example as [CLS] text [SEP].

    Texts with equal tokens are one text: the model cannot tell them apart.

    Returns:
      The different texts; the arrays of `Embedding.batch_shapes`, where `texts` has
      indices of the texts; and the number of examples that lost tokens. A missing
      negative is all padding.
    """
    rows = [(e.text_a, e.text_b, e.negative)[:num_texts] for e in examples]
    flat = [text for row in rows for text in row]
    encoded, lost = token_rows.to_rows(
        [(text, "") for text in flat], tokenizer, length
    )  # [R * C, L]
    numbers = np.full(len(flat), -1, np.int32)
    texts: dict[bytes, tuple[int, str]] = {}  # number and text, by tokens
    for i, (text, ids) in enumerate(zip(flat, encoded["input_ids"], strict=True)):
        if text:
            numbers[i], _ = texts.setdefault(ids.tobytes(), (len(texts), text))
    shape = len(rows), num_texts
    arrays = {name: x.reshape(*shape, length) for name, x in encoded.items()}
    arrays["texts"] = numbers.reshape(shape)
    arrays["attention_mask"] &= arrays["texts"][..., None] >= 0
    arrays["weights"] = np.ones(len(rows), np.float32)
    truncated = int(lost.reshape(shape).any(axis=1).sum())
    return [text for _, text in texts.values()], arrays, truncated


def search(vectors: np.ndarray, texts: np.ndarray) -> Search:
    """Rank the second text of each row by its similarity to the first.

    The candidates are the second and third texts of all rows, except the first text
    itself and other texts that belong to it.

    Args:
      vectors: float32 [R, C, D]; unit vectors.
      texts: int32 [R, C]; numbers of the texts, -1 for a missing one.
    """
    dimensions = vectors.shape[-1]
    numbers, first = np.unique(texts[:, 1:], return_index=True)
    table = vectors[:, 1:].reshape(-1, dimensions)[first[numbers >= 0]]  # [T, D]
    numbers = numbers[numbers >= 0]
    column = {number: i for i, number in enumerate(numbers.tolist())}
    own = np.array([column[number] for number in texts[:, 1].tolist()])  # [R]
    # Columns of each first text itself, and of the texts that belong to it.
    left_out: dict[int, set[int]] = {}
    for a, b in texts[:, :2].tolist():
        itself = {column[a]} if a in column else set()
        left_out.setdefault(a, itself).add(column[b])
    ranks, nearest = np.zeros((2, len(texts)), np.int64)
    similarities = np.zeros((len(texts), 2))
    for begin in range(0, len(texts), _CHUNK):
        rows = np.arange(begin, min(begin + _CHUNK, len(texts)))
        scores = vectors[rows, 0] @ table.T  # [rows, T]
        own_scores = scores[np.arange(len(rows)), own[rows]]
        for row, a in enumerate(texts[rows, 0].tolist()):
            scores[row, [*left_out[a]]] = -np.inf
        scores[np.arange(len(rows)), own[rows]] = own_scores
        ranks[rows] = (scores >= own_scores[:, None] - _ROUNDING).sum(axis=1)
        best = scores.argmax(axis=1)
        nearest[rows] = numbers[best]
        similarities[rows] = np.stack([own_scores, scores.max(axis=1)], axis=1)
    return Search(ranks, nearest, similarities)
