"""The notice about a run that has learned nothing; `test_phases.py` has such a run."""

from bert_jax.training import plateau


def describe(step, loss, earlier=(), total=100):
    values = {"loss": 9.0, "mlm_loss": loss, "nsp_loss": 0.7}
    levels = {"unigram_entropy": 6.0, "mlm_loss_without_context": 5.0}
    return plateau.describe(step, total, values | levels, earlier)


def test_notice_at_the_first_evaluation_after_a_fifth_of_the_steps():
    assert describe(19, 5.5) == ""
    line = describe(20, 5.5)
    assert line.startswith("step 20 of 100: the held-out mlm_loss, 5.50, is not")
    # The baseline is lower than that of frequencies: some tokens stay in their places.
    assert "below 5.00, the loss of a model that sees no context." in line
    assert "\n" not in line and "nsp" not in line
    assert describe(35, 5.5, earlier=[10, 19, 35]) == describe(35, 5.5) != ""
    # Not again.
    assert describe(36, 5.5, earlier=[20]) == describe(36, 5.5, earlier=[35]) == ""
    # A little below is chance.
    assert describe(20, 4.97) and describe(20, 5.0)
    assert describe(20, 4.9) == ""
    # Fine-tuning has no baseline.
    assert plateau.describe(50, 100, {"loss": 9.0, "spans_loss": 9.0}, []) == ""
