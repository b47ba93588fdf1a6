"""Optimizers and learning rate schedules, as optax transformations.

BERT's AdamW, StableAdamW, LAMB and Muon (`muon.py`) are chains of the same
parts. Sources: google-research/bert, optimization.py; You et al. 2019 (LAMB);
Wortsman et al. 2023 (StableAdamW). Parameters are distinguished by name, never by
shape: layers are stacked, so that a bias is a matrix, too.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax import config as config_lib
from bert_jax.model import parameters
from bert_jax.training import muon

# Norms and biases: not decayed, and not rescaled by LAMB.
_NORMS_AND_BIASES = re.compile(r"norm/|bias$")
# Parameters with such a path are stacked over layers along their first dimension.
_STACKED = re.compile(r"(^|/)layers/")

# The learning rate as a function of the number of updates done before.
Schedule = Callable[[jax.Array], jax.Array]


def make_schedule(config: config_lib.OptimizerConfig, total_steps: int) -> Schedule:
    """Return a schedule with one peak, of the shape that `config.schedule` names.

    With a warmup, all shapes begin at 0 and rise linearly. All but "wsd" without decay
    reach 0 at `total_steps`.

    - "linear" and "cosine" fall from the peak, at the end of the warmup.
    - "original" falls linearly over all steps, as if from the peak at step 0, so that
      the rate drops by the warmup's share when the warmup ends.
    - "wsd" stays at the peak and falls in the last `decay_fraction` of the steps as
      1 - sqrt(share of the decay) (Hägele et al. 2024).
    """
    warmup = round(config.warmup_fraction * total_steps)
    peak = config.learning_rate

    def schedule(step: jax.Array) -> jax.Array:
        step = jnp.minimum(step, total_steps).astype(jnp.float32)
        rising = peak * step / max(warmup, 1)
        steps_left, after_warmup = total_steps - step, max(total_steps - warmup, 1)
        match config.schedule:
            case "original":
                falling = peak * steps_left / total_steps
            case "linear":
                falling = peak * steps_left / after_warmup
            case "cosine":
                # (1 - cos(2x)) / 2, which would be 0 in float32 long before the end.
                falling = peak * jnp.sin(jnp.pi / 2 * steps_left / after_warmup) ** 2
            case "wsd":
                decay = round(config.decay_fraction * total_steps)
                decay = min(decay, total_steps - warmup)  # both may be rounded up
                left = jnp.minimum(steps_left, decay) / decay if decay else 1.0
                # 1 - sqrt(1 - left), without its cancellation.
                falling = peak * left / (1 + jnp.sqrt(1 - left))
        return jnp.where(step < warmup, rising, falling)

    return schedule


def schedule_of_phases(
    config: config_lib.OptimizerConfig, phases: Sequence[config_lib.PhaseConfig]
) -> Schedule:
    """Return the schedule of a run: the schedules of its phases, joined.

    A phase with a learning rate begins a new schedule. Phases without one continue the
    schedule of the phase before, and the first has the optimizer's. With a warmup, a
    new schedule rises from 0 again, as when batch and length change together (You et
    al. 2019, "re-warmup"). Moments are kept. A skipped step is not an update, so later
    schedules begin a step later.
    """
    first = [i for i, phase in enumerate(phases) if i == 0 or phase.learning_rate]
    schedules, steps = [], []
    for begin, end in itertools.pairwise([*first, len(phases)]):
        phase, own = phases[begin], config
        if phase.learning_rate:
            own = dataclasses.replace(
                config,
                learning_rate=phase.learning_rate,
                warmup_fraction=phase.warmup_fraction,
                decay_fraction=phase.decay_fraction,
            )
        steps.append(sum(phase.steps for phase in phases[begin:end]))
        schedules.append(make_schedule(own, steps[-1]))
    return optax.join_schedules(schedules, list(itertools.accumulate(steps[:-1])))


def make_optimizer(
    config: config_lib.OptimizerConfig,
    schedule: Schedule,
    *,
    is_frozen: Callable[[str], bool] | None = None,
) -> optax.GradientTransformation:
    """Chain clipping, the optimizer's own scaling, weight decay, and the learning rate.

    Parameters whose paths `is_frozen` is True for have neither updates nor moments.
    """
    transforms = []
    if config.clip_norm:
        transforms.append(optax.clip_by_global_norm(config.clip_norm))
    moments = scale_by_moments(config)
    decay = optax.add_decayed_weights(config.weight_decay, mask=decay_mask)
    match config.name:
        case "adamw":
            transforms += [moments, decay]
        case "stable_adamw":
            transforms.append(clip_updates(optax.chain(moments, decay), config))
        case "lamb":
            transforms += [moments, decay, scale_by_trust_ratio()]
        case "muon":
            transforms += [muon.scale_by_muon(moments), decay]
    if config.layer_decay < 1:
        transforms.append(scale_by_depth(config.layer_decay))
    transforms.append(optax.scale_by_learning_rate(schedule))
    update = optax.chain(*transforms)
    return without_frozen(is_frozen, update) if is_frozen else update


def without_frozen(
    is_frozen: Callable[[str], bool], update: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Return the optimizer without updates and state for frozen parameters.

    `optax.partition` does this, too, but not inside the boxes with names of dimensions.
    """

    def init(params):
        return update.init(parameters.split(params, is_frozen)[1])

    def update_trained(updates, state, params):
        frozen, trained = parameters.split(updates, is_frozen)
        _, trained_params = parameters.split(params, is_frozen)
        trained, state = update.update(trained, state, trained_params)
        frozen = jax.tree.map(jnp.zeros_like, frozen)
        return parameters.join(frozen, trained), state

    return optax.GradientTransformation(init, update_trained)


def scale_by_depth(decay: float) -> optax.GradientTransformation:
    """Multiply updates by decay ** depth below the top.

    Heads, pooler and final norm have depth 0, and layers 1 (top) to N (bottom). All
    embeddings, of distances too, and their projection have depth N + 1. Layers that
    share parameters count as one. ELECTRA's generator has depth 0.

    Source: microsoft/unilm, beit/optim_factory.py, where a bias of distances has depth
    0. google-research/electra, model/optimization.py, has one more for layers and
    embeddings: 2 to N + 1, and N + 2.
    """
    layers = re.compile("^encoder/layers/")
    embeddings = re.compile("^(encoder/(embedding|distance_)|embedding_differences/)")

    def rescale(updates, params):
        del params
        leaves = zip(parameters.paths(updates), jax.tree.leaves(updates), strict=True)
        (count,) = {len(x) for path, x in leaves if layers.search(path)}

        def scale(path, x):
            if embeddings.search(path):
                return x * decay ** (count + 1)
            if layers.search(path):
                depth = jnp.arange(count, 0, -1, dtype=jnp.float32)
                return x * (decay**depth).reshape(-1, *[1] * (x.ndim - 1))
            return x

        return parameters.map_with_path(scale, updates)

    return optax.stateless(rescale)


class MomentsState(NamedTuple):
    """Running means of the gradient and of its square, and the number of updates."""

    count: jax.Array
    mean: Any
    square: Any


def scale_by_moments(
    config: config_lib.OptimizerConfig,
) -> optax.GradientTransformation:
    """Scale gradients as Adam does: mean / (sqrt(square) + epsilon).

    Bias correction is an option. The original has none ("mostly an oversight",
    google-research/bert#153), which makes early updates larger; optax's own Adam always
    corrects.
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
        c1, c2 = _bias_corrections(config, count)
        scaled = jax.tree.map(
            lambda m, v: (m / c1) / (jnp.sqrt(v / c2) + config.epsilon), mean, square
        )
        return scaled, MomentsState(count, mean, square)

    return optax.GradientTransformation(init, update)


def _bias_corrections(
    config: config_lib.OptimizerConfig, count: jax.Array
) -> tuple[jax.Array | float, jax.Array | float]:
    """Return the divisors of mean and square after `count` updates."""
    if not config.bias_correction:
        return 1.0, 1.0
    return 1 - config.beta1**count, 1 - config.beta2**count


def clip_updates(
    adamw: optax.GradientTransformation, config: config_lib.OptimizerConfig
) -> optax.GradientTransformation:
    """Turn AdamW into StableAdamW: divide each tensor's update by max(1, RMS).

    RMS is the root mean square of gradient / sqrt(square), over one layer of one
    tensor. It is far above 1 when gradients grow faster than their running mean
    square. The division amounts to a smaller learning rate, so that weight decay is
    divided, too (Wortsman et al. 2023, algorithm 2). Rows that pad the vocabulary
    count as zeros: with 48 of them in 2,048, the RMS of the table is 1.2 % lower.
    `adamw` is a chain that begins with `scale_by_moments` and ends with weight decay.
    """

    def update(updates, state, params):
        scaled, state = adamw.update(updates, state, params)
        moments = state[0]
        _, correction = _bias_corrections(config, moments.count)

        def clip(path, scaled, gradient, square):
            # epsilon**2 may be 0 in float32.
            square = jnp.maximum(square / correction, max(config.epsilon**2, 1e-36))
            ratio = jnp.square(gradient) / square
            rms = jnp.sqrt(
                jnp.mean(ratio, _dims_of_one_layer(path, ratio), keepdims=True)
            )
            return scaled / jnp.maximum(rms, 1.0)

        scaled = parameters.map_with_path(clip, scaled, updates, moments.square)
        return scaled, state

    return optax.GradientTransformation(adamw.init, update)


def scale_by_trust_ratio() -> optax.GradientTransformation:
    """Multiply each tensor's update by |parameters| / |update|, where both are > 0.

    A tensor here is one layer's: stacked parameters get one ratio for each layer.
    Biases and norms keep their update, as in ALBERT's and NVIDIA's LAMB. Rows that pad
    the vocabulary count with their initial values.
    """

    def rescale(path, update, parameter):
        if _NORMS_AND_BIASES.search(path):
            return update
        dims = _dims_of_one_layer(path, update)
        weight = jnp.sqrt(jnp.sum(jnp.square(parameter), dims, keepdims=True))
        size = jnp.sqrt(jnp.sum(jnp.square(update), dims, keepdims=True))
        ratio = jnp.where((weight > 0) & (size > 0), weight / size, 1.0)
        return update * ratio

    return optax.stateless(functools.partial(parameters.map_with_path, rescale))


def _dims_of_one_layer(path: str, x: jax.Array) -> tuple[int, ...]:
    """Return all dimensions of a tensor but the one that stacks layers."""
    return tuple(range(1 if _STACKED.search(path) else 0, x.ndim))


def decay_mask(params: Any) -> Any:
    """Return the mask of weight decay, a tree: True for parameters that decay."""
    return parameters.map_with_path(
        lambda path, _: not _NORMS_AND_BIASES.search(path), params
    )
