"""Checkpoints of models that nobody trained."""

import dataclasses
import functools

import jax

from bert_jax import config
from bert_jax.training import checkpoint, metadata, optimizer, sharding, step


def save(folder, objective, run_config, tokenizer, settings=None):
    """Save a state of an objective, and return its parameters on one device.

    They are larger than initial ones, so that what the model says depends on its input.
    """
    tx = optimizer.make_optimizer(config.OptimizerConfig(), lambda step: 1e-3)
    init = functools.partial(step.init_state, objective, tx)
    mesh = sharding.make_mesh(config.MeshConfig())
    shapes = sharding.state_shapes(init, mesh)
    state = sharding.initialise(init, shapes, jax.random.key(0))
    larger = jax.tree.map(lambda p: p * 5 if p.ndim > 1 else p, state.params)
    state = dataclasses.replace(state, params=larger)
    about = metadata.of_run(run_config, objective, tokenizer, settings)
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", 1, about)
    checkpoints.save(1, state, {})
    checkpoints.close()
    return jax.tree.map(lambda x: jax.device_put(x, jax.devices()[0]), larger)
