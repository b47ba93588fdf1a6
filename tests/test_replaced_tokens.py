"""ELECTRA: generator and discriminator."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import TINY, assert_trees_close, params_of, random_batch

from bert_jax import config
from bert_jax.model import randomness
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import metric_sums, replaced_tokens


def test_generators_have_the_shapes_of_the_authors():
    """google-research/electra: a head for 64 columns, four times as many inside."""
    discriminator = config.EncoderConfig(
        embedding_size=128, hidden_size=256, num_heads=4, intermediate_size=1024
    )
    small = config.ReplacedTokensConfig().generator(discriminator)
    assert (small.hidden_size, small.num_heads, small.intermediate_size) == (64, 1, 256)
    assert (small.num_layers, small.embedding_size) == (12, 128)
    base = config.EncoderConfig()
    of_base = config.ReplacedTokensConfig(generator_size=1 / 3).generator(base)
    assert (of_base.hidden_size, of_base.num_heads) == (256, 4)
    assert of_base.embedding_size == 768


def test_samples_have_the_probabilities_of_a_softmax():
    """Counts of 40,000 draws, to 4.5 sigma; other keys draw others."""
    logits = np.array([[2.0, 0.5, -1.0, -1e9, 1.0], [0.0, 0.0, 3.0, 0.0, -2.0]])
    draws = 40_000
    keys = randomness.row_keys(3, "sampling", jnp.int32(7), jnp.arange(draws))
    batch = jnp.broadcast_to(jnp.float32(logits), (draws, *logits.shape))
    got = np.asarray(jax.jit(replaced_tokens.sample)(batch, keys))
    assert got.shape == (draws, 2)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for slot in range(2):
        counts = np.bincount(got[:, slot], minlength=5)
        sigma = np.sqrt(draws * p[slot] * (1 - p[slot]))
        assert (np.abs(counts - draws * p[slot]) <= 4.5 * sigma + 1e-6).all()
    # The two slots of a row are drawn apart.
    assert abs(np.corrcoef(got[:, 0] == 0, got[:, 1] == 2)[0, 1]) < 4.5 / draws**0.5


def test_noise_is_finite_and_rises_with_the_word():
    """At both ends, where uniform numbers must not be rounded to 0 or 1."""
    words = np.array([0, 511, 512, 2**31, 2**32 - 513, 2**32 - 512, 2**32 - 1])
    noise = np.asarray(replaced_tokens.gumbel(jnp.uint32(words)), np.float64)
    u = (np.array([0, 0, 1, 2**22, 2**23 - 2, 2**23 - 1, 2**23 - 1]) + 0.5) / 2**23
    np.testing.assert_allclose(noise, -np.log(-np.log(u)), rtol=1e-5)


@pytest.mark.slow
def test_disentangled_embeddings_split_the_gradient_of_tied_ones():
    """Losses are the same at first; the differences take the discriminator's part."""
    encoder = dataclasses.replace(TINY, num_layers=1)
    found, batch = [], random_batch()
    keys = randomness.row_keys(1, "sampling", jnp.int32(0), jnp.arange(8))
    for sharing in ("tied", "gradient_disentangled"):
        size = {"generator_size": 0.5}
        asked = config.ReplacedTokensConfig(**size, embedding_sharing=sharing)
        objective = replaced_tokens.ReplacedTokens(encoder, asked)
        params = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))

        @jax.jit
        @jax.value_and_grad
        def weighted(params, weights, objective=objective):
            got = objective.sums(params, batch, dropout_keys=None, sampling_keys=keys)
            return sum(got[name].sum * w for name, w in weights.items())

        for one in objective.loss_weights:
            weights = {name: float(name == one) for name in objective.loss_weights}
            found.append(weighted(params, weights))
    losses, grads = zip(*found, strict=True)
    tied_grads, split_grads = grads[:2], grads[2:]
    assert_trees_close(losses[2:], losses[:2], 1e-6)
    of_generator, of_discriminator = split_grads
    for got, expected in (
        (of_generator["encoder"], tied_grads[0]["encoder"]),
        (
            of_discriminator["embedding_differences"],
            tied_grads[1]["encoder"]["embeddings"],
        ),
        (of_discriminator["encoder"]["layers"], tied_grads[1]["encoder"]["layers"]),
    ):
        assert_trees_close(got, expected, 1e-5)
    for still in (
        of_generator["embedding_differences"],
        of_discriminator["encoder"]["embeddings"],
    ):
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(still))


def test_metrics_of_replaced_tokens_by_hand():
    """Losses, shares and accuracies from the logits of both halves, in NumPy."""
    objective = replaced_tokens.ReplacedTokens(
        TINY, config.ReplacedTokensConfig(generator_size=0.5)
    )
    params = params_of(objective.init)
    batch = random_batch()
    rng = np.random.default_rng(0)
    distinct = [rng.permutation(np.arange(1, 10))[:4] for _ in range(8)]
    batch["mlm_positions"] = jnp.sort(jnp.array(distinct, jnp.int32), axis=1)
    sampling_keys = randomness.row_keys(1, "sampling", jnp.int32(0), jnp.arange(8))
    sums_of_batch = jax.jit(functools.partial(objective.sums, dropout_keys=None))
    got = sums_of_batch(params, batch, sampling_keys=sampling_keys)
    model, variables, inputs = objective.model, {"params": params}, Inputs.of(batch)
    apply = jax.jit(model.apply, static_argnames="method")
    logits = apply(variables, inputs, batch["mlm_positions"], method="generate")
    samples = np.asarray(replaced_tokens.sample(logits, sampling_keys))
    ids = np.array(batch["input_ids"])
    is_replaced = np.zeros(ids.shape, bool)
    labels, weights = np.asarray(batch["mlm_labels"]), np.asarray(batch["mlm_weights"])
    for row, slot in zip(*np.nonzero(weights), strict=True):
        at = batch["mlm_positions"][row, slot]
        ids[row, at] = samples[row, slot]
        is_replaced[row, at] = samples[row, slot] != labels[row, slot]
    inputs = inputs._replace(input_ids=jnp.asarray(ids))
    found = apply(variables, inputs, method="discriminate")
    real = np.asarray(batch["attention_mask"]) & (weights.max(1, keepdims=True) > 0)
    probability = 1 / (1 + np.exp(-np.asarray(found, np.float64)))
    loss = -np.log(np.where(is_replaced, probability, 1 - probability))[real].mean()
    says_so, truth = (probability > 0.5)[real], is_replaced[real]
    expected = {
        "disc_loss": loss,
        "disc_accuracy": np.mean(says_so == truth),
        "disc_precision": truth[says_so].mean(),
        "disc_recall": says_so[truth].mean(),
        "replaced_fraction": truth.mean(),
    }
    for name, value in expected.items():
        assert metric_sums.ratio(got[name]) == pytest.approx(value, rel=1e-5), name
    assert 0 < expected["disc_recall"] < 1
