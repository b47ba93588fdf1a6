"""Random bits of the model, and its dropout."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import TINY, masked_lm_params, random_batch

from bert_jax.model import dropout, randomness
from bert_jax.objectives import masked_lm


def row_keys(count, *, seed=0, purpose="dropout", step=1):
    return randomness.row_keys(seed, purpose, jnp.int32(step), jnp.arange(count))


def mix(x):
    """Restate Wellons' hash with Python integers."""
    x = ((x ^ x >> 16) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ x >> 15) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ x >> 16


def test_bits_are_addressed_by_seed_purpose_step_row_place_and_position():
    """Compare with Python integers, and CRC-32 by its polynomial."""

    def number(name):
        crc = 0xFFFFFFFF
        for byte in name.encode():
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
        return crc ^ 0xFFFFFFFF

    def fold(key, value):
        return mix((key + (value + 1) * 0x9E3779B9) & 0xFFFFFFFF)

    keys = row_keys(3, seed=7, purpose="sampling", step=5)
    keys = randomness.fold_in(randomness.fold_in(keys, "layers"), 2)
    got = randomness.bits(keys, (4, 5))
    for row in range(3):
        key = mix((7 + 0x9E3779B9) & 0xFFFFFFFF)
        for value in (number("sampling"), 5, row, number("layers"), 2):
            key = fold(key, value)
        expected = [mix((i * 0x9E3779B9 + key) & 0xFFFFFFFF) for i in range(20)]
        assert got[row].ravel().tolist() == expected


@pytest.mark.parametrize("seed", [np.int64(7), jnp.int32(7), jnp.uint32(7)])
def test_a_seed_may_have_any_type(seed):
    assert row_keys(3, seed=seed).dtype == jnp.uint32
    assert (row_keys(3, seed=seed) == row_keys(3, seed=7)).all()


def mixed(word):
    """Restate the hash of dropout with Python integers."""
    for down, up in ((6, 5), (3, 7), (13, 17)):
        word ^= word >> down
        word = (word + (word << up)) % 2**32
    return word


@pytest.mark.parametrize(
    ("shape", "rate"), [((40,), 0.1), ((2, 3, 77), 1 / 3), ((3, 16), 0.9)]
)
def test_two_positions_share_a_word(shape, rate):
    """The first position has the whole word, as a signed number, the second its half.

    Their distance is the number of words, a multiple of 8.
    """
    keys = row_keys(2)
    got = np.asarray(dropout.mask(keys, shape, rate))
    count = (shape[-1] + 15) // 16 * 8
    assert got.shape == (2, *shape)
    lowest = -(2**31)
    for *place, column in np.ndindex(got.shape):
        row = np.ravel_multi_index(place[1:], shape[:-1]) if place[1:] else 0
        index = row * count + column % count
        key = int(keys[place[0]])
        word = mixed((key + int(index) * 0x9E3779B9) % 2**32)
        if column >= count:
            word = (word & 0xFFFF) << 16
        signed = word - 2**32 if word >= 2**31 else word
        assert got[*place, column] == (signed < lowest + int(rate * 2**32))


def test_no_two_positions_are_correlated_at_any_distance():
    """Correlate the halves of a long row with themselves and each other.

    Fourier transforms give the correlations at all distances.
    """
    size, rate = 2**18, 0.1
    keys = row_keys(6)
    drops = np.asarray(dropout.mask(keys, (2 * size,), rate)) - rate
    assert abs(drops.mean()) < 4 * np.sqrt(rate * (1 - rate) / drops.size)
    first, second = (
        np.fft.rfft(half, 2 * size) for half in (drops[:, :size], drops[:, size:])
    )
    for a, b in ((first, first), (second, second), (first, second)):
        sums = np.fft.irfft(np.sum(a * b.conj(), axis=0))[1 : size // 2]
        count = 6 * (size - np.arange(1, size // 2))
        errors = sums / (rate * (1 - rate) * np.sqrt(count))
        assert abs(errors.std() - 1) < 0.02
        assert np.abs(errors).max() < 5.5  # of 131,071 distances


def test_values_are_scaled_and_the_gradient_uses_the_same_mask():
    x = jax.random.normal(jax.random.key(0), (4, 6, 8))
    y, pullback = jax.vjp(lambda x: dropout.dropout(x, 0.3, row_keys(4)), x)
    (grad,) = pullback(jnp.ones_like(x))
    drop = dropout.mask(row_keys(4), (6, 8), 0.3)
    assert np.allclose(y, np.where(drop, 0, x / 0.7))
    assert np.allclose(grad * x, y)


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({}, 1),
        ({"num_layers": 4, "num_layer_groups": 2}, 1),
        ({"positions": "disentangled"}, 1),
        ({"positions": "relative"}, 2),
    ],
    ids=["plain", "shared layers", "DeBERTa", "XLNet"],
)
def test_every_place_draws_masks_of_its_own(changes, others, monkeypatch):
    """No two dropouts of a step have the same keys, and each has its rate.

    `others` are outside of layers: of embeddings, and of XLNet's output.
    """
    encoder = dataclasses.replace(TINY, **changes)
    seen, rates = [], []
    real = dropout._dropout

    def record(x, keys, rate):
        def note(keys):
            seen.append(np.asarray(keys).tobytes())
            rates.append(rate)

        jax.debug.callback(note, keys)
        return real(x, keys, rate)

    monkeypatch.setattr(dropout, "_dropout", record)
    layers, params = encoder.num_layers, masked_lm_params(encoder)
    encoder = dataclasses.replace(encoder, attention_dropout_rate=0.25)
    sums = jax.jit(masked_lm.MaskedLm(encoder).sums)
    for dropout_keys in (None, row_keys(8)):
        assert not seen
        keys = {"dropout_keys": dropout_keys, "sampling_keys": row_keys(8)}
        sums(params, random_batch(), **keys)
        jax.effects_barrier()
    assert sorted(rates) == [0.1] * (others + 2 * layers) + [0.25] * layers
    assert len(set(seen)) == len(seen)
