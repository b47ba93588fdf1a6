"""Optimizers and schedules against restatements in NumPy.

AdamW as in google-research/bert, optimization.py; LAMB as in You et al. 2019;
StableAdamW as in Wortsman et al. 2023, algorithm 2; Muon by singular values.
"""

import dataclasses
import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import TINY

from bert_jax import config
from bert_jax.model import parameters as tree_by_path
from bert_jax.objectives import masked_lm, permutation_lm, replaced_tokens
from bert_jax.training import muon, optimizer

ADAM = config.OptimizerConfig(learning_rate=1e-2, warmup_fraction=0.2)
CORRECTED = {"bias_correction": True, "schedule": "linear"}
STEPS = 20


def parameters(seed=0):
    """Return a float64 tree with the names that matter, stacked layers among them."""
    rng = np.random.default_rng(seed)
    return {
        "encoder": {
            "embeddings": {
                "token_embedding": rng.normal(size=(7, 4)),
                "layer_norm": {"scale": rng.normal(size=4), "bias": rng.normal(size=4)},
            },
            "layers": {
                "attention": {
                    "query": {"kernel": rng.normal(size=(3, 4, 2, 3))},
                    "output": {"kernel": rng.normal(size=(3, 2, 3, 4))},
                },
                "attention_norm": {"scale": rng.normal(size=(3, 4))},
                "output": {
                    "kernel": rng.normal(size=(3, 4, 5)) * [[[1]], [[10]], [[100]]],
                    "bias": rng.normal(size=(3, 5)),
                },
                "output_layer_norm": {"scale": rng.normal(size=(3, 4))},
            },
            "final_norm": {"scale": rng.normal(size=4)},
            "embedding_projection": {"kernel": rng.normal(size=(4, 4))},
            "distance_embedding": rng.normal(size=(6, 4)),
            "distance_norm": {"scale": rng.normal(size=4)},
        },
        "mlm_head": {"output_bias": rng.normal(size=7)},
    }


def as_float32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def rate(c, step):
    """Return the original's rate: polynomial decay from step 0, replaced by warmup."""
    warmup = round(c.warmup_fraction * STEPS)
    if step < warmup:
        return c.learning_rate * step / warmup
    if c.schedule == "original":
        return c.learning_rate * (1 - step / STEPS)
    return c.learning_rate * (STEPS - step) / (STEPS - warmup)


# Rows and columns of one layer, by the path of its parameter.
MATRICES = {
    "encoder/layers/attention/query/kernel": (4, 6),
    "encoder/layers/attention/output/kernel": (6, 4),
    "encoder/layers/output/kernel": (4, 5),
}


def of_each_layer(path, *arrays):
    """Yield corresponding layers of stacked arrays, or the arrays themselves."""
    return zip(*arrays, strict=True) if "layers/" in path else [arrays]


def stack(path, values):
    return np.stack(values) if "layers/" in path else values[0]


def orthogonalised(matrix):
    """Apply four Newton-Schulz steps as a polynomial of the singular values."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s = s / (s**4).sum() ** 0.25
    for _ in range(4):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ v


def muon_update(path, step, gradient, m):
    """Return the update of stacked matrices, and their momentum."""
    m = 0.95 * m + 0.05 * gradient
    # Nesterov: the mean after one more such gradient, both corrected for their bias.
    ahead = 0.95 * m / (1 - 0.95 ** (step + 2))
    ahead = ahead + 0.05 * gradient / (1 - 0.95 ** (step + 1))
    shape = MATRICES[path]
    matrices = [orthogonalised(layer.reshape(shape)) for layer in ahead]
    return 0.2 * np.sqrt(max(shape)) * np.reshape(matrices, gradient.shape), m


def reference_update(c, step, params, grads, m, v):
    """Update flat dicts of float64 arrays in place."""
    norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
    scale = min(1.0, c.clip_norm / norm) if c.clip_norm else 1.0
    for name, p in params.items():
        g = grads[name] * scale
        decay = 0.0 if re.search("norm|bias", name) else c.weight_decay
        if c.name == "muon" and name in MATRICES:
            update, m[name] = muon_update(name, step, g, m[name])
            params[name] = p - rate(c, step) * (update + decay * p)
            continue
        m[name] = c.beta1 * m[name] + (1 - c.beta1) * g
        v[name] = c.beta2 * v[name] + (1 - c.beta2) * g**2
        m_hat, v_hat = m[name], v[name]
        if c.bias_correction:
            m_hat = m_hat / (1 - c.beta1 ** (step + 1))
            v_hat = v_hat / (1 - c.beta2 ** (step + 1))
        update = m_hat / (np.sqrt(v_hat) + c.epsilon) + decay * p
        if c.name == "stable_adamw":
            ratios = [
                np.sqrt(np.mean(g**2 / np.maximum(v, c.epsilon**2)))
                for g, v in of_each_layer(name, g, v_hat)
            ]
            layers = zip(of_each_layer(name, update), ratios, strict=True)
            update = stack(name, [u / max(1, ratio) for (u,), ratio in layers])
        if c.name == "lamb" and decay:
            layers = of_each_layer(name, p, update)
            update = stack(
                name, [u * np.linalg.norm(p) / np.linalg.norm(u) for p, u in layers]
            )
        params[name] = p - rate(c, step) * update


# Newton-Schulz amplifies the rounding of small singular values, by up to 3.4 ** 4.
@pytest.mark.parametrize(
    ("name", "changes", "size", "tolerance"),
    [
        ("adamw", {}, 1.0, 1e-6),
        ("adamw", CORRECTED | {"clip_norm": 0.0}, 1.0, 1e-6),
        ("stable_adamw", CORRECTED, 1.0, 1e-6),
        ("lamb", {}, 1.0, 1e-6),
        ("muon", CORRECTED, 1.0, 1e-4),
        ("muon", CORRECTED, 1e-6, 1e-4),
    ],
)
def test_updates_are_those_of_the_restatement(name, changes, size, tolerance):
    c = dataclasses.replace(ADAM, name=name, **changes)
    expected = tree_by_path.flatten(parameters())
    m = {k: np.zeros_like(p) for k, p in expected.items()}
    v = {k: np.zeros_like(p) for k, p in expected.items()}
    tx = optimizer.make_optimizer(c, optimizer.make_schedule(c, STEPS))
    params = as_float32(parameters())
    state = tx.init(params)
    update = jax.jit(tx.update)
    for step in range(STEPS):
        # Now below the clipping norm, now above it.
        scale = size * 0.1 ** (step % 4)
        grads = jax.tree.map(lambda g, s=scale: g * s, parameters(step + 1))
        reference_update(c, step, expected, tree_by_path.flatten(grads), m, v)
        updates, state = update(as_float32(grads), state, params)
        params = jax.tree.map(jnp.add, params, updates)
    errors = {
        path: np.abs(p - expected[path]).max() / np.abs(expected[path]).max()
        for path, p in tree_by_path.flatten(params).items()
    }
    assert max(errors.values()) < tolerance, errors


def test_lower_layers_learn_more_slowly():
    """Three layers, with depths 3, 2, 1; embeddings 4; heads 0."""
    updates = []
    for layer_decay in (1.0, 0.5):
        c = dataclasses.replace(ADAM, layer_decay=layer_decay)
        made = optimizer.make_optimizer(c, lambda step: 1.0)
        params, gradient = (
            as_float32(tree | {"embedding_differences": tree["encoder"]["embeddings"]})
            for tree in (parameters(), parameters(1))
        )
        update, _ = jax.jit(made.update)(gradient, made.init(params), params)
        updates.append(tree_by_path.flatten(update))
    whole, scaled = updates
    for path in whole:
        factor = np.array(1.0)
        if re.search("embedding|distance_", path):
            factor = np.array(0.5**4)
        if "layers" in path:
            factor = np.array([0.5**3, 0.5**2, 0.5])
        factor = factor.reshape(*factor.shape, *[1] * (whole[path].ndim - factor.ndim))
        np.testing.assert_allclose(scaled[path], whole[path] * factor, rtol=1e-6)


@pytest.mark.parametrize("phases", [(1000,), (600, 400)])
def test_cosine_and_wsd_span_all_phases(phases):
    phases = [config.PhaseConfig(steps=steps) for steps in phases]
    for steps in (0, 1, 99, 100, 101, 350, 599, 600, 799, 800, 801, 950, 999):
        wsd = cosine = steps / 100
        if steps >= 100:
            cosine = 0.5 + 0.5 * np.cos(np.pi * (steps - 100) / 900)
            wsd = 1 - np.sqrt(max(steps - 800, 0) / 200)
        for name, share in (("cosine", cosine), ("wsd", wsd)):
            c = dataclasses.replace(ADAM, schedule=name, warmup_fraction=0.1)
            if name == "wsd":
                c = dataclasses.replace(c, decay_fraction=0.2)
            schedule = optimizer.schedule_of_phases(c, phases)
            got = schedule(jnp.int32(steps))
            assert got == pytest.approx(c.learning_rate * share, abs=1e-8), name
            assert schedule(1000) == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("name", ["cosine", "original", "wsd"])
def test_rates_near_the_end_have_all_their_digits(name):
    """In float32, 1 - cos is 0 or 20 % off in the last 100 of a million steps."""
    total = 1_000_000
    c = dataclasses.replace(ADAM, schedule=name, warmup_fraction=0.0)
    if name == "wsd":
        c = dataclasses.replace(c, decay_fraction=1.0)
    schedule = optimizer.make_schedule(c, total)
    for left in (1, 10, 70, 100, 300, 1000):
        share = left / total
        if name == "cosine":
            share = np.sin(np.pi / 2 * share) ** 2
        if name == "wsd":
            share = 1 - np.sqrt(1 - share)
        expected = c.learning_rate * share
        assert schedule(total - left) == pytest.approx(expected, rel=1e-5, abs=0)


def test_a_decay_that_follows_the_warmup_begins_at_the_peak():
    """Halves of 11 steps are both rounded up."""
    c = dataclasses.replace(ADAM, schedule="wsd", learning_rate=1.0)
    c = dataclasses.replace(c, warmup_fraction=0.5, decay_fraction=0.5)
    schedule = optimizer.make_schedule(c, 11)
    expected = [i / 6 for i in range(6)] + [1 - np.sqrt(i / 5) for i in range(6)]
    np.testing.assert_allclose([schedule(i) for i in range(12)], expected, atol=1e-6)


def test_stable_adamw_takes_an_epsilon_whose_square_is_0():
    """A gradient of 0 is 0 / epsilon**2."""
    c = dataclasses.replace(ADAM, name="stable_adamw", epsilon=1e-30)
    transform = optimizer.make_optimizer(c, lambda step: 1e-3)
    params = {"a": {"kernel": jnp.ones((2, 3))}}
    gradient = {"a": {"kernel": jnp.array([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])}}
    updates, _ = transform.update(gradient, transform.init(params), params)
    assert np.isfinite(updates["a"]["kernel"]).all()


def test_stable_adamw_does_not_clip_gradients_below_epsilon():
    """They grow a hundredfold, and still change the parameters by little."""
    params = {"a": {"kernel": jnp.ones((2, 3))}}
    ends = []
    for name in ("adamw", "stable_adamw"):
        c = dataclasses.replace(ADAM, name=name, epsilon=1e-6)
        transform = optimizer.make_optimizer(c, lambda step: 1e-3)
        state = transform.init(params)
        for size in (1e-9, 1e-7):
            gradient = {"a": {"kernel": jnp.full((2, 3), size)}}
            updates, state = transform.update(gradient, state, params)
        ends.append(updates["a"]["kernel"])
    np.testing.assert_array_equal(*ends)


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
    decaying = [dataclasses.replace(phase, decay_fraction=0.1) for phase in phases]
    wsd = optimizer.schedule_of_phases(dataclasses.replace(c, schedule="wsd"), decaying)
    expected = {10: 3e-3, 20: 6e-3, 90: 6e-3, 95: 6e-3 * (1 - 0.5**0.5), 100: 0}
    expected |= {105: 4e-3, 145: 4e-3, 149: 4e-3 * (1 - 0.8**0.5)}
    for step, rate in expected.items():
        assert wsd(jnp.int32(step)) == pytest.approx(rate, rel=1e-5)
    # A phase that decays from its first step, after one without a rate (ModernBERT).
    phases = [
        config.PhaseConfig(steps=100, learning_rate=8e-4, warmup_fraction=0.1),
        config.PhaseConfig(steps=300),
        config.PhaseConfig(steps=100, learning_rate=3e-4, decay_fraction=1),
    ]
    wsd = optimizer.schedule_of_phases(dataclasses.replace(c, schedule="wsd"), phases)
    expected = {20: 4e-4, 40: 8e-4, 399: 8e-4, 400: 3e-4, 425: 1.5e-4, 500: 0}
    for step, rate in expected.items():
        assert wsd(jnp.int32(step)) == pytest.approx(rate, abs=1e-9), step


def muon_shapes(objective):
    """Return rows and columns of the matrices that Muon orthogonalises, by path."""
    params = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
    matrices, _ = tree_by_path.split(params, muon.is_matrix)
    shapes = {}
    for path, x in tree_by_path.flatten(matrices).items():
        rows, columns = muon.dimension_numbers(path, x)
        assert (*rows, *columns) == tuple(range(1, x.ndim))  # 0: layers
        shapes[path] = tuple(math.prod(x.shape[i] for i in d) for d in (rows, columns))
    return shapes


def matrices_of_layers(path, hidden, intermediate, attention=()):
    attention = ("query/", "key/", "value/", "output/", *attention)
    return {
        **{f"{path}/attention/{x}kernel": (hidden, hidden) for x in attention},
        f"{path}/intermediate/kernel": (hidden, intermediate),
        f"{path}/output/kernel": (intermediate, hidden),
    }


def test_muon_takes_each_matrix_of_the_layers_and_nothing_else():
    expected = matrices_of_layers("encoder/layers", 32, 48)
    assert muon_shapes(masked_lm.MaskedLm(TINY)) == expected
    electra = replaced_tokens.ReplacedTokens(
        TINY, config.ReplacedTokensConfig(generator_size=0.5)
    )
    generator = matrices_of_layers("generator/layers", 16, 24)
    assert muon_shapes(electra) == expected | generator
    xlnet = dataclasses.replace(TINY, positions="relative")
    expected = matrices_of_layers("encoder/layers", 32, 48, ["distance_"])
    assert muon_shapes(permutation_lm.PermutationLm(xlnet)) == expected
