"""Initial parameters of fine-tuning, from a checkpoint and new ones."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from bert_jax import config as config_lib
from bert_jax.interop import checkpoints
from bert_jax.model import parameters
from bert_jax.training import processes, restore, sharding
from bert_jax.training import step as step_lib
from bert_jax.training.run_description import Run


def resolve_encoder(
    config: config_lib.FinetuneConfig, encoder: config_lib.EncoderConfig
) -> config_lib.EncoderConfig:
    """Return the config of a pretrained encoder with the overrides of `FinetuneConfig`.

    The architecture does not change. Fields such as dropout and dtype come from
    `FinetuneConfig`, unless they are "", which means "as pretrained".
    """
    fixed = {field.name for field in config_lib.architecture(encoder)}
    settable = vars(encoder).keys() - fixed
    changes = {k: v for k, v in vars(config).items() if k in settable and v != ""}
    return dataclasses.replace(encoder, **changes)


def is_frozen(path: str) -> bool:
    """Return whether a parameter keeps its value if the encoder is frozen.

    The pooler is trained with the head: many checkpoints lack it, and a head on a
    random projection learns little.
    """
    return path.startswith("encoder/") and not path.startswith("encoder/pooler/")


def load_initial_params(
    run: Run, source: epath.Path, state: step_lib.TrainState
) -> step_lib.TrainState:
    """Return the initial state with the pretrained encoder."""
    if run.config.random_init:
        return state
    shapes = run.state_shapes.params
    # The head is new, even if the checkpoint has one of the same name.
    loaded = checkpoints.load_params(source, {"encoder": shapes["encoder"]})
    new = parameters.flatten(shapes).keys() - loaded.params.keys()
    processes.say(dataclasses.replace(loaded, missing=sorted(new)).describe(source))
    params = restore.merge(state.params, loaded)
    if count := run.config.reinit_layers:
        processes.say(f"  reinitialised: pooler and top {count} layers")
        params = _reinit_top_layers(run, state.params, params)
    return dataclasses.replace(state, params=params)


def _reinit_top_layers(run: Run, initial: Any, loaded: Any) -> Any:
    """Return loaded parameters with initial ones in the pooler and the top layers.

    Source: Zhang et al. 2021, Revisiting few-sample BERT fine-tuning.
    """

    def top(path, initial, loaded):
        if path.startswith("encoder/pooler/"):
            return initial
        if path.startswith("encoder/layers/"):
            kept = len(loaded) - run.config.reinit_layers
            return jnp.concatenate([loaded[:kept], initial[kept:]])
        return loaded

    shardings = sharding.shardings_of(run.state_shapes.params)
    merge = jax.jit(
        functools.partial(parameters.map_with_path, top), out_shardings=shardings
    )
    with sharding.use(run.mesh):
        return merge(initial, loaded)
