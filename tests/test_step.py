import copy
import dataclasses
import functools
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toy import TINY, assert_trees_close, random_batch, relative_distance

from bert_jax import config
from bert_jax.model import randomness
from bert_jax.objectives import masked_lm, metric_sums
from bert_jax.training import optimizer, step

OPTIMIZER = config.OptimizerConfig(learning_rate=1e-3, warmup_fraction=0.0)
OBJECTIVE = masked_lm.MaskedLm(TINY)
TX = optimizer.make_optimizer(OPTIMIZER, optimizer.make_schedule(OPTIMIZER, 100))


@functools.cache
def initial_state():
    init = jax.jit(functools.partial(step.init_state, OBJECTIVE, TX))
    return nn.unbox(init(jax.random.key(0)))


@functools.cache
def compiled(seed, micro_batches):
    options = {"seed": seed, "micro_batches": micro_batches}
    return jax.jit(functools.partial(step.train_step, OBJECTIVE, TX, **options))


def train(state, batch, seed=1, micro_batches=1):
    """Return the state after a step."""
    return compiled(seed, micro_batches)(state, batch)[0]


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
def test_a_state_in_boxes_trains_as_without_them(name):
    """Optimizers know parameters by their paths, in which boxes do not count."""
    settings = dataclasses.replace(OPTIMIZER, name=name, weight_decay=0.5)
    schedule = optimizer.make_schedule(settings, 100)
    tx = optimizer.make_optimizer(settings, schedule)
    boxed = jax.jit(functools.partial(step.init_state, OBJECTIVE, tx))
    boxed = boxed(jax.random.key(0))
    moved = jax.tree.map(lambda x: x + 1, boxed.params)  # biases begin at 0
    boxed = dataclasses.replace(boxed, params=moved)
    train = jax.jit(functools.partial(step.train_step, OBJECTIVE, tx, seed=1))
    batch = random_batch()
    trained, _ = train(boxed, batch)
    expected, _ = train(nn.unbox(boxed), batch)
    assert_trees_close(nn.unbox(trained.params), expected.params, 1e-6)


def test_micro_batches_equal_the_batch_with_dropout_on():
    """Weights differ between rows, so means of means would be wrong.

    They add up to less than 1, so a count of at least 1 would be wrong, too.
    """
    batch, state = random_batch(), initial_state()
    weights = np.asarray(batch["mlm_weights"]).copy()
    weights[:4, 1:] = 0
    batch["mlm_weights"] = jnp.asarray(weights / 100)
    once, outcome = compiled(1, 8)(state, batch)
    reported = metric_sums.report(OBJECTIVE.loss_weights, once.metric_sums)["loss"]
    assert outcome.loss == pytest.approx(float(reported), rel=1e-5)
    whole, pieces = (
        train(train(state, batch, micro_batches=n), batch, micro_batches=n)
        for n in (1, 8)
    )
    assert whole.step == whole.metric_sums["grad_norm"].count == 2
    assert set(whole.metric_sums) == {*OBJECTIVE.metrics, "grad_norm"}
    count = 2 * float(batch["mlm_weights"].sum())
    assert whole.metric_sums["mlm_loss"].count == pytest.approx(count)
    assert_trees_close(pieces.metric_sums, whole.metric_sums, 1e-6)
    for name in ("mean", "square"):
        got, expected = (getattr(t.opt_state[1], name) for t in (pieces, whole))
        assert relative_distance(got, expected) < 1e-6
    # Adam divides a gradient by its size, so where it is only rounding (the bias of the
    # keys) the update is too.
    got, expected = (copy.deepcopy(t.params) for t in (pieces, whole))
    for tree in (got, expected):
        del tree["encoder"]["layers"]["attention"]["key"]["bias"]
    assert relative_distance(got, expected) < 1e-6


def test_seed_and_step_decide_dropout():
    batch = random_batch()
    losses = []
    for seed, number in ((1, 0), (1, 0), (1, 7), (2, 0)):
        state = dataclasses.replace(initial_state(), step=jnp.int32(number))
        trained = train(state, batch, seed=seed)
        losses.append(metric_sums.ratio(trained.metric_sums["mlm_loss"]))
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3


def test_evaluation_draws_by_batch_and_row():
    """Draws are the same in each evaluation, and in micro-batches."""

    def sums(params, batch, *, dropout_keys, sampling_keys):
        drawn = randomness.bits(sampling_keys, ()) % 1000  # [B]
        total = jnp.sum(drawn.astype(jnp.float32))
        return {"drawn": metric_sums.MetricSum(total, jnp.ones(()))}

    def drawn(index, micro_batches=1):
        objective = types.SimpleNamespace(sums=sums)
        rows = {"input_ids": jnp.zeros((8, 3), jnp.int32)}
        arguments = objective, {}, rows, jnp.int32(index), metric_sums.zeros(["drawn"])
        made = step.eval_step(*arguments, seed=1, micro_batches=micro_batches)
        return made["drawn"].sum

    assert drawn(0) == drawn(0) == drawn(0, micro_batches=4)
    assert len({float(drawn(index)) for index in range(5)}) == 5


def test_evaluation_in_micro_batches_adds_up_the_same_in_less_memory():
    batch, zeros = random_batch(size=64), metric_sums.zeros(OBJECTIVE.metrics)
    params, totals, temporaries = initial_state().params, [], []
    for micro_batches in (1, 8):
        options = {"seed": 1, "micro_batches": micro_batches}
        evaluate = jax.jit(functools.partial(step.eval_step, OBJECTIVE, **options))
        compiled = evaluate.lower(params, batch, 0, zeros).compile()
        totals.append(compiled(params, batch, 0, zeros))
        temporaries.append(compiled.memory_analysis().temp_size_in_bytes)
    assert_trees_close(totals[1], totals[0], 1e-6)
    again = compiled(params, batch, 1, totals[1])
    assert again["mlm_loss"].count == 2 * totals[1]["mlm_loss"].count
    assert temporaries[1] < temporaries[0] / 4


def test_a_step_that_is_not_finite_changes_nothing_but_its_count():
    batch, run = random_batch(), compiled(1, 1)
    good, outcome = run(initial_state(), batch)
    assert np.isfinite(outcome.loss) and np.isfinite(outcome.grad_norm)
    for bad_value in (np.nan, np.inf):
        weights = batch["mlm_weights"].at[0, 0].set(bad_value)
        after, outcome = run(good, batch | {"mlm_weights": weights})
        assert not (np.isfinite(outcome.loss) and np.isfinite(outcome.grad_norm))
        assert int(after.step) == 2 and int(after.skipped) == 1
        for name in ("params", "opt_state", "metric_sums"):
            before, now = getattr(good, name), getattr(after, name)
            assert jax.tree.all(jax.tree.map(np.array_equal, now, before)), name
    # And the next good step is as if the bad one had not been, dropout masks aside.
    assert int(train(after, batch).skipped) == 1


def test_a_gradient_that_is_not_finite_skips_the_step_whatever_the_loss():
    """The square root of 0 is finite, and its slope is not."""

    def sums(params, batch, *, dropout_keys, sampling_keys):
        return {"root": metric_sums.MetricSum(jnp.sqrt(params["x"]), jnp.ones(()))}

    objective = types.SimpleNamespace(
        loss_weights={"root": 1.0},
        counts=lambda batch: {"root": jnp.ones(())},
        sums=sums,
    )
    tx, params = optax.sgd(1.0), {"x": jnp.zeros(())}
    state = step.TrainState(
        step=jnp.int32(0),
        params=params,
        opt_state=tx.init(params),
        metric_sums=metric_sums.zeros(["root", "grad_norm"]),
        skipped=jnp.int32(0),
    )
    run = jax.jit(functools.partial(step.train_step, objective, tx, seed=1))
    after, outcome = run(state, {"input_ids": jnp.zeros((2, 3), jnp.int32)})
    assert outcome.loss == 0 and outcome.grad_norm == np.inf
    assert int(after.skipped) == 1 and after.params["x"] == 0
