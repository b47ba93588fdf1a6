"""The notice about a run that has learned nothing from context."""

import pod_recipe
import pytest

from bert_jax import config as config_lib
from bert_jax import knobs, pretraining
from bert_jax.training import metrics_file, plateau


def describe(step, loss, earlier=(), total=100):
    values = {"loss": 9.0, "mlm_loss": loss, "nsp_loss": 0.7}
    levels = {"unigram_entropy": 6.0, "mlm_loss_without_context": 5.0}
    return plateau.describe(step, total, values | levels, earlier)


def test_notice_at_the_first_evaluation_after_a_fifth_of_the_steps():
    assert describe(19, 5.5) == ""
    line = describe(20, 5.5)
    assert line.startswith(
        "step 20 of 100: the held-out mlm_loss, 5.50, is not clearly"
    )
    assert "\n" not in line and "nsp" not in line
    assert describe(35, 5.5, earlier=[10, 19, 35]) == describe(35, 5.5) != ""
    # Not again.
    assert describe(36, 5.5, earlier=[20]) == describe(36, 5.5, earlier=[35]) == ""
    # A little below is chance.
    assert describe(20, 4.97) and describe(20, 5.0)
    assert describe(20, 4.9) == ""
    # Fine-tuning has no baseline.
    assert plateau.describe(50, 100, {"loss": 9.0, "spans_loss": 9.0}, []) == ""


NOTICE = "not clearly below"


@pytest.mark.runs
def test_run_that_cannot_learn_prints_one_notice(corpus, tmp_path, capsys):
    cfg = pod_recipe.get_config()
    cfg.data.corpus = str(corpus.folder)
    cfg.optimizer.update(learning_rate=0.0, schedule="linear")
    cfg.loop.update(eval_every=3, checkpoint_every=7)
    cfg.phases[0].steps = 17
    config = knobs.from_configdict(config_lib.PretrainConfig, cfg)
    pretraining.pretrain(config, str(tmp_path))
    said = capsys.readouterr().err.splitlines()
    (at,) = [i for i, line in enumerate(said) if NOTICE in line]
    # Of 17 steps, 3.4 are a fifth.
    assert (
        said[at - 1].startswith("eval step 6/17") and "unigram_entropy" in said[at - 1]
    )
    assert said[at].startswith("step 6 of 17: the held-out mlm_loss, 6.9")
    records = [r for r in metrics_file.read(tmp_path) if r["split"] == "eval"]
    for name in ("unigram_entropy", "mlm_loss_without_context"):
        assert 4 < records[0][name] < 6
        assert {record[name] for record in records} == {records[0][name]}
