"""Batches against a restatement of their definition in plain Python."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from made_batches import assert_rows_equal, configure, make
from restatement import Reference, permute, word

from bert_jax import config as config_lib
from bert_jax.corpus import build, shards, sources
from bert_jax.data import chunks
from bert_jax.errors import UserError


@pytest.mark.parametrize(
    ("length", "predictions", "seed", "phase"),
    [(64, 10, 3, 0), (128, 20, 0, 0), (128, 20, 2**31 - 1, 1), (16, 3, 5, 0)],
)
def test_batches_are_those_of_the_restatement(corpus, length, predictions, seed, phase):
    config = configure(length=length, seed=seed)
    made, reference = make(corpus, config, phase), Reference(corpus, config, phase)
    assert predictions == reference.P
    # The first, one in the middle, one that lies in two epochs, one far out.
    ahead = len(reference.chunks) - reference.begin % len(reference.chunks)
    border = ahead // 32
    assert ahead % 32
    for step in (0, 7, border, 1000):
        positions = step * 32 + np.arange(32)
        assert_rows_equal(made.batch(step), reference, positions, step)


SEGMENTS = ("sentence_order", "consecutive", "full_sentences", "doc_sentences")


@pytest.mark.parametrize("short", [0.0, 0.3])
@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("kind", ["masked_lm", "causal_lm"])
def test_segments_of_all_kinds(kind, segments, short, corpus):
    if kind == "masked_lm":
        cls = config_lib.MaskedLmConfig
    elif segments != "sentence_order":
        cls = config_lib.CausalLmConfig
    else:
        return
    config = configure(cls(segments=segments, short_sequence_rate=short))
    made, reference = make(corpus, config), Reference(corpus, config)
    for step in (0, len(reference.chunks) // 32):
        positions = step * 32 + np.arange(32)
        assert_rows_equal(made.batch(step), reference, positions, step)


MASKS = {
    "other rates": {
        "rate": 0.4,
        "max_predictions": 23,
        "mask_token_rate": 0.3,
        "random_token_rate": 0.6,
    },
    "words": {"unit": "word"},
    "words, few predictions": {"unit": "word", "rate": 0.5, "max_predictions": 4},
    "n-grams": {"unit": "ngram"},
    "n-grams of up to five": {"unit": "ngram", "max_ngram": 5, "rate": 0.4},
    "fairseq": {"convention": "fairseq"},
    "fairseq, words": {"convention": "fairseq", "unit": "word", "rate": 0.3},
    "other rate held out": {"rate": 0.1, "eval_rate": 0.3},
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_all_kinds(name, corpus):
    """In pairs in the first phase, and in single segments in the second."""
    masking = config_lib.MaskingConfig(**MASKS[name])
    for phase, segments in enumerate(("next_sentence", "full_sentences")):
        objective = config_lib.MaskedLmConfig(
            segments=segments, masking=masking, short_sequence_rate=0.2
        )
        config = configure(objective)
        made, reference = make(corpus, config, phase), Reference(corpus, config, phase)
        for step in (0, 8):
            positions = step * 32 + np.arange(32)
            assert_rows_equal(made.batch(step), reference, positions, (phase, step))


def phases_of(config, *shapes):
    """A config with a phase for each (steps, batch_size, length)."""
    names = "steps", "batch_size", "length"
    phases = [dict(zip(names, shape, strict=True)) for shape in shapes]
    phases = tuple(config_lib.PhaseConfig(**phase) for phase in phases)
    return dataclasses.replace(config, phases=phases)


@pytest.mark.parametrize(
    ("objective", "groups"),
    [
        (config_lib.MaskedLmConfig(), 1),
        (config_lib.MaskedLmConfig(), 2),
        (config_lib.MaskedLmConfig(examples_per_row=4, short_sequence_rate=0.5), 1),
        (config_lib.CausalLmConfig(segments="doc_sentences"), 1),
    ],
)
def test_phases_of_one_length_are_one_phase(objective, groups, corpus):
    """With growing batches and another length between: the same rows, in one order."""
    config = configure(objective, groups=groups)
    whole = phases_of(config, (21, 8, 64))
    ramp = phases_of(config, (5, 8, 64), (3, 16, 128), (4, 16, 64), (2, 32, 64))

    def rows(config, phases):
        """Rows of each group, end to end."""
        parts = [
            jax.tree.map(lambda x: np.split(x, groups), batch)
            for phase in phases
            for batch in make(corpus, config, phase).batches(
                0, config.phases[phase].steps
            )
        ]
        return {
            name: [np.concatenate([p[name][g] for p in parts]) for g in range(groups)]
            for name in parts[0]
        }

    expected, got = rows(whole, [0]), rows(ramp, [0, 2, 3])
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert len(values[0]) == 21 * 8 // groups
        assert np.array_equal(got[name], values), name
    # Evaluations of all of them are on the same rows with the same masks.
    first, last = (make(corpus, ramp, i, held_out=True).batch(0) for i in (0, 3))
    for name, values in first.items():
        assert np.array_equal(values, last[name][:8])


def test_every_chunk_once_an_epoch_over_phases(corpus):
    """Also where the epoch ends in the middle of a batch; then with other masks."""
    count = len(Reference(corpus, configure()).chunks)
    steps = count // 32
    config = phases_of(
        configure(), (steps // 2, 16, 64), (steps, 32, 64), (3 * steps, 16, 64)
    )
    names = []
    for phase in range(3):
        made = make(corpus, config, phase)
        for step in range(config.phases[phase].steps):
            names += made.row_names(step)
    chunks = [name.rpartition(" epoch ") for name in names]
    for epoch in range(2):
        seen = [chunk for chunk, _, of in chunks if of == str(epoch)]
        assert len(set(seen)) == count == len(seen)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("most", [0, 7])
def test_phases_with_masking_rates(most, corpus):
    """The rate decides the number of predictions, too, unless the config does."""
    masking = config_lib.MaskingConfig(rate=0.2, max_predictions=most)
    config = configure(config_lib.MaskedLmConfig(masking=masking))
    phase = config.phases[0]
    phases = [dataclasses.replace(phase, masking_rate=rate) for rate in (0.4, 0, 0.05)]
    config = dataclasses.replace(config, phases=tuple(phases))
    # 0.4, 0.2 and, of held-out text, 0.15 of 64 tokens.
    for phase, predictions in enumerate((26, 13, 10)):
        for split in ("train", "held_out"):
            made = make(corpus, config, phase, held_out=split == "held_out")
            reference = Reference(corpus, config, phase, split=split)
            batch = made.batch(1)
            assert batch["mlm_labels"].shape == (32, most or predictions)
            assert_rows_equal(batch, reference, 32 + np.arange(32), (phase, split))


@pytest.mark.parametrize("name", ["words", "fairseq", "fairseq, words", "n-grams"])
def test_masks_with_byte_level_bpe(name, byte_bpe_corpus):
    """Where words that begin a document look as if they continued another."""
    masking = config_lib.MaskingConfig(**MASKS[name])
    objective = config_lib.MaskedLmConfig(segments="full_sentences", masking=masking)
    config = configure(objective)
    made, reference = make(byte_bpe_corpus, config), Reference(byte_bpe_corpus, config)
    assert_rows_equal(made.batch(1), reference, 32 + np.arange(32), name)


@pytest.mark.parametrize("short", [0.0, 0.5])
@pytest.mark.parametrize("segments", ["consecutive", "full_sentences", "doc_sentences"])
def test_permutations_of_all_kinds(segments, short, corpus):
    """Short rows have fewer tokens than a context, down to one."""
    objective = config_lib.PermutationLmConfig(
        segments=segments, short_sequence_rate=short
    )
    for length in (64, 16, 512) if segments == "consecutive" else (64,):
        config = configure(objective, length=length)
        made, reference = make(corpus, config), Reference(corpus, config)
        for step in (0, len(reference.chunks) // 32):
            positions = step * 32 + np.arange(32)
            assert_rows_equal(made.batch(step), reference, positions, step)


def test_permutations_of_other_spans(corpus):
    objective = config_lib.PermutationLmConfig(context=3, max_span=9)
    config = configure(objective, length=40)
    made = make(corpus, config, held_out=True)
    reference = Reference(corpus, config, split="held_out")
    assert_rows_equal(made.batch(0), reference, np.arange(32))
    last = made.batch(made.num_batches - 1)
    assert 0 < last["target_weights"].max(1).sum() < 32


@pytest.mark.parametrize("name", ["n-grams", "other rate held out"])
def test_masks_of_the_held_out_split(name, corpus):
    masking = config_lib.MaskingConfig(**MASKS[name])
    config = configure(config_lib.MaskedLmConfig(masking=masking))
    held_out = make(corpus, config, held_out=True).batch(0)
    reference = Reference(corpus, config, split="held_out")
    assert_rows_equal(held_out, reference, np.arange(32), "held out")


def test_every_recipe_length_has_masks_of_words(corpus):
    """A length of 512 has more positions than a word of random bits has to spare."""
    masking = config_lib.MaskingConfig(unit="ngram")
    objective = config_lib.MaskedLmConfig(segments="full_sentences", masking=masking)
    config = configure(objective, length=512, batch_size=8)
    assert_rows_equal(
        make(corpus, config).batch(1), Reference(corpus, config), 8 + np.arange(8)
    )


@pytest.mark.parametrize(
    ("groups", "processes"), [(1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 2)]
)
def test_processes_make_the_rows_they_own(corpus, groups, processes):
    """Any number of processes, together, make the batch that one process makes."""
    config = configure(groups=groups)
    rows = np.arange(32).reshape(processes, -1)
    parts = [make(corpus, config, rows=r).batch(9) for r in rows]
    batch = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    per_group = 32 // groups
    for group in range(groups):
        reference = Reference(corpus, config, group=group)
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
    halves = []
    for rows in (np.arange(16), np.arange(16, 32)):
        opened.clear()
        make(corpus, configure(groups=2), rows=rows)
        halves.append(set(opened))
    assert halves[0].isdisjoint(halves[1])
    assert halves[0] | halves[1] == {s.file for s in corpus.shards["train"]}


def test_reading_on_or_resuming_gives_the_same(corpus):
    straight = list(make(corpus, configure()).batches(0, 12))
    resumed = list(make(corpus, configure()).batches(7, 12))
    for a, b in zip(straight[7:], resumed, strict=True):
        for name in a:
            assert np.array_equal(a[name], b[name])


def test_held_out_is_one_epoch_padded_with_nothing(corpus):
    config = configure()
    made = make(corpus, config, held_out=True)
    reference = Reference(corpus, config, split="held_out")
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
    import tensorflow as tf

    (group,) = make(corpus, configure(batch_size=127))._groups
    order = group.corpora[0].order
    count = order.count
    assert count > 2 * 127 and count % 127
    items = order.at(tf.range(2 * count, dtype=tf.int64))
    index, epochs = items.index.numpy(), items.epoch.numpy()
    orders = [index[epochs == epoch].tolist() for epoch in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(count))
    assert orders[0] != orders[1]
    assert list(range(count)) not in orders


@pytest.mark.parametrize("size", [1, 2, 3, 10, 97, 1000, 4097])
def test_permutations_are_permutations(size):
    import tensorflow as tf

    from bert_jax.data import random_bits

    for seed in range(3):
        key = random_bits.stream(seed)
        got = random_bits.permute(tf.range(size, dtype=tf.int64), size, key).numpy()
        assert got.tolist() == [permute(i, size, word(0, seed)) for i in range(size)]
        assert sorted(got.tolist()) == list(range(size))


def test_all_tokens_are_in_exactly_one_chunk(corpus):
    table = chunks.load_tokens(corpus, "train")
    for target in (5, 61, 125, 100_000):
        pieces = chunks.cut_into_pieces(table, target)
        assert pieces.starts[-1] == len(table.tokens)
        assert np.diff(pieces.starts).max() <= target
        for cut in (
            chunks.reach(pieces, target),
            chunks.fill(pieces, target, separator=None),
            chunks.fill(pieces, target, separator=1),
        ):
            assert cut.first_piece[0] == 0
            assert np.array_equal(cut.first_piece[1:], cut.end_piece[:-1])
            assert cut.end_piece[-1] == len(pieces.starts) - 1


def test_full_sentences_leave_little_room(corpus):
    """What is left over is less than the sentence that did not fit."""
    lengths = {}
    for segments in ("next_sentence", "full_sentences", "doc_sentences"):
        objective = config_lib.MaskedLmConfig(segments=segments, short_sequence_rate=0)
        made = make(corpus, configure(objective, length=128))
        masks = [batch["attention_mask"] for batch in made.batches(0, 20)]
        lengths[segments] = np.mean(masks)
    assert lengths["full_sentences"] > 0.85
    assert lengths["full_sentences"] > lengths["doc_sentences"]


def test_short_documents_do_not_bias_next_sentence(tmp_path, wordpiece):
    """The original gives far more than half random pairs on such a corpus."""
    text = "\n\n".join(f"This is all that document {i} says." for i in range(300))
    (tmp_path / "a.txt").write_text(text)
    source = sources.Source(str(tmp_path / "a.txt"), "text")
    corpus = build.build(source, build.Settings(0.0), wordpiece, tmp_path / "c")
    batch = make(corpus, configure(batch_size=300)).batch(0)
    assert abs(batch["nsp_labels"].mean() - 0.5) < 4 * 0.5 / math.sqrt(300)


def test_one_document_is_not_enough(tmp_path, wordpiece):
    (tmp_path / "a.txt").write_text("One document. It has two sentences.")
    source = sources.Source(str(tmp_path / "a.txt"), "text")
    corpus = build.build(source, build.Settings(0.0), wordpiece, tmp_path / "c")
    with pytest.raises(UserError, match="1 train documents .*'next_sentence' needs at"):
        make(corpus, configure())
    with pytest.raises(UserError, match="shard_groups=2, but .* has 1 train shards"):
        make(corpus, configure(groups=2))
    objective = config_lib.MaskedLmConfig(segments="sentence_order")
    batch = make(corpus, configure(objective)).batch(0)
    assert batch["sop_weights"].all()
