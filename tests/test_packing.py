"""Packed rows: the same examples and the same losses as in rows of their own."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpora import build_text
from made_batches import assert_as_restated, configure, make
from restatement import Reference
from toy import TINY, assert_close, loss_and_gradient, params_of, relative_distance

from bert_jax import config as config_lib
from bert_jax import pretraining
from bert_jax.objectives import metric_sums

MASKED = functools.partial(config_lib.MaskedLmConfig, examples_per_row=8)
OBJECTIVES = {
    "next sentence": MASKED(short_sequence_rate=0.7),
    "next sentence, three": MASKED(
        short_sequence_rate=0.7,
        examples_per_row=3,
        masking=config_lib.MaskingConfig(max_predictions=4),
    ),
    "one segment": MASKED(segments="doc_sentences", short_sequence_rate=0.3),
    "fairseq": MASKED(
        segments="doc_sentences",
        masking=config_lib.MaskingConfig(convention="fairseq", unit="word", rate=0.3),
    ),
    "left to right": config_lib.CausalLmConfig(examples_per_row=8),
}


@pytest.fixture(scope="module")
def corpus(documents, byte_bpe, tmp_path_factory):
    """Return a corpus with paragraphs as documents, so that many examples are short.

    Padding is token 1.
    """
    folder = tmp_path_factory.mktemp("paragraphs")
    paragraphs = [p for d in documents for p in d.split("\n")]
    return build_text(paragraphs[:600], byte_bpe, folder / "corpus", held_out=0.1)


# ---- which examples share a row


@pytest.mark.parametrize("name", OBJECTIVES)
def test_batches_equal_the_restatement(name, corpus):
    config = configure(OBJECTIVES[name], length=128)
    reference = Reference(corpus, config)
    assert len(reference.rows) < 0.6 * len(reference.chunks)
    assert_as_restated(corpus, config, (0, "border"), phase=1)
    assert_as_restated(corpus, config, (0,), split="held_out")


@pytest.mark.parametrize("held_out", [False, True])
def test_each_example_comes_once_an_epoch(held_out, corpus):
    """Each epoch has each chunk once, in the same rows in another order."""
    config = configure(OBJECTIVES["next sentence"], length=128, batch_size=31)
    made = make(corpus, config, held_out=held_out)
    ((own,),) = (group.corpora for group in made._groups)
    count, chunks = own.order.count, len(own._segments.chunk_documents)
    assert count < 0.6 * chunks
    names = [n for step in range(2 * count // 31 + 1) for n in made.row_names(step)]
    epochs = [names[:count]] if held_out else [names[:count], names[count : 2 * count]]
    for i, rows in enumerate(epochs):
        seen = [example.split() for row in rows for example in row.split(" + ")]
        assert sorted(int(words[5]) for words in seen) == list(range(chunks))
        assert {words[7] for words in seen} == {str(i)}
    if held_out:  # rows that fill up the last batch weigh nothing
        last, rest = made.batch(made.num_batches - 1), made.num_rows % 31
        assert rest
        for name in ("mlm_weights", "nsp_weights"):
            assert last[name][:rest].any(axis=1).all()
            assert not last[name][rest:].any()
    else:
        first, second = ([row.split(" epoch ")[0] for row in rows] for rows in epochs)
        assert sorted(first) == sorted(second)
        assert first != second


@pytest.mark.parametrize("convention", ["original", "fairseq"])
def test_there_is_a_slot_for_each_prediction(convention):
    rng = np.random.default_rng(0)
    for rate in (0.01, 0.15, 1.0):
        rates = {"rate": rate, "eval_rate": rate}
        masking = config_lib.MaskingConfig(**rates, convention=convention)
        for length, examples in ((8, 2), (128, 40), (512, 8)):
            slots = masking.num_predictions(length, examples)
            for _ in range(100):
                cuts = rng.integers(0, length + 1, examples - 1)
                sizes = np.diff([0, *np.sort(cuts), length])
                sizes = sizes[sizes >= 3]
                if convention == "original":
                    counts = [max(1, round(rate * n)) for n in sizes]
                else:
                    counts = [math.floor(rate * n + 0.999) for n in sizes]
                assert sum(counts) <= slots


# ---- losses


def unpacked(batch):
    """Return the examples of a packed batch in rows of their own."""
    length = batch["input_ids"].shape[1]
    rows = []
    for r in range(len(batch["input_ids"])):
        for number in range(batch["documents"][r].max() + 1):
            own = batch["attention_mask"][r] & (batch["documents"][r] == number)
            begin = int(own.argmax())
            row = {}
            for name in ("input_ids", "attention_mask", "segment_ids"):
                if name in batch:
                    values = batch[name][r][own]
                    row[name] = np.pad(values, (0, length - len(values)))
            if "mlm_weights" in batch:
                positions = batch["mlm_positions"][r]
                used = own[positions] & (batch["mlm_weights"][r] > 0)
                row["mlm_positions"] = np.where(used, positions - begin, 0)
                row["mlm_labels"] = np.where(used, batch["mlm_labels"][r], 0)
                row["mlm_weights"] = used.astype(np.float32)
            for name in batch:
                if name.startswith(("nsp", "sop")):
                    row[name] = batch[name][r][number]
            if "weights" in batch:
                row["weights"] = batch["weights"][r]
            rows.append(row)
    return {name: jnp.asarray([row[name] for row in rows]) for name in rows[0]}


def objective_of(settings, **encoder):
    shape = dataclasses.replace(
        TINY, vocab_size=1000, max_position_embeddings=128, causal=settings.causal
    )
    encoder = dataclasses.replace(shape, **encoder)
    return pretraining.OBJECTIVES[settings.kind](encoder, settings)


@pytest.mark.parametrize(
    "name", ["next sentence", pytest.param("left to right", marks=pytest.mark.slow)]
)
def test_packing_keeps_losses_and_gradients(name, corpus):
    settings = OBJECTIVES[name]
    alone = dataclasses.replace(settings, examples_per_row=1)
    config = configure(settings, length=128, batch_size=8)
    batch = make(corpus, config).batch(1)
    rows = unpacked(batch)
    assert len(rows["input_ids"]) > 16
    batch = jax.tree.map(jnp.asarray, batch)
    params = params_of(objective_of(alone).init)
    (loss, packed), gradient = loss_and_gradient(objective_of(settings), params, batch)
    (expected, separate), other = loss_and_gradient(objective_of(alone), params, rows)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    for metric in separate.keys() - {"padding_fraction"}:
        assert packed[metric].count == separate[metric].count > 0
        assert_close(packed[metric].sum, separate[metric].sum, 1e-5)
    assert relative_distance(gradient, other) < 1e-5
    assert metric_sums.ratio(packed["examples_per_row"]) == len(rows["input_ids"]) / 8
