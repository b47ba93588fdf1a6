"""Pictures of what metrics.jsonl holds."""

import itertools
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import axes, figure

from bert_jax import storage
from bert_jax.errors import UserError

# Panels of a picture, and the ends of the names of metrics that are drawn in each.
_PANELS = (
    ("loss (nats)", "_loss"),
    ("accuracy", "accuracy"),
    ("learning rate", "learning_rate"),
    ("sequences a second", "sequences_per_sec"),
)
_COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")
# What the beginnings of names stand for.
_LABELS = {
    "mlm": "masked tokens",
    "nsp": "next sentence",
    "sop": "sentence order",
    "lm": "next token",
}


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """Records of a run's metrics.jsonl.

    Raises:
      UserError: there are none.
    """
    path = storage.path(workdir) / "metrics.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if not records:
        raise UserError(f"{path} is empty; the run has not reported anything yet")
    return records


def draw(
    records: Sequence[dict[str, Any]],
    title: str,
    *,
    levels: dict[str, tuple[float, str]] | None = None,
    finetuned: dict[str, list[list[dict[str, Any]]]] | None = None,
) -> figure.Figure:
    """Curves of a run: train as lines, held out as lines with dots.

    Args:
      records: from `read_metrics`.
      title: above the picture.
      levels: for a metric, a value to compare it with and what that is.
      finetuned: for a further panel, by name, records of fine-tuning runs that differ
        in their seed; their accuracies are drawn with the range over seeds.
    """
    names = dict.fromkeys(n for r in records if r["split"] == "train" for n in r)
    panels = [
        (label, drawn)
        for label, end in _PANELS
        if (drawn := [name for name in names if name.endswith(end)])
    ]
    count = len(panels) + bool(finetuned)
    columns = 2 if count <= 4 else 3
    rows = -(-count // columns)
    picture = figure.Figure(figsize=(5 * columns, 3.4 * rows), dpi=110)
    picture.suptitle(title)
    for i, (label, drawn) in enumerate(panels):
        axis = picture.add_subplot(rows, columns, i + 1)
        colors = itertools.cycle(_COLORS)
        for name in drawn:
            color = next(colors)
            _draw_metric(axis, records, name, color)
            if levels and name in levels:
                value, what = levels[name]
                axis.axhline(value, color=color, linestyle=":", label=what)
        axis.set_ylabel(label)
        if label.startswith(("loss", "accuracy")):
            axis.legend(fontsize="small")
    if finetuned:
        axis = picture.add_subplot(rows, columns, count)
        for color, (name, runs) in zip(_COLORS, finetuned.items(), strict=False):
            _draw_repeats(axis, runs, name, color)
        axis.set_ylabel("accuracy, fine-tuned")
        axis.legend(fontsize="small")
    for axis in picture.axes:
        axis.set_xlabel("step")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    picture.tight_layout()
    return picture


def _draw_repeats(
    axis: axes.Axes, runs: list[list[dict[str, Any]]], name: str, color: str
) -> None:
    """Mean over runs of the held-out accuracy, and its range."""
    series = [_series(records, "accuracy", "eval") for records in runs]
    steps = [step for step, _ in series[0]]
    values = np.array([[value for _, value in one] for one in series])
    axis.plot(steps, values.mean(0), ".-", color=color, label=name)
    axis.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.2)


def _draw_metric(
    axis: axes.Axes, records: Sequence[dict[str, Any]], name: str, color: str
) -> None:
    beginning = name.rpartition("_")[0]
    label = _LABELS.get(beginning, name.replace("_", " "))
    steps, values = zip(*_series(records, name, "train"), strict=True)
    axis.plot(steps, values, color=color, alpha=0.6, label=f"{label}, training")
    held_out = _series(records, name, "eval")
    if held_out:
        steps, values = zip(*held_out, strict=True)
        axis.plot(steps, values, ".-", color=color, label=f"{label}, held out")


def _series(
    records: Sequence[dict[str, Any]], name: str, split: str
) -> list[tuple[int, float]]:
    return [(r["step"], r[name]) for r in records if r["split"] == split and name in r]
