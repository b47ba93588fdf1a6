"""Checkpoints of models that nobody trained."""

import dataclasses
import functools
import json

import jax

from bert_jax import config, knobs, recipe_variants
from bert_jax.interop import lazy_checkpoint
from bert_jax.objectives import masked_lm
from bert_jax.training import checkpoint, metadata, optimizer, sharding, step


def save(folder, objective, run_config, tokenizer, settings=None, *, scale=5):
    """Save a state of an objective, and return its parameters on one device.

    They are larger than initial ones, so that what the model says depends on its input.
    """
    tx = optimizer.make_optimizer(config.OptimizerConfig(), lambda step: 1e-3)
    init = functools.partial(step.init_state, objective, tx)
    mesh = sharding.make_mesh(config.MeshConfig())
    shapes = sharding.state_shapes(init, mesh)
    state = sharding.initialise(init, shapes, jax.random.key(7))
    larger = jax.tree.map(lambda p: p * scale if p.ndim > 1 else p, state.params)
    state = dataclasses.replace(state, params=larger)
    about = metadata.of_run(run_config, objective, tokenizer, settings)
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", 1, about)
    checkpoints.save(1, state, objective.encoder, {})
    checkpoints.close()
    return jax.tree.map(lambda x: jax.device_put(x, jax.devices()[0]), larger)


def pretrained(corpus, folder):
    """A workdir like that of a run of pretraining, for fine-tuning to begin with."""
    cfg = knobs.to_configdict(config.PretrainConfig())
    recipe_variants.shrink_pretraining(cfg)
    cfg.encoder.update(vocab_size=corpus.tokenizer.vocab_size, dtype="float32")
    built = knobs.from_configdict(config.PretrainConfig, cfg)
    objective = masked_lm.MaskedLm(built.encoder, built.objective)
    save(folder, objective, built, corpus.tokenizer, scale=1)
    (folder / "config.json").write_text(json.dumps(knobs.to_dict(built)))
    return folder


def parameters_of(source):
    """All parameters of a checkpoint of any project, by path."""
    params = lazy_checkpoint.read(str(source)).params
    return {path: array.read() for path, array in params.items()}
