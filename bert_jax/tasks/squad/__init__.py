"""Extractive question answering: SQuAD, versions 1.1 and 2.0 (BERT paper, 4.2, 4.3).

`files` reads questions, `windows` makes rows of them, `answers` turns the logits of the
rows into parts of the context, and `metrics` compares those with what people answered.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.objectives import spans
from bert_jax.tasks import Arrays
from bert_jax.tasks import task_files as task_files
from bert_jax.tasks.squad import answers, metrics, reader, windows


class Squad:
    """The task of one pair of files, for one tokenizer; see `tasks.Task`."""

    def __init__(
        self, config: config_lib.SquadConfig, tokenizer: tokenizer_lib.Tokenizer
    ):
        """Read the files.

        Raises:
          UserError: A file is not given or cannot be used.
        """
        task_files.check_given(config, "FILE.json")
        train = reader.read(config.train, config.no_answers)
        self._config = config
        self._examples = reader.read(config.eval, config.no_answers)
        self._windows = _windows(self._examples, tokenizer, config)
        train_windows = _windows(train, tokenizer, config)
        self.length = config.length
        self.train = _with_positions(train, train_windows)
        self.held_out = {"eval": _with_positions(self._examples, self._windows)}
        self.settings: dict[str, Any] = {}  # predictions need the config alone
        self.fingerprint = task_files.fingerprint(train, self._examples)
        self.description = {
            "examples": len(self._examples),
            "windows": len(self._windows.question),
            "train_examples": len(train),
            "train_windows": len(train_windows.question),
            # Tokens at the end of a question, which no window has.
            "truncated_questions": int(
                self._windows.truncated.sum() + train_windows.truncated.sum()
            ),
            # They are trained on as if they had no answer.
            "train_answers_in_no_window": _lost(train, train_windows, self.train),
        }

    def objective(self, encoder: config_lib.EncoderConfig) -> spans.Spans:
        """Start and end of the answer."""
        return spans.Spans(encoder)

    def decode(
        self, outputs: dict[str, Arrays]
    ) -> dict[str, dict[str, answers.Ranking]]:
        """The ranking of answers to each question, by the question's id."""
        ranked = answers.rank(self._windows, outputs["eval"], self._config)
        return {"eval": {e.id: r for e, r in zip(self._examples, ranked, strict=True)}}

    def scores(
        self, predictions: dict[str, dict[str, answers.Ranking]]
    ) -> dict[str, float]:
        """Those of the official script; for 2.0 also with the best thresholds."""
        ranked = predictions["eval"]
        texts = self._texts(ranked)
        if not self._config.no_answers:
            return metrics.evaluate(self._examples, texts)
        best = {name: ranking.best_text for name, ranking in ranked.items()}
        odds = {name: ranking.null_odds for name, ranking in ranked.items()}
        return {
            **metrics.evaluate_v2(self._examples, texts),
            **metrics.best_thresholds(self._examples, best, odds),
        }

    def write(
        self,
        folder: storage.Path,
        predictions: dict[str, dict[str, answers.Ranking]],
    ) -> None:
        """Write predictions.json, nbest_predictions.json and, for 2.0, null_odds.json.

        They are those of google-research/bert, for which there are official scripts.
        """
        ranked = predictions["eval"]
        contents: dict[str, dict[str, Any]] = {
            "predictions": self._texts(ranked),
            "nbest_predictions": {
                name: [
                    {
                        "text": answer.text,
                        "probability": answer.probability,
                        "start_logit": answer.start_logit,
                        "end_logit": answer.end_logit,
                    }
                    for answer in ranking.answers
                ]
                for name, ranking in ranked.items()
            },
        }
        if self._config.no_answers:
            contents["null_odds"] = {
                name: ranking.null_odds for name, ranking in ranked.items()
            }
        with storage.writing(folder):
            for name, content in contents.items():
                text = json.dumps(content, indent=4) + "\n"
                storage.write_text(folder / f"{name}.json", text)

    def _texts(self, ranked: dict[str, answers.Ranking]) -> dict[str, str]:
        threshold = self._config.null_threshold
        return {name: ranking.best(threshold).text for name, ranking in ranked.items()}


def _windows(
    examples: Sequence[reader.Example],
    tokenizer: tokenizer_lib.Tokenizer,
    config: config_lib.SquadConfig,
) -> windows.Windows:
    return windows.make(
        [example.question for example in examples],
        [example.context for example in examples],
        tokenizer,
        config,
    )


def _with_positions(
    examples: Sequence[reader.Example], made: windows.Windows
) -> Arrays:
    """Rows to train on. Of several answers, the first one is meant."""
    golds = [example.golds[0] if example.golds else None for example in examples]
    begins = [gold.begin if gold else 0 for gold in golds]
    ends = [gold.begin + len(gold.text) if gold else 0 for gold in golds]
    starts, stops = windows.positions(made, begins, ends)
    return {
        **made.rows,
        "start_positions": starts,
        "end_positions": stops,
        "weights": np.ones(len(starts), np.float32),
    }


def _lost(
    examples: Sequence[reader.Example], made: windows.Windows, rows: Arrays
) -> int:
    """Number of answers that no window has, because they are too long."""
    has_answer = {i for i, example in enumerate(examples) if example.golds}
    return len(has_answer - set(made.question[rows["start_positions"] > 0].tolist()))
