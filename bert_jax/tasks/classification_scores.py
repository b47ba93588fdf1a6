"""Metrics of predicted classes and numbers.

scikit-learn and SciPy are imported where they are used, because that takes a second.
"""

import warnings

import numpy as np


def score_classes(
    predicted: np.ndarray, labels: np.ndarray, num_classes: int
) -> dict[str, float]:
    """Return accuracy, macro-averaged F1, and Matthews' correlation coefficient.

    The average is over the classes that occur in the labels or the predictions, as in
    scikit-learn. If there are two classes, the result has the F1 of the second.
    """
    from sklearn import metrics

    with warnings.catch_warnings():
        # With one class, scikit-learn warns about the size of its confusion matrix.
        warnings.filterwarnings("ignore", "A single label was found")
        matthews = metrics.matthews_corrcoef(labels, predicted)
    scores = {
        "accuracy": metrics.accuracy_score(labels, predicted),
        "macro_f1": metrics.f1_score(
            labels, predicted, average="macro", zero_division=0
        ),
        "matthews": matthews,
    }
    if num_classes == 2:
        scores["f1"] = metrics.f1_score(
            labels, predicted, labels=[1], average="macro", zero_division=0
        )
    return {name: float(value) for name, value in scores.items()}


def score_numbers(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return Pearson's and Spearman's correlations.

    They are NaN, which is undefined, if all predictions or all labels are equal.
    """
    if np.ptp(predicted) == 0 or np.ptp(labels) == 0:
        return {"pearson": float("nan"), "spearman": float("nan")}
    from scipy import stats

    # In float64: sums of squares of float32 lose digits.
    a, b = predicted.astype(np.float64), labels.astype(np.float64)
    return {
        "pearson": float(stats.pearsonr(a, b).statistic),
        "spearman": float(stats.spearmanr(a, b).statistic),
    }
