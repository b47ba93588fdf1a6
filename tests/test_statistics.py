"""Frequencies of draws, compared with the distributions of the papers.

`test_batches.py` compares batches with a restatement that makes the same draws. Here
the batches of recipes have the distributions of the papers, to four standard errors.
All tokens of the corpus are different and numbered in their order, so that a row
reveals the source of its text.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import recipes

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards
from bert_jax.data import batches as batches_lib
from bert_jax.tokenizer import pipelines

PAD, UNK, CLS, SEP, MASK = SPECIAL = range(5)
LENGTH, BATCH_SIZE, STEPS = 64, 256, 64


class Numbered:
    """A corpus of tokens 5, 6, 7 and so on.

    Attributes:
      document: int [V], document of each token; -1 for special tokens.
    """

    def __init__(self, folder):
        rng = np.random.default_rng(0)
        sizes = [rng.integers(3, 20, rng.integers(2, 40)) for _ in range(60)]
        bounds = 5 + np.cumsum([0, *np.concatenate(sizes)])
        sentences = itertools.starmap(range, itertools.pairwise(bounds.tolist()))
        self.document = np.repeat([-1, *range(60)], [5, *map(sum, sizes)])
        self.vocab_size = len(self.document)
        vocabulary = [*tokenizer_lib.SPECIAL_TOKENS]
        vocabulary += [f"x{i}" for i in range(5, self.vocab_size)]
        tokenizer = tokenizer_lib.make(pipelines.wordpiece(vocabulary, True, True))
        path = folder / "train-00000.arrow"
        with shards.ShardWriter(path, tokenizer) as writer:
            for d, own in enumerate(sizes):
                writer.add(list(itertools.islice(sentences, len(own))), str(d))
            shard = writer.close()
        self.corpus = shards.Corpus(folder, tokenizer, {"train": (shard,)}, {}, "")

    def draw(self, recipe, **fields):
        """Return all rows of STEPS batches of a recipe, as an array for each field.

        `fields` of the objective replace the recipe's.
        """
        shape = {"length": LENGTH, "batch_size": BATCH_SIZE}
        phase = config_lib.PhaseConfig(steps=STEPS, **shape)
        config = dataclasses.replace(recipes.build(recipe), phases=(phase,))
        objective = dataclasses.replace(config.objective, **fields)
        config = dataclasses.replace(config, objective=objective)
        made = batches_lib.PretrainingBatches([self.corpus], config, 0)
        batches = list(made.batches(0, STEPS))
        return {
            name: np.concatenate([batch[name] for batch in batches])
            for name in batches[0]
        }


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    return Numbered(tmp_path_factory.mktemp("numbered"))


def restored(rows):
    """Return the rows before masking, and whether each token is predicted: [B, L]."""
    ids, chosen = rows["input_ids"].copy(), np.zeros(rows["input_ids"].shape, bool)
    row, slot = np.nonzero(rows["mlm_weights"])
    column = rows["mlm_positions"][row, slot]
    ids[row, column] = rows["mlm_labels"][row, slot]
    chosen[row, column] = True
    assert chosen.sum() == len(row)  # no position twice
    return ids, chosen


def predictions(rows):
    """Return the original token of each prediction, and its replacement."""
    now = np.take_along_axis(rows["input_ids"], rows["mlm_positions"], axis=1)
    used = rows["mlm_weights"] > 0
    return rows["mlm_labels"][used], now[used]


def assert_chance(happened, probability):
    """Check that events are as frequent as independent ones of these probabilities."""
    happened, p = np.broadcast_arrays(happened, probability)
    error = np.sqrt((p * (1 - p)).sum(axis=0))
    assert (np.abs(happened.sum(axis=0) - p.sum(axis=0)) <= 4 * error).all()


def assert_uniform(values, cells):
    """Check that values are uniform over the cells, by Pearson's statistic."""
    counts = np.bincount(values, minlength=max(cells) + 1)[cells]
    n, m = len(values), len(cells)
    assert counts.sum() == n
    statistic = ((counts - n / m) ** 2).sum() / (n / m)
    assert abs(statistic - (m - 1)) <= 4 * np.sqrt(2 * (m - 1) * (1 - 1 / n))


# ---- segments


def segments(rows):
    """Yield the tokens of A and of B of each row, without special tokens."""
    ids = restored(rows)[0] if "mlm_labels" in rows else rows["input_ids"]
    for row, real, in_b in zip(
        ids, rows["attention_mask"], rows["segment_ids"], strict=True
    ):
        length = real.sum()
        cut = length - in_b.sum()
        assert row[0] == CLS
        assert row[cut - 1] == row[length - 1] == SEP
        assert (row[length:] == PAD).all()
        assert not in_b[:cut].any()
        assert not in_b[length:].any()
        yield row[1 : cut - 1], row[cut : length - 1]


def assert_is_text(tokens):
    """Check that the tokens are consecutive in the corpus."""
    assert len(tokens) > 0
    assert (np.diff(tokens) == 1).all()
    assert tokens[0] > MASK


def test_half_of_the_next_sentences_are_random(numbered):
    rows = numbered.draw("bert_base")
    is_random = rows["nsp_labels"]
    assert rows["nsp_weights"].all()
    assert_chance(is_random, 0.5)
    ours, others = [], []
    for (a, b), label in zip(segments(rows), is_random, strict=True):
        assert_is_text(a)
        assert_is_text(b)
        assert len(a) + len(b) <= LENGTH - 3
        documents = numbered.document[[a[0], a[-1], b[0], b[-1]]]
        assert documents[0] == documents[1]
        assert documents[2] == documents[3]
        assert label == (documents[0] != documents[2])
        if label:
            ours.append(documents[0])
            others.append(documents[2])
        else:
            assert a[-1] < b[0]
    # Each other document is as likely as any other.
    every = np.arange(60)
    possible = np.array(ours)[:, None] != every
    assert_chance(np.array(others)[:, None] == every, possible / 59)


def test_random_sentences_of_packed_rows_are_from_other_documents(numbered):
    rows = numbered.draw("bert_base", examples_per_row=8)
    row, example = np.nonzero(rows["nsp_weights"])
    labels = rows["nsp_labels"][row, example]
    assert_chance(labels, 0.5)
    own = rows["documents"][row] == example[:, None]  # [examples, L]
    own &= rows["attention_mask"][row]
    in_b = rows["segment_ids"][row] == 1
    document = numbered.document[restored(rows)[0][row]]  # -1: special tokens
    of_a, of_b = (
        np.where(own & (in_b == is_b), document, -1).max(axis=1) for is_b in (0, 1)
    )
    assert (labels == (of_a != of_b)).all()


def test_half_of_the_orders_are_swapped(numbered):
    rows = numbered.draw("bert_ablations:sentence_order")
    assert rows["sop_weights"].all()
    assert_chance(rows["sop_labels"], 0.5)
    for (a, b), label in zip(segments(rows), rows["sop_labels"], strict=True):
        assert_is_text(a)
        assert_is_text(b)
        assert numbered.document[a[0]] == numbered.document[b[0]]
        assert label == (b[-1] < a[0])


# ---- the number of predictions, and their replacements


def test_the_shares_of_predictions_and_replacements(numbered):
    rows = numbered.draw("bert_ablations:mask_40")
    ids, chosen = restored(rows)
    candidate = ids > MASK
    assert not (chosen & ~candidate).any()
    lengths = rows["attention_mask"].sum(axis=1)
    wanted = np.maximum(1, np.round(0.4 * lengths))
    assert (chosen.sum(axis=1) == wanted).all()
    # Every token of a row is as likely as any other, whatever its column.
    assert_chance(chosen, candidate * (wanted / candidate.sum(axis=1))[:, None])
    # 80 % become [MASK]. A random token may be [MASK], or what was there.
    before, now = predictions(rows)
    size = numbered.vocab_size
    assert_chance(now == MASK, 0.8 + 0.1 / size)
    assert_chance(now == before, 0.1 + 0.1 / size)
    random = now[(now != MASK) & (now != before)]
    assert_uniform(random, np.setdiff1d(np.arange(size), [MASK]))
    assert np.isin(random, SPECIAL).any()


def test_fairseq_rounds_randomly_and_masks_special_tokens(numbered):
    rows = numbered.draw("bert_ablations:fairseq")
    ids, chosen = restored(rows)
    real = rows["attention_mask"]
    assert not (chosen & ~real).any()
    lengths, count = real.sum(axis=1), chosen.sum(axis=1)
    least = np.floor(0.15 * lengths)
    assert set((count - least).tolist()) == {0.0, 1.0}
    has_length = lengths[:, None] == np.unique(lengths)
    share = has_length * (0.15 * lengths - least)[:, None]
    assert_chance(has_length * (count - least)[:, None], share)
    # [CLS] and [SEP] among them.
    assert_chance(chosen, real * (count / lengths)[:, None])
    assert chosen[ids == CLS].any()
    assert chosen[ids == SEP].any()
    # Random tokens are never special.
    before, now = predictions(rows)
    size = numbered.vocab_size
    choices = np.setdiff1d(np.arange(size), SPECIAL)
    is_text = before > MASK
    assert_chance(now == MASK, 0.8)
    assert_chance(now[is_text] == before[is_text], 0.1 + 0.1 / len(choices))
    assert_chance(now[~is_text] == before[~is_text], 0.1)
    assert_uniform(now[(now != MASK) & (now != before)], choices)
