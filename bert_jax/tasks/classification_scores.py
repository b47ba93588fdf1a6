"""What predicted classes and numbers are measured by, with the field's libraries.

scikit-learn and SciPy are imported where they are used: that takes a second.
"""

import numpy as np


def of_classes(
    predicted: np.ndarray, labels: np.ndarray, num_classes: int
) -> dict[str, float]:
    """Accuracy, F1 averaged over classes, and Matthews' correlation coefficient.

    Args:
      predicted: Predicted class of each example.
      labels: Class of each example.
      num_classes: Number of classes; of two, the F1 of the second is reported too.
    """
    from sklearn import metrics

    f1 = metrics.f1_score(
        labels, predicted, labels=range(num_classes), average=None, zero_division=0
    )
    scores = {
        "accuracy": metrics.accuracy_score(labels, predicted),
        "macro_f1": f1.mean(),
        "matthews": metrics.matthews_corrcoef(labels, predicted),
    }
    if num_classes == 2:
        scores["f1"] = f1[1]
    return {name: float(value) for name, value in scores.items()}


def of_numbers(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Pearson's and Spearman's correlations; 0 where one side is constant.

    Args:
      predicted: Predicted number for each example.
      labels: Number of each example.
    """
    if np.ptp(predicted) == 0 or np.ptp(labels) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    from scipy import stats

    # In float64: sums of squares of float32 lose digits.
    a, b = predicted.astype(np.float64), labels.astype(np.float64)
    return {
        "pearson": float(stats.pearsonr(a, b).statistic),
        "spearman": float(stats.spearmanr(a, b).statistic),
    }
