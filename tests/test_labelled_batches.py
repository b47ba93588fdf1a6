"""Batches of labelled examples: their rows, order and length."""

import numpy as np
import pytest

from bert_jax.data.labelled_batches import LabelledBatches

LENGTHS = (16, 32, 64)


ARRAYS = {"x": np.arange(10), "weights": np.ones(10, np.float32)}


def test_epochs_have_each_example_once_in_another_order():
    made = LabelledBatches(ARRAYS, batch_size=4, seed=5)
    got = np.concatenate([batch["x"] for batch in made.batches(0, 10)])
    epochs = got.reshape(4, 10).tolist()
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 4
    assert np.array_equal(made.batch(7)["x"], got[28:32])
    rows = np.array([1, 3])
    part = LabelledBatches(ARRAYS, batch_size=4, seed=5, rows=rows)
    assert np.array_equal(part.batch(7)["x"], got[28:32][rows])


def test_held_out_examples_keep_their_order():
    made = LabelledBatches(ARRAYS, batch_size=4, seed=5, held_out=True)
    batches = list(made.batches(0, made.num_batches))
    assert np.concatenate([b["x"] for b in batches]).tolist() == [*range(10), 9, 9]
    assert batches[-1]["weights"].tolist() == [1, 1, 0, 0]


# ---- several lengths


def of_lengths(count):
    """Return rows of up to 64 tokens, most of them short, and an array [rows, 2, L]."""
    used = np.random.default_rng(0).geometric(0.06, count).clip(1, 64)
    mask = np.arange(64) < used[:, None]
    arrays = {
        "x": np.arange(count),
        "input_ids": np.where(mask, np.arange(count)[:, None] + 1, 0),
        "pairs": np.stack([mask, mask], axis=1),
        "attention_mask": mask,
        "weights": np.ones(count, np.float32),
    }
    shapes = [
        {"x": (), "input_ids": (n,), "pairs": (2, n), "attention_mask": (n,)}
        | {"weights": ()}
        for n in LENGTHS
    ]
    return arrays, used, {"sizes": np.searchsorted(LENGTHS, used), "shapes": shapes}


def test_batches_are_trimmed_to_the_smallest_length():
    arrays, used, lengths = of_lengths(300)
    made = LabelledBatches(arrays, batch_size=8, seed=3, steps=100, **lengths)
    batches = list(made.batches(0, 100))
    for batch in batches:
        longest = used[batch["x"]].max()
        wanted = next(n for n in LENGTHS if n >= longest)
        assert batch["input_ids"].shape == (8, wanted)
        assert batch["pairs"].shape == (8, 2, wanted)
        # Only padding is trimmed.
        assert np.array_equal(batch["attention_mask"].sum(1), used[batch["x"]])
        assert (batch["input_ids"].max(1) == batch["x"] + 1).all()
    # Little more padding than with a length for each row.
    padded = sum(batch["attention_mask"].size for batch in batches)
    real = sum(batch["attention_mask"].sum() for batch in batches)
    rows = np.searchsorted(LENGTHS, used)
    at_best = np.array(LENGTHS)[rows].sum() * 100 * 8 / 300
    assert real < padded < 1.15 * at_best
    # Lengths are mixed over the run.
    sizes = [batch["input_ids"].shape[1] for batch in batches]
    halves = sum(sizes[:32]), sum(sizes[32:64])
    assert max(halves) < 1.5 * min(halves)
    assert made.row_names(7)[0] == f"training row {batches[7]['x'][0]}"


def test_sorted_batches_are_a_function_of_the_step():
    arrays, _, lengths = of_lengths(300)
    options = {"batch_size": 8, "seed": 3, "steps": 100, **lengths}
    made = LabelledBatches(arrays, **options)
    whole = [batch["x"] for batch in made.batches(0, 100)]
    assert np.array_equal(made.batch(93)["x"], whole[93])
    rows = np.array([1, 2, 6])
    part = LabelledBatches(arrays, rows=rows, **options)
    for step in (0, 50, 93):
        got = part.batch(step)
        assert np.array_equal(got["x"], whole[step][rows])
        assert got["input_ids"].shape[1] == made.batch(step)["input_ids"].shape[1]
    other = LabelledBatches(arrays, **{**options, "seed": 4})
    assert not np.array_equal(other.batch(0)["x"], whole[0])


@pytest.mark.parametrize("count", [5, 61, 300, 800])
def test_windows_do_not_mix_epochs(count):
    """Batches of one epoch have its rows once, batches of two as they come."""
    arrays, _, lengths = of_lengths(count)
    options = {"batch_size": 8, "seed": 3, "steps": 400}
    made = LabelledBatches(arrays, **options, **lengths)
    got = [batch["x"] for batch in made.batches(0, 400)]
    unsorted = LabelledBatches(arrays, **options)
    expected = [batch["x"] for batch in unsorted.batches(0, 400)]
    end = 0
    for epoch in range(400 * 8 // count):
        begin, previous = -(-epoch * count // 8), end
        end = max(begin, (epoch + 1) * count // 8)
        for steps in (slice(previous, begin), slice(begin, end)):
            rows = [x for batch in got[steps] for x in batch.tolist()]
            wanted = [x for batch in expected[steps] for x in batch.tolist()]
            assert sorted(rows) == sorted(wanted)
        assert len(set(rows)) == len(rows)


def test_each_window_of_batches_has_an_order_of_its_own():
    arrays, _, lengths = of_lengths(300)
    made = LabelledBatches(arrays, batch_size=8, seed=3, steps=128, **lengths)
    sizes = [batch["input_ids"].shape[1] for batch in made.batches(0, 128)]
    first, second = np.split(np.array(sizes), 2)
    # With one order for both, nearly all sizes would be equal.
    assert np.mean(first == second) < 0.7


def test_held_out_rows_are_sorted_by_length():
    arrays, used, lengths = of_lengths(61)
    made = LabelledBatches(arrays, batch_size=8, seed=3, held_out=True, **lengths)
    batches = list(made.batches(0, made.num_batches))
    sizes = [batch["input_ids"].shape[1] for batch in batches]
    assert sizes == sorted(sizes)
    got = np.concatenate([batch["x"] for batch in batches])[:61]
    assert np.array_equal(got, np.argsort(lengths["sizes"], kind="stable"))
    weights = np.concatenate([batch["weights"] for batch in batches])
    assert weights.tolist() == [1] * 61 + [0] * 3
    for batch in batches:
        assert (batch["attention_mask"].sum(1) == used[batch["x"]]).all()
