import dataclasses
import functools
import pathlib

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import (
    TINY,
    assert_close,
    assert_trees_close,
    init,
    random_batch,
    relative_distance,
)

from bert_jax import config
from bert_jax.interop import huggingface
from bert_jax.model import dropout, heads
from bert_jax.objectives import mlm_nsp, terms

FIXTURES = pathlib.Path(__file__).parent / "fixtures"


@functools.cache
def compiled_loss_and_grads(encoder):
    objective = mlm_nsp.MlmNsp(encoder)

    def loss(params, batch, keys):
        found = objective.terms(params, batch, keys)
        losses = [found[name].sum / found[name].count for name in objective.losses]
        return sum(losses), found

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def loss_and_grads(encoder, params, batch, keys=None):
    return compiled_loss_and_grads(encoder)(params, batch, keys)


# ---- against Hugging Face


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize(
    ("activation", "theirs"),
    [("gelu_erf", "gelu"), ("gelu_tanh", "gelu_pytorch_tanh")],
)
def test_agrees_with_hugging_face(activation, theirs, scan_layers):
    """Logits, both losses, and the gradient of every parameter."""
    stored = np.load(FIXTURES / "huggingface_bert.npz")
    encoder = dataclasses.replace(TINY, activation=activation, scan_layers=scan_layers)
    template = init(TINY)
    names = [name for name in stored if name.startswith("state/")]
    state = {name.removeprefix("state/"): stored[name] for name in names}
    params = huggingface.from_huggingface(state, template, encoder)
    params = jax.tree.map(jnp.asarray, params)
    batch = {name: jnp.asarray(stored[name]) for name in random_batch()}
    logits = heads.PretrainingModel(encoder).apply(
        {"params": params},
        batch["input_ids"],
        batch["segment_ids"],
        batch["attention_mask"],
        batch["mlm_positions"],
    )
    mlm_logits = logits.mlm[..., : encoder.vocab_size]
    assert_close(mlm_logits, stored[f"{theirs}/mlm_logits"], 1e-5)
    assert_close(logits.nsp, stored[f"{theirs}/nsp_logits"], 1e-5)
    (loss, found), grads = loss_and_grads(encoder, params, batch)
    assert loss == pytest.approx(stored[f"{theirs}/loss"].item(), rel=1e-5)
    for name in ("mlm_loss", "nsp_loss"):
        expected = stored[f"{theirs}/{name}"].item()
        assert terms.ratio(found[name]) == pytest.approx(expected, rel=1e-5)
    grads = huggingface.to_huggingface(grads, encoder)
    # The keys' bias moves all scores of a row alike: its gradient is only rounding.
    keys = {name for name in grads if name.endswith("attention.self.key.bias")}
    assert len(keys) == 3
    assert max(np.abs(grads[name]).max() for name in keys) < 1e-7
    for name in grads.keys() - keys:
        assert_close(grads[name], stored[f"{theirs}/grad/{name}"], 1e-5)
    assert {f"{theirs}/grad/{name}" for name in grads} == {
        name for name in stored if name.startswith(f"{theirs}/grad/")
    }


def test_hugging_face_names_round_trip():
    params = init(TINY)
    state = huggingface.to_huggingface(params, TINY)
    back = huggingface.from_huggingface(state, params, TINY)
    padding = TINY.padded_vocab_size - TINY.vocab_size
    assert padding == 27
    for path, value in flax.traverse_util.flatten_dict(back, sep="/").items():
        expected = flax.traverse_util.flatten_dict(params, sep="/")[path]
        if value.shape[0] == TINY.padded_vocab_size:
            value, expected = value[:-padding], expected[:-padding]
        assert np.array_equal(value, expected)


# ---- sizes


@pytest.mark.parametrize(
    ("hidden", "layers", "heads_", "count"),
    [
        (128, 2, 2, 4_433_468),
        (256, 4, 4, 11_267_900),
        (512, 4, 8, 29_058_876),
        (512, 8, 8, 41_668_412),
        (768, 12, 12, 110_106_428),
        (1024, 24, 16, 336_226_108),
    ],
)
def test_parameter_counts(hidden, layers, heads_, count):
    encoder = config.EncoderConfig(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads_,
        intermediate_size=4 * hidden,
        vocab_multiple=1,
    )
    shapes = jax.eval_shape(mlm_nsp.MlmNsp(encoder).init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count


def test_parameter_paths_are_those_on_record():
    """Checkpoints, converters and optimizer masks depend on them."""
    boxes = jax.eval_shape(mlm_nsp.MlmNsp(TINY).init, jax.random.key(0))
    flat = flax.traverse_util.flatten_dict(boxes, sep="/")
    lines = [
        f"{path} {box.value.dtype} "
        + " ".join(f"{n}={s}" for n, s in zip(box.names, box.value.shape, strict=True))
        for path, box in sorted(flat.items())
    ]
    assert "\n".join(lines) + "\n" == (FIXTURES / "parameters.txt").read_text()


def test_initial_values_and_loss():
    encoder = config.EncoderConfig(
        hidden_size=128, num_layers=2, num_heads=2, intermediate_size=512,
        dtype="float32",
    )  # fmt: skip
    params = nn.unbox(jax.jit(mlm_nsp.MlmNsp(encoder).init)(jax.random.key(0)))
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
    batch = random_batch(encoder, size=16, length=64, predictions=10)
    (loss, _), _ = loss_and_grads(encoder, params, batch)
    assert abs(loss - 11.02) < 0.2


# ---- one result, however it is computed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "change",
    [{"scan_layers": True}, {"remat": "layer"}, {"remat": "attention"},
     {"remat": "layer", "scan_layers": True}],
)  # fmt: skip
def test_loops_and_recomputation_change_nothing(change, dtype):
    encoder = dataclasses.replace(TINY, dtype=dtype)
    params, batch = init(TINY), random_batch()
    keys = dropout.example_keys(3, jnp.int32(5), jnp.arange(8))
    plain, grads = loss_and_grads(encoder, params, batch, keys)
    changed = dataclasses.replace(encoder, **change)
    other, other_grads = loss_and_grads(changed, params, batch, keys)
    tolerance = 1e-6 if dtype == "float32" else 0.02
    assert_trees_close(other, plain, tolerance)
    # The keys' bias moves all scores of a row alike: its gradient is only rounding.
    for tree in (grads, other_grads):
        del tree["encoder"]["layers"]["attention"]["key"]["bias"]
    assert_trees_close(other_grads, grads, tolerance)


def test_bfloat16_is_close_to_float32():
    params, batch = init(TINY), random_batch()
    (loss, _), grads = loss_and_grads(TINY, params, batch)
    half = dataclasses.replace(TINY, dtype="bfloat16")
    (half_loss, _), half_grads = loss_and_grads(half, params, batch)
    assert abs(half_loss - loss) < 0.01 * loss
    assert relative_distance(half_grads, grads) < 0.03
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(half_grads))


def test_padding_has_no_influence():
    params, batch = init(TINY), random_batch()
    (loss, _), _ = loss_and_grads(TINY, params, batch)
    noise = jnp.where(batch["attention_mask"], batch["input_ids"], 77)
    (noisy, _), _ = loss_and_grads(TINY, params, batch | {"input_ids": noise})
    assert noisy == loss
    longer = {
        name: jnp.pad(batch[name], ((0, 0), (0, 8)))
        for name in ("input_ids", "segment_ids", "attention_mask")
    }
    (padded, _), _ = loss_and_grads(TINY, params, batch | longer)
    assert padded == pytest.approx(float(loss), rel=1e-6)


def test_padding_of_the_vocabulary_is_never_predicted():
    params, batch = init(TINY), random_batch()
    params["mlm_head"]["output_bias"] = (
        params["mlm_head"]["output_bias"].at[101:].set(9)
    )
    logits = heads.PretrainingModel(TINY).apply(
        {"params": params},
        *(batch[name] for name in ("input_ids", "segment_ids", "attention_mask")),
        batch["mlm_positions"],
    )
    assert (logits.mlm[..., 101:] < -1e8).all()
    exact = dataclasses.replace(TINY, vocab_multiple=1)
    cut = jax.tree.map(lambda p: p[:101] if p.shape[:1] == (128,) else p, params)
    (loss, _), _ = loss_and_grads(exact, cut, batch)
    (padded, _), _ = loss_and_grads(TINY, params, batch)
    assert padded == pytest.approx(float(loss), rel=1e-6)


def test_vocabulary_must_be_known():
    with pytest.raises(ValueError, match="vocab_size is 0"):
        init(dataclasses.replace(TINY, vocab_size=0))


# ---- dropout


def test_dropout_mixes_as_published():
    """Wellons' function, restated with Python integers."""

    def mix(x):
        x = ((x ^ x >> 16) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ x >> 15) * 0x846CA68B) & 0xFFFFFFFF
        return x ^ x >> 16

    values = np.random.default_rng(0).integers(0, 2**32, 100, dtype=np.uint32)
    expected = [mix(int(v)) for v in values]
    assert dropout._mix(jnp.asarray(values)).tolist() == expected


def test_dropout_rate_scale_and_independence():
    keys = dropout.example_keys(0, jnp.int32(1), jnp.arange(16))
    x = jnp.ones((16, 64, 64))
    y = np.asarray(dropout.dropout(x, 0.1, keys))
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.9)}
    dropped = y == 0
    error = np.sqrt(0.1 * 0.9 / y.size)
    assert abs(dropped.mean() - 0.1) < 4 * error
    # Neighbours along every dimension, other steps and other places: independent.
    step = dropout.example_keys(0, jnp.int32(2), jnp.arange(16))
    others = [np.roll(dropped, 1, axis) for axis in range(3)]
    others += [
        dropout.dropout(x, 0.1, k) == 0 for k in (step, dropout.fold_in(keys, 3))
    ]
    for other in others:
        assert abs((dropped & np.asarray(other)).mean() - 0.01) < 4 * error


def test_dropout_of_an_example_depends_on_its_row_alone():
    x = jnp.ones((8, 5, 7))
    keys = dropout.example_keys(0, jnp.int32(1), jnp.arange(8))
    whole = dropout.dropout(x, 0.5, keys)
    for row in range(8):
        one = dropout.dropout(x[:1], 0.5, keys[row : row + 1])
        assert np.array_equal(one[0], whole[row])


def test_dropout_gradient_uses_the_same_mask():
    keys = dropout.example_keys(0, jnp.int32(1), jnp.arange(4))
    x = jax.random.normal(jax.random.key(0), (4, 6, 8))
    y, pullback = jax.vjp(lambda x: dropout.dropout(x, 0.3, keys), x)
    (grad,) = pullback(jnp.ones_like(x))
    assert np.allclose(grad * x, y)


def test_dropout_is_off_without_keys_and_on_with_them():
    params, batch = init(TINY), random_batch()
    keys = dropout.example_keys(3, jnp.int32(5), jnp.arange(8))
    plain = loss_and_grads(TINY, params, batch)[0][0]
    dropped = loss_and_grads(TINY, params, batch, keys)[0][0]
    assert plain != dropped
    for name in ("dropout_rate", "attention_dropout_rate"):
        one = dataclasses.replace(
            TINY, **{"dropout_rate": 0.0, "attention_dropout_rate": 0.0, name: 0.1}
        )
        assert loss_and_grads(one, params, batch, keys)[0][0] not in (plain, dropped)


# ---- losses


def test_cross_entropy_and_its_gradient():
    logits = jax.random.normal(jax.random.key(0), (6, 11)) * 3
    labels = jnp.array([0, 10, 3, 3, 7, 2])

    def plain(logits):
        return -jax.nn.log_softmax(logits)[jnp.arange(6), labels]

    found, pullback = jax.vjp(lambda x: terms.cross_entropy(x, labels), logits)
    expected, expected_pullback = jax.vjp(plain, logits)
    g = jnp.arange(6.0)
    assert np.allclose(found, expected, atol=1e-6)
    assert np.allclose(pullback(g)[0], expected_pullback(g)[0], atol=1e-6)
    correct = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    assert np.array_equal(terms.is_correct(logits, labels), correct)


def test_terms_are_sums_and_counts():
    batch = random_batch()
    (_, found), _ = loss_and_grads(TINY, init(TINY), batch)
    assert found.keys() == set(mlm_nsp.MlmNsp.metrics)
    assert found["mlm_loss"].count == batch["mlm_weights"].sum()
    assert found["nsp_loss"].count == 8
    padding = 1 - np.asarray(batch["attention_mask"])
    assert terms.ratio(found["padding_fraction"]) == pytest.approx(padding.mean())
    assert terms.ratio(terms.Term(jnp.zeros(()), jnp.zeros(()))) == 0.0
