"""The update against google-research/bert, optimization.py, restated in NumPy."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import config
from bert_jax.training import optimizer

ADAM = config.OptimizerConfig(learning_rate=1e-2, warmup_fraction=0.2)
STEPS = 20


def parameters(seed=0):
    """A tree with the names that matter, stacked layers among them; float64."""
    rng = np.random.default_rng(seed)
    return {
        "encoder": {
            "embeddings": {
                "token_embedding": rng.normal(size=(7, 4)),
                "layer_norm": {"scale": rng.normal(size=4), "bias": rng.normal(size=4)},
            },
            "layers": {
                "output": {
                    "kernel": rng.normal(size=(3, 4, 5)) * [[[1]], [[10]], [[100]]],
                    "bias": rng.normal(size=(3, 5)),
                },
                "output_layer_norm": {"scale": rng.normal(size=(3, 4))},
            },
        },
        "mlm_head": {"output_bias": rng.normal(size=7)},
    }


def as_float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def flat(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(p, simple=True, separator="/"): v for p, v in leaves}


def rate(c, step):
    """The original's: polynomial decay from step 0, replaced during warmup."""
    warmup = round(c.warmup_fraction * STEPS)
    if step < warmup:
        return c.learning_rate * step / warmup
    if c.schedule == "original":
        return c.learning_rate * (1 - step / STEPS)
    return c.learning_rate * (STEPS - step) / (STEPS - warmup)


def reference_update(c, step, params, grads, m, v):
    """One update in place, on flat dicts of float64 arrays."""
    norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
    scale = min(1.0, c.clip_norm / norm) if c.clip_norm else 1.0
    for name, p in params.items():
        g = grads[name] * scale
        m[name] = c.beta1 * m[name] + (1 - c.beta1) * g
        v[name] = c.beta2 * v[name] + (1 - c.beta2) * g**2
        m_hat, v_hat = m[name], v[name]
        if c.bias_correction:
            m_hat = m_hat / (1 - c.beta1 ** (step + 1))
            v_hat = v_hat / (1 - c.beta2 ** (step + 1))
        update = m_hat / (np.sqrt(v_hat) + c.epsilon)
        plain = re.search("layer_norm|bias", name)
        if not plain:
            update = update + c.weight_decay * p
        if c.name == "lamb" and not plain:
            each = zip(p, update, strict=True) if "layers/" in name else [(p, update)]
            ratios = [np.linalg.norm(a) / np.linalg.norm(b) for a, b in each]
            shape = (-1,) + (1,) * (p.ndim - 1) if "layers/" in name else ()
            update = update * np.reshape(ratios, shape)
        params[name] = p - rate(c, step) * update


@pytest.mark.parametrize("name", ["adamw", "lamb"])
@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("schedule", ["original", "linear"])
def test_updates_are_those_of_the_restatement(name, bias_correction, schedule):
    c = dataclasses.replace(
        ADAM, name=name, bias_correction=bias_correction, schedule=schedule
    )
    expected = flat(parameters())
    m = {k: np.zeros_like(p) for k, p in expected.items()}
    v = {k: np.zeros_like(p) for k, p in expected.items()}
    tx = optimizer.make_optimizer(c, optimizer.make_schedule(c, STEPS))
    params = as_float32(parameters())
    state = tx.init(params)
    update = jax.jit(tx.update)
    for step in range(STEPS):
        # Now below the clipping norm, now above it.
        scale = 0.1 ** (step % 4)
        grads = jax.tree.map(lambda g, s=scale: g * s, parameters(step + 1))
        reference_update(c, step, expected, flat(grads), m, v)
        updates, state = update(as_float32(grads), state, params)
        params = jax.tree.map(jnp.add, params, updates)
    for path, p in flat(params).items():
        error = np.abs(p - expected[path]).max() / np.abs(expected[path]).max()
        assert error < 1e-6, path


def test_lower_layers_learn_more_slowly():
    """Three layers, with depths 3, 2, 1; embeddings 4; heads 0."""
    updates = []
    for layer_decay in (1.0, 0.5):
        c = dataclasses.replace(ADAM, layer_decay=layer_decay)
        made = optimizer.make_optimizer(c, lambda step: 1.0)
        params, gradient = as_float32(parameters()), as_float32(parameters(1))
        update, _ = made.update(gradient, made.init(params), params)
        updates.append(flat(update))
    whole, scaled = updates
    for path in whole:
        factor = np.array(1.0)
        if "embeddings" in path:
            factor = np.array(0.5**4)
        if "layers" in path:
            factor = np.array([0.5**3, 0.5**2, 0.5])
        factor = factor.reshape(*factor.shape, *[1] * (whole[path].ndim - factor.ndim))
        np.testing.assert_allclose(scaled[path], whole[path] * factor, rtol=1e-6)


def test_frozen_parameters_have_no_moments_and_stay():
    made = optimizer.make_optimizer(ADAM, lambda step: 1.0, frozen="encoder")
    params, gradient = as_float32(parameters()), as_float32(parameters(1))
    state = made.init(params)
    update, state = made.update(gradient, state, params)
    for path, values in flat(update).items():
        assert bool(np.any(values)) == (not path.startswith("encoder/")), path
    assert sorted(x.shape for x in jax.tree.leaves(state) if x.ndim) == [(7,), (7,)]


def test_no_clipping():
    """The first moment of a huge gradient is huge."""
    moments = []
    for clip_norm in (0.0, 1.0):
        c = dataclasses.replace(ADAM, clip_norm=clip_norm)
        made = optimizer.make_optimizer(c, lambda step: 1.0)
        params = {"kernel": jnp.zeros((1, 1))}
        gradient = {"kernel": jnp.full((1, 1), 1e3)}
        _, state = made.update(gradient, made.init(params), params)
        leaves = [float(x.max()) for x in jax.tree.leaves(state) if x.shape == (1, 1)]
        moments.append(leaves[0])
    assert moments == [pytest.approx(100.0), pytest.approx(0.1)]


def test_schedules():
    million = dataclasses.replace(ADAM, learning_rate=1e-4, warmup_fraction=0.01)
    original = optimizer.make_schedule(million, 1_000_000)
    assert original(0) == 0
    assert original(5_000) == pytest.approx(0.5e-4)
    # The jump at the end of the warmup: from the peak to 1 % below it.
    assert original(9_999) == pytest.approx(1e-4, rel=2e-4)
    assert original(10_000) == pytest.approx(0.99e-4)
    assert original(1_000_000) == 0
    linear = optimizer.make_schedule(
        dataclasses.replace(million, schedule="linear"), 1_000_000
    )
    assert linear(10_000) == pytest.approx(1e-4)
    assert linear(505_000) == pytest.approx(0.5e-4)
    assert linear(1_000_001) == 0


def test_each_phase_may_have_a_schedule_of_its_own():
    c = dataclasses.replace(ADAM, schedule="linear")
    phases = (
        config.PhaseConfig(steps=100, learning_rate=6e-3, warmup_fraction=0.2),
        config.PhaseConfig(steps=50, learning_rate=4e-3, warmup_fraction=0.1),
    )
    schedule = optimizer.schedule_of_phases(c, phases)
    expected = {0: 0, 10: 3e-3, 20: 6e-3, 60: 3e-3, 99: 6e-3 / 80, 100: 0, 101: 8e-4}
    expected |= {105: 4e-3, 149: 4e-3 / 45, 150: 0, 1000: 0}
    for step, rate in expected.items():
        assert schedule(jnp.int32(step)) == pytest.approx(rate)
    # Without rates of their own, one over all of them.
    phases = tuple(config.PhaseConfig(steps=phase.steps) for phase in phases)
    one = optimizer.schedule_of_phases(c, phases)
    whole = optimizer.make_schedule(c, 150)
    for step in (0, 29, 30, 100, 149):
        assert one(step) == whole(step)


def test_decay_goes_by_name():
    decayed = {
        path for path, yes in flat(optimizer.is_decayed(parameters())).items() if yes
    }
    assert decayed == {
        "encoder/embeddings/token_embedding",
        "encoder/layers/output/kernel",
    }
