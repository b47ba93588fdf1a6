"""BERT: initial values, invariances and losses."""

import dataclasses
import functools
import re

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import (
    TINY,
    assert_close,
    loss_and_gradient,
    masked_lm_params,
    random_batch,
    relative_distance,
    sums_of,
)

from bert_jax import config
from bert_jax.model import heads, plain_attention, randomness
from bert_jax.model.block import Block
from bert_jax.model.heads import make_encoder
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import masked_lm, metric_sums

pytestmark = pytest.mark.usefixtures("checked_shapes")


def test_initial_values_and_loss():
    encoder = config.EncoderConfig(
        hidden_size=128, num_layers=2, num_heads=2, intermediate_size=512,
        dtype="float32",
    )  # fmt: skip
    objective = masked_lm.MaskedLm(encoder)
    params = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
    for path, value in flax.traverse_util.flatten_dict(params, sep="/").items():
        if path.endswith("bias"):
            assert (value == 0).all()
        elif path.endswith("scale"):
            assert (value == 1).all()
        elif value.size > 1000:
            # A normal of 0.02 cut off at 0.04 has a standard deviation of 0.0176.
            assert np.abs(value).max() <= 0.04
            assert abs(value.std() - 0.0176) < 0.001
    layers = params["encoder"]["layers"]["intermediate"]["kernel"]
    assert not np.array_equal(layers[0], layers[1])
    sums = sums_of(objective, params, random_batch(encoder, size=16, length=64))
    loss = metric_sums.report(objective.loss_weights, sums)["loss"]
    assert abs(loss - 11.02) < 0.2


def test_blocks_are_traced_for_their_initial_values_once(monkeypatch):
    """Flax asks for the shapes of initial values whenever the encoder is applied."""
    calls = []

    def call(block, *args, **kwargs):
        calls.append(block.scope.is_mutable_collection("params"))
        return original(block, *args, **kwargs)

    original = Block.__call__
    monkeypatch.setattr(Block, "__call__", call)
    # No other test initialises this encoder.
    encoder = make_encoder(dataclasses.replace(TINY, intermediate_size=40))
    ids = jnp.ones((2, 8), jnp.int32)
    inputs = Inputs(ids, ids > 0, ids)
    variables = nn.unbox(encoder.init(jax.random.key(0), inputs))
    assert calls == [True]
    for _ in range(2):
        encoder.apply(variables, inputs)
    assert calls == [True, False, False]


# ---- one result, however it is computed


def test_bfloat16_is_close_to_float32():
    half = dataclasses.replace(TINY, dtype="bfloat16")
    ((loss, _), grads), ((half_loss, _), half_grads) = (
        loss_and_gradient(
            masked_lm.MaskedLm(encoder), masked_lm_params(TINY), random_batch()
        )
        for encoder in (TINY, half)
    )
    assert abs(half_loss - loss) < 0.01 * loss
    assert relative_distance(half_grads, grads) < 0.03
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(half_grads))


# ---- inputs and outputs of the encoder


@functools.cache
def encoder_of(config, **request):
    model = make_encoder(config)

    @jax.jit
    def encode(params, inputs):
        encoded = model.apply({"params": params["encoder"]}, inputs, **request)
        return encoded.hidden, encoded.hidden_states, encoded.attention

    return encode


def test_hidden_states_and_attention_on_request():
    params, inputs = masked_lm_params(TINY), Inputs.of(random_batch())
    plain, *nothing = encoder_of(TINY)(params, inputs)
    assert nothing == [None, None]
    request = {"return_hidden_states": True, "return_attention": True}
    hidden, states, attention = encoder_of(TINY, **request)(params, inputs)
    assert np.array_equal(hidden, plain)
    assert np.array_equal(states[-1], plain)
    assert states.shape == (TINY.num_layers + 1, *plain.shape)
    assert attention.shape == (3, 8, 4, 24, 24)
    hidden_keys = ~np.asarray(inputs.attention_mask)[None, :, None, None, :]
    assert np.where(hidden_keys, attention, 0).max() == 0
    np.testing.assert_allclose(attention.sum(-1), 1, rtol=1e-5)


def test_a_causal_encoder_does_not_look_ahead():
    config = dataclasses.replace(TINY, causal=True)
    params, inputs = masked_lm_params(TINY), Inputs.of(random_batch())
    encode = encoder_of(config, return_attention=True)
    hidden, _, attention = encode(params, inputs)
    assert np.triu(attention, 1).max() == 0
    changed = inputs._replace(input_ids=inputs.input_ids.at[:, 9:].set(7))
    other, _, _ = encode(params, changed)
    assert np.array_equal(other[:, :9], hidden[:, :9])
    assert not np.array_equal(other[:, 9:], hidden[:, 9:])
    # The last token alone has seen all others, so the pooler takes its vector.
    model = make_encoder(config)

    def pool(module, inputs):
        positions = module.pooled_positions(inputs)
        return module.pooler(module(inputs, read_at=positions).hidden[:, 0])

    apply = jax.jit(functools.partial(model.apply, method=pool))
    pooled = apply({"params": params["encoder"]}, inputs)
    last = np.asarray(inputs.attention_mask).sum(1) - 1
    pooler = params["encoder"]["pooler"]
    expected = jnp.tanh(hidden[np.arange(8), last] @ pooler["kernel"] + pooler["bias"])
    assert_close(pooled, expected, 1e-5)


@pytest.mark.parametrize(
    "changes, count",
    [
        ({}, 1),
        ({"causal": True, "remat": "attention"}, 4),
        ({"positions": "disentangled", "remat": "attention"}, 4),
        ({"positions": "relative"}, 4),
    ],
    ids=str,
)
def test_read_at_gives_the_states_of_the_full_row(changes, count):
    """With dropout, and documents where rows may be packed: values, and gradients."""
    # Layers in a loop compute all positions.
    config = dataclasses.replace(TINY, num_layers=2, scan_layers=False, **changes)
    params, inputs = masked_lm_params(config)["encoder"], Inputs.of(random_batch())
    rows, length = inputs.input_ids.shape
    if config.positions != "relative":
        documents = jnp.broadcast_to(jnp.arange(length) // 5, (rows, length))
        inputs = inputs._replace(documents=documents)
    rng = np.random.default_rng(0)
    positions = jnp.asarray(rng.integers(0, length, (rows, count)), jnp.int32)
    keys = randomness.row_keys(3, "dropout", jnp.int32(0), jnp.arange(rows))
    weights = jnp.float32(rng.normal(size=(rows, count, config.hidden_size)))

    def gathered(params, asked):
        encoded = make_encoder(config).apply(
            {"params": params}, inputs, dropout_keys=keys, read_at=asked
        )
        hidden = encoded.hidden
        if asked is None:
            hidden = jnp.take_along_axis(hidden, positions[..., None], axis=1)
        return jnp.sum(hidden * weights), hidden

    of = jax.jit(jax.value_and_grad(gathered, has_aux=True))
    (_, some), some_grads = of(params, positions)
    (_, whole), whole_grads = of(params, None)
    assert some.shape == (rows, count, config.hidden_size)
    assert_close(some, whole, 1e-5)
    assert relative_distance(some_grads, whole_grads) < 1e-6


def test_no_product_of_the_plain_attention_sums_over_one_query():
    """XLA would fuse it with dropout; see `plain_attention`."""
    query, keys = jnp.ones((2, 2, 1, 4)), jnp.ones((2, 2, 24, 4))

    def total(query, key, value):
        is_seen, dropout_keys = jnp.ones((2, 1, 1, 24), bool), jnp.ones(2, jnp.uint32)
        return plain_attention.attend(
            query, key, value, is_seen, dropout_keys, 0.1
        ).sum()

    text = jax.jit(jax.grad(total, (0, 1, 2))).lower(query, keys, keys).as_text()
    product = r"contracting_dims = \[(\d)\] x .*\(tensor<(.+?)xf32>,"
    found = re.findall(product, text)
    assert len(found) == text.count("stablehlo.dot_general") >= 5
    assert all(shape.split("x")[int(dim)] != "1" for dim, shape in found)


def test_read_at_excludes_all_states():
    params, inputs = masked_lm_params(TINY)["encoder"], Inputs.of(random_batch())
    read_at = jnp.zeros((8, 1), jnp.int32)
    with pytest.raises(ValueError, match="need read_at=None"):
        make_encoder(TINY).apply(
            {"params": params}, inputs, read_at=read_at, return_attention=True
        )


def test_logits_are_float32_and_not_rounded_to_less():
    config = dataclasses.replace(TINY, dtype="bfloat16")
    batch = random_batch(size=16)
    logits = jax.jit(heads.PretrainingModel(config).apply)(
        {"params": masked_lm_params(TINY)}, Inputs.of(batch), batch["mlm_positions"]
    )
    for values in (logits.mlm.compute()[..., :101], logits.sentence):
        assert values.dtype == jnp.float32
        rounded = values.astype(jnp.bfloat16).astype(jnp.float32)
        assert np.mean(rounded == values) < 0.1


def test_a_mean_of_nothing_is_0():
    assert metric_sums.ratio(metric_sums.MetricSum(jnp.zeros(()), jnp.zeros(()))) == 0.0
