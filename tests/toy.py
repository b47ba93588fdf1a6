"""A tiny model, random batches for it, its losses, and comparisons of arrays."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import config, tokenizer
from bert_jax.objectives import masked_lm, metric_sums
from bert_jax.tokenizer import pipelines
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import sharding

TINY = config.EncoderConfig(
    vocab_size=101,
    hidden_size=32,
    num_layers=3,
    num_heads=4,
    intermediate_size=48,
    max_position_embeddings=40,
    scan_layers=True,  # one layer to trace and compile
    dtype="float32",
)
# Parts that EuroBERT and UltraBERT share with Llama.
_LLAMA = {
    "positions": "rotary",
    "feed_forward": "gated",
    "activation": "silu",
    "norm": "rms",
    "norm_placement": "pre",
    "embedding_norm": False,
    "linear_bias": False,
    "type_vocab_size": 0,
}
# The parts of published families, in small sizes.
FAMILIES = {
    "bert": {},
    "albert": {"embedding_size": 12, "num_layers": 4, "num_layer_groups": 2},
    "modernbert": {
        "positions": "rotary",
        "rotary_base": 160_000.0,
        "local_rotary_base": 10_000.0,
        "attention_window": 6,
        "global_layer_every": 3,
        "feed_forward": "gated",
        "activation": "gelu_erf",
        "norm_bias": False,
        "norm_placement": "pre",
        "first_attention_norm": False,
        "linear_bias": False,
        "type_vocab_size": 0,
        "depth_scaled_init": True,
        "prediction_head": config.PredictionHeadConfig(bias=False),
    },
    "eurobert": _LLAMA
    | {
        "rotary_base": 250_000.0,
        "num_key_value_heads": 2,
        "prediction_head": config.PredictionHeadConfig(
            num_layers=0, norm=False, output_bias=False, tied=False
        ),
    },
    "nomic_bert": {
        "positions": "rotary",
        "rotary_base": 1_000.0,
        "feed_forward": "gated",
        "activation": "silu",
        "linear_bias": False,
    },
    "deberta": {
        "positions": "disentangled",
        "distance_buckets": 6,
        "max_distance": 12,
        "activation": "gelu_erf",
        "type_vocab_size": 0,
    },
    "ultrabert": _LLAMA
    | {
        "rotary_base": 2_560_000.0,
        "local_rotary_base": 10_000.0,
        "attention_window": 4,
        "global_layer_every": 3,
        "first_global_layer": 2,
        "prediction_head": config.PredictionHeadConfig(
            num_layers=2,
            width=24,
            activation="gelu_tanh",
            norm=False,
            bias=False,
            output_bias=False,
            tied=False,
        ),
    },
}


@functools.cache
def metadata():
    """Return the metadata of a checkpoint of `TINY`."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [chr(97 + i // 26) + chr(97 + i % 26) for i in range(TINY.vocab_size - 5)]
    return metadata_lib.Metadata(
        config.to_dict(config.PretrainConfig()),
        TINY,
        tokenizer.make(pipelines.wordpiece([*special, *words], True, True)),
    )


def random_batch(encoder=TINY, size=8, length=24):
    """Return a random batch of masked tokens and next sentences."""
    return batch_of(masked_lm.MaskedLm(encoder), size, length)


def batch_of(objective, rows=8, length=24, seed=0):
    """Return a random batch with padding, and with rows and slots of weight 0."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(10, length + 1, rows)
    batch = {}
    for name, shape in objective.batch_shapes(rows, length).items():
        if name == "attention_mask":
            values = np.arange(length) < lengths[:, None]
            if len(shape.shape) == 3:  # the last choice of some rows is missing
                values = np.repeat(values[:, None], shape.shape[1], axis=1)
                values[::2, -1] = False
        elif shape.dtype == jnp.float32:
            values = rng.random(shape.shape) < 0.7
        elif name == "ranks":
            values = rng.permuted(np.tile(np.arange(length), (rows, 1)), axis=1) - 9
            values = np.maximum(values, -1)
        elif name in ("input_ids", "mlm_labels", "target_labels", "texts"):
            values = rng.integers(5, TINY.vocab_size, shape.shape)
        elif name.endswith("_positions"):
            values = rng.integers(0, 10, shape.shape)
        else:
            values = rng.integers(0, 2, shape.shape)
        batch[name] = jnp.asarray(values.astype(shape.dtype))
    return batch


@functools.cache
def masked_lm_params(encoder):
    return params_of(masked_lm.MaskedLm(encoder).init)


def params_of(init, seed=0, scale=0.1):
    """Return parameters of which no two layers, heads or columns are alike.

    Initial values would have to be compiled.
    """
    shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0)))
    return jax.tree.map(jnp.asarray, random_values(shapes, seed, scale))


def random_values(shapes, seed, scale):
    """Return normal values: around 1 for the scales of norms, else around 0."""
    rng = np.random.default_rng(seed)

    def values(path, leaf):
        mean = float(path[-1].key == "scale")
        return rng.normal(mean, scale, leaf.shape).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(values, shapes)


def state_of(shapes, seed=0, scale=0.1):
    """Return a state before the first step, with random parameters."""
    values = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    params = random_values(shapes.params, seed, scale)
    values = dataclasses.replace(values, params=params)
    return jax.device_put(values, sharding.shardings_of(shapes))


@functools.partial(jax.jit, static_argnums=0)
def sums_of(objective, params, batch, dropout_keys=None, sampling_keys=None):
    """Return the sums of an objective over a batch.

    Without dropout keys there is no dropout; without sampling keys, they are all 0.
    """
    if sampling_keys is None:
        sampling_keys = jnp.zeros(len(batch["input_ids"]), jnp.uint32)
    return objective.sums(
        params, batch, dropout_keys=dropout_keys, sampling_keys=sampling_keys
    )


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(objective, params, batch, *keys):
    """Return ((loss, sums), gradient), with the arguments of `sums_of`."""
    counts = objective.counts(batch)

    def loss(params):
        got = sums_of(objective, params, batch, *keys)
        means = {name: got[name].sum / counts[name] for name in objective.loss_weights}
        return metric_sums.total(objective.loss_weights, means), got

    return jax.value_and_grad(loss, has_aux=True)(params)


def assert_close(got, expected, tolerance):
    """Compare arrays, relative to the largest value, as rounding errors are."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    scale = np.abs(expected).max() + 1e-30
    assert np.abs(got - expected).max() <= tolerance * scale


def assert_trees_close(got, expected, tolerance):
    jax.tree.map(lambda a, b: assert_close(a, b, tolerance), got, expected)


def relative_distance(got, expected):
    """Return |got - expected| / |expected| over all leaves of two trees together."""
    got, expected = (
        np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(t)])
        for t in (got, expected)
    )
    return np.linalg.norm(got - expected) / np.linalg.norm(expected)
