"""Report of the demo: numbers, a table, and a picture with curves."""

import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import figure

from bert_jax import prediction
from bert_jax.corpus import shards
from bert_jax.tasks.labelled_texts import Example
from bert_jax.training import curves, metrics_file

# The two ways to begin fine-tuning; also names of their folders.
PRETRAINED, RANDOM = "pretrained", "random"
_HELD_OUT = ("mlm_loss", "mlm_accuracy", "nsp_accuracy")


@dataclasses.dataclass(frozen=True)
class Results:
    """Numbers of the demo, saved as results.json."""

    documentation: dict[str, int]  # tokens of the training and of the held-out split
    # `mlm_loss` (nats) and accuracies of pretraining.
    held_out: dict[str, float]
    # `mlm_loss` and `mlm_accuracy` of the best model whose attention does nothing
    # (objectives/unigram_baseline.py).
    without_context: dict[str, float]
    # Accuracies of the fine-tuned classifier by seed, with pretrained and with random
    # weights.
    accuracies: dict[str, list[float]]
    # Share of the most frequent class of the evaluation examples.
    most_frequent_class: float
    train_examples: int
    eval_examples: int


def make_results(
    corpus: shards.Corpus,
    pretrained: Sequence[dict[str, Any]],
    train: Sequence[Example],
    held_out: Sequence[Example],
    accuracies: dict[str, list[float]],
) -> Results:
    """Gather the numbers, from records of metrics.jsonl and examples of the task."""
    last = [record for record in pretrained if record["split"] == "eval"][-1]
    labels = [example.label for example in held_out]
    return Results(
        documentation={s: corpus.count(s, "tokens") for s in shards.SPLITS},
        held_out={name: last[name] for name in _HELD_OUT if name in last},
        without_context={
            name: last[name + metrics_file.WITHOUT_CONTEXT]
            for name in ("mlm_loss", "mlm_accuracy")
        },
        accuracies=accuracies,
        most_frequent_class=max(map(labels.count, labels)) / len(labels),
        train_examples=len(train),
        eval_examples=len(held_out),
    )


def draw(
    pretrained: Sequence[dict[str, Any]],
    finetuned: dict[str, list[list[dict[str, Any]]]],
) -> figure.Figure:
    """Draw the curves of pretraining and fine-tuning from records of metrics.jsonl.

    `finetuned` has the records of each seed, by initial weights.
    """
    return curves.draw(
        pretrained,
        "A small encoder on the documentation of Python packages",
        baselines={"nsp_accuracy": (0.5, "chance")},
        finetuned={f"{name} weights": runs for name, runs in finetuned.items()},
    )


def table(results: Results) -> str:
    """Format the results as a table with an explanation."""
    held_out = results.held_out
    pretrained, random = (results.accuracies[name] for name in (PRETRAINED, RANDOM))
    rows = [
        ("held-out text", "this model", "to compare with"),
        (
            "masked tokens, loss (nats)",
            f"{held_out['mlm_loss']:.2f}",
            f"{results.without_context['mlm_loss']:.2f}  without context",
        ),
        (
            "masked tokens, accuracy",
            f"{held_out['mlm_accuracy']:.1%}",
            f"{results.without_context['mlm_accuracy']:.1%}  without context",
        ),
    ]
    if "nsp_accuracy" in held_out:
        accuracy = f"{held_out['nsp_accuracy']:.1%}"
        rows.append(("next sentence, accuracy", accuracy, "50.0%  chance"))
    rows += [
        ("", "", ""),
        ("fine-tuned", "from the checkpoint", "from random weights"),
        (f"accuracy, mean of {len(random)} seeds", _mean(pretrained), _mean(random)),
        ("  by seed", _each(pretrained), _each(random)),
    ]
    lines = [f"{name:<30}{a:<22} {b}".rstrip() for name, a, b in rows]
    gain = 100 * (np.mean(pretrained) - np.mean(random))
    note = (
        "The task: given the summary of a function and the description of a parameter, "
        "both from the documentation, do they belong together or to different modules? "
        f"{results.train_examples:,} training pairs and {results.eval_examples:,} "
        "evaluation pairs, from modules held out of pretraining; the most frequent "
        f"class has {results.most_frequent_class:.1%}. The task is related to next "
        f"sentence prediction. Pretraining gains {gain:+.1f} points."
    )
    return "\n".join([*lines, "", *textwrap.wrap(note, 78)])


def describe_blanks(
    texts: Sequence[str], filled: Sequence[list[list[prediction.Guess]]]
) -> str:
    """Format texts, each with a line of guesses for each of its blanks."""
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
