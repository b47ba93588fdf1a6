"""Files of minimal pairs, and the accuracy of a model on them."""

import json
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib import figure

from bert_jax import terminal
from bert_jax.errors import UserError
from bert_jax.prediction import text_files
from bert_jax.tasks import task_files

GOOD, BAD = "sentence_good", "sentence_bad"  # fields of BLiMP's files
ALL = "all pairs"


class Accuracy(NamedTuple):
    """Share of pairs whose acceptable sentence has the higher score."""

    pairs: int
    right: int  # Pairs with equal scores are wrong.
    accuracy: float
    standard_error: float | None  # for independent pairs; None for one pair


def measure(is_right: Sequence[bool]) -> Accuracy:
    """Return the accuracy on one pair or more."""
    pairs, right = len(is_right), sum(is_right)
    share = right / pairs
    error = (share * (1 - share) / pairs) ** 0.5 if pairs > 1 else None
    return Accuracy(pairs, right, share, error)


def read(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the pairs of a file; see `text_files.read_objects`."""
    for where, fields in text_files.read_objects(name):
        for field in (GOOD, BAD):
            if not isinstance(fields.get(field), str):
                raise UserError(f"{where} has no text {field!r}")
        yield where, fields


def accuracies(
    pairs: Sequence[dict[str, Any]],
    scores: Sequence[tuple[float, float]],
    group_by: str,
) -> dict[str, Accuracy]:
    """Return the accuracy on each group of pairs, in alphabetical order, and on all.

    `scores` has the scores of both sentences of each pair. The field `group_by` has the
    group of a pair; pairs without it are in no group.
    """
    is_right = [good > bad for good, bad in scores]
    groups: dict[str, list[bool]] = {}
    for pair, right in zip(pairs, is_right, strict=True):
        if group_by in pair:
            groups.setdefault(str(pair[group_by]), []).append(right)
    measured = {name: measure(group) for name, group in sorted(groups.items())}
    return measured | {ALL: measure(is_right)}


def table(measured: dict[str, Accuracy]) -> str:
    """Format accuracies, in per cent, with their standard errors."""
    width = max(map(len, measured))
    lines = [
        f"{terminal.printable(name):<{width}}  {x.pairs:>8,}  {x.accuracy:6.1%}"
        + ("" if x.standard_error is None else f" ± {x.standard_error:.1%}")
        for name, x in measured.items()
    ]
    return "\n".join([f"{'':<{width}}  {'pairs':>8}  accuracy", *lines])


def draw(measured: dict[str, Accuracy], title: str) -> figure.Figure:
    """Plot accuracies as bars with their standard errors, and chance as a line."""
    names = list(measured)[::-1]
    values = [100 * measured[name].accuracy for name in names]
    errors = [100 * (measured[name].standard_error or 0) for name in names]
    drawn = figure.Figure(figsize=(7, 1.2 + 0.28 * len(names)), layout="constrained")
    axis = drawn.subplots()
    places = range(len(names))
    axis.barh(places, values, xerr=errors, color="tab:blue", ecolor="black")
    axis.axvline(50, color="gray", linestyle="--", label="chance")
    axis.set(xlim=(0, 100), xlabel="accuracy (%)")
    # Without parse_math, because names and paths may have dollar signs.
    axis.set_yticks(places, names, parse_math=False)
    axis.set_title(title, parse_math=False)
    axis.legend(loc="lower right")
    return drawn


def write(
    folder: pathlib.Path,
    pairs: Sequence[dict[str, Any]],
    scores: Sequence[tuple[float, float]],
    measured: dict[str, Accuracy],
    title: str,
) -> None:
    """Write `pairs.jsonl` with the scores, and `accuracy.json` and `accuracy.png`."""
    scored = (
        pair | {"score_good": good, "score_bad": bad}
        for pair, (good, bad) in zip(pairs, scores, strict=True)
    )
    task_files.write_json_lines(folder / "pairs.jsonl", scored)
    results = {name: x._asdict() for name, x in measured.items()}
    task_files.write(folder / "accuracy.json", json.dumps(results, indent=2) + "\n")
    with warnings.catch_warnings():
        # Letters that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        draw(measured, title).savefig(folder / "accuracy.png", dpi=120)
