"""Batches, compared with a restatement of their definition in plain Python."""

import dataclasses
import math
import types
from unittest import mock

import jax
import numpy as np
import pytest
import tensorflow as tf
from corpora import build_text
from made_batches import assert_as_restated, configure, make
from restatement import permute, word

from bert_jax import config as config_lib
from bert_jax import pretraining
from bert_jax.corpus import shards
from bert_jax.data import chunks, pipeline, random_bits, segment_pairs, segments
from bert_jax.errors import UserError


def masked(segments="next_sentence", short=0.2, **masking):
    return config_lib.MaskedLmConfig(
        segments=segments,
        short_sequence_rate=short,
        masking=config_lib.MaskingConfig(**masking),
    )


def causal(segments):
    return config_lib.CausalLmConfig(segments=segments, short_sequence_rate=0.3)


def permuted(segments="consecutive", **spans):
    return config_lib.PermutationLmConfig(
        segments=segments, short_sequence_rate=0.5, **spans
    )


TOKENIZER = types.SimpleNamespace(cls_id=1, sep_id=2, pad_id=0)
# Objective and other options of `configure`.
CASES = {
    "next sentence": (masked(), {"length": 128, "seed": 2**31 - 1}),
    "next sentence, 16 tokens": (masked(), {"length": 16}),
    "sentence order": (masked("sentence_order", 0.3), {}),
    "left to right": (causal("consecutive"), {}),
    "left to right, one segment": (causal("doc_sentences"), {}),
    "other rates": (
        masked(
            rate=0.4, max_predictions=23, mask_token_rate=0.3, random_token_rate=0.6
        ),
        {},
    ),
    "words": (masked(unit="word", rate=0.5, max_predictions=4), {}),
    "n-grams": (masked("full_sentences", unit="ngram", max_ngram=5, rate=0.4), {}),
    # More positions than a word of random bits has to spare.
    "n-grams, 512 tokens": (masked(unit="ngram"), {"length": 512, "batch_size": 8}),
    "fairseq": (masked("full_sentences", convention="fairseq"), {}),
    "fairseq, words": (
        masked("full_sentences", convention="fairseq", unit="word", rate=0.3),
        {},
    ),
    "fairseq, n-grams": (
        masked("full_sentences", convention="fairseq", unit="ngram", rate=0.3),
        {},
    ),
    # Short rows have fewer tokens than a context, down to one.
    "permutations, 16 tokens": (permuted(), {"length": 16}),
    "permutations, one segment": (
        permuted("full_sentences", context=3, max_span=9),
        {"length": 40},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_batches_equal_the_restatement(name, corpus):
    objective, options = CASES[name]
    config = configure(objective, **options)
    assert_as_restated(corpus, config, (0, "border", 1000), phase=1)


def test_no_row_ends_in_an_empty_document():
    """In short rows of documents of two tokens, no two [SEP] follow each other."""
    table = shards.TokenTable(np.arange(10, 22), np.arange(13), np.arange(0, 13, 2))
    kind = segments.FullSentences(
        table, length=20, short_sequence_rate=1.0, tokenizer=TOKENIZER
    )
    keys = tf.constant(np.arange(256, dtype=np.uint64) * 2**53)
    rows = kind(tf.zeros(256, tf.int64), keys)["input_ids"].numpy()
    got = {tuple(row[row > 0].tolist()) for row in rows}
    text = [10, 11, 2, 12, 13, 2, 14, 15, 2, 16, 17, 2, 18, 19, 2, 20, 21]
    beginnings = {(1, *text[:n], 2) for n in range(2, 18) if text[n - 1] != 2}
    ends = {(1, *text[-n:], 2) for n in range(2, 18) if text[-n] != 2}
    assert got == beginnings | ends


@pytest.mark.parametrize("kind", [segments.DocSentences, segment_pairs.Consecutive])
def test_all_tokens_of_a_chunk_are_in_as_many_rows(kind):
    """A chunk of sentences of a single token, and rows with short targets."""
    length = 24
    size = length - kind._special_tokens
    table = shards.TokenTable(
        np.arange(10, 10 + size), np.arange(size + 1), np.array([0, size])
    )
    make_rows = kind(table, length=length, short_sequence_rate=1.0, tokenizer=TOKENIZER)
    keys = random_bits.fold_in(random_bits.key(0), tf.range(50_000, dtype=tf.int64))
    rows = make_rows(tf.zeros(50_000, tf.int64), keys)["input_ids"].numpy()
    counts = np.bincount(rows.ravel())[10:]
    # Targets are 2 to `size`. A target of 1 would add the first or the last token.
    expected = np.full(size, (size + 1) / 2 / (size - 1))
    expected[[0, -1]] -= 1 / 2 / (size - 1)
    np.testing.assert_allclose(counts / 50_000, expected, atol=0.01)


@pytest.mark.parametrize("is_packed", [False, True])
def test_no_token_of_a_long_sentence_is_lost(is_packed):
    table = shards.TokenTable(np.arange(10, 210), np.array([0, 200]), np.array([0, 1]))
    rows = segments.DocSentences(
        table,
        length=34,
        short_sequence_rate=0.0,
        tokenizer=TOKENIZER,
        target_key=random_bits.key(0) if is_packed else None,
    )
    chunks = tf.range(len(rows.chunk_documents), dtype=tf.int64)
    ids = rows(chunks, random_bits.fold_in(random_bits.key(1), chunks))["input_ids"]
    assert np.bincount(ids.numpy().ravel())[10:].tolist() == [1] * 200


@pytest.mark.parametrize("name", ["n-grams", "fairseq, words"])
def test_held_out_batches_equal_the_restatement(name, corpus):
    config = configure(CASES[name][0])
    masking = dataclasses.replace(config.objective.masking, eval_rate=0.4)
    objective = dataclasses.replace(config.objective, masking=masking)
    config = dataclasses.replace(config, objective=objective)
    assert_as_restated(corpus, config, (0, 1), split="held_out")


def test_masks_with_byte_level_bpe_equal_the_restatement(byte_bpe_corpus):
    """The first word of a document looks like a continuation."""
    assert_as_restated(byte_bpe_corpus, configure(CASES["n-grams"][0]), (1,))


def with_phases(config, *shapes):
    """Return a config with a phase for each (steps, batch_size, length)."""
    names = "steps", "batch_size", "length"
    phases = [dict(zip(names, shape, strict=True)) for shape in shapes]
    phases = tuple(config_lib.PhaseConfig(**phase) for phase in phases)
    return dataclasses.replace(config, phases=phases)


def test_phases_of_one_length_continue_one_order(corpus):
    """A phase of another length is left out; batches may grow."""
    config = with_phases(configure(), (5, 8, 64), (3, 16, 128), (4, 16, 64))
    assert_as_restated(corpus, config, (0, 3), 2)
    # All phases are evaluated on the same rows with the same masks.
    assert_as_restated(corpus, config, (0,), 2, split="held_out")


def test_masking_rates_of_phases_equal_the_restatement(corpus):
    """The higher of a phase's rate and the evaluation's gives the slots."""
    config = configure(masked(rate=0.2))
    phase = config.phases[0]
    phases = [dataclasses.replace(phase, masking_rate=rate) for rate in (0.4, 0, 0.05)]
    config = dataclasses.replace(config, phases=tuple(phases))
    assert_as_restated(corpus, config, (1,), 2)
    assert_as_restated(corpus, config, (1,), 2, split="held_out")


@pytest.mark.parametrize("num_groups", [2, 5, 32])
def test_every_token_comes_equally_often_whatever_the_groups(corpus, num_groups):
    """Groups have equal numbers of tokens, and each token is in one."""
    whole = chunks.load_tokens(corpus, "train")
    groups = [
        chunks.load_tokens(corpus, "train", group, num_groups)
        for group in range(num_groups)
    ]
    sizes = [len(group.tokens) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    counts = sum(chunks.count_tokens(group, 1000) for group in groups)
    assert np.array_equal(counts, chunks.count_tokens(whole, 1000))


def test_a_process_opens_only_the_shards_of_its_groups(corpus, monkeypatch):
    read = mock.Mock(wraps=shards.read_shard)
    monkeypatch.setattr(shards, "read_shard", read)
    halves, whole = [], make(corpus, configure(groups=2)).batch(3)
    for rows in (np.arange(16), np.arange(16, 32)):
        read.reset_mock()
        made = make(corpus, configure(groups=2), rows=rows)
        halves.append({shard.file for (_, shard), _ in read.call_args_list})
        for name, values in made.batch(3).items():
            assert np.array_equal(values, whole[name][rows]), name
    assert len(halves[0] & halves[1]) <= 1  # a shard may be cut
    assert halves[0] | halves[1] == {s.file for s in corpus.shards["train"]}


def test_the_batch_of_a_step_is_that_of_its_phase(corpus):
    config = with_phases(configure(), (4, 8, 32), (2, 16, 64))
    data = dataclasses.replace(config.data, corpus=str(corpus.folder))
    encoder = dataclasses.replace(config.encoder, vocab_size=0)
    config = dataclasses.replace(config, data=data, encoder=encoder)
    for step, phase, within in ((4, 0, 3), (6, 1, 1)):
        expected = make(corpus, config, phase).batch(within)
        got = pretraining.batch_of_step(config, step)
        jax.tree.map(np.testing.assert_array_equal, got, expected)
    for step in (0, 7):
        with pytest.raises(UserError, match=f"step {step} is out of range"):
            pretraining.batch_of_step(config, step)


@pytest.mark.parametrize("size", [1, 2, 3, 97, 1025])
def test_permute_is_a_permutation(size):
    key = random_bits.key(7)
    got = random_bits.permute(tf.range(size, dtype=tf.int64), size, key).numpy()
    assert got.tolist() == [permute(i, size, word(0, 7)) for i in range(size)]
    assert sorted(got.tolist()) == list(range(size))


def test_short_documents_do_not_bias_next_sentence(tmp_path, wordpiece):
    """The original gives far more than half random pairs on such a corpus."""
    texts = [f"This is all that document {i} says." for i in range(300)]
    corpus = build_text(texts, wordpiece, tmp_path / "c")
    batch = make(corpus, configure(batch_size=300)).batch(0)
    assert abs(batch["nsp_labels"].mean() - 0.5) < 4 * 0.5 / math.sqrt(300)


def test_one_document_is_not_enough(tmp_path, wordpiece):
    texts = ["One document. It has two sentences."]
    corpus = build_text(texts, wordpiece, tmp_path / "c")
    with pytest.raises(UserError, match="documents: 1, needed: 2; add documents$"):
        make(corpus, configure())
    with pytest.raises(UserError, match="group 0 of 4: 1, needed: 2; .* smaller data"):
        make(corpus, configure(groups=4))
    batch = make(corpus, configure(masked("sentence_order"))).batch(0)
    assert batch["sop_weights"].all()


def test_a_document_of_one_token_has_no_second_segment_and_no_target(
    tmp_path, wordpiece
):
    corpus = build_text(["a"] * 64, wordpiece, tmp_path / "c")
    batch = make(corpus, configure(masked("sentence_order"), batch_size=64)).batch(0)
    assert not batch["sop_labels"].any()
    assert not batch["sop_weights"].any()
    assert not batch["segment_ids"].any()
    assert (batch["attention_mask"].sum(axis=1) == 3).all()
    batch = make(corpus, configure(permuted("doc_sentences"))).batch(0)
    assert not batch["target_weights"].any()


def test_streams_are_not_autotuned(monkeypatch):
    """Without autotuning a stream ends at once.

    Its thread took up to a minute to end, in one of ten cases on busy CPUs.
    """
    monkeypatch.setattr(tf.data.Dataset, "as_numpy_iterator", lambda dataset: dataset)
    made = pipeline.Pipeline(lambda step: {"step": step})
    assert made.batches(0, 10**9).options().autotune.enabled is False


def test_a_stream_is_a_range_of_steps():
    made = pipeline.Pipeline(lambda step: {"square": tf.square(step)})
    batches = list(made.batches(3, 6))
    assert [batch["square"] for batch in batches] == [9, 16, 25]
    assert made.batch(5)["square"] == 25
