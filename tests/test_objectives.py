"""Properties that hold for every objective."""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core
from toy import (
    TINY,
    assert_trees_close,
    batch_of,
    loss_and_gradient,
    params_of,
    sums_of,
)

from bert_jax import config as config_lib
from bert_jax import pretraining
from bert_jax.data import batches as batches_lib
from bert_jax.model import parameters, randomness
from bert_jax.objectives import (
    causal_lm,
    choice,
    classification,
    distillation,
    embedding,
    masked_lm,
    permutation_lm,
    regression,
    replaced_tokens,
    spans,
    tagging,
)

pytestmark = pytest.mark.usefixtures("checked_shapes")

ROWS = 4
LEFT_TO_RIGHT = dataclasses.replace(TINY, causal=True)
XLNET = dataclasses.replace(TINY, positions="relative")


OBJECTIVES = {
    "next sentence": masked_lm.MaskedLm(TINY),
    "distillation": distillation.Distillation(
        TINY, config_lib.DistillationConfig(teacher_encoder=TINY, hidden_weight=0.5)
    ),
    "causal, packed": causal_lm.CausalLm(
        LEFT_TO_RIGHT, config_lib.CausalLmConfig(examples_per_row=3)
    ),
    "classification": classification.Classification(
        TINY, 3, class_weights=(0.5, 2.0, 1.5), label_smoothing=0.2
    ),
    "regression": regression.Regression(TINY),
    "tagging": tagging.Tagging(TINY, 3),
    "choice": choice.Choice(TINY, 3),
    "spans": spans.Spans(XLNET),
    "embedding": embedding.Embedding(TINY, 3, "mean", 0.05),
    "replaced tokens": replaced_tokens.ReplacedTokens(
        TINY,
        config_lib.ReplacedTokensConfig(
            generator_size=0.5, embedding_sharing="gradient_disentangled"
        ),
    ),
    "permutations": permutation_lm.PermutationLm(XLNET),
}
each = pytest.mark.parametrize("name", OBJECTIVES)


@functools.cache
def random_params(name):
    objective = OBJECTIVES[name]
    params = params_of(objective.init)
    if isinstance(objective, distillation.Distillation):
        params |= params_of(objective.init_constants, seed=1, scale=0.5)
    return params


def keys(purpose, rows=range(2 * ROWS)):
    return randomness.row_keys(1, purpose, jnp.int32(3), jnp.array(rows))


def measure(name, batch, *, dropout=range(ROWS), sampling=range(ROWS)):
    """Return the sums of `ROWS` rows with the keys of some rows."""
    both_keys = keys("dropout", dropout), keys("sampling", sampling)
    return sums_of(OBJECTIVES[name], random_params(name), batch, *both_keys)


def small_batch(name, seed=0):
    return batch_of(OBJECTIVES[name], rows=ROWS, seed=seed)


@functools.cache
def with_dropout(name):
    """Return the gradient of the loss of a batch with dropout, and its sums."""
    objective, batch = OBJECTIVES[name], batch_of(OBJECTIVES[name])
    both_keys = keys("dropout"), keys("sampling")
    (_, sums), gradient = loss_and_gradient(
        objective, random_params(name), batch, *both_keys
    )
    return gradient, sums


@each
def test_metrics_have_the_declared_names(name):
    objective, batch = OBJECTIVES[name], small_batch(name)
    got = measure(name, batch)
    assert set(got) == set(objective.metrics)
    assert len(objective.metrics) == len(set(objective.metrics))
    assert objective.loss_weights.keys() <= got.keys()
    assert "padding_fraction" in got
    counts = objective.counts(batch)
    assert counts.keys() == objective.loss_weights.keys()
    for loss in objective.loss_weights:
        assert counts[loss] == got[loss].count > 0
    assert all(weight > 0 for weight in objective.loss_weights.values())
    for metric in got.values():
        assert metric.sum.dtype == metric.count.dtype == jnp.float32
        assert metric.sum.shape == metric.count.shape == ()


@each
def test_parameters_have_names_of_dimensions(name):
    def is_box(x):
        return isinstance(x, nn.LogicallyPartitioned)

    boxes = jax.eval_shape(OBJECTIVES[name].init, jax.random.key(0))
    assert all(map(is_box, jax.tree.leaves(boxes, is_leaf=is_box)))


def test_initial_values_of_heads():
    """`test_model.py` compares those of an encoder."""

    @jax.jit  # all in one program, which compiles faster
    def initial(key):
        made = {name: nn.unbox(o.init(key)) for name, o in OBJECTIVES.items()}
        for params in made.values():
            del params["encoder"]
        return made

    for path, value in parameters.flatten(initial(jax.random.key(0))).items():
        if path.endswith("bias") or "/embedding_differences/" in path:
            assert (value == 0).all(), path
        elif path.endswith("scale"):
            assert (value == 1).all(), path
        else:
            assert 0.01 < value.std() < 0.025, path


@each
def test_every_parameter_has_a_finite_nonzero_gradient(name):
    gradient, _ = with_dropout(name)
    for path, value in parameters.flatten(gradient).items():
        assert np.isfinite(value).all(), path
        assert np.abs(value).max() > 0, path


@each
def test_metrics_of_micro_batches_add_up(name):
    if name == "embedding":
        pytest.skip("each row is compared with all others of its batch")
    batch = batch_of(OBJECTIVES[name])
    _, whole = with_dropout(name)
    pieces = [
        measure(
            name,
            jax.tree.map(lambda x, rows=rows: x[rows.start : rows.stop], batch),
            dropout=rows,
            sampling=rows,
        )
        for rows in (range(ROWS), range(ROWS, 2 * ROWS))
    ]
    assert_trees_close(jax.tree.map(jnp.add, *pieces), whole, 1e-5)


@each
def test_rows_of_weight_0_do_not_count(name):
    objective, batch = OBJECTIVES[name], small_batch(name)
    weights = [n for n in batch if n.endswith("weights")]
    filled = batch | {n: batch[n].at[:2].set(1).at[2:].set(0) for n in weights}
    got = measure(name, filled)
    other = small_batch(name, seed=1)
    changed = jax.tree.map(lambda a, b: a.at[2:].set(b[2:]), filled, other)
    changed |= {n: filled[n] for n in weights}
    again = measure(name, changed)
    of_rows = {"padding_fraction", "examples_per_row"}  # independent of weights
    for metric in set(objective.metrics) - of_rows:
        assert_trees_close(again[metric], got[metric], 1e-5)


@each
def test_dropout_and_sampling_have_separate_keys(name):
    batch = small_batch(name)
    plain = measure(name, batch)
    assert jax.tree.all(jax.tree.map(np.array_equal, measure(name, batch), plain))
    loss, others = next(iter(OBJECTIVES[name].loss_weights)), range(8, 8 + ROWS)
    assert measure(name, batch, dropout=others)[loss].sum != plain[loss].sum
    resampled = measure(name, batch, sampling=others)
    changed = {metric for metric in plain if resampled[metric].sum != plain[metric].sum}
    assert bool(changed) == (name == "replaced tokens")


# Without segments and padding of the vocabulary, whose products do not count.
UNROLLED = dataclasses.replace(
    TINY, vocab_size=128, type_vocab_size=0, scan_layers=False
)


def pooled(make, **pooler):
    """Return an objective with three classes and another pooler."""
    pooler = config_lib.PoolerConfig(**pooler)
    return make(dataclasses.replace(UNROLLED, pooler=pooler), 3)


COUNTED = {
    "next sentence": masked_lm.MaskedLm(UNROLLED),
    "causal": causal_lm.CausalLm(dataclasses.replace(UNROLLED, causal=True)),
    "replaced tokens": replaced_tokens.ReplacedTokens(
        UNROLLED, config_lib.ReplacedTokensConfig(generator_size=0.5)
    ),
    "spans": spans.Spans(UNROLLED),
    "classification": classification.Classification(UNROLLED, 3),
    "mean": pooled(classification.Classification, pooling="mean", activation=""),
    "late mean": pooled(classification.Classification, pooling="late_mean"),
    "tagging": tagging.Tagging(UNROLLED, 3),
    "tagging, pooled": pooled(tagging.Tagging, per_token=True),
    "choice": choice.Choice(UNROLLED, 4),
}


def count_products(jaxpr):
    """Return the operations of all products in a traced program."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            factor, result = equation.invars[0].aval, equation.outvars[0].aval
            total += 2 * result.size * math.prod(factor.shape[i] for i in contracted)
        total += sum(map(count_products, core.jaxprs_in_params(equation.params)))
    return total


@pytest.mark.parametrize("name", COUNTED)
def test_flops_equal_those_of_the_products(name):
    """Backward passes have twice the operations of the traced forward pass."""
    objective = COUNTED[name]
    batch = batch_of(objective, rows=ROWS)
    params = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
    traced = jax.make_jaxpr(sums_of, static_argnums=0)(objective, params, batch)
    assert objective.sequence_flops(24) == 3 * count_products(traced.jaxpr) / ROWS


@pytest.mark.parametrize(
    ("size", "length", "expected"), [("base", 128, 69.9e9), ("large", 512, 1.020e12)]
)
def test_flops_of_bert_match_published_numbers(size, length, expected):
    encoder = config_lib.EncoderConfig()
    if size == "large":
        encoder = config_lib.EncoderConfig(
            num_layers=24, hidden_size=1024, num_heads=16, intermediate_size=4096
        )
    objective = masked_lm.MaskedLm(encoder)
    predictions = objective.config.masking.num_predictions(length)
    # Published numbers have the last layer at all positions.
    d = encoder.hidden_size
    left_out = length - predictions - 1
    saved = 3 * left_out * (2 * 2 * d * d + 2 * 2 * 4 * d * d + 2 * 2 * length * d)
    got = objective.sequence_flops(length)
    assert got + saved == pytest.approx(expected, rel=2e-3)


MASKED, CAUSAL = config_lib.MaskedLmConfig, config_lib.CausalLmConfig
PRETRAINING = {
    "next sentence, packed": MASKED(examples_per_row=3),
    "sentence order": MASKED(segments="sentence_order"),
    "one segment, packed": MASKED(segments="doc_sentences", examples_per_row=3),
    "causal": CAUSAL(segments="full_sentences"),
    "causal, packed": CAUSAL(examples_per_row=3),
    "replaced": config_lib.ReplacedTokensConfig(),
    "permuted": config_lib.PermutationLmConfig(segments="doc_sentences"),
}


@pytest.mark.parametrize("name", PRETRAINING)
def test_batches_have_the_declared_shapes(name, corpus):
    settings = PRETRAINING[name]
    config = config_lib.PretrainConfig(
        objective=settings,
        encoder=dataclasses.replace(
            TINY,
            causal=settings.causal,
            positions="relative" if "permuted" in name else "absolute",
        ),
        phases=(config_lib.PhaseConfig(length=32, batch_size=4),),
    )
    config_lib.check(config)
    batch = batches_lib.PretrainingBatches([corpus], config, 0).batch(0)
    objective = pretraining.OBJECTIVES[settings.kind](config.encoder, settings)
    promised = objective.batch_shapes(4, 32)
    assert {k: (v.shape, v.dtype) for k, v in batch.items()} == {
        k: (s.shape, s.dtype) for k, s in promised.items()
    }
