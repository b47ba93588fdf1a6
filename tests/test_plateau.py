"""The notice about a run that has learned nothing from context."""

import shutil

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


def config_of(corpus, rate, **loop):
    cfg = pod_recipe.get_config()
    cfg.data.corpus = str(corpus.folder)
    cfg.optimizer.update(learning_rate=rate, schedule="linear")
    cfg.loop.update(**loop)
    return knobs.from_configdict(config_lib.PretrainConfig, cfg)


def pretrain(config, folder, capsys):
    """Return the lines that a run printed."""
    pretraining.pretrain(config, str(folder))
    return capsys.readouterr().err.splitlines()


NOTICE = "not clearly below"


@pytest.mark.runs
def test_run_that_cannot_learn_prints_one_notice(corpus, tmp_path, capsys):
    config = config_of(corpus, 0.0, eval_every=3, checkpoint_every=7)
    said = pretrain(config, tmp_path, capsys)
    (at,) = [i for i, line in enumerate(said) if NOTICE in line]
    # Of 40 steps, 8 are a fifth.
    assert said[at - 1].startswith("eval step 9/40")
    assert said[at].startswith("step 9 of 40: the held-out mlm_loss, 6.9")
    records = [r for r in metrics_file.read(tmp_path) if r["split"] == "eval"]
    for name in ("unigram_entropy", "mlm_loss_without_context"):
        assert 4 < records[0][name] < 6
        assert {record[name] for record in records} == {records[0][name]}
    assert "unigram_entropy" in said[at - 1]

    # A continuation does not repeat it.
    shutil.rmtree(tmp_path / "checkpoints" / "40")
    again = pretrain(config, tmp_path, capsys)
    assert any("continuing at step 35" in line for line in again)
    assert any(line.startswith("eval step 36/40") for line in again)
    assert not any(NOTICE in line for line in again)
    assert [r for r in metrics_file.read(tmp_path) if r["split"] == "eval"] == records
