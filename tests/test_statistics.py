"""Frequencies in the batches of recipes, compared with the papers' distributions.

All tokens of the corpus here are different and numbered in their order, so that a row
reveals the source of its text. Limits are four standard errors of the papers'
distributions or, where there is no formula, of a simulation with NumPy's generator.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recipes

from bert_jax import config as config_lib
from bert_jax import pretraining
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shard_writer, shards
from bert_jax.data import batches as batches_lib

PAD, UNK, CLS, SEP, MASK = SPECIAL = range(5)
LENGTH, BATCH_SIZE, STEPS = 64, 256, 64


class Numbered:
    """A corpus of tokens 5, 6, 7 and so on, and its structure.

    Attributes:
      continues: bool [V], whether a token continues a word.
      document: int [V], document of each token; -1 for special tokens.
      lengths: Number of tokens of each sentence.
      of_document: Index of the first sentence of each document, and their number.
    """

    def __init__(self, folder):
        rng = np.random.default_rng(0)
        sentences = rng.integers(2, 40, 60)
        self.of_document = np.concatenate([[0], np.cumsum(sentences)])
        self.lengths = rng.integers(3, 20, self.of_document[-1])
        first = 5 + np.cumsum([0, *self.lengths])
        self.continues = rng.random(first[-1]) < 0.3
        self.continues[[*SPECIAL, *first[:-1]]] = False
        vocabulary = [*tokenizer_lib.SPECIAL_TOKENS] + [
            f"##x{i}" if self.continues[i] else f"x{i}" for i in range(5, first[-1])
        ]
        text = "".join(token + "\n" for token in vocabulary)
        tokenizer = tokenizer_lib.Tokenizer("wordpiece", True, True, text.encode())
        self.document = np.full(first[-1], -1)
        path = folder / "train-00000.arrow"
        with shard_writer.ShardWriter(path, tokenizer) as writer:
            for d, (a, b) in enumerate(
                zip(self.of_document[:-1], self.of_document[1:], strict=True)
            ):
                self.document[first[a] : first[b]] = d
                writer.add([range(first[s], first[s + 1]) for s in range(a, b)], str(d))
            shard = writer.close()
        self.corpus = shards.Corpus(folder, tokenizer, {"train": (shard,)}, {}, "")
        self.vocab_size = len(vocabulary)
        self._drawn = {}

    def draw(self, recipe, **changes):
        """Return all rows of STEPS batches of a recipe, as an array for each field."""
        key = recipe, *changes.items()
        if key not in self._drawn:
            config = configured(recipe, **changes)
            made = batches_lib.PretrainingBatches([self.corpus], config, 0)
            batches = list(made.batches(0, STEPS))
            self._drawn[key] = {
                name: np.concatenate([batch[name] for batch in batches])
                for name in batches[0]
            }
        return self._drawn[key]

    @functools.cached_property
    def ends(self):
        """The index one past the last token of each sentence: int [sentences]."""
        return 5 + np.cumsum(self.lengths)


def configured(recipe, **changes):
    config = recipes.build(recipe)
    phase = config_lib.PhaseConfig(steps=STEPS, length=LENGTH, batch_size=BATCH_SIZE)
    return dataclasses.replace(
        config,
        phases=(phase,),
        objective=dataclasses.replace(config.objective, **changes),
    )


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


def assert_as_simulated(observed, simulated):
    """Check that sums of counts in rows are those of simulations of the same rows.

    Args:
      observed: [rows, counts].
      simulated: [simulations, rows, counts].
    """
    excess = (observed - simulated.mean(axis=0)).sum(axis=0)
    variance = simulated.var(axis=0, ddof=1).sum(axis=0) * (1 + 1 / len(simulated))
    assert (np.abs(excess) <= 4 * np.sqrt(variance)).all()


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


def test_half_of_the_orders_are_swapped(numbered):
    rows = numbered.draw("bert_ablations:sentence_order")
    assert rows["sop_weights"].all()
    assert_chance(rows["sop_labels"], 0.5)
    for (a, b), label in zip(segments(rows), rows["sop_labels"], strict=True):
        assert_is_text(a)
        assert_is_text(b)
        assert numbered.document[a[0]] == numbered.document[b[0]]
        assert label == (b[-1] < a[0])


def test_consecutive_segments_follow_one_another(numbered):
    for a, b in segments(numbered.draw("bert_ablations:no_nsp")):
        assert_is_text(a)
        assert_is_text(b)
        assert numbered.document[a[0]] == numbered.document[b[0]]
        if len(a) + len(b) < LENGTH - 3:  # nothing was dropped
            assert b[0] == a[-1] + 1
        assert b[0] > a[-1]


def test_a_tenth_of_the_pairs_aim_at_a_shorter_length(numbered):
    """A row that aims at g tokens takes two sentences or more, until there are g."""
    target = LENGTH - 3
    shorter = {}  # for each token, the probability that the row of its chunk is shorter
    for first, last in zip(
        numbered.of_document[:-1], numbered.of_document[1:], strict=True
    ):
        while first < last:
            total = np.cumsum(numbered.lengths[first:last])
            size = max(np.searchsorted(total, target) + 1, 2)
            total = total[:size]
            reached = [
                total[min(max(np.searchsorted(total, goal), 1), len(total) - 1)]
                for goal in range(2, target + 1)
            ]
            probability = 0.1 * np.mean(np.array(reached) < target)
            if total[-1] >= target:
                end = numbered.ends[first + len(total) - 1]
                shorter |= dict.fromkeys(range(end - total[-1], end), probability)
            first += len(total)
    rows = numbered.draw("bert_ablations:no_nsp")
    starts = [a[0] for a, _ in segments(rows)]
    counted = [i for i, token in enumerate(starts) if token in shorter]
    assert len(counted) > len(starts) / 2
    lengths = rows["attention_mask"].sum(axis=1)
    assert_chance(
        lengths[counted] < LENGTH, np.array([shorter[starts[i]] for i in counted])
    )


def test_a_tenth_of_the_single_segments_aim_at_a_shorter_length(numbered):
    name = "bert_ablations:doc_sentences"
    full = restored(numbered.draw(name))[0]
    shorter = numbered.draw(name, short_sequence_rate=0.1)
    length_of_row = dict(zip(full[:, 1], (full > MASK).sum(axis=1), strict=True))
    ids = restored(shorter)[0]
    observed = (ids > MASK).sum(axis=1)
    whole = np.array([length_of_row[start] for start in ids[:, 1]])
    assert (observed <= whole).all()
    # It aims at 2 to L - 2 tokens.
    assert_chance(observed < whole, 0.1 * (whole - 2) / (LENGTH - 3))


@pytest.mark.parametrize("crosses", [True, False])
def test_single_segments_have_as_many_sentences_as_fit(numbered, crosses):
    name = "full_sentences" if crosses else "doc_sentences"
    ids = restored(numbered.draw(f"bert_ablations:{name}"))[0]
    next_document = numbered.ends[numbered.of_document[1:] - 1]
    sentence_after = dict(
        zip([5, *numbered.ends[:-1]], numbered.lengths.tolist(), strict=True)
    )
    crossing = 0
    for row in np.unique(ids, axis=0):
        length = (row != PAD).sum()
        assert row[0] == CLS
        assert row[length - 1] == SEP
        assert (row[length:] == PAD).all()
        inner = row[1 : length - 1]
        tokens = inner[inner != SEP]
        assert_is_text(tokens)
        # Between two documents there is a [SEP], and nowhere else.
        expected = np.insert(
            tokens, np.flatnonzero(np.isin(tokens[1:], next_document)) + 1, SEP
        )
        assert np.array_equal(inner, expected)
        borders = len(inner) - len(tokens)
        crossing += borders > 0
        # It begins and ends with a sentence, and the next one has no room.
        assert tokens[0] in sentence_after
        end = tokens[-1] + 1
        if end == numbered.vocab_size:
            continue
        separator = end in next_document
        if crosses or not separator:
            assert length + separator + sentence_after[end] > LENGTH
    assert crossing > 10 if crosses else crossing == 0


def test_left_to_right_predicts_the_next_token(numbered):
    """A model that knows the text by heart fails at each [SEP] and after it only."""
    rows = numbered.draw("bert_ablations:left_to_right")
    assert set(rows) == {"input_ids", "attention_mask", "segment_ids", "weights"}
    assert not np.isin(rows["input_ids"], [MASK, UNK]).any()
    batch = {name: jnp.asarray(values[:4]) for name, values in rows.items()}
    settings = configured("bert_ablations:left_to_right").objective

    class ByHeart(pretraining.OBJECTIVES["causal_lm"]):
        @property
        def model(self):
            return self

        def apply(self, variables, inputs, *, dropout_keys):
            following = inputs.input_ids + 1
            return 30.0 * jax.nn.one_hot(following, numbered.vocab_size)

    objective = ByHeart(config_lib.EncoderConfig(causal=True), settings)
    terms = objective.terms(
        {}, batch, dropout_keys=None, sampling_keys=jax.random.key(0)
    )
    correct, predicted = terms["lm_accuracy"]
    lengths = rows["attention_mask"][:4].sum(axis=1)
    assert predicted == (lengths - 1).sum()
    # Not A's first, the first [SEP], B's first and the last [SEP].
    assert correct == (lengths - 5).sum()


# ---- the number of predictions, and their replacements

# Masking rates of recipes that mask single tokens.
TOKENS = {"bert_ablations:full_sentences": 0.15, "bert_ablations:mask_40": 0.4}


@pytest.mark.parametrize("name", TOKENS)
def test_the_share_of_predictions(name, numbered):
    rows = numbered.draw(name)
    ids, chosen = restored(rows)
    candidate = ids > MASK
    assert not (chosen & ~candidate).any()
    lengths = rows["attention_mask"].sum(axis=1)
    most = rows["mlm_positions"].shape[1]
    wanted = [min(most, max(1, round(TOKENS[name] * int(n)))) for n in lengths]
    assert chosen.sum(axis=1).tolist() == wanted
    # Every token of a row is as likely as any other, whatever its column.
    assert_chance(chosen, candidate * (wanted / candidate.sum(axis=1))[:, None])


@pytest.mark.parametrize("name", ["mask_40", "whole_words"])
def test_replacements_are_80_10_10(name, numbered):
    before, now = predictions(numbered.draw(f"bert_ablations:{name}"))
    size = numbered.vocab_size
    # A random token may be [MASK], or what was there.
    assert_chance(now == MASK, 0.8 + 0.1 / size)
    assert_chance(now == before, 0.1 + 0.1 / size)
    random = now[(now != MASK) & (now != before)]
    assert_uniform(random, np.setdiff1d(np.arange(size), [MASK]))
    assert np.isin(random, SPECIAL).any()


def test_fairseq_rounds_randomly_and_masks_all_positions(numbered):
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


def test_fairseq_draws_no_special_tokens(numbered):
    before, now = predictions(numbered.draw("bert_ablations:fairseq"))
    size = numbered.vocab_size
    choices = np.setdiff1d(np.arange(size), SPECIAL)
    is_text = before > MASK
    assert_chance(now == MASK, 0.8)
    assert_chance(now[is_text] == before[is_text], 0.1 + 0.1 / len(choices))
    assert_chance(now[~is_text] == before[~is_text], 0.1)
    assert_uniform(now[(now != MASK) & (now != before)], choices)


# ---- words and n-grams

ROWS, SIMULATIONS = 500, 40


def words_of(row, continues):
    """Return the columns of words, in the runs between special tokens."""
    runs = [[]]
    for column, token in enumerate(row):
        if token == PAD:
            break
        if token <= MASK:
            runs.append([])
        elif runs[-1] and continues[token]:
            runs[-1][-1].append(column)
        else:
            runs[-1].append([column])
    return [run for run in runs if run]


def take(units, budget, rng):
    """Take units in random order, unless they exceed the budget."""
    taken = []
    for i in rng.permutation(len(units)):
        if len(taken) + len(units[i]) <= budget:
            taken += units[i]
    return taken


def spans_of(run, rng):
    """Cut a run of words into spans of 1 to 3, with p(n) proportional to 1 / n."""
    first = 0
    while first < len(run):
        left = min(3, len(run) - first)
        # As 6, 3 and 2 elevenths; of the first two, as 2 and 1 thirds.
        draw = rng.random() * (0, 6, 9, 11)[left]
        n = 1 + (draw >= 6) + (draw >= 9)
        yield sum(run[first : first + n], [])
        first += n


def describe(columns, runs):
    """Count masked tokens, masked words, and runs of masked words.

    Words are counted by their tokens (1, 2, more), and runs by their words (1 to 4,
    more).
    """
    masked, words, lengths = set(columns), [0] * 3, [0] * 5
    for run in runs:
        current = 0
        for word in [*run, ()]:
            inside = masked.issuperset(word) if word else False
            assert inside or masked.isdisjoint(word)
            if inside:
                words[min(len(word), 3) - 1] += 1
                current += 1
            elif current:
                lengths[min(current, 5) - 1] += 1
                current = 0
    return [len(masked), *words, *lengths]


@pytest.mark.parametrize("name", ["whole_words", "ngrams"])
def test_words_are_masked_as_wholes_at_random(name, numbered):
    rows = numbered.draw(f"bert_ablations:{name}")
    ids, chosen = restored(rows)
    rng = np.random.default_rng(0)
    observed, simulated = [], []
    for row, mask in zip(ids[:ROWS], chosen[:ROWS], strict=True):
        runs = words_of(row, numbered.continues)
        budget = max(1, round(0.15 * int((row != PAD).sum())))
        assert mask.sum() <= budget
        observed.append(describe(np.flatnonzero(mask).tolist(), runs))
        simulated.append([])
        for _ in range(SIMULATIONS):
            units = [
                unit
                for run in runs
                for unit in (run if name == "whole_words" else spans_of(run, rng))
            ]
            simulated[-1].append(describe(take(units, budget, rng), runs))
    assert_as_simulated(np.array(observed), np.array(simulated).swapaxes(0, 1))


# ---- permutations


def places_of_targets(rows):
    """Return, for each row, which tokens of its text are targets: bool [tokens]."""
    chosen = np.zeros(rows["input_ids"].shape, bool)
    used = rows["target_weights"] > 0
    chosen[np.nonzero(used)[0], rows["target_positions"][used]] = True
    is_text = rows["input_ids"] > MASK
    assert not (chosen & ~is_text).any()
    return [row[text] for row, text in zip(chosen, is_text, strict=True)]


def draw_targets(rng, count):
    """Draw spans of 1 to 5 tokens in contexts of six times as many."""
    chosen = np.zeros(count, bool)
    goal = max(1, count // 6)
    begin = rng.integers(count - 6 * goal + 1)
    shares = 1 / np.arange(1, 6)
    while goal:
        size = min(goal, 1 + rng.choice(5, p=shares / shares.sum()))
        first = begin + rng.integers(6 * size - size + 1)
        chosen[first : first + size] = True
        begin += 6 * size
        goal -= size
    return chosen


def runs_and_thirds(chosen):
    """Count runs of 1 to 5 and more targets, and targets in each third of the row."""
    edges = np.flatnonzero(np.diff(np.pad(chosen, 1).astype(int)))
    runs = np.bincount(np.minimum(np.diff(edges)[::2], 6), minlength=7)[1:]
    thirds = [part.sum() for part in np.array_split(chosen, 3)]
    return [*runs, *thirds]


def test_targets_are_spans_in_contexts(numbered):
    places = places_of_targets(numbered.draw("xlnet:base"))[:4096]
    rng = np.random.default_rng(0)
    counts = [len(row) for row in places]
    assert min(counts) >= 6
    assert [row.sum() for row in places] == [n // 6 for n in counts]
    observed = np.array([runs_and_thirds(row) for row in places])
    simulated = [
        [runs_and_thirds(draw_targets(rng, n)) for n in counts] for _ in range(8)
    ]
    assert_as_simulated(observed, np.array(simulated))


def test_orders_are_uniform(numbered):
    """Targets and special tokens have ranks; other tokens have none."""
    rows = numbered.draw("xlnet:base")
    used, ranks = rows["target_weights"] > 0, rows["ranks"]
    full = used.all(axis=1)
    assert full.mean() > 0.5
    first = np.take_along_axis(ranks, rows["target_positions"][:, :1], axis=1)[:, 0]
    last = np.take_along_axis(ranks, rows["target_positions"][:, -1:], axis=1)[:, 0]
    size = used.shape[1] + 3
    for place in (first, last, ranks[:, 0]):  # the last: [CLS]
        assert_uniform(place[full], np.arange(size))
    assert_chance((first < last)[full], 0.5)
    assert_uniform((first * size + last)[full], every_pair(size))
    special = np.isin(rows["input_ids"], (CLS, SEP))
    assert (ranks[special] >= 0).all()
    placed = used.sum(axis=1) + special.sum(axis=1)
    for row, count in zip(ranks, placed, strict=True):
        assert sorted(row[row >= 0]) == list(range(count))


def every_pair(size):
    """Return first * size + last for all pairs of different ranks."""
    return np.flatnonzero(~np.eye(size, dtype=bool).ravel())
