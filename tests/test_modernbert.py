"""ModernBERT agrees with `transformers`, and its checkpoints go in and out."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest
from toy import assert_close

from bert_jax import config
from bert_jax.errors import UserError
from bert_jax.interop import checkpoints, convert, huggingface
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import masked_lm

KEYS = jnp.zeros(8, jnp.uint32)
SEGMENTS = config.MaskedLmConfig(segments="full_sentences")


def read(case):
    """The checkpoint of a case and its tree of parameters."""
    folder = published.folder(case)
    return checkpoints.published(folder), published.params(folder)


# ---- parity


def outputs(encoder, params, inputs, labels):
    """Return hidden states, logits at all positions, the loss and its gradients.

    Args:
      encoder: Config.
      params: Parameters of a masked language model.
      inputs: Rows of tokens [B, L].
      labels: Labels [B, L]; -100 where there is none.
    """
    objective = masked_lm.MaskedLm(encoder, SEGMENTS)
    given = {n: x for n, x in inputs._asdict().items() if x is not None}
    batch = given | {
        "mlm_positions": jnp.tile(jnp.arange(labels.shape[1]), (len(labels), 1)),
        "mlm_labels": jnp.asarray(np.where(labels >= 0, labels, 0)),
        "mlm_weights": jnp.asarray(labels >= 0, jnp.float32),
    }

    def states_and_logits(model, inputs):
        states = model.encoder(inputs, return_hidden_states=True).hidden_states
        return states, model(inputs, batch["mlm_positions"]).mlm

    def loss(params):
        terms = objective.terms(params, batch, dropout_keys=None, sampling_keys=KEYS)
        return terms["mlm_loss"].sum / terms["mlm_loss"].count

    @jax.jit
    def everything(params):
        states, logits = objective.model.apply(
            {"params": params}, inputs, method=states_and_logits
        )
        logits = logits[..., : encoder.vocab_size]
        return states, logits, *jax.value_and_grad(loss)(params)

    return everything(params)


def assert_agree(got, expected, gradients, form, row, column):
    """Compare outputs, those of tokens at `row` and `column` [B, P] in our rows."""
    states, logits, loss, grad = got
    assert len(states) == len(expected["hidden_states"])
    for state, published_state in zip(states, expected["hidden_states"], strict=True):
        assert_close(state[row, column], published_state, 1e-5)
    assert_close(logits[row, column], expected["logits"], 1e-5)
    assert_close(loss, expected["loss"], 1e-5)
    grad = huggingface.to_huggingface(grad, form)
    assert grad.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert_close(grad[name], gradient, 1e-5)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_agrees_with_transformers(scan_layers):
    """Hidden states of all layers, logits, loss and gradients of rows with padding."""
    stored, params = read("modernbert")
    encoder = dataclasses.replace(stored.metadata.encoder, scan_layers=scan_layers)
    assert [encoder.is_global(i) for i in range(4)] == [True, False, False, True]
    for length in (128, 200, 512):
        parts = ("in", "labels", "out", "grad")
        given, labels, expected, gradients = (
            published.arrays("modernbert", f"{part}_{length}") for part in parts
        )
        mask = jnp.asarray(given["attention_mask"])
        assert mask.shape[1] == length
        assert not mask[-1, -1]
        inputs = Inputs(jnp.asarray(given["input_ids"], jnp.int32), mask)
        got = outputs(encoder, params, inputs, labels["labels"])
        columns = expected["positions"]
        rows = np.arange(len(columns))[:, None]
        assert_agree(got, expected, gradients, stored.form, rows, columns)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_a_packed_row_agrees_with_its_documents_alone(scan_layers):
    """Three documents and padding in a row of 200 tokens."""
    stored, params = read("modernbert")
    encoder = dataclasses.replace(stored.metadata.encoder, scan_layers=scan_layers)
    given = published.arrays("modernbert_packed", "in")
    alone = published.arrays("modernbert_packed", "labels")["labels"]
    mask = given["attention_mask"]
    starts = np.cumsum([0, *mask.sum(1)])[:-1]
    ids, labels = np.zeros((1, 200), np.int32), np.full((1, 200), -100)
    positions, documents = np.zeros_like(ids), np.zeros_like(ids)
    for i, (start, count) in enumerate(zip(starts, mask.sum(1), strict=True)):
        part = slice(start, start + count)
        ids[0, part] = given["input_ids"][i, :count]
        labels[0, part] = alone[i, :count]
        positions[0, part] = np.arange(count)
        documents[0, part] = i
    inputs = Inputs(
        jnp.asarray(ids),
        jnp.arange(200)[None] < mask.sum(),
        positions=jnp.asarray(positions),
        documents=jnp.asarray(documents),
    )
    got = outputs(encoder, params, inputs, labels)
    expected = published.arrays("modernbert_packed", "out")
    gradients = published.arrays("modernbert_packed", "grad")
    columns = starts[:, None] + expected["positions"]
    assert_agree(got, expected, gradients, stored.form, 0, columns)


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("case", published.MODERNBERT)
def test_other_settings_agree(case, scan_layers):
    """Biases, other activations, an untied decoder, and layer 1 as the first global."""
    stored, params = read(case)
    encoder = dataclasses.replace(stored.metadata.encoder, scan_layers=scan_layers)
    assert [encoder.is_global(i) for i in range(3)] == [False, True, False]
    inputs, expected = published.inputs(case), published.arrays(case, "out")
    row, column = np.nonzero(np.asarray(inputs.attention_mask))
    at_tokens = {
        name: value[..., row, column, :]
        for name, value in expected.items()
        if name in ("hidden_states", "logits")
    }
    if case == "modernbert_bare":
        _, states = jax.jit(lambda p: published.encode(encoder, p, inputs))(params)
        for got, state in zip(states, at_tokens["hidden_states"], strict=True):
            assert_close(got[row, column], state, 1e-5)
        return
    labels = published.arrays(case, "labels")["labels"]
    got = outputs(encoder, params, inputs, labels)
    expected = expected | at_tokens
    gradients = published.arrays(case, "grad")
    assert_agree(got, expected, gradients, stored.form, row, column)


# ---- conversion


def test_comes_back_bit_for_bit_from_a_native_checkpoint(tmp_path):
    """The scale of the norm that layer 0 lacks is 1 in the native checkpoint."""
    stored, params = read("modernbert")
    scale = params["encoder"]["layers"]["attention_norm"]["scale"]
    assert scale.shape == (8, 32)
    assert (scale[0] == 1).all()
    assert (scale[1:] != 1).all()
    convert.convert(stored.source, str(tmp_path / "native"))
    done = convert.convert(str(tmp_path / "native"), str(tmp_path / "out"))
    assert done.name == "ModernBertForMaskedLM"
    assert (done.missing, done.ignored) == ([], [])
    assert checkpoints.published(tmp_path / "out").metadata == stored.metadata
    expected = published.arrays_of(published.folder("modernbert"))
    got = published.arrays_of(tmp_path / "out")
    assert got.keys() == expected.keys()
    assert "model.layers.0.attn_norm.weight" not in got
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


@pytest.fixture
def edited(tmp_path):
    """Return a function that edits a config.json and opens the checkpoint again."""
    folder = published.write("modernbert", tmp_path / "edited")
    original = json.loads((folder / "config.json").read_text())

    def edit(removed=(), **values):
        kept = {n: v for n, v in original.items() if n not in removed} | values
        (folder / "config.json").write_text(json.dumps(kept))
        return checkpoints.published(folder)

    return edit


def test_older_configs_are_read(edited):
    """Configs of the models on the Hub were written before `transformers` 5."""
    expected = edited().metadata.encoder
    newer = ("layer_types", "rope_parameters")
    older = {"global_rope_theta": 5000.0, "local_rope_theta": 40.0}
    every = {"global_attn_every_n_layers": 3}
    assert edited(newer, **older, **every).metadata.encoder == expected
    assert edited(newer, **older).metadata.encoder == expected  # 3 is the default
    bases = edited(newer).metadata.encoder
    assert (bases.rotary_base, bases.local_rotary_base) == (160_000, 10_000)
    all_global = edited(newer, global_attn_every_n_layers=1).metadata.encoder
    assert (all_global.attention_window, all_global.global_layer_every) == (0, 1)


GLOBAL, LOCAL = "full_attention", "sliding_attention"
SCALED = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}


def test_unsupported_configs_are_refused(edited):
    for values, message in (
        ({"mlp_bias": True}, "attention_bias is False and mlp_bias is True; .* equal"),
        (
            {"rope_parameters": {LOCAL: SCALED}},
            "rope_type is 'yarn'; .* 'default' only",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_type is 'linear'; .* 'default'"),
        ({"rope_parameters": 3}, "rope_parameters must be of type dict, got 3"),
        (
            {"layer_types": [GLOBAL, GLOBAL, LOCAL, *[GLOBAL] * 5]},
            "layer_types is full_attention, full_attention, sliding_attention, .* K-th",
        ),
        ({"layer_types": [GLOBAL] * 7}, "layer_types must list 8 layers, got"),
        (
            {"classifier_activation": "relu"},
            "fier_activation is 'relu'; .*'gelu'",
        ),
        ({"hidden_activation": "relu"}, "hidden_activation is 'relu'; .*'gelu'"),
        ({"is_decoder": True}, "is causal; ModernBERT of transformers has"),
        ({"local_attention": 1}, "does not go with attention_window=0"),
        ({"norm_bias": 1}, "norm_bias must be of type bool, got 1"),
    ):
        with pytest.raises(UserError, match=f"config.json: .*{message}") as raised:
            edited(**values)
        assert "\n" not in str(raised.value)


def test_of_a_classifier_only_the_encoder_is_read(edited):
    """Its head has the names of the head of a language model, but other weights."""
    named = ["ModernBertForSequenceClassification"]
    stored = edited(architectures=named)
    assert stored.metadata.config == {"kind": "bare encoder"}
    assert {path.split("/")[0] for path in stored.shapes} == {"encoder"}
