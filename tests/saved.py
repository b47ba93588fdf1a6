"""Checkpoints of models that nobody trained."""

import functools
import json

import flax.linen as nn
import jax
import numpy as np
import runs
import toy

from bert_jax import config, recipe_variants
from bert_jax.interop import lazy_checkpoint, safetensors
from bert_jax.model import parameters
from bert_jax.objectives import masked_lm
from bert_jax.training import checkpoint, metadata, optimizer, sharding, step


def save(folder, objective, tokenizer, settings=None, *, run=None, scale=0.1):
    """Save a random state of an objective, and return its parameters on one device.

    By default, they are larger than initial ones, so that the outputs of the model
    depend on its input. Without the config of a run, it is `run_of(objective)`.
    """
    state = toy.state_of(state_shapes(objective), scale=scale)
    saved = config.to_dict(run or run_of(objective))
    about = metadata.Metadata(saved, objective.encoder, tokenizer, task=settings or {})
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", 1)
    checkpoints.save(1, state, about)
    checkpoints.close()
    return jax.tree.map(lambda x: jax.device_put(x, jax.devices()[0]), state.params)


def state_shapes(objective, **mesh):
    """Return the shapes of a state with AdamW's moments on a mesh of these sizes."""
    tx = optimizer.make_optimizer(config.OptimizerConfig(), lambda step: 1e-3)
    init = functools.partial(step.init_state, objective, tx)
    return sharding.state_shapes(init, sharding.make_mesh(config.MeshConfig(**mesh)))


def pretrained(corpus, folder):
    """Write a workdir as pretraining does, for fine-tuning to begin with."""
    cfg = config.to_configdict(config.PretrainConfig())
    recipe_variants.shrink_pretraining(cfg)
    cfg.encoder.update(vocab_size=corpus.tokenizer.vocab_size, dtype="float32")
    built = config.from_dict(config.PretrainConfig, cfg)
    objective = masked_lm.MaskedLm(built.encoder, built.objective)
    save(folder, objective, corpus.tokenizer, run=built, scale=0.02)
    (folder / "config.json").write_text(json.dumps(config.to_dict(built)))
    return folder


def parameters_of(source):
    """All parameters of a checkpoint of any project, by path."""
    opened = lazy_checkpoint.read(str(source))
    if opened.spec is None:  # a native one is read faster in one piece
        return {path: np.asarray(x) for path, x in runs.params(source).items()}
    return {path: array.read() for path, array in opened.params.items()}


def native_model(objective, settings=None, tokenizer=None, scale=1):
    """Return a native checkpoint in memory, and its random parameters by path."""
    shapes = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
    params = parameters.flatten(toy.random_values(shapes, seed=0, scale=scale))
    if not objective.encoder.first_attention_norm:  # not used, and not exported
        params["encoder/layers/attention_norm/scale"][0] = 1
    tokenizer = tokenizer or toy.metadata().tokenizer
    saved = config.to_dict(run_of(objective))
    about = metadata.Metadata(saved, objective.encoder, tokenizer, task=settings or {})
    stored = {
        path: safetensors.LazyArray(value.shape, lambda value=value: value)
        for path, value in params.items()
    }
    return lazy_checkpoint.LazyCheckpoint("run", about, stored), params


def assert_came_back(folder, expected):
    """Compare parameters with an export, where rows that pad the vocabulary are 0."""
    size = lazy_checkpoint.read(str(folder)).metadata.encoder.vocab_size
    got = parameters_of(folder)
    for path in got.keys() - expected.keys():  # a RoBERTa has a segment
        assert path.endswith("segment_embedding") and not got.pop(path).any()
    for path, value in expected.items():
        rows = slice(size if parameters.is_vocabulary_table(path) else None)
        np.testing.assert_array_equal(got.pop(path)[rows], value[rows], path)
    assert not got


def run_of(objective):
    """Return the config of a run that trains an objective."""
    tasks = {
        "Classification": config.ClassificationConfig,
        "Tagging": config.TaggingConfig,
        "Spans": config.SquadConfig,
        "Choice": config.ChoiceConfig,
    }
    task = tasks.get(type(objective).__name__)
    if task:
        return config.FinetuneConfig(task=task())
    return config.PretrainConfig(encoder=objective.encoder, objective=objective.config)
