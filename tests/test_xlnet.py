"""XLNet: relative positions and two streams (Yang et al. 2019)."""

import dataclasses
import functools
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest
from toy import (
    TINY,
    assert_close,
    assert_trees_close,
    loss_and_gradient,
    params_of,
    relative_distance,
)

from bert_jax.interop import families, huggingface
from bert_jax.model import parameters, randomness
from bert_jax.model.heads import make_encoder
from bert_jax.model.inputs import Inputs
from bert_jax.model.xlnet.encoder import Targets
from bert_jax.objectives import permutation_lm

pytestmark = pytest.mark.usefixtures("checked_shapes")

FIXTURE = pathlib.Path(__file__).parent / "fixtures/xlnet.npz"
XLNET = dataclasses.replace(TINY, positions="relative")
SPEC = huggingface.ModelSpec(
    families.XLNET, families.family.PERMUTATION_LM, XLNET, pad_id=0
)


@functools.cache
def stored():
    return dict(np.load(FIXTURE))


def with_prefix(prefix):
    """Return the stored arrays under a prefix."""
    return {
        name.removeprefix(prefix): values
        for name, values in stored().items()
        if name.startswith(prefix)
    }


def stored_params():
    state = with_prefix("state/")

    def parameter(path, leaf):
        arrays = [state[name] for name in huggingface.names(path, SPEC)]
        return jnp.asarray(huggingface.to_parameter(path, arrays, leaf.shape, SPEC))

    init = permutation_lm.PermutationLm(XLNET).init
    template = nn.unbox(jax.eval_shape(init, jax.random.key(0)))
    return parameters.map_with_path(parameter, template)


def cls_first(values, axis=1):
    """Move [CLS] from behind the last token to the front."""
    rows = np.moveaxis(values, axis, 1)
    moved = published.with_cls_first(rows, stored()["attention_mask"] > 0)
    return np.moveaxis(moved, 1, axis)


def batch_of_targets():
    arrays = stored()
    names = "input_ids", "attention_mask", "segment_ids", "ranks"
    batch = {name: jnp.asarray(cls_first(arrays[name])) for name in names}
    batch["segment_ids"] = batch["segment_ids"].at[:, 0].set(0)
    positions = arrays["target_positions"] + 1
    batch["target_positions"] = np.where(arrays["target_weights"] > 0, positions, 0)
    for name in ("target_labels", "target_weights"):
        batch[name] = arrays[name]
    return {name: jnp.asarray(values) for name, values in batch.items()}


def test_attention_of_plain_rows_agrees_with_hugging_face():
    """`test_parity.py` compares their hidden states, and the test below gradients."""
    model = make_encoder(dataclasses.replace(XLNET, activation="gelu_erf"))
    rows, params = Inputs.of(batch_of_targets()), stored_params()["encoder"]
    encode = jax.jit(functools.partial(model.apply, return_attention=True))
    attention = encode({"params": params}, rows).attention
    is_token = np.asarray(rows.attention_mask)
    of_tokens = np.broadcast_to(is_token[:, None], (4, 4, 24))  # B H L
    for got, weights in zip(attention, stored()["plain/attention"], strict=True):
        weights = cls_first(cls_first(weights, axis=2), axis=3)
        assert_close(np.asarray(got)[of_tokens], weights[of_tokens], 1e-5)


@pytest.mark.parametrize(
    ("activation", "published"), [("gelu_erf", "gelu"), ("gelu_tanh", "gelu_new")]
)
def test_two_streams_agree_with_hugging_face(activation, published):
    """Both streams after each layer, logits, loss, and all gradients."""
    config = dataclasses.replace(XLNET, activation=activation)
    expected = with_prefix(f"{published}/")
    params = stored_params()
    batch = batch_of_targets()
    rows, used = Inputs.of(batch), stored()["target_weights"] > 0
    is_token = np.asarray(rows.attention_mask)
    asked = batch["ranks"], batch["target_positions"]
    objective = permutation_lm.PermutationLm(config)

    @jax.jit
    def outputs(params):
        targets = Targets(*asked, params["target_embedding"])
        encoded = make_encoder(config).apply(
            {"params": params["encoder"]},
            rows,
            targets=targets,
            return_hidden_states=True,
        )
        logits = objective.model.apply({"params": params}, rows, *asked).compute()
        computed = loss_and_gradient(objective, params, batch)
        return encoded.hidden_states, logits[..., :101], computed

    states, logits, ((loss, _), grads) = outputs(params)
    assert len(states) == 4
    for i, both in enumerate(np.asarray(states)):
        tokens, targets = both[:, :24], both[:, 24:]
        of_published = cls_first(expected["tokens"][i])
        assert_close(tokens[is_token], of_published[is_token], 1e-5)
        assert_close(targets[used], expected["targets"][i][used], 1e-5)
    assert_close(np.asarray(logits)[used], expected["logits"][used], 1e-5)
    assert loss == pytest.approx(expected["loss"].item(), rel=1e-5)
    got = huggingface.state_dict(grads, SPEC)
    for name, gradient in with_prefix(f"{published}/grad/").items():
        assert_close(got[name], gradient, 1e-5)


# ---- one result, however it is computed

SHORT = dataclasses.replace(XLNET, num_layers=2)


@functools.cache
def random_params():
    return params_of(permutation_lm.PermutationLm(SHORT).init)


def compute(batch, *keys, **changes):
    """Return ((loss, sums), gradient) of `SHORT` with changes."""
    objective = permutation_lm.PermutationLm(dataclasses.replace(SHORT, **changes))
    return loss_and_gradient(objective, random_params(), batch, *keys)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            {"remat": "attention", "scan_layers": False}, marks=pytest.mark.runs
        ),
        {"remat": "layer"},
    ],
)
def test_loops_and_recomputation_change_nothing(change):
    """With dropout. In a loop, the last layer computes all positions."""
    batch = batch_of_targets()
    keys = randomness.row_keys(1, "dropout", jnp.int32(0), jnp.arange(4))
    got = compute(batch, keys, **change)
    assert_trees_close(got, compute(batch, keys), 1e-5)
    (loss, _), _ = got
    (without, _), _ = compute(batch)
    assert abs(loss - without) > 1e-3


def test_bfloat16_is_near_float32():
    (exact, _), exact_grads = compute(batch_of_targets())
    (loss, _), grads = compute(batch_of_targets(), dtype="bfloat16")
    assert relative_distance(loss, exact) < 0.01
    assert relative_distance(grads, exact_grads) < 0.03


def test_operations_of_two_streams():
    """Keys and values of the tokens; queries of both streams, in the last layer of one.

    L = 24, P = 3, N = 3, D = 32, F = 48.
    """
    got = permutation_lm.PermutationLm(XLNET).sequence_flops(24)
    keys_and_values = 3 * (2 * 24 * 2 * 32 * 32)
    queries = (24 + 3) + (24 + 3) + 3
    # Query and output projections, feed-forward; scores of content and of distances,
    # and sums of values.
    of_one = 2 * 2 * 32 * 32 + 2 * 2 * 32 * 48 + (4 + 4) * 24 * 32
    head = 3 * 2 * 32 * XLNET.vocab_size
    assert got == 3 * (keys_and_values + queries * of_one + head)


def test_rows_without_tokens_and_of_one():
    """Missing choices have no tokens, and initialisation has one."""
    params = random_params()["encoder"]
    ids = jnp.arange(8).reshape(2, 4) + 5
    mask = jnp.array([[False] * 4, [True, False, False, False]])
    encode = jax.jit(make_encoder(SHORT).apply)
    encoded = encode({"params": params}, Inputs(ids, mask))
    assert np.isfinite(encoded.hidden).all()
