"""Plots of the metrics of runs."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import axes, colormaps, figure

from bert_jax.errors import UserError
from bert_jax.training import metrics_file
from bert_jax.training.metrics_file import Record

# Label of each panel, and the end of the names of the metrics in it.
_PANELS = (
    ("loss", "_loss"),
    ("accuracy", "accuracy"),
    ("learning rate", "learning_rate"),
    ("sequences per second", "sequences_per_sec"),
)
# Ends of the names of losses in other units than nats: squares, and 1 minus a cosine.
_NOT_IN_NATS = ("regression_loss", "hidden_loss")
# Lines of each split in a comparison of runs.
_SPLIT_STYLES = {"train": {"alpha": 0.4}, "eval": {"marker": "."}}
# Markers of the corpora of a mixture. Curves of the first six are drawn: the legend of
# a hundred languages would leave no room.
_CORPUS_MARKERS = "x+^vsD"
# Labels of the baselines of a metric.
_UNIGRAM_ENTROPY, _WITHOUT_CONTEXT = "unigram entropy", "without context"
# Labels by the first part of the name of a metric.
_LABELS = {
    "mlm": "masked tokens",
    "nsp": "next sentence",
    "sop": "sentence order",
    "lm": "next token",
}


def draw(
    records: Sequence[Record],
    title: str,
    *,
    baselines: dict[str, tuple[float, str]] | None = None,
    finetuned: dict[str, list[list[Record]]] | None = None,
) -> figure.Figure:
    """Plot the curves of a run: training as lines, held-out evaluation with dots.

    The baselines of a metric (`PhaseData.baselines`) are horizontal lines. The figure
    belongs to no matplotlib backend, so that a notebook keeps its own.

    Args:
      records: Records of the run, from `metrics_file.read`.
      title: Title of the figure.
      baselines: An additional baseline of a metric, and its label, by metric.
      finetuned: Records of fine-tuning runs with different seeds, by label. They get
        another panel, with the mean and the range of their accuracy.

    Raises:
      UserError: There is nothing to plot.
    """
    names = dict.fromkeys(n for r in records if r["split"] == "train" for n in r)
    panels = [
        (label, drawn)
        for label, end in _PANELS
        if (drawn := [name for name in names if name.endswith(end)])
    ]
    count = len(panels) + bool(finetuned)
    if not count:
        raise UserError(f"{title} has no metrics to plot")
    picture, grid = _grid(count, columns=2 if count <= 4 else 3)
    picture.suptitle(title, parse_math=False)
    for axis, (label, drawn) in zip(grid, panels, strict=False):
        for i, name in enumerate(drawn):
            baseline = (baselines or {}).get(name)
            _draw_metric(axis, records, name, f"C{i}", baseline)
        axis.set_ylabel(label + _unit(drawn))
        if label.startswith(("loss", "accuracy")):
            _add_legend(axis)
    if finetuned:
        _draw_finetuned(grid[-1], finetuned)
    _finish(picture)
    return picture


def compare(runs: dict[str, Sequence[Record]]) -> figure.Figure:
    """Plot losses and accuracies of several runs, with a color for each run.

    Training is a faint line, held-out evaluation has dots, baselines are horizontal.
    """
    names = dict.fromkeys(n for rs in runs.values() for r in rs for n in r)
    names = [n for n in names if n.endswith(("_loss", "accuracy"))]
    # Panels of a hundred languages would make a picture of metres.
    corpora = dict.fromkeys(n.partition("/")[0] for n in names if "/" in n)
    left_out = {*list(corpora)[len(_CORPUS_MARKERS) :]}
    if not (names := [n for n in names if n.partition("/")[0] not in left_out]):
        raise UserError(f"{', '.join(runs)} have no losses or accuracies to plot")
    # Legends are above the panels.
    height = 3.4 + 0.075 * max(0, len(runs) - 6)
    picture, grid = _grid(len(names), columns=min(len(names), 2), height=height)
    colors = [f"C{i}" for i in range(len(runs))]
    if len(runs) > 10:  # more than the colors that have a number
        colors = colormaps["turbo"](np.linspace(0.05, 0.95, len(runs)))
    colors = dict(zip(runs, colors, strict=True))
    for axis, name in zip(grid, names, strict=True):
        for run, records in runs.items():
            axis.plot([], [], color=colors[run], label=run)
            for split, style in _SPLIT_STYLES.items():
                _plot(axis, records, name, split, color=colors[run], **style)
        for split, style in _SPLIT_STYLES.items():
            if any(_series(records, name, split) for records in runs.values()):
                label = {"train": "training", "eval": "held out"}[split]
                axis.plot([], [], color="black", label=label, **style)
        baselines = {run: _baselines(records, name) for run, records in runs.items()}
        for what in dict.fromkeys(
            what for known in baselines.values() for what in known
        ):
            axis.plot([], [], color="black", label=what, **_style(what))
            for run, known in baselines.items():
                if what in known:
                    axis.axhline(known[what], color=colors[run], **_style(what))
        axis.set_ylabel(_label(name) + _unit([name]), parse_math=False)
        _add_legend(axis)
    _finish(picture)
    return picture


def _grid(
    count: int, columns: int, height: float = 3.4
) -> tuple[figure.Figure, list[axes.Axes]]:
    """Return a figure and its panels, row by row; the height of a row is in inches."""
    rows = -(-count // columns)
    picture = figure.Figure(figsize=(5 * columns, height * rows), dpi=110)
    return picture, [picture.add_subplot(rows, columns, i + 1) for i in range(count)]


def _add_legend(axis: axes.Axes) -> None:
    """Add a legend above the panel, where it hides no curve."""
    legend = axis.legend(
        fontsize="x-small",
        frameon=False,
        ncols=2,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
    )
    for text in legend.get_texts():  # names of folders may have dollar signs
        text.set_parse_math(False)


def _finish(picture: figure.Figure) -> None:
    """Add axis labels and grids to all panels."""
    for axis in picture.axes:
        axis.set_xlabel("step")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    picture.tight_layout()


def _label(name: str) -> str:
    """Return the label of a metric."""
    beginning, _, end = name.rpartition("_")
    if beginning in _LABELS:
        return f"{_LABELS[beginning]}, {end}"
    return name.replace("_", " ")


def _unit(names: Sequence[str]) -> str:
    """Return the unit of the metrics of a panel, if they have one."""
    in_nats = [n.endswith("loss") and not n.endswith(_NOT_IN_NATS) for n in names]
    return " (nats)" if all(in_nats) else ""


def _draw_metric(
    axis: axes.Axes,
    records: Sequence[Record],
    name: str,
    color: str,
    baseline: tuple[float, str] | None,
) -> None:
    """Draw a metric in training and evaluation, and its baselines.

    Evaluation on each corpus of a mixture is a thin line.
    """
    label = _LABELS.get(name.rpartition("_")[0], name.replace("_", " "))
    plot = functools.partial(_plot, axis, name=name, color=color)
    plot(records, split="train", label=f"{label}, training", alpha=0.6)
    plot(records, split="eval", label=f"{label}, held out", marker=".")
    by_corpus = dict.fromkeys(n for r in records for n in r if n.endswith(f"/{name}"))
    for metric, marker in zip(by_corpus, _CORPUS_MARKERS, strict=False):
        style = {"label": f"{label}, {metric.rpartition('/')[0]}", "marker": marker}
        plot(records, name=metric, split="eval", linewidth=0.5, markersize=4, **style)
    known = _baselines(records, name)
    if baseline:
        known[baseline[1]] = baseline[0]
    for what, value in known.items():
        axis.axhline(value, color=color, label=what, **_style(what))


def _plot(
    axis: axes.Axes, records: Sequence[Record], name: str, split: str, **style: Any
) -> None:
    """Plot a metric in the records of a split, if there are any."""
    if series := _series(records, name, split):
        axis.plot(*zip(*series, strict=True), **style)


def _baselines(records: Sequence[Record], name: str) -> dict[str, float]:
    """Return the baselines of a metric in the newest evaluation, by label."""
    newest = {key: value for record in records for key, value in record.items()}
    if name + metrics_file.WITHOUT_CONTEXT not in newest:
        return {}
    baselines = {_WITHOUT_CONTEXT: newest[name + metrics_file.WITHOUT_CONTEXT]}
    corpus, slash, _ = name.rpartition("/")
    entropy = newest.get(f"{corpus}{slash}{metrics_file.UNIGRAM_ENTROPY}")
    if name.endswith("loss") and entropy is not None:
        if baselines[_WITHOUT_CONTEXT] == entropy:  # equal for causal models
            del baselines[_WITHOUT_CONTEXT]
        baselines[_UNIGRAM_ENTROPY] = entropy
    return baselines


def _style(baseline: str) -> dict[str, Any]:
    return {"linestyle": "--" if baseline == _UNIGRAM_ENTROPY else ":", "linewidth": 1}


def _draw_finetuned(axis: axes.Axes, finetuned: dict[str, list[list[Record]]]) -> None:
    """Draw the mean over runs of the held-out accuracy, and its range."""
    for i, (name, runs) in enumerate(finetuned.items()):
        series = [dict(_series(records, "accuracy", "eval")) for records in runs]
        # A start with another `loop.eval_every` evaluates at other steps.
        steps = sorted(set.intersection(*map(set, series)))
        values = np.array([[one[step] for step in steps] for one in series])
        axis.plot(steps, values.mean(0), ".-", color=f"C{i}", label=name)
        axis.fill_between(steps, values.min(0), values.max(0), color=f"C{i}", alpha=0.2)
    axis.set_ylabel("accuracy, fine-tuned")
    _add_legend(axis)


def _series(
    records: Sequence[Record], name: str, split: str
) -> list[tuple[int, float]]:
    return [(r["step"], r[name]) for r in records if r["split"] == split and name in r]
