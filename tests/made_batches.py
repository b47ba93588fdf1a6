"""Batches of pretraining with one thing or another changed, for tests."""

import numpy as np

from bert_jax import config as config_lib
from bert_jax.data import batches as batches_lib

MASKED = config_lib.MaskedLmConfig()


def configure(objective=MASKED, *, length=64, seed=3, groups=1, batch_size=32, steps=9):
    """Two phases of one shape."""
    is_permuted = isinstance(objective, config_lib.PermutationLmConfig)
    return config_lib.PretrainConfig(
        seed=seed,
        objective=objective,
        encoder=config_lib.EncoderConfig(
            causal=objective.causal,
            positions="relative" if is_permuted else "absolute",
        ),
        data=config_lib.DataConfig(shard_groups=groups),
        phases=(
            config_lib.PhaseConfig(steps=steps, length=length, batch_size=batch_size),
        )
        * 2,
    )


def make(corpus, config, phase=0, **options):
    return batches_lib.PretrainingBatches([corpus], config, phase, **options)


def assert_rows_equal(batch, reference, positions, where=""):
    for row, position in enumerate(positions):
        expected = reference.row(int(position))
        assert batch.keys() == expected.keys()
        for name, value in expected.items():
            got = batch[name][row]
            assert np.array_equal(got, value), (where, row, name, got, value)
