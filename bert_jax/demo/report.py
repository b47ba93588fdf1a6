"""What the demo ends with: numbers, a table, and a picture with the curves."""

import dataclasses
import json
import pathlib
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import figure

from bert_jax import prediction
from bert_jax.corpus import shards
from bert_jax.data import chunks
from bert_jax.objectives import unigram_baseline
from bert_jax.tasks.texts import Example
from bert_jax.training import curves

# Names of the two ways to begin fine-tuning; also the folders they are in.
PRETRAINED, RANDOM = "pretrained", "random"


@dataclasses.dataclass(frozen=True)
class Task:
    """Examples of the classification task."""

    train: list[Example]
    held_out: list[Example]


@dataclasses.dataclass(frozen=True)
class Results:
    """The numbers of the demo; saved as results.json.

    Attributes:
      documentation: Tokens for training and held out.
      held_out: `mlm_loss` (nats), `mlm_accuracy` and `nsp_accuracy` of pretraining.
      unigram_entropy: Nats; the loss of a model that knows how often each token occurs
        in the held-out text, and no more (objectives/unigram_baseline.py).
      most_frequent_token: Its share of the held-out text.
      accuracies: Accuracy of the fine-tuned classifier by seed, from either beginning.
      most_frequent_class: Its share of the evaluation examples.
      train_examples: Number of examples that the classifier was fine-tuned on.
      eval_examples: Number of examples that it was evaluated on.
    """

    documentation: dict[str, int]
    held_out: dict[str, float]
    unigram_entropy: float
    most_frequent_token: float
    accuracies: dict[str, list[float]]
    most_frequent_class: float
    train_examples: int
    eval_examples: int


def make_results(
    corpus: shards.Corpus,
    pretrained: Sequence[dict[str, Any]],
    task: Task,
    accuracies: dict[str, list[float]],
) -> Results:
    """Gather the numbers.

    Args:
      corpus: Text of pretraining.
      pretrained: Records of metrics.jsonl of pretraining.
      task: Examples of fine-tuning.
      accuracies: Accuracies of fine-tuning, by beginning and seed.
    """
    last = [record for record in pretrained if record["split"] == "eval"][-1]
    frequencies = token_frequencies(corpus, shards.HELD_OUT)
    labels = [example.label for example in task.held_out]
    return Results(
        documentation={s: corpus.count(s, "tokens") for s in shards.SPLITS},
        held_out={n: last[n] for n in ("mlm_loss", "mlm_accuracy", "nsp_accuracy")},
        unigram_entropy=unigram_baseline.entropy(frequencies),
        most_frequent_token=float(frequencies.max()),
        accuracies=accuracies,
        most_frequent_class=max(map(labels.count, labels)) / len(labels),
        train_examples=len(task.train),
        eval_examples=len(task.held_out),
    )


def token_frequencies(corpus: shards.Corpus, split: str) -> np.ndarray:
    """Share of each token in the text of a split, [vocabulary]."""
    table = chunks.load_tokens(corpus, split)
    counts = chunks.count_tokens(table, corpus.tokenizer.vocab_size)
    return counts / counts.sum()


def write_json(results: Results, path: pathlib.Path) -> None:
    """Save the numbers."""
    text = json.dumps(dataclasses.asdict(results), indent=2) + "\n"
    path.write_text(text, encoding="utf-8")


def draw(
    results: Results,
    pretrained: Sequence[dict[str, Any]],
    finetuned: dict[str, list[list[dict[str, Any]]]],
) -> figure.Figure:
    """Curves of pretraining and of fine-tuning.

    Args:
      results: What the curves are compared with.
      pretrained: Records of metrics.jsonl of pretraining.
      finetuned: Records of fine-tuning, by beginning and seed.
    """
    levels = {
        "mlm_accuracy": (results.most_frequent_token, "most frequent token"),
        "nsp_accuracy": (0.5, "chance"),
    }
    return curves.draw(
        pretrained,
        "A small BERT on the documentation of Python packages",
        levels=levels,
        finetuned={f"{name} weights": runs for name, runs in finetuned.items()},
    )


def table(results: Results) -> str:
    """The results for people."""
    held_out = results.held_out
    gain = np.mean(results.accuracies[PRETRAINED]) - np.mean(results.accuracies[RANDOM])
    rows = [
        ("held-out text", "this model", "to compare with"),
        (
            "masked tokens, loss (nats)",
            f"{held_out['mlm_loss']:.2f}",
            f"{results.unigram_entropy:.2f}  unigram entropy of that text",
        ),
        (
            "masked tokens, accuracy",
            f"{held_out['mlm_accuracy']:.1%}",
            f"{results.most_frequent_token:.1%}  always the most frequent token",
        ),
        ("next sentence, accuracy", f"{held_out['nsp_accuracy']:.1%}", "50.0%  chance"),
        ("", "", ""),
        ("fine-tuned", "from the checkpoint", "from random weights"),
        (
            f"accuracy, mean of {len(results.accuracies[RANDOM])} seeds",
            _mean(results.accuracies[PRETRAINED]),
            _mean(results.accuracies[RANDOM]),
        ),
        (
            "  by seed",
            _each(results.accuracies[PRETRAINED]),
            _each(results.accuracies[RANDOM]),
        ),
    ]
    lines = [f"{name:<30}{a:<23}{b}".rstrip() for name, a, b in rows]
    note = (
        "The task: given what a function does and the description of a parameter, both "
        "from the documentation, say whether they belong together or come from two "
        f"modules; {results.train_examples:,} pairs to learn from, "
        f"{results.eval_examples:,} to evaluate on, from modules held out of "
        f"pretraining too; always the same answer is right in "
        f"{results.most_frequent_class:.1%}. It is related to next sentence "
        f"prediction. Pretraining gives {100 * gain:+.1f} points: in so few steps and "
        "from so few pairs, random weights learn next to nothing."
    )
    return "\n".join([*lines, "", *textwrap.wrap(note, 78)])


def describe_blanks(
    texts: Sequence[str], filled: Sequence[list[list[prediction.Guess]]]
) -> str:
    """Texts, and below each a line of guesses for each of its blanks."""
    lines = []
    for text, blanks in zip(texts, filled, strict=True):
        lines.append(text)
        for guesses in blanks:
            words = (f"{g.word} ({g.probability:.0%})" for g in guesses)
            lines.append("    " + ", ".join(words))
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> str:
    spread = f" (sd {100 * np.std(values, ddof=1):.1f})" if len(values) > 1 else ""
    return f"{np.mean(values):.1%}{spread}"


def _each(values: Sequence[float]) -> str:
    return " ".join(f"{100 * value:.1f}" for value in values)
