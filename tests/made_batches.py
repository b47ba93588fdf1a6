"""Configs of pretraining, their batches, and the comparison with the restatement."""

import numpy as np
from restatement import Reference

from bert_jax import config as config_lib
from bert_jax.data import batches as batches_lib

MASKED = config_lib.MaskedLmConfig()


def configure(objective=MASKED, *, length=64, seed=3, groups=1, batch_size=32, steps=9):
    """Return a config with two phases of one shape."""
    is_permuted = isinstance(objective, config_lib.PermutationLmConfig)
    phase = config_lib.PhaseConfig(steps=steps, length=length, batch_size=batch_size)
    return config_lib.PretrainConfig(
        seed=seed,
        objective=objective,
        encoder=config_lib.EncoderConfig(
            causal=objective.causal, positions="relative" if is_permuted else "absolute"
        ),
        data=config_lib.DataConfig(shard_groups=groups),
        phases=(phase, phase),
    )


def make(corpus, config, phase=0, **options):
    corpora = corpus if isinstance(corpus, list) else [corpus]
    return batches_lib.PretrainingBatches(corpora, config, phase, **options)


def assert_rows_equal(batch, reference, positions, where):
    for row, position in enumerate(positions):
        expected = reference.row(int(position))
        assert batch.keys() == expected.keys()
        for name, value in expected.items():
            got = batch[name][row]
            assert np.array_equal(got, value), (where, row, name, got, value)


def assert_as_restated(corpus, config, steps, phase=0, *, split="train"):
    """Compare the batches of some steps; "border" is a step that lies in two epochs."""
    made = make(corpus, config, phase, held_out=split == "held_out")
    reference = Reference(corpus, config, phase, split=split)
    size = config.phases[phase].batch_size
    count = len(reference.rows)
    border = (count - reference.begin % count) // size
    for step in steps:
        step = border if step == "border" else step
        positions = step * size + np.arange(size)
        if split == "held_out":
            positions = positions[positions < count]
        assert_rows_equal(made.batch(step), reference, positions, step)
