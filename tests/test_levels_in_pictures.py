"""Horizontal lines of pictures: baselines of the evaluations."""

from bert_jax.training import comparison, curves


def records_of(entropy, loss, accuracy, name="mlm"):
    metric = f"{name}_loss", f"{name}_accuracy"
    trained = {"split": "train", metric[0]: 7.0, metric[1]: 0.1, "nsp_loss": 0.7}
    evaluated = {
        "split": "eval",
        metric[0]: 6.0,
        metric[1]: 0.2,
        "nsp_loss": 0.6,
        "unigram_entropy": entropy,
        f"{metric[0]}_without_context": loss,
        f"{metric[1]}_without_context": accuracy,
    }
    return [{"step": 1, **trained}, {"step": 2, **trained}, {"step": 2, **evaluated}]


def horizontal(axis):
    """Return the heights of horizontal lines by label."""
    return {
        line.get_label(): line.get_ydata()[0]
        for line in axis.lines
        if list(line.get_xdata()) == [0, 1]
    }


def legend(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_the_picture_of_a_run_has_its_baselines():
    loss, accuracy = curves.draw(records_of(6.4, 5.8, 0.15), "T").axes
    assert horizontal(loss) == {"unigram entropy": 6.4, "without context": 5.8}
    assert horizontal(accuracy) == {"without context": 0.15}
    assert {"unigram entropy", "without context"} <= set(legend(loss))
    # For left-to-right models, the two baselines are equal.
    loss, _ = curves.draw(records_of(6.4, 6.4, 0.06, name="lm"), "T").axes
    assert horizontal(loss) == {"unigram entropy": 6.4}
    # Records of earlier versions have no baselines.
    before = [
        {k: v for k, v in r.items() if "context" not in k and "entropy" not in k}
        for r in records_of(6.4, 5.8, 0.15)
    ]
    assert all(not horizontal(axis) for axis in curves.draw(before, "T").axes)


def test_the_picture_of_several_runs_has_all_baselines():
    runs = {"a": records_of(6.4, 5.8, 0.15), "b": records_of(6.3, 5.7, 0.15)}
    loss, accuracy, nsp = curves.compare(runs).axes
    heights = [
        line.get_ydata()[0] for line in loss.lines if list(line.get_xdata()) == [0, 1]
    ]
    assert sorted(heights) == [5.7, 5.8, 6.3, 6.4]
    assert legend(loss) == ["a", "b", "without context", "unigram entropy"]
    assert legend(accuracy) == ["a", "b", "without context"]
    assert legend(nsp) == ["a", "b"]


def test_the_table_of_several_runs_has_all_baselines(tmp_path):
    compared = [
        comparison.Compared(name, {}, records_of(entropy, 5.8, 0.15))
        for name, entropy in (("a", 6.4), ("b", 6.3))
    ]
    lines = [line.split() for line in comparison.table(compared).splitlines()]
    assert ["held", "out,", "unigram_entropy", "6.4", "6.3"] in lines
    assert ["held", "out,", "mlm_loss_without_context", "5.8", "5.8"] in lines
