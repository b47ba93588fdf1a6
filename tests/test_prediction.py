"""Asking a model that no other test has: one that was trained without pairs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import TINY, metadata

from bert_jax import config, prediction
from bert_jax.model import heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import masked_lm
from bert_jax.training import checkpoint, optimizer, sharding, step


@pytest.fixture(scope="module")
def without_pairs(tmp_path_factory):
    """A checkpoint without a head for next sentences, and its parameters."""
    folder = tmp_path_factory.mktemp("without_pairs")
    objective = masked_lm.MaskedLm(
        TINY, config.MaskedLmConfig(segments="doc_sentences")
    )
    tx = optimizer.make_optimizer(config.OptimizerConfig(), lambda step: 1e-3)
    init = functools.partial(step.init_state, objective, tx)
    mesh = sharding.make_mesh(config.MeshConfig())
    shapes = sharding.state_shapes(init, mesh)
    state = sharding.initialise(init, shapes, jax.random.key(0))
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", 1, metadata())
    checkpoints.save(1, state, {})
    checkpoints.close()
    return folder, jax.tree.map(
        lambda x: jax.device_put(x, jax.devices()[0]), state.params
    )


def test_blanks_without_a_head_for_pairs(without_pairs):
    folder, params = without_pairs
    assert params.keys() == {"encoder", "mlm_head"}
    model = prediction.load(str(folder))
    [[guesses]] = model.fill(["ab [MASK]"], top=3)
    tokens = model.tokenizer.tokens
    ids = jnp.array([[tokens.index(t) for t in ("[CLS]", "ab", "[MASK]", "[SEP]")]])
    logits = heads.PretrainingModel(TINY, "").apply(
        {"params": params}, Inputs(ids, ids >= 0), jnp.array([[2]])
    )
    expected = jax.nn.softmax(logits.mlm)[0, 0, : len(tokens)]
    words = np.array([word.isalpha() for word in tokens])
    best = np.argsort(-expected * words)[:3]
    assert [guess.word for guess in guesses] == [tokens[i] for i in best]
    np.testing.assert_allclose(
        [guess.probability for guess in guesses], expected[best], rtol=1e-5
    )
