"""Baseline of a model that knows token frequencies and no context."""

import numpy as np
import pytest
from corpora import documents_of
from made_batches import MASKED, configure

from bert_jax import config as config_lib
from bert_jax import pretraining
from bert_jax.objectives import unigram_baseline
from bert_jax.training import metrics_file

pytestmark = pytest.mark.usefixtures("checked_shapes")


def table(p, mask_token_rate, random_token_rate):
    """Return P(w, y) of visible token w, [MASK] last, and label y, by loops."""
    size = len(p)
    joint = np.zeros((size + 1, size))
    for y in range(size):
        joint[size, y] = mask_token_rate * p[y]
        joint[y, y] += (1 - mask_token_rate - random_token_rate) * p[y]
        for w in range(size):
            joint[w, y] += random_token_rate / size * p[y]
    return joint


def rates(mask_token_rate, random_token_rate):
    return config_lib.MaskingConfig(
        mask_token_rate=mask_token_rate, random_token_rate=random_token_rate
    )


@pytest.mark.parametrize(
    "given", [(0.8, 0.1), (0.8, 0.0), (0.9, 0.1), (0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]
)
def test_masked_token_baseline_matches_a_table(given):
    weights = np.array([9.0, 0.0, 4.0, 3.0, 0.5, 0.0, 0.25])
    p = weights / weights.sum()
    joint = table(p, *given)
    visible = np.repeat(joint.sum(1, keepdims=True), len(p), axis=1)
    possible = joint > 0
    joint_, visible_ = joint[possible], visible[possible]
    loss = -(joint_ * np.log(joint_ / visible_)).sum()
    got = unigram_baseline.masked_token(p, rates(*given))
    assert got == pytest.approx((loss, joint.max(1).sum()))


def test_entropy_by_hand():
    # Four tokens, one of them never seen: 1.5 bits.
    p = np.array([0.5, 0.25, 0.25, 0.0])
    assert unigram_baseline.entropy(p) == pytest.approx(1.5 * np.log(2))
    got = unigram_baseline.by_metric(["plm_loss", "other_loss"], p, None)
    assert got == pytest.approx({"plm_loss": 1.5 * np.log(2), "plm_accuracy": 0.5})


@pytest.mark.parametrize(
    ("objective", "prefix"),
    [(MASKED, "mlm"), (config_lib.CausalLmConfig(), "lm")],
    ids=["masked", "causal"],
)
def test_baselines_of_a_run(objective, prefix, corpus):
    """The rows of a process do not matter."""
    tokens = [token for d in documents_of(corpus, "held_out") for token in d["tokens"]]
    p = np.bincount(tokens, minlength=corpus.tokenizer.vocab_size) / len(tokens)
    entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
    levels = entropy, p.max()
    if prefix == "mlm":
        levels = unigram_baseline.masked_token(p, rates(0.8, 0.1))
    names = (
        f"{prefix}_{x}{metrics_file.WITHOUT_CONTEXT}" for x in ("loss", "accuracy")
    )
    expected = {"unigram_entropy": entropy, **dict(zip(names, levels, strict=True))}
    config = configure(objective)
    for rows in ([3, 5], range(32)):
        got = pretraining.open_data(config, [corpus], 0, np.array(rows)).baselines
        assert got == pytest.approx(expected)
