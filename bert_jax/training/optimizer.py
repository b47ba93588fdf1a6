"""The update: Adam as BERT has it, LAMB, and their schedules, as optax transformations.

Source: google-research/bert, optimization.py; You et al. 2019 (LAMB). Parameters are
distinguished by name, never by shape: layers are stacked, so that a bias is a matrix,
too.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax import config as config_lib
from bert_jax.model import parameters

# Not decayed, and in LAMB not rescaled: "layer_norm" anywhere, or a bias.
_PLAIN = re.compile(r"layer_norm|bias$")
# Below these, every parameter is stacked over layers along its first dimension.
_STACKED = re.compile(r"(^|/)layers/")


# The learning rate as a function of the number of updates done before.
Schedule = Callable[[jax.Array], jax.Array]


def make_schedule(config: config_lib.OptimizerConfig, total_steps: int) -> Schedule:
    """A schedule with one peak.

    Both kinds (`config.schedule`) rise linearly from 0 over the warmup and fall
    linearly to 0 at `total_steps`, so that the very first update has rate 0. "linear"
    falls from the peak, at the end of the warmup. "original" falls from where the peak
    would have been at step 0, so that the rate jumps down by the warmup's share when
    the warmup ends.
    """
    warmup = round(config.warmup_fraction * total_steps)
    peak = config.learning_rate

    def schedule(step: jax.Array) -> jax.Array:
        step = jnp.minimum(step, total_steps).astype(jnp.float32)
        rising = peak * step / max(warmup, 1)
        if config.schedule == "original":
            falling = peak * (1.0 - step / total_steps)
        else:
            falling = peak * (total_steps - step) / max(total_steps - warmup, 1)
        return jnp.where(step < warmup, rising, falling)

    return schedule


def schedule_of_phases(
    config: config_lib.OptimizerConfig, phases: Sequence[config_lib.PhaseConfig]
) -> Schedule:
    """The schedule of a run: one over all phases, or that of each, one after another.

    The rate of each phase rises from 0 again, as when batch and length change together
    (You et al. 2019, "re-warmup"). Moments go on. Skipped steps are no updates: each
    makes the schedules of later phases begin a step late.
    """
    if not phases[0].learning_rate:
        return make_schedule(config, sum(phase.steps for phase in phases))
    schedules = [
        make_schedule(
            dataclasses.replace(
                config,
                learning_rate=phase.learning_rate,
                warmup_fraction=phase.warmup_fraction,
            ),
            phase.steps,
        )
        for phase in phases
    ]
    ends = itertools.accumulate(phase.steps for phase in phases[:-1])
    return optax.join_schedules(schedules, list(ends))


def make_optimizer(
    config: config_lib.OptimizerConfig,
    schedule: Schedule,
    *,
    encoder: str = "encoder",
    frozen: str = "",
) -> optax.GradientTransformation:
    """Clip, scale by moments, decay, perhaps scale by trust ratio, and by the rate.

    Args:
      config: What to do, and how much.
      schedule: Learning rate by number of updates.
      encoder: Path of the encoder in the parameters, whose layers `layer_decay` tells
        apart.
      frozen: Path of parameters that stay as they are and need no moments; "" for none.
    """
    steps = []
    if config.clip_norm:
        steps.append(optax.clip_by_global_norm(config.clip_norm))
    steps.append(scale_by_moments(config))
    steps.append(optax.add_decayed_weights(config.weight_decay, mask=is_decayed))
    if config.name == "lamb":
        steps.append(scale_by_trust_ratio())
    if config.layer_decay < 1:
        steps.append(scale_by_depth(config.layer_decay, encoder))
    steps.append(optax.scale_by_learning_rate(schedule))
    update = optax.chain(*steps)
    return all_but(frozen.split("/"), update) if frozen else update


def all_but(
    frozen: Sequence[str], update: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Update parameters but those below a path, which stay and need no state.

    `optax.partition` does this, too, but not inside the boxes with names of dimensions.

    Args:
      frozen: Names on the path.
      update: What is done with the others.
    """

    def others(tree, names):
        name, *rest = names
        kept = {key: value for key, value in tree.items() if key != name}
        return kept | {name: others(tree[name], rest)} if rest else kept

    def joined(updates, still, names):
        name, *rest = names
        below = joined(updates[name], still[name], rest) if rest else still[name]
        return {key: below if key == name else updates[key] for key in still}

    def init(params):
        return update.init(others(params, frozen))

    def update_others(updates, state, params):
        still = jax.tree.map(jnp.zeros_like, updates)
        updates, state = update.update(
            others(updates, frozen), state, others(params, frozen)
        )
        return joined(updates, still, frozen), state

    return optax.GradientTransformation(init, update_others)


def scale_by_depth(decay: float, encoder: str) -> optax.GradientTransformation:
    """Multiply updates by decay ** depth below the top.

    Heads and pooler have depth 0, the top layer 1, the lowest of N layers N, and the
    embeddings with their projection N + 1 (as in BEiT and DeBERTa; ELECTRA counts one
    more for the encoder). Layers that share parameters count as one.
    """
    layers = re.compile(rf"^{encoder}/layers/")
    embeddings = re.compile(rf"^{encoder}/embedding(s|_projection)/")

    def update(updates, state, params=None):
        del params
        by_path = dict(
            zip(parameters.paths(updates), jax.tree.leaves(updates), strict=True)
        )
        (count,) = {len(x) for path, x in by_path.items() if layers.search(path)}

        def scale(path, x):
            if embeddings.search(path):
                return x * decay ** (count + 1)
            if layers.search(path):
                depth = jnp.arange(count, 0, -1, dtype=jnp.float32)
                return x * (decay**depth).reshape(-1, *[1] * (x.ndim - 1))
            return x

        return parameters.map_with_path(scale, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


class MomentsState(NamedTuple):
    """Running means of the gradient and of its square."""

    count: jax.Array
    mean: Any
    square: Any


def scale_by_moments(
    config: config_lib.OptimizerConfig,
) -> optax.GradientTransformation:
    """Mean / (sqrt(square) + epsilon), with bias correction as an option.

    The original has none ("mostly an oversight", google-research/bert#153), which makes
    early updates larger; optax's own Adam always corrects.
    """
    b1, b2 = config.beta1, config.beta2

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return MomentsState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(updates, state, params=None):
        del params
        count = state.count + 1
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, updates)
        square = jax.tree.map(
            lambda v, g: b2 * v + (1 - b2) * g * g, state.square, updates
        )
        c1 = 1 - b1**count if config.bias_correction else 1.0
        c2 = 1 - b2**count if config.bias_correction else 1.0
        scaled = jax.tree.map(
            lambda m, v: (m / c1) / (jnp.sqrt(v / c2) + config.epsilon), mean, square
        )
        return scaled, MomentsState(count, mean, square)

    return optax.GradientTransformation(init, update)


def scale_by_trust_ratio() -> optax.GradientTransformation:
    """Multiply each tensor's update by |parameters| / |update|, where both are > 0.

    A tensor here is one layer's: stacked parameters get one ratio for each layer.
    Biases and layer norms keep their update, as in ALBERT's and NVIDIA's LAMB.
    """

    def rescale(path, update, parameter):
        if _PLAIN.search(path):
            return update
        first = 1 if _STACKED.search(path) else 0
        dims = tuple(range(first, update.ndim))
        weight = jnp.sqrt(jnp.sum(jnp.square(parameter), dims, keepdims=True))
        size = jnp.sqrt(jnp.sum(jnp.square(update), dims, keepdims=True))
        ratio = jnp.where((weight > 0) & (size > 0), weight / size, 1.0)
        return update * ratio

    def update(updates, state, params=None):
        return parameters.map_with_path(rescale, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def is_decayed(params: Any) -> Any:
    """A tree of bools: which parameters weight decay applies to."""
    return parameters.map_with_path(lambda path, _: not _PLAIN.search(path), params)
