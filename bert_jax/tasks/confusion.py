"""Pictures of confusion matrices."""

import io
import warnings
from collections.abc import Sequence

import numpy as np

from bert_jax import storage

# With more classes, numbers in the cells could not be read.
_MAX_NUMBERED = 20
_MAX_LABEL = 24


def draw(
    path: storage.Path, predicted: np.ndarray, labels: np.ndarray, names: Sequence[str]
) -> None:
    """Draw a confusion matrix as PNG: counts as numbers, shares of a row as colours."""
    from matplotlib import figure

    counts = np.zeros((len(names), len(names)), int)
    np.add.at(counts, (labels, predicted), 1)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = min(3.0 + 0.7 * len(names), 16.0)
    # A figure without pyplot needs no display, and leaves a notebook's backend alone.
    picture = figure.Figure(figsize=(side + 0.8, side), dpi=110)
    axis = picture.add_subplot()
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    picture.colorbar(image, label="share of the label's examples", fraction=0.046)
    shown = [n if len(n) <= _MAX_LABEL else f"{n[: _MAX_LABEL - 3]}..." for n in names]
    ticks = range(len(names))
    # Without parse_math, because labels may have dollar signs.
    axis.set_xticks(ticks, shown, rotation=45, ha="right", parse_math=False)
    axis.set_yticks(ticks, shown, parse_math=False)
    axis.set_xlabel("predicted")
    axis.set_ylabel("label")
    share = np.trace(counts) / max(counts.sum(), 1)
    axis.set_title(f"{np.trace(counts):,} of {counts.sum():,} correct ({share:.1%})")
    if len(names) <= _MAX_NUMBERED:
        for (row, column), count in np.ndenumerate(counts):
            color = "white" if shares[row, column] > 0.5 else "black"
            axis.text(column, row, f"{count:,}", ha="center", va="center", color=color)
    data = io.BytesIO()
    with warnings.catch_warnings():
        # Letters that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        picture.savefig(data, format="png", bbox_inches="tight")
    with storage.writing(path.parent):
        storage.write_bytes(path, data.getvalue())
