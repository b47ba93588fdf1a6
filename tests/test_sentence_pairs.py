"""Batches against a restatement of their definition in plain Python.

The restatement makes one example at a time, with lists and loops, and drops tokens one
by one as the original does. It shares no code with the package beyond the corpus.
"""

import hashlib
import math

import numpy as np
import pytest

from bert_jax import config
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, shards, sources
from bert_jax.data import chunks, sentence_pairs
from bert_jax.errors import UserError

M = 2**64 - 1


def word(key, index):
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & M
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M
    return z ^ (z >> 31)


def below(random, bound):
    return ((random >> 32) * bound) >> 32


def chance(random, probability):
    return (random >> 32) < math.floor(probability * 2**32)


def permute(index, size, key):
    height = math.ceil(math.sqrt(size))
    width = math.ceil(size / height)
    while True:
        left, right = divmod(index, width)
        for i in range(6):
            round_key = word(key, i)
            if i % 2 == 0:
                left = (left + below(word(round_key, right), height)) % height
            else:
                right = (right + below(word(round_key, left), width)) % width
        index = left * width + right
        if index < size:
            return index


def read_documents(corpus, split, chosen):
    """Documents as lists of sentences, which are lists of ids."""
    documents = []
    for shard in chosen:
        for rows in shards.read_shard(corpus.folder, shard):
            for i in range(len(rows.sources)):
                first, last = rows.sentences_before[i : i + 2]
                starts = [
                    *rows.sentence_starts[first:last],
                    rows.document_starts[i + 1],
                ]
                documents.append(
                    [
                        rows.tokens[a:b].tolist()
                        for a, b in zip(starts[:-1], starts[1:], strict=True)
                    ]
                )
    return documents


class Reference:
    """The definition of a batch, for one group of shards."""

    def __init__(self, corpus, data, *, length, predictions, seed, phase=0,
                 split="train", group=0, groups=1):  # fmt: skip
        found = corpus.shards[split]
        chosen = [s for i, s in enumerate(found) if i * groups // len(found) == group]
        target = length - 3
        self.documents = []
        for sentences in read_documents(corpus, split, chosen):
            pieces = []
            for s in sentences:
                n = math.ceil(len(s) / target)
                cuts = [len(s) * i // n for i in range(n + 1)]
                pieces += [s[cuts[i] : cuts[i + 1]] for i in range(n)]
            self.documents.append(pieces)
        self.chunks = []
        for d, pieces in enumerate(self.documents):
            chunk = []
            for piece in pieces:
                chunk.append(piece)
                if sum(map(len, chunk)) >= target and len(chunk) >= 2:
                    self.chunks.append((d, chunk))
                    chunk = []
            if chunk:
                self.chunks.append((d, chunk))
        self.corpus, self.data, self.length, self.P = corpus, data, length, predictions
        self.key = 0
        for index in (seed, shards.SPLITS.index(split), phase, group):
            self.key = word(self.key, index)

    def example(self, position):
        epoch, index = divmod(position, len(self.chunks))
        order = word(word(self.key, 0), epoch)
        c = permute(index, len(self.chunks), order)
        pair, place, action = (
            word(word(word(self.key, purpose), epoch), c) for purpose in (1, 2, 3)
        )
        a, b, is_random = self.pair(c, pair)
        self.trim(a, b, pair)
        tokenizer = self.corpus.tokenizer
        ids = [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
        segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        positions, labels = self.mask(ids, len(a), place, action)
        padding = [0] * (self.length - len(ids))
        empty = [0] * (self.P - len(positions))
        return {
            "input_ids": ids + [tokenizer.pad_id] * len(padding),
            "segment_ids": segments + padding,
            "attention_mask": [True] * len(ids) + [False] * len(padding),
            "mlm_positions": positions + empty,
            "mlm_labels": labels + empty,
            "mlm_weights": [1.0] * len(positions) + [0.0] * len(empty),
            "nsp_labels": int(is_random),
            "nsp_weights": 1.0,
        }

    def pair(self, c, key):
        d, pieces = self.chunks[c]
        goal = self.length - 3
        if chance(word(key, 0), self.data.short_sequence_rate):
            goal = 2 + below(word(key, 1), goal - 1)
        used, total = [], 0
        for piece in pieces:
            if total >= goal and len(used) >= 2:
                break
            used.append(piece)
            total += len(piece)
        is_random = chance(word(key, 3), 0.5)
        if len(used) > 1:
            cut = 1 + below(word(key, 2), len(used) - 1)
            a, b = sum(used[:cut], []), sum(used[cut:], [])
        elif len(used[0]) > 1:
            cut = 1 + below(word(key, 2), len(used[0]) - 1)
            a, b = used[0][:cut], used[0][cut:]
        else:
            a, b, is_random = used[0], None, True
        if is_random:
            others = [x for i, x in enumerate(self.documents) if i != d]
            other = others[below(word(key, 4), len(others))]
            b = []
            for piece in other[below(word(key, 5), len(other)) :]:
                b = b + piece
                if len(b) >= goal - len(a):
                    break
        return list(a), list(b), is_random

    def trim(self, a, b, key):
        words = math.ceil((self.length - 3) / 64)
        dropped = {"a": 0, "b": 0}
        while len(a) + len(b) > self.length - 3:
            name, longer = ("a", a) if len(a) > len(b) else ("b", b)
            first = 6 if name == "a" else 6 + words
            n = dropped[name]
            if word(key, first + n // 64) >> (n % 64) & 1:
                del longer[0]
            else:
                del longer[-1]
            dropped[name] += 1

    def mask(self, ids, a_length, place, action):
        n = len(ids)
        count = min(self.P, max(1, round(self.data.mask_rate * n)))
        bits = (self.length - 1).bit_length()
        candidates = [i for i in range(n) if i not in (0, a_length + 1, n - 1)]
        candidates.sort(key=lambda i: (word(place, i) >> (bits + 1), i), reverse=True)
        positions = sorted(candidates[:count])
        labels = [ids[i] for i in positions]
        tokenizer = self.corpus.tokenizer
        for i in positions:
            random = word(action, i)
            if chance(random, self.data.mask_token_rate):
                ids[i] = tokenizer.mask_id
            elif chance(
                random, self.data.mask_token_rate + self.data.random_token_rate
            ):
                ids[i] = below(random << 32 & M, tokenizer.vocab_size)
        return positions, labels


def pairs(
    corpus, data=None, *, length=64, predictions=10, batch_size=32, seed=3, **more
):
    return sentence_pairs.SentencePairs(
        corpus,
        data or config.DataConfig(),
        length=length,
        max_predictions=predictions,
        batch_size=batch_size,
        seed=seed,
        **more,
    )


def assert_rows_equal(batch, reference, positions, where=""):
    for row, position in enumerate(positions):
        for name, expected in reference.example(int(position)).items():
            found = batch[name][row]
            assert np.array_equal(found, expected), (where, row, name, found, expected)


@pytest.mark.parametrize(
    ("length", "predictions", "seed", "phase"),
    [(64, 10, 3, 0), (128, 20, 0, 0), (128, 20, 2**31 - 1, 1), (16, 3, 5, 0)],
)
def test_batches_are_those_of_the_restatement(corpus, length, predictions, seed, phase):
    data = config.DataConfig()
    shape = {"length": length, "predictions": predictions, "seed": seed, "phase": phase}
    made = pairs(corpus, data, **shape)
    reference = Reference(corpus, data, **shape)
    # The first, one in the middle, one that lies in two epochs, one far out.
    border = len(reference.chunks) // 32
    assert len(reference.chunks) % 32
    for step in (0, 7, border, 1000):
        positions = step * 32 + np.arange(32)
        assert_rows_equal(made.batch(step), reference, positions, step)


def test_rates_are_followed(corpus):
    rates = {"short_sequence_rate": 1.0, "mask_rate": 0.4, "mask_token_rate": 0.3}
    data = config.DataConfig(**rates, random_token_rate=0.6)
    shape = {"length": 64, "predictions": 30, "seed": 1}
    made, reference = pairs(corpus, data, **shape), Reference(corpus, data, **shape)
    assert_rows_equal(made.batch(2), reference, 64 + np.arange(32))


@pytest.mark.parametrize(
    ("groups", "processes"), [(1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 2)]
)
def test_processes_make_the_rows_they_own(corpus, groups, processes):
    """Any number of processes, together, make the batch that one process makes."""
    data = config.DataConfig(shard_groups=groups)
    shape = {"length": 64, "predictions": 10, "seed": 3}
    rows = np.arange(32).reshape(processes, -1)
    parts = [pairs(corpus, data, rows=r, **shape).batch(9) for r in rows]
    batch = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    per_group = 32 // groups
    for group in range(groups):
        reference = Reference(corpus, data, group=group, groups=groups, **shape)
        own = slice(group * per_group, (group + 1) * per_group)
        part = {name: values[own] for name, values in batch.items()}
        assert_rows_equal(part, reference, 9 * per_group + np.arange(per_group))


def test_a_process_opens_only_its_groups_shards(corpus, monkeypatch):
    opened = []
    read = shards.read_shard

    def record(folder, shard):
        opened.append(shard.file)
        return read(folder, shard)

    monkeypatch.setattr(chunks.shards, "read_shard", record)
    data = config.DataConfig(shard_groups=2)
    halves = []
    for rows in (np.arange(16), np.arange(16, 32)):
        opened.clear()
        pairs(corpus, data, rows=rows)
        halves.append(set(opened))
    assert halves[0].isdisjoint(halves[1])
    assert halves[0] | halves[1] == {s.file for s in corpus.shards["train"]}


def test_reading_on_or_resuming_gives_the_same(corpus):
    made = pairs(corpus)
    straight = list(made.batches(0, 12))
    resumed = list(pairs(corpus).batches(7, 12))
    for a, b in zip(straight[7:], resumed, strict=True):
        for name in a:
            assert np.array_equal(a[name], b[name])


def test_held_out_is_one_epoch_padded_with_nothing(corpus):
    made = pairs(corpus, held_out=True)
    reference = Reference(
        corpus, config.DataConfig(), length=64, predictions=10, seed=3, split="held_out"
    )
    total = len(reference.chunks)
    assert made.num_batches == math.ceil(total / 32)
    assert total % 32
    batches = list(made.batches(0, made.num_batches))
    assert sum(b["nsp_weights"].sum() for b in batches) == total
    assert_rows_equal(batches[0], reference, np.arange(32))
    rest = total % 32
    assert batches[-1]["nsp_weights"].tolist() == [1.0] * rest + [0.0] * (32 - rest)
    assert batches[-1]["mlm_weights"][rest:].sum() == 0
    assert batches[-1]["mlm_weights"][:rest].sum() > 0


def test_every_chunk_once_an_epoch(corpus):
    """Seen where the chunks enter: at the pairing of their segments."""
    (group,) = pairs(corpus, batch_size=1)._groups
    count, pair, orders = group.num_chunks, group._pair, []

    def record(chunk, key):
        orders.append(chunk.numpy().tolist())
        return pair(chunk, key)

    group._pair = record
    for epoch in range(2):
        group._rows = np.arange(epoch * count, (epoch + 1) * count)
        group.make(np.int64(0))
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(count))
    assert orders[0] != orders[1]
    assert list(range(count)) not in orders


@pytest.mark.parametrize("size", [1, 2, 3, 10, 97, 1000, 4097])
def test_permutations_are_permutations(size):
    import tensorflow as tf

    from bert_jax.data import counter

    for seed in range(3):
        key = counter.stream(seed)
        found = counter.permute(tf.range(size, dtype=tf.int64), size, key).numpy()
        assert found.tolist() == [permute(i, size, word(0, seed)) for i in range(size)]
        assert sorted(found.tolist()) == list(range(size))


def test_all_tokens_are_in_exactly_one_chunk(corpus):
    table = chunks.load_tokens(corpus, "train")
    for target in (5, 61, 125, 100_000):
        cut = chunks.cut_into_chunks(table, target)
        assert cut.first_piece[0] == 0
        assert np.array_equal(cut.first_piece[1:], cut.end_piece[:-1])
        assert cut.end_piece[-1] == len(cut.piece_starts) - 1
        assert cut.piece_starts[-1] == len(table.tokens)
        assert np.diff(cut.piece_starts).max() <= target


def test_statistics(corpus):
    """Rates over many batches, within what chance allows (four standard errors)."""
    made = pairs(corpus, length=128, predictions=20, batch_size=64)
    batches = list(made.batches(0, 150))
    tokenizer = corpus.tokenizer
    random_next = np.concatenate([b["nsp_labels"] for b in batches])
    assert abs(random_next.mean() - 0.5) < 4 * 0.5 / math.sqrt(len(random_next))
    chosen = np.concatenate([b["mlm_weights"] for b in batches]) > 0
    positions = np.concatenate([b["mlm_positions"] for b in batches])
    labels = np.concatenate([b["mlm_labels"] for b in batches])
    ids = np.concatenate([b["input_ids"] for b in batches])
    now = np.take_along_axis(ids, positions, axis=1)[chosen]
    before = labels[chosen]
    n = len(now)

    def close(count, probability):
        spread = math.sqrt(probability * (1 - probability) / n)
        return abs(count / n - probability) < 4 * spread

    assert close((now == tokenizer.mask_id).sum(), 0.8 + 0.1 / tokenizer.vocab_size)
    assert close((now == before).sum(), 0.1 + 0.1 / tokenizer.vocab_size)
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id}
    assert special.isdisjoint(before.tolist())
    lengths = np.concatenate([b["attention_mask"].sum(1) for b in batches])
    counts = chosen.sum(1)
    wanted = [min(20, max(1, round(0.15 * int(m)))) for m in lengths]
    assert counts.tolist() == wanted
    assert (np.diff(np.where(chosen, positions, 1000), axis=1) >= 0).all()


def test_short_documents_do_not_bias_next_sentence(tmp_path, wordpiece):
    """The original gives far more than half random pairs on such a corpus."""
    text = "\n\n".join(f"This is all that document {i} says." for i in range(300))
    (tmp_path / "a.txt").write_text(text)
    source = sources.Source(str(tmp_path / "a.txt"), "text")
    corpus = build.build(source, build.Settings(0.0), wordpiece, tmp_path / "c")
    batch = pairs(corpus, batch_size=300).batch(0)
    assert abs(batch["nsp_labels"].mean() - 0.5) < 4 * 0.5 / math.sqrt(300)


def test_one_document_is_not_enough(tmp_path, wordpiece):
    (tmp_path / "a.txt").write_text("One document. It has two sentences.")
    source = sources.Source(str(tmp_path / "a.txt"), "text")
    corpus = build.build(source, build.Settings(0.0), wordpiece, tmp_path / "c")
    with pytest.raises(UserError, match="has 1 train documents .* at least two"):
        pairs(corpus)
    with pytest.raises(UserError, match="shard_groups=2, but .* has 1 train shards"):
        pairs(corpus, config.DataConfig(shard_groups=2))


def test_the_definition_does_not_drift(tmp_path):
    """A change of any draw or order would make runs of earlier versions unrepeatable.

    If this fails and the change is wanted, `counter` or `sentence_pairs` have a new
    definition: say so in docs/log.md, and write the new hash here.
    """
    words = [f"w{i}" for i in range(100)]
    vocabulary = "".join(t + "\n" for t in [*tokenizer_lib.SPECIAL_TOKENS, ".", *words])
    tokenizer = tokenizer_lib.Tokenizer("wordpiece", True, True, vocabulary.encode())
    sentences = [
        " ".join(f"w{i * j % 97}" for j in range(1, 5 + i % 17)) + ". "
        for i in range(3000)
    ]
    text = "".join(s + "\n\n" * (i % 23 == 0) for i, s in enumerate(sentences))
    (tmp_path / "a.txt").write_text(text)
    source = sources.Source(str(tmp_path / "a.txt"), "text")
    corpus = build.build(source, build.Settings(0.0), tokenizer, tmp_path / "c")
    digest = hashlib.sha256()
    for batch in pairs(corpus, length=128, predictions=20).batches(0, 20):
        for name in sorted(batch):
            digest.update(name.encode() + batch[name].tobytes())
    assert digest.hexdigest()[:16] == "5cc7a5c6aa465f52"
