"""What ALBERT and ELECTRA add to the encoder."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import TINY, assert_close, assert_trees_close, init, random_batch

from bert_jax import config, knobs
from bert_jax.errors import UserError
from bert_jax.model import encoder as encoder_lib
from bert_jax.model import flops, randomness
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import masked_lm

ALBERT = dataclasses.replace(
    TINY, embedding_size=12, num_layers=4, num_layer_groups=2, type_vocab_size=2
)


# ---- sizes


@pytest.mark.parametrize(
    ("hidden", "layers", "heads", "count"),
    [
        (768, 12, 12, 11_683_584),
        (1024, 24, 16, 17_683_968),
        (2048, 24, 16, 58_724_864),
        (4096, 12, 64, 222_595_584),
    ],
)
def test_parameter_counts_of_albert(hidden, layers, heads, count):
    """Encoder and pooler (Lan et al. 2019, Table 1, rounded there)."""
    encoder = config.EncoderConfig(
        vocab_size=30_000,
        vocab_multiple=1,
        embedding_size=128,
        hidden_size=hidden,
        num_layers=layers,
        num_layer_groups=1,
        num_heads=heads,
        intermediate_size=4 * hidden,
    )
    objective = masked_lm.MaskedLm(
        encoder, config.MaskedLmConfig(segments="sentence_order")
    )
    shapes = jax.eval_shape(objective.init, jax.random.key(0))["encoder"]
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count


def test_operations_of_factorised_embeddings():
    """Sharing saves none, and a narrow table saves some in the head."""
    wide = dataclasses.replace(ALBERT, embedding_size=0, num_layer_groups=0)
    d, e, v = 32, 12, ALBERT.vocab_size
    more = flops.encoder(ALBERT, 10) - flops.encoder(wide, 10)
    assert more == 2 * 10 * e * d
    assert flops.language_model_head(ALBERT, 3) == 2 * 3 * (d * e + e * v)


# ---- layers that share parameters


def run(encoder, params, keys=None):
    batch = random_batch(encoder)
    encoded = encoder_lib.Encoder(encoder).apply(
        {"params": params["encoder"]},
        Inputs.of(batch),
        dropout_keys=keys,
        return_hidden_states=True,
        return_attention=True,
    )
    return encoded.hidden, encoded.hidden_states, encoded.attention


@pytest.mark.parametrize("dropout", [False, True])
def test_shared_layers_are_copies_of_one(dropout):
    """Of an encoder whose layers are copies: values, and gradients summed over copies.

    With dropout, too: layers that share parameters do not share masks.
    """
    keys = None
    if dropout:
        keys = randomness.row_keys(1, "dropout", jnp.int32(0), jnp.arange(8))
    copies = dataclasses.replace(ALBERT, num_layer_groups=0)
    params = init(ALBERT)
    spread = jax.tree.map(
        lambda x: jnp.repeat(x, 2, axis=0), params["encoder"]["layers"]
    )
    copied = params | {"encoder": params["encoder"] | {"layers": spread}}
    got, expected = run(ALBERT, params, keys), run(copies, copied, keys)
    assert_trees_close(got, expected, 1e-6)

    def loss(encoder):
        return lambda params: jnp.sum(jnp.sin(run(encoder, params, keys)[0]))

    grads = jax.grad(loss(ALBERT))(params)["encoder"]
    of_copies = jax.grad(loss(copies))(copied)["encoder"]
    summed = jax.tree.map(
        lambda x: x.reshape(2, 2, *x.shape[1:]).sum(1), of_copies["layers"]
    )
    # The keys' bias has no gradient but rounding.
    for tree in (grads["layers"], summed):
        del tree["attention"]["key"]["bias"]
    assert_trees_close(grads["layers"], summed, 2e-5)
    projection = grads["embedding_projection"], of_copies["embedding_projection"]
    assert_trees_close(*projection, 1e-5)


@pytest.mark.parametrize("groups", [0, 1, 2])
def test_a_loop_over_shared_layers_changes_nothing(groups):
    encoder = dataclasses.replace(ALBERT, num_layer_groups=groups)
    in_a_loop = dataclasses.replace(encoder, scan_layers=True)
    params = init(encoder)
    assert_trees_close(run(in_a_loop, params), run(encoder, params), 1e-5)


def test_projection_by_hand():
    """First hidden states: embeddings, normalised, times the projection."""
    params = init(ALBERT)
    _, states, _ = run(ALBERT, params)
    batch, own = random_batch(ALBERT), params["encoder"]["embeddings"]
    x = np.asarray(own["token_embedding"])[batch["input_ids"]]
    x = x + np.asarray(own["position_embedding"])[: x.shape[1]]
    x = x + np.asarray(own["segment_embedding"])[batch["segment_ids"]]
    x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    projection = params["encoder"]["embedding_projection"]
    x = x @ np.asarray(projection["kernel"]) + np.asarray(projection["bias"])
    assert_close(states[0], x, 1e-5)


def test_groups_that_are_no_equal_parts_are_refused():
    with pytest.raises(UserError, match=r"num_layer_groups=3 .* num_layers=4"):
        knobs.check(dataclasses.replace(ALBERT, num_layer_groups=3))
