"""Parity with `transformers`: hidden states, logits, losses and gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest
from toy import assert_close, loss_and_gradient, sums_of

from bert_jax import config
from bert_jax.interop import checkpoints, huggingface
from bert_jax.interop.families import family
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import (
    causal_lm,
    choice,
    classification,
    masked_lm,
    metric_sums,
    regression,
    replaced_tokens,
    spans,
    tagging,
)

pytestmark = pytest.mark.usefixtures("checked_shapes")

# Objectives of cases that are fine-tuned, by the end of their names.
TASKS = {
    "classification": lambda encoder: classification.Classification(encoder, 3),
    "regression": regression.Regression,
    "tagging": lambda encoder: tagging.Tagging(encoder, 4),
    "answering": spans.Spans,
    "choice": lambda encoder: choice.Choice(encoder, 3),
}


def read(case):
    """Return the checkpoint of a case, its parameters, and an encoder with a loop.

    The loop over layers compiles faster.
    """
    folder = published.folder(case)
    stored = checkpoints.open_published(folder)
    encoder = dataclasses.replace(stored.metadata.encoder, scan_layers=True)
    return stored, published.params(folder), encoder


def objective_of(stored, encoder, case):
    """Return the objective of a case, or None if only hidden states are compared.

    `test_xlnet.py` compares the logits of an XLNet.
    """
    if stored.spec.purpose in (family.BARE, family.PERMUTATION_LM):
        return None
    if stored.spec.purpose == family.CAUSAL_LM:
        return causal_lm.CausalLm(encoder)
    if case.endswith(("pretraining", "masked_lm")):
        saved = stored.metadata.config["objective"]
        settings = config.from_dict(config.MaskedLmConfig, saved)
        return masked_lm.MaskedLm(encoder, settings)
    # Predictions take texts as long as the model does.
    length = stored.metadata.config["task"]["length"]
    assert length == encoder.max_position_embeddings
    return TASKS[case.rpartition("_")[2]](encoder)


def given(inputs):
    """Return the arrays of `Inputs` that are present, by name."""
    return {name: x for name, x in inputs._asdict().items() if x is not None}


def logits_of(objective, params, inputs, case):
    """Return the logits at all positions, by their names in `transformers`."""
    size = objective.encoder.vocab_size
    if isinstance(objective, masked_lm.MaskedLm):
        logits = published.logits_at_all_positions(objective, params, inputs)
        tokens = logits.mlm.compute()[..., :size]
        return {
            "logits": tokens,
            "prediction_logits": tokens,
            "seq_relationship_logits": logits.sentence,
            "sop_logits": logits.sentence,
        }
    logits = objective.model.apply({"params": params}, inputs)
    if case.endswith("answering"):
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    if isinstance(objective, causal_lm.CausalLm):
        logits = logits.compute()
    if case.endswith("choice"):  # the three rows are the choices of one question
        logits = logits.T
    return {"logits": logits[..., :size]}


def masked_batch(inputs, labels):
    """Return a batch with a prediction at each position, of weight 1 where masked."""
    count, length = labels.shape
    return given(inputs) | {
        "mlm_positions": jnp.tile(jnp.arange(length), (count, 1)),
        "mlm_labels": jnp.where(labels >= 0, labels, 0),
        "mlm_weights": jnp.asarray(labels >= 0, jnp.float32),
    }


def batch_of(inputs, case):
    """Return a batch for the loss of a case."""
    labels = published.arrays(case, "labels")
    weights = jnp.ones(len(inputs.input_ids))
    if case.endswith(("pretraining", "masked_lm")):
        batch = masked_batch(inputs, labels["labels"])
        names = {"next_sentence_label": "nsp", "sentence_order_label": "sop"}
        for name in labels.keys() & names:
            batch[f"{names[name]}_labels"] = jnp.asarray(labels[name])
            batch[f"{names[name]}_weights"] = weights
        return batch
    batch = given(inputs) | {"weights": weights}
    if case.endswith("choice"):
        batch = {name: value[None] for name, value in batch.items()}
        batch["weights"] = jnp.ones(1)
    if case.endswith("tagging"):
        is_text = np.asarray(inputs.attention_mask)
        moved = published.rows(case, labels["labels"])
        labels["labels"] = np.where(is_text, moved, -100)
    return batch | {name: jnp.asarray(value) for name, value in labels.items()}


def assert_gradients_agree(got, spec, expected):
    """Compare all gradients by name.

    Some are rounding errors only, such as those of biases that shift all logits of a
    softmax.
    """
    got = huggingface.state_dict(got, spec)
    assert got.keys() == expected.keys()
    largest = max(np.abs(value).max() for value in expected.values())
    for name, gradient in expected.items():
        if np.abs(gradient).max() < 1e-6 * largest:
            assert np.abs(got[name]).max() < 1e-6 * largest
        else:
            assert_close(got[name], gradient, 1e-5)


def assert_states_agree(encoder, params, case):
    """Compute hidden states and pooled vectors, and compare them."""
    inputs = published.inputs(case)
    encoded = jax.jit(lambda p: published.encode(encoder, p, inputs))(params)
    assert_encoded(*encoded, encoder, case)


def assert_encoded(pooled, states, encoder, case):
    """Compare hidden states of all layers, except padding, and pooled vectors."""
    expected = published.arrays(case, "out")
    is_text = np.asarray(published.inputs(case).attention_mask)
    assert len(states) == encoder.num_layers + 1
    for got, state in zip(states, expected["hidden_states"], strict=True):
        state = published.rows(case, state)
        assert_close(got[is_text], state[is_text], 1e-5)
    if "pooler_output" in expected:
        assert_close(pooled, expected["pooler_output"], 1e-5)


# Heads that differ from BERT's in their labels or their input.
OWN_HEADS = {"xlnet_answering", "modernbert_tagging", "ultrabert_tagging"}


def cases():
    """Yield the cases; slow ones repeat an encoder and a head of other cases."""
    for case in published.ALL:
        head = case.rpartition("_")[2]
        if case in published.ELECTRA:
            continue
        is_like_bert = head in (*TASKS, "bare") and head != "classification"
        repeats = is_like_bert and case not in (*published.BERT, *OWN_HEADS)
        yield pytest.param(case, marks=[pytest.mark.slow] * repeats)


@pytest.mark.parametrize("case", [*cases()])
def test_each_class_agrees_with_transformers(case):
    """Models of all shapes, in float32, float16 and bfloat16, one of them in shards."""
    stored, params, encoder = read(case)
    objective = objective_of(stored, encoder, case)
    if objective is None:
        assert_states_agree(encoder, params, case)
        return
    inputs, expected = published.inputs(case), published.arrays(case, "out")
    # XLNet's labels are at other places.
    has_loss = "loss" in expected and case != "xlnet_answering"
    batch = batch_of(inputs, case) if has_loss else None
    expected_gradients = published.arrays(case, "grad")

    @jax.jit  # in one program, which compiles faster
    def outputs(params):
        encoded = published.encode(encoder, params, inputs)
        logits = logits_of(objective, params, inputs, case)
        if batch is None:
            return encoded, logits, None, None
        if not expected_gradients:
            sums = sums_of(objective, params, batch)
            return encoded, logits, sums, None
        (_, sums), gradients = loss_and_gradient(objective, params, batch)
        return encoded, logits, sums, gradients

    encoded, logits, sums, gradients = outputs(params)
    assert_encoded(*encoded, encoder, case)
    is_text = np.asarray(inputs.attention_mask)
    names = logits.keys() & expected.keys()
    assert names
    for name in names:
        got, value = logits[name], expected[name]
        if value.shape[:2] == is_text.shape:
            got, value = got[is_text], published.rows(case, value)[is_text]
        assert_close(got, value, 1e-5)
    if not has_loss:
        return
    if not case.endswith("answering"):  # padding is no answer here
        loss = metric_sums.report(objective.loss_weights, sums)["loss"]
        assert_close(loss, expected["loss"], 1e-5)
    if expected_gradients:
        assert_gradients_agree(gradients, stored.spec, expected_gradients)


def test_both_halves_of_electra_agree(monkeypatch):
    """With shared embeddings, and the same samples: losses, and gradients of the sum.

    The generator's loss is its mean over masked tokens, the discriminator's the mean
    over all that are no padding, times 50.
    """
    stored, params, encoder = read("electra_discriminator")
    other, generator, generator_encoder = read("electra_generator")
    settings = config.ReplacedTokensConfig(generator_size=0.5, generator_layers=0.5)
    assert settings.discriminator_weight == 50
    objective = replaced_tokens.ReplacedTokens(encoder, settings)
    assert objective.generator == generator_encoder
    shared = generator["encoder"].pop("embeddings")
    jax.tree.map(np.testing.assert_array_equal, shared, params["encoder"]["embeddings"])
    params |= {"generator": generator["encoder"]}
    params |= {"generator_head": generator["mlm_head"]}
    predictions = published.arrays("electra_generator", "predictions")
    samples = jnp.asarray(predictions["samples"])
    monkeypatch.setattr(replaced_tokens, "sample", lambda logits, keys: samples)
    batch = given(published.inputs("electra_generator")) | {
        "mlm_positions": jnp.asarray(predictions["positions"]),
        "mlm_labels": jnp.asarray(predictions["labels"]),
        "mlm_weights": jnp.ones(predictions["labels"].shape),
    }

    # Logits.
    model, inputs = objective.model, Inputs.of(batch)
    variables = {"params": params}
    apply = jax.jit(model.apply, static_argnames="method")
    logits = apply(variables, inputs, batch["mlm_positions"], method="generate")
    expected = published.arrays("electra_generator", "out")["logits"]
    at = predictions["positions"][..., None]
    expected = np.take_along_axis(expected, at, axis=1)
    assert_close(logits[..., : encoder.vocab_size], expected, 1e-5)
    filled, is_replaced = replaced_tokens.fill_in(batch, samples)
    inputs = published.inputs("electra_discriminator")
    np.testing.assert_array_equal(filled, inputs.input_ids)
    labels = published.arrays("electra_discriminator", "labels")["labels"]
    np.testing.assert_array_equal(is_replaced, labels)
    found = apply(variables, inputs, method="discriminate")
    expected = published.arrays("electra_discriminator", "out")["logits"]
    assert_close(found, expected, 1e-5)
    assert_states_agree(encoder, params, "electra_discriminator")
    merged = {"encoder": params["generator"] | {"embeddings": shared}}
    assert_states_agree(objective.generator, merged, "electra_generator")

    # Losses and gradients.
    (_, sums), gradients = loss_and_gradient(objective, params, batch)
    for name, case in (("mlm", "generator"), ("disc", "discriminator")):
        expected = published.arrays(f"electra_{case}", "out")["loss"]
        assert_close(metric_sums.ratio(sums[f"{name}_loss"]), expected, 1e-5)
    expected = published.arrays("electra_discriminator", "grad")
    assert_gradients_agree(gradients, stored.spec, expected)
    embeddings = {"embeddings": gradients["encoder"]["embeddings"]}
    of_generator = {
        "encoder": gradients["generator"] | embeddings,
        "mlm_head": gradients["generator_head"],
    }
    expected = published.arrays("electra_generator", "grad")
    assert_gradients_agree(of_generator, other.spec, expected)


# ---- ModernBERT: windows and packed rows


def assert_modernbert_agrees(inputs, labels, case, suffix, row, column, scan_layers):
    """Compare outputs at some positions of the rows, and all gradients."""
    stored, params, encoder = read("modernbert")
    encoder = dataclasses.replace(encoder, scan_layers=scan_layers)
    segments = config.MaskedLmConfig(segments="full_sentences")
    objective = masked_lm.MaskedLm(encoder, segments)
    batch = masked_batch(inputs, labels)

    @jax.jit
    def outputs(params):
        _, states = published.encode(encoder, params, inputs)
        logits = logits_of(objective, params, inputs, case)["logits"]
        return states, logits, *loss_and_gradient(objective, params, batch)

    states, logits, (loss, _), gradients = outputs(params)
    expected = published.arrays(case, f"out{suffix}")
    for got, state in zip(states, expected["hidden_states"], strict=True):
        assert_close(got[row, column], state, 1e-5)
    assert_close(logits[row, column], expected["logits"], 1e-5)
    assert_close(loss, expected["loss"], 1e-5)
    expected = published.arrays(case, f"grad{suffix}")
    assert_gradients_agree(gradients, stored.spec, expected)


@pytest.mark.parametrize(
    ("length", "scan_layers"),
    [
        (200, True),
        pytest.param(128, False, marks=pytest.mark.slow),
        pytest.param(512, True, marks=pytest.mark.slow),
    ],
)
def test_windows_agree(length, scan_layers):
    """Rows with padding; every third layer is global."""
    parts = ("in", "labels", "out")
    batch, labels, out = (
        published.arrays("modernbert", f"{part}_{length}") for part in parts
    )
    mask, columns = jnp.asarray(batch["attention_mask"]), out["positions"]
    assert mask.shape[1] == length
    assert not mask[-1, -1]
    inputs = Inputs(jnp.asarray(batch["input_ids"], jnp.int32), mask)
    rows = np.arange(len(columns))[:, None]
    places = f"_{length}", rows, columns, scan_layers
    assert_modernbert_agrees(inputs, labels["labels"], "modernbert", *places)


def test_a_packed_row_agrees_with_its_documents_alone():
    """Three documents and padding in a row of 200 tokens."""
    case = "modernbert_packed"
    inputs, labels, starts = in_one_row(case, 200)
    columns = starts[:, None] + published.arrays(case, "out")["positions"]
    assert_modernbert_agrees(inputs, labels, case, "", 0, columns, True)


@pytest.mark.parametrize("name", ["eurobert", "nomicbert", "ultrabert", "deberta"])
def test_packed_rows_of_other_families_agree(name):
    """Hidden states of three rows in one, in float32."""
    case = f"{name}_masked_lm"
    _, params, encoder = read(case)
    inputs, _, starts = in_one_row(case, 40)
    _, states = jax.jit(lambda p: published.encode(encoder, p, inputs))(params)
    expected = published.arrays(case, "out")["hidden_states"]
    for row, count in enumerate(published.arrays(case, "in")["attention_mask"].sum(1)):
        got = states[:, 0, starts[row] : starts[row] + count]
        assert_close(got, expected[:, row, :count], 1e-5)


def in_one_row(case, length):
    """Return the rows of a case as documents of one row, labels, and their starts."""
    batch = published.arrays(case, "in")
    alone = published.arrays(case, "labels")["labels"]
    mask = batch["attention_mask"]
    starts = np.cumsum([0, *mask.sum(1)])[:-1]
    ids, labels = np.zeros((1, length), np.int32), np.full((1, length), -100)
    segments, positions, documents = (np.zeros_like(ids) for _ in range(3))
    for i, (start, count) in enumerate(zip(starts, mask.sum(1), strict=True)):
        part = slice(start, start + count)
        ids[0, part] = batch["input_ids"][i, :count]
        labels[0, part] = alone[i, :count]
        if "token_type_ids" in batch:
            segments[0, part] = batch["token_type_ids"][i, :count]
        positions[0, part] = np.arange(count)
        documents[0, part] = i
    is_token = jnp.arange(length)[None] < mask.sum()
    rows = map(jnp.asarray, (ids, is_token, segments, positions, documents))
    return Inputs(*rows), labels, starts
