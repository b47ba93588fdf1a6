"""Extractive question answering: SQuAD, versions 1.1 and 2.0 (BERT paper, 4.2, 4.3).

`reader` reads questions, `windows` converts them to rows, `answers` decodes logits to
parts of the context, and `metrics` compares these with the answers of people.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.objectives import spans
from bert_jax.tasks import Arrays, task_files
from bert_jax.tasks.squad import answers, metrics, reader, windows

# Ranked answers by the id of the question.
Rankings = dict[str, answers.Ranking]


class Squad:
    """Extractive question answering with files of SQuAD; see `tasks.Task`."""

    def __init__(
        self, config: config_lib.SquadConfig, tokenizer: tokenizer_lib.Tokenizer
    ):
        task_files.paths_by_set(config, "FILE.json")
        self._config = config
        read = reader.read(config.train, config.no_answers)
        if not (train := [example for example in read if _has_place(example)]):
            raise UserError(f"{config.train}: no context has 'text' at 'answer_start'")
        self._examples = reader.read(config.eval, config.no_answers)
        train_windows, self.train = _rows(train, tokenizer, config)
        self._windows, held_out = _rows(self._examples, tokenizer, config)
        self.held_out = {"eval": held_out}
        self.metrics = ("exact_match", "f1")
        if config.no_answers:
            self.metrics = ("exact", "f1", "best_exact", "best_f1")
        self.settings: dict[str, Any] = {}  # predictions need the config only
        self.fingerprint = task_files.fingerprint(train, self._examples)
        has_answer = {i for i, example in enumerate(train) if example.golds}
        found = train_windows.question[self.train["start_positions"] > 0]
        self.description = {
            "examples": len(self._examples),
            "windows": len(self._windows.question),
            "train_examples": len(train),
            "train_windows": len(train_windows.question),
            "truncated_questions": int(
                self._windows.truncated.sum() + train_windows.truncated.sum()
            ),
            # The answer is not where the file says.
            "skipped_train_examples": len(read) - len(train),
            # Such questions are trained on as if they had no answer.
            "train_answers_in_no_window": len(has_answer - set(found.tolist())),
        }

    def objective(self, encoder: config_lib.EncoderConfig) -> spans.Spans:
        return spans.Spans(encoder)

    def decode(self, name: str, outputs: Arrays) -> Rankings:
        ranked = answers.rank(self._windows, outputs, self._config)
        return {e.id: r for e, r in zip(self._examples, ranked, strict=True)}

    def scores(self, name: str, predictions: Rankings) -> dict[str, float]:
        """Return the scores of the official script; for 2.0 also best thresholds."""
        texts = _texts(predictions, self._config.null_threshold)
        if not self._config.no_answers:
            return metrics.evaluate(self._examples, texts)
        best = _texts(predictions, math.inf)
        odds = {question: each.null_odds for question, each in predictions.items()}
        return {
            **metrics.evaluate_v2(self._examples, texts),
            **metrics.best_thresholds(self._examples, best, odds),
        }

    def write(self, folder: storage.Path, name: str, predictions: Rankings) -> None:
        """Write predictions.json, nbest_predictions.json and, for 2.0, null_odds.json.

        The files have the format of google-research/bert, which the official
        scripts read.
        """
        fields = ("text", "probability", "start_logit", "end_logit")
        contents: dict[str, dict[str, Any]] = {
            "predictions": _texts(predictions, self._config.null_threshold),
            "nbest_predictions": {
                question: [
                    {field: getattr(answer, field) for field in fields}
                    for answer in ranking.answers
                ]
                for question, ranking in predictions.items()
            },
        }
        if self._config.no_answers:
            odds = {question: each.null_odds for question, each in predictions.items()}
            contents["null_odds"] = odds
        for file, content in contents.items():
            text = json.dumps(content, indent=4) + "\n"
            task_files.write(folder / f"{file}.json", text)


def _texts(ranked: Rankings, threshold: float) -> dict[str, str]:
    return {question: each.best(threshold).text for question, each in ranked.items()}


def _has_place(example: reader.Example) -> bool:
    """Return whether the first answer, if there is any, is where its file says."""
    return not example.golds or example.golds[0].begin >= 0


def _rows(
    examples: Sequence[reader.Example],
    tokenizer: tokenizer_lib.Tokenizer,
    config: config_lib.SquadConfig,
) -> tuple[windows.Windows, Arrays]:
    """Return windows, and rows with the positions of each question's first answer.

    Rows have weight 0 if that answer is not where its file says.
    """
    questions = [example.question for example in examples]
    contexts = [example.context for example in examples]
    made = windows.make(questions, contexts, tokenizer, config)
    golds = [next(iter(example.golds), reader.Gold("", 0)) for example in examples]
    starts, stops = windows.positions(
        made, [g.begin for g in golds], [g.begin + len(g.text) for g in golds]
    )
    has_place = np.array([_has_place(example) for example in examples], np.float32)
    weights = has_place[made.question]  # [W]
    labels = {"start_positions": starts, "end_positions": stops, "weights": weights}
    return made, made.rows | labels
