"""Parity of ALBERT, RoBERTa, ELECTRA and XLNet with `transformers`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest
from toy import assert_close

from bert_jax import config
from bert_jax.interop import checkpoints, huggingface
from bert_jax.model import heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import (
    choice,
    classification,
    masked_lm,
    metric_sums,
    replaced_tokens,
    spans,
    tagging,
)

KEYS = jnp.zeros(8, jnp.uint32)
DISCRIMINATOR_WEIGHT = 50


@pytest.fixture
def read(tmp_path):
    """Function that returns the checkpoint of a case and its parameters."""

    def make(case):
        folder = published.write(case, tmp_path / case)
        return checkpoints.published(folder), published.params(folder)

    return make


def with_loop(encoder):
    """Return an equal encoder that compiles faster."""
    return dataclasses.replace(encoder, scan_layers=True)


def masked_batch(case):
    """Return a batch with a prediction at each position, of weight 1 where masked."""
    inputs, labels = published.inputs(case), published.arrays(case, "labels")
    is_masked = labels["labels"] >= 0
    rows, length = is_masked.shape
    batch = inputs._asdict() | {
        "mlm_positions": jnp.tile(jnp.arange(length), (rows, 1)),
        "mlm_labels": jnp.asarray(np.where(is_masked, labels["labels"], 0)),
        "mlm_weights": jnp.asarray(is_masked, jnp.float32),
    }
    if "sentence_order_label" in labels:
        batch["sop_labels"] = jnp.asarray(labels["sentence_order_label"])
        batch["sop_weights"] = jnp.ones(rows)
    return {name: value for name, value in batch.items() if value is not None}


def loss_and_gradients(objective, params, batch):
    def loss(params):
        got = objective.terms(params, batch, dropout_keys=None, sampling_keys=KEYS)
        losses = {n: got[n].sum / got[n].count for n in objective.losses}
        return metric_sums.total(objective.losses, losses), losses

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)


def assert_gradients_agree(got, form, case):
    """Compare all gradients by name; a key's bias has only rounding errors."""
    got = huggingface.to_huggingface(got, form)
    expected = published.arrays(case, "grad")
    assert got.keys() == expected.keys()
    keys = {name for name in got if name.endswith("key.bias")}
    assert len(keys) == form.encoder.num_distinct_layers
    largest = max(np.abs(value).max() for value in expected.values())
    for name in got.keys() - keys:
        assert_close(got[name], expected[name], 1e-5)
    for name in keys:
        assert np.abs(got[name]).max() < 1e-6 * largest
        assert np.abs(expected[name]).max() < 1e-6 * largest


def assert_states_agree(encoder, params, case):
    """Compare hidden states of all layers, except padding, and pooled vectors."""
    inputs, expected = published.inputs(case), published.arrays(case, "out")
    pooled, states = jax.jit(lambda p: published.encode(encoder, p, inputs))(params)
    is_text = np.asarray(inputs.attention_mask)
    assert len(states) == encoder.num_layers + 1
    for got, state in zip(states, expected["hidden_states"], strict=True):
        state = published.rows(case, state)
        assert_close(got[is_text], state[is_text], 1e-5)
    if "pooler_output" in expected:
        assert_close(pooled, expected["pooler_output"], 1e-5)


# ---- pretraining


@pytest.mark.parametrize(
    ("case", "segments"),
    [("albert_pretraining", "sentence_order"), ("roberta_masked_lm", "full_sentences")],
)
def test_masked_tokens_agree(case, segments, read):
    """Hidden states of all layers, logits, loss, and the gradient of each parameter."""
    stored, params = read(case)
    encoder = with_loop(stored.metadata.encoder)
    objective = masked_lm.MaskedLm(encoder, config.MaskedLmConfig(segments=segments))
    assert stored.metadata.config["objective"]["segments"] == segments
    assert_states_agree(encoder, params, case)
    batch, expected = masked_batch(case), published.arrays(case, "out")
    logits = objective.model.apply(
        {"params": params}, Inputs.of(batch), batch["mlm_positions"]
    )
    name = "prediction_logits" if "prediction_logits" in expected else "logits"
    is_text = np.asarray(batch["attention_mask"])
    tokens = logits.mlm[..., : encoder.vocab_size]
    assert_close(tokens[is_text], expected[name][is_text], 1e-5)
    if "sop_logits" in expected:
        assert_close(logits.sentence, expected["sop_logits"], 1e-5)
    (loss, _), gradients = loss_and_gradients(objective, params, batch)
    assert_close(loss, expected["loss"], 1e-5)
    assert_gradients_agree(gradients, stored.form, case)


def test_both_halves_of_electra_agree(read, monkeypatch):
    """With shared embeddings, and the same samples: losses, and gradients of the sum.

    The generator's loss is its mean over masked tokens, the discriminator's the mean
    over all that are no padding, times 50.
    """
    stored, params = read("electra_discriminator")
    other, generator = read("electra_generator")
    encoder = with_loop(stored.metadata.encoder)
    settings = config.ReplacedTokensConfig(generator_size=0.5, generator_layers=0.5)
    assert settings.discriminator_weight == DISCRIMINATOR_WEIGHT
    objective = replaced_tokens.ReplacedTokens(encoder, settings)
    assert objective.generator == with_loop(other.metadata.encoder)
    shared = generator["encoder"].pop("embeddings")
    jax.tree.map(np.testing.assert_array_equal, shared, params["encoder"]["embeddings"])
    params |= {"generator": generator["encoder"]}
    params |= {"generator_head": generator["mlm_head"]}
    given = published.arrays("electra_generator", "predictions")
    samples = jnp.asarray(given["samples"])
    monkeypatch.setattr(replaced_tokens, "sample", lambda logits, keys: samples)
    batch = published.inputs("electra_generator")._asdict() | {
        "mlm_positions": jnp.asarray(given["positions"]),
        "mlm_labels": jnp.asarray(given["labels"]),
        "mlm_weights": jnp.ones(given["labels"].shape),
    }
    batch = {name: value for name, value in batch.items() if value is not None}

    # Logits.
    model, inputs = objective.model, Inputs.of(batch)
    logits = model.apply(
        {"params": params}, inputs, batch["mlm_positions"], method=model.generate
    )
    expected = published.arrays("electra_generator", "out")["logits"]
    at = given["positions"][..., None]
    expected = np.take_along_axis(expected, at, axis=1)
    assert_close(logits[..., : encoder.vocab_size], expected, 1e-5)
    filled, is_replaced = replaced_tokens.filled(batch, samples)
    inputs = published.inputs("electra_discriminator")
    np.testing.assert_array_equal(filled, inputs.input_ids)
    labels = published.arrays("electra_discriminator", "labels")["labels"]
    np.testing.assert_array_equal(is_replaced, labels)
    found = model.apply({"params": params}, inputs, method=model.discriminate)
    expected = published.arrays("electra_discriminator", "out")["logits"]
    assert_close(found, expected, 1e-5)
    assert_states_agree(encoder, params, "electra_discriminator")
    merged = {"encoder": params["generator"] | {"embeddings": shared}}
    assert_states_agree(objective.generator, merged, "electra_generator")

    # Losses and gradients.
    (_, losses), gradients = loss_and_gradients(objective, params, batch)
    for name, case in (("mlm", "generator"), ("disc", "discriminator")):
        expected = published.arrays(f"electra_{case}", "out")["loss"]
        assert_close(losses[f"{name}_loss"], expected, 1e-5)
    assert_gradients_agree(gradients, stored.form, "electra_discriminator")
    embeddings = {"embeddings": gradients["encoder"]["embeddings"]}
    of_generator = {
        "encoder": gradients["generator"] | embeddings,
        "mlm_head": gradients["generator_head"],
    }
    assert_gradients_agree(of_generator, other.form, "electra_generator")


# ---- fine-tuned, and bare


@pytest.mark.parametrize(
    ("case", "make"),
    [
        ("albert_classification", lambda c: classification.Classification(c, 3)),
        ("roberta_classification", lambda c: classification.Classification(c, 3)),
        ("xlnet_classification", lambda c: classification.Classification(c, 3)),
        ("electra_tagging", lambda c: tagging.Tagging(c, 4)),
        ("roberta_tagging", lambda c: tagging.Tagging(c, 4)),
        ("xlnet_tagging", lambda c: tagging.Tagging(c, 4)),
        ("electra_answering", spans.Spans),
        ("roberta_answering", spans.Spans),
        ("xlnet_answering", spans.Spans),
        ("roberta_choice", lambda c: choice.Choice(c, 3)),
        ("xlnet_choice", lambda c: choice.Choice(c, 3)),
        ("albert_bare", None),
        ("roberta_bare", None),
        ("xlnet_bare", None),
    ],
)
def test_tasks_agree(case, make, read):
    """Hidden states, logits and loss."""
    stored, params = read(case)
    encoder = with_loop(stored.metadata.encoder)
    assert_states_agree(encoder, params, case)
    if make is None:
        return
    objective, inputs = make(encoder), published.inputs(case)
    logits = objective.model.apply({"params": params}, inputs)
    expected = published.arrays(case, "out")
    is_text = np.asarray(inputs.attention_mask)
    labels = published.arrays(case, "labels")
    weights = jnp.ones(len(is_text))
    if case.endswith("answering"):
        for i, end in enumerate(("start", "end")):
            of_end = published.rows(case, expected[f"{end}_logits"])
            assert_close(logits[..., i][is_text], of_end[is_text], 1e-5)
        if case in published.XLNET:  # stored labels are of places that are others here
            return
        expected["loss"] = published.span_loss(case, expected)
    elif case.endswith("tagging"):
        of_tokens = published.rows(case, expected["logits"])
        assert_close(logits[is_text], of_tokens[is_text], 1e-5)
        moved = published.rows(case, labels["labels"])
        labels["labels"] = np.where(is_text, moved, -100)
    elif case.endswith("choice"):  # the three rows are the choices of one question
        assert_close(logits.T, expected["logits"], 1e-5)
        weights = jnp.ones(1)
        inputs = inputs._replace(**{n: x[None] for n, x in given(inputs).items()})
    else:
        assert_close(logits, expected["logits"], 1e-5)
    batch = given(inputs) | {name: jnp.asarray(x) for name, x in labels.items()}
    batch |= {"weights": weights}
    (loss, _), _ = loss_and_gradients(objective, params, batch)
    assert_close(loss, expected["loss"], 1e-5)


def given(inputs):
    """Return the arrays of `Inputs` that are present, by name."""
    return {
        name: value for name, value in inputs._asdict().items() if value is not None
    }


def test_the_head_of_an_xlnet_agrees(read):
    """Compare logits of the content stream; `test_xlnet.py` has both streams."""
    case = "xlnet_language_model"
    stored, params = read(case)
    assert stored.metadata.config["objective"]["kind"] == "permutation_lm"
    assert_states_agree(with_loop(stored.metadata.encoder), params, case)
    head = heads.PredictionHead(
        stored.metadata.encoder,
        config.PredictionHeadConfig(num_layers=0, norm=False),
    )
    expected = published.arrays(case, "out")
    states = published.rows(case, expected["hidden_states"][-1])
    table = params["encoder"]["embeddings"]["token_embedding"]
    logits = head.apply({"params": params["lm_head"]}, jnp.asarray(states), table)
    is_text = np.asarray(published.inputs(case).attention_mask)
    theirs = published.rows(case, expected["logits"])
    assert_close(logits[..., : theirs.shape[-1]][is_text], theirs[is_text], 1e-5)
