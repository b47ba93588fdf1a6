"""The parts of the encoder: loops, parameters, operations and settings.

`test_parity.py` compares their results with `transformers`.
"""

import dataclasses
import functools
import math
import os
import pathlib
import re
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core
from toy import FAMILIES, TINY, batch_of, params_of, relative_distance, sums_of

from bert_jax import config
from bert_jax.errors import UserError
from bert_jax.model import (
    activations,
    flops,
    heads,
    parameters,
    plain_attention,
    randomness,
)
from bert_jax.model.deberta import attention as deberta_attention
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import classification, embedding, masked_lm

SMALL = dataclasses.replace(TINY, num_layers=5)
HEAD = config.PredictionHeadConfig
RECORD = pathlib.Path(__file__).parent / "fixtures" / "parameters_of_families.txt"


def family(name, **changes):
    made = dataclasses.replace(SMALL, **FAMILIES[name], **changes)
    config.check(made)
    return made


ACTIVATIONS = {
    "gelu_erf": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
}


def objective_of(c):
    return masked_lm.MaskedLm(c, config.MaskedLmConfig(segments="full_sentences"))


def packed_rows():
    """Return two packed rows: two documents each, and padding behind them."""
    ids = np.random.default_rng(2).integers(5, 101, (2, 24))
    lengths = [13, 7, 4], [5, 18, 1]
    documents = np.stack([np.repeat([0, 1, 2], row) for row in lengths])
    positions = np.stack([np.concatenate([*map(np.arange, row)]) for row in lengths])
    segments = (positions > 3).astype(np.int32)
    return Inputs(
        jnp.asarray(ids),
        jnp.asarray(documents < 2),
        jnp.asarray(segments),
        jnp.asarray(positions),
        jnp.asarray(documents),
    )


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bert", {"remat": "attention", "num_layers": 2}),
        ("albert", {}),
        pytest.param("modernbert", {"num_layers": 7}, marks=pytest.mark.slow),
        ("deberta", {"remat": "layer", "num_layers": 2}),
        pytest.param("ultrabert", {"remat": "layer"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_loops_and_recomputation_change_nothing(name, change):
    """Loss and gradients, with dropout, where layers differ in kind."""

    c = family(name, **change)
    params = params_of(objective_of(c).init, scale=0.2)

    def loss_and_gradients(c):
        model = heads.PretrainingModel(c, sentence_head="")
        inputs, at = packed_rows(), jnp.array([[1, 4], [7, 20]])
        keys = randomness.row_keys(1, "dropout", jnp.int32(0), jnp.arange(2))

        def loss(params):
            logits = model.apply({"params": params}, inputs, at, dropout_keys=keys)
            return jnp.sum(jnp.sin(logits.mlm.compute()[..., :101]))

        return jax.jit(jax.value_and_grad(loss))(params)

    got = loss_and_gradients(c)
    plain = dataclasses.replace(c, scan_layers=False, remat="none")
    expected = loss_and_gradients(plain)
    # Sums have another order.
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.abs(a - b).max() <= 1e-5 * max(np.abs(b).max(), 1.0)


def check_recomputed_attention_with_one_head_of_keys(**options):
    """The compiler of jaxlib 0.10.2 gets it wrong with its default flags."""
    rng = np.random.default_rng(0)
    query, key, value = (
        jnp.asarray(rng.normal(size=(1, count, 40, 4)), jnp.float32)
        for count in (4, 1, 1)
    )
    mask = jnp.ones((1, 1, 1, 40), bool)
    attend = functools.partial(plain_attention.attend, rate=0.0)

    def gradients(attend):
        def loss(query, key, value):
            repeated = (jnp.repeat(x, 4, axis=1) for x in (key, value))
            return jnp.sum(jnp.sin(attend(query, *repeated, mask, None)))

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), **options)
        return compiled(query, key, value)

    for a, b in zip(gradients(jax.checkpoint(attend)), gradients(attend), strict=True):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def test_recomputed_attention_with_one_head_of_keys():
    check_recomputed_attention_with_one_head_of_keys()


def test_programs_are_right_if_jax_was_used_before_bert_jax():
    """Then the flags in the environment have no effect."""
    script = (
        "import jax\n"
        "jax.numpy.zeros(1) + 1\n"
        "from bert_jax.training import sharding\n"
        "import test_encoder_parts as tests\n"
        "options = sharding.compiler_options(jax.make_mesh((1,), ('data',)))\n"
        "check = tests.check_recomputed_attention_with_one_head_of_keys\n"
        "check(compiler_options=options)\n"
    )
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", script]
    subprocess.run(command, env=environment, check=True)


def trace(c):
    """Return the equations of an encoder that is applied to packed rows."""
    encoder, inputs = heads.make_encoder(c), packed_rows()
    params = jax.eval_shape(encoder.init, jax.random.key(0), inputs)
    apply = jax.make_jaxpr(lambda *x: encoder.apply(*x).hidden)
    return apply(nn.unbox(params), inputs).eqns


def count_primitives(name, equations):
    """Count the uses of a primitive, those in bodies of other primitives included."""
    return sum(
        (equation.primitive.name == name)
        + sum(
            count_primitives(name, body.eqns)
            for body in core.jaxprs_in_params(equation.params)
        )
        for equation in equations
    )


@pytest.mark.parametrize(
    ("name", "remat", "scan_layers"),
    [
        # With fewer layers than `global_layer_every`, no layer is in the loop.
        ("modernbert", "layer", True),
        ("modernbert", "layer", False),
        ("modernbert", "attention", False),
        ("deberta", "attention", False),
    ],
)
def test_two_layers_or_their_attention_are_recomputed(name, remat, scan_layers):
    def count(remat):
        c = family(name, num_layers=2, scan_layers=scan_layers, remat=remat)
        return count_primitives("remat2", trace(c))

    assert count(remat) == count("none") + 2


def test_a_loop_repeats_groups_of_layers():
    """Layer 0, three groups (local, local, global), and the last local layer."""
    equations = trace(family("modernbert", num_layers=11, scan_layers=True))
    (loop,) = (e for e in equations if e.primitive.name == "scan")
    assert loop.params["length"] == 3
    # Each attention has a softmax with one exponential.
    assert count_primitives("exp", loop.params["jaxpr"].jaxpr.eqns) == 3
    assert count_primitives("exp", equations) == 1 + 3 + 1


def boxes(name):
    """Return the parameters of a family, boxed with the names of their dimensions."""
    init = objective_of(family(name)).init
    return parameters.flatten(jax.eval_shape(init, jax.random.key(0)))


def test_parameter_paths_equal_the_record():
    """Checkpoints, converters and optimizers depend on them."""
    lines = []
    for name in FAMILIES:
        lines.append(f"[{name}]")
        for path, box in sorted(boxes(name).items()):
            sizes = zip(box.names, box.value.shape, strict=True)
            lines.append(" ".join([path, *(f"{n}={s}" for n, s in sizes)]))
    assert "\n".join(lines) + "\n" == RECORD.read_text()


@pytest.mark.parametrize("name", ["bert", "eurobert"])
def test_parameters_with_a_row_for_each_token(name):
    """They are the parameters whose first dimension is "vocab"."""
    expected = {path for path, box in boxes(name).items() if box.names[0] == "vocab"}
    assert len(expected) > 0
    assert set(filter(parameters.is_vocabulary_table, boxes(name))) == expected


def test_initial_kernels_that_write_to_the_residuals_scale_with_depth():
    """ModernBERT divides by sqrt(2 N), also in the head's dense layer."""
    c = family("modernbert", hidden_size=256, num_heads=8, intermediate_size=512)
    params = nn.unbox(jax.jit(objective_of(c).init)(jax.random.key(0)))
    layers = params["encoder"]["layers"]
    # The standard deviation of a normal distribution truncated at two deviations.
    full = 0.02 * 0.8796
    for path, scale in (
        (layers["intermediate"], 1),
        (layers["gate"], 1),
        (layers["attention"]["value"], 1),
        (layers["output"], math.sqrt(10)),
        (layers["attention"]["output"], math.sqrt(10)),
        (params["mlm_head"]["transform"], math.sqrt(10)),
    ):
        assert np.std(path["kernel"]) == pytest.approx(full / scale, rel=0.02)


def test_flops_of_parts():
    """Products counted by hand, for 24 tokens."""
    c = family("ultrabert", num_layers=3, num_key_value_heads=2)
    # Windows of 4 + 1 + 4 keys, less 4 + 3 + 2 + 1 at either end of the row.
    local = 24 * 9 - 2 * 10
    projections = 2 * 24 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    attention = 2 * 2 * 32 * (2 * local + 24 * 24)
    assert flops.encoder(c, 24) == 3 * projections + attention
    head = 2 * 5 * (32 * 24 + 24 * 32 + 32 * 101)
    assert flops.prediction_head(c, 5) == head
    # All queries and all keys with 12 distances.
    distances = 5 * 2 * 2 * 24 * 12 * 32
    plain = flops.encoder(family("bert"), 24)
    assert flops.encoder(family("deberta"), 24) == plain + distances


def test_flops_of_embeddings():
    c = family("bert")
    for pool, read in (("cls", 1), ("mean", 24)):
        expected = 3 * 2 * flops.encoder(c, 24, positions=read)
        assert embedding.Embedding(c, 2, pool, 0.1).sequence_flops(24) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads=3 does not divide"),
        ({"num_layer_groups": 3}, "num_layer_groups=3 .* num_layers=5"),
        ({"hidden_size": 36, "num_heads": 12, "positions": "rotary"}, "even size"),
        ({"attention_window": 8}, "attention_window=8 .*set global_layer_every"),
        ({"global_layer_every": 3}, "global_layer_every=3 .*attention_window=0"),
        ({"first_global_layer": 1}, "first_global_layer=1 must be less than"),
        ({"first_attention_norm": False}, "first_attention_norm=False .*=post"),
        (
            {"num_layer_groups": 1, "attention_window": 2, "global_layer_every": 2},
            "attention_window=2 .*num_layer_groups=1",
        ),
        (
            {"embedding_size": 16, "prediction_head": HEAD(num_layers=0)},
            r"embedding_size=16 .*prediction_head\.num_layers=0",
        ),
        ({"positions": "disentangled", "causal": True}, "causal=True .*disentangled"),
        ({"distance_buckets": 32}, "distance_buckets=32 .*positions=absolute"),
        ({"max_distance": 128}, "max_distance=128 must be at least .*buckets=256"),
        (
            {"positions": "relative", "pooler": config.PoolerConfig(pooling="mean")},
            r"^pooler\.pooling=mean does not go with positions=relative; .*='cls'",
        ),
        ({"prediction_head": HEAD(width=8)}, r"head\.width=8 .*head\.num_layers=1"),
        *(
            ({"positions": "relative"} | change, rf"{message}.*positions=relative")
            for change, message in (
                ({"causal": True}, "causal=True"),
                ({"feed_forward": "gated"}, "feed_forward=gated"),
                ({"norm_placement": "pre"}, "norm_placement=pre"),
                ({"embedding_size": 16}, "embedding_size=16"),
                ({"embedding_norm": False}, "embedding_norm=False"),
                ({"type_vocab_size": 1}, "type_vocab_size=1"),
                ({"hidden_size": 33, "num_heads": 3}, "hidden_size=33 must be even"),
            )
        ),
    ],
    ids=str,
)
def test_contradicting_fields_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        config.check(dataclasses.replace(SMALL, **changes))


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 8e-3)]
)
def test_gelu_and_its_slope(name, dtype, tolerance):
    """Also far out, where it is 0 or linear: errors relative to max(1, |value|)."""
    x = jnp.asarray(np.append(np.linspace(-12, 12, 2001), [-1e4, 1e4]), dtype)
    y, pullback = jax.vjp(lambda x: activations.activate(x, name), x)
    (slope,) = pullback(jnp.ones_like(x))
    exact, at, h = ACTIVATIONS[name], np.asarray(x, float), 1e-4
    slopes = (exact(at + h) - exact(at - h)) / (2 * h)
    for got, expected in ((y, exact(at)), (slope, slopes)):
        assert got.dtype == x.dtype
        errors = np.abs(np.asarray(got, float) - expected)
        assert (errors / np.maximum(1, np.abs(expected))).max() < tolerance


def test_buckets_of_distances_are_those_of_the_original():
    """Outputs of make_log_bucket_position of microsoft/DeBERTa, da_utils.py, + 256."""
    position = np.arange(600)
    distances = position[:, None] - position
    buckets = deberta_attention.buckets_of(distances, config.EncoderConfig())
    distances = [0, 1, 127, 128, 129, 130, 200, 300, 400, 500, 505, 506, 511]
    before = [256, 257, 383, 384, 385, 386, 425, 463, 489, 510, 510, 511, 511]
    after = [256, 255, 129, 128, 127, 126, 87, 49, 23, 2, 2, 1, 1]
    assert buckets[distances, 0].tolist() == before
    assert buckets[0, distances].tolist() == after
    # Longer rows: the original has 511 and 1.
    assert (buckets[512:, 0] == 511).all() and (buckets[0, 512:] == 0).all()


def test_scores_of_distances_and_their_gradients_in_bfloat16():
    """In NumPy, each pair gathers its bucket. XLA on CPUs lacks some such products."""
    rng = np.random.default_rng(4)
    tokens, distances = (2, 24, 3, 8), (32, 3, 8)  # [B, L, H, K], [R, H, K]
    arrays = [
        jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
        for shape in (tokens, tokens, distances, distances)
    ]
    query, key, query_of_distance, key_of_distance = (
        np.asarray(a, np.float32) for a in arrays
    )
    buckets = 16 - np.clip(np.subtract.outer(range(24), range(24)), -9, 12)  # [L, L]
    g = rng.normal(size=(2, 3, 24, 24)).astype(np.float32)  # [B, H, L, L]

    scores, pull_back = jax.vjp(
        functools.partial(deberta_attention.distance_scores, buckets=buckets), *arrays
    )
    d_query, d_key, *_ = pull_back(jnp.asarray(g, scores.dtype))

    of_query, of_key = query_of_distance[buckets], key_of_distance[buckets]  # [L,L,H,K]
    expected = np.einsum("bihk,ijhk->bhij", query, of_key)
    expected += np.einsum("bjhk,ijhk->bhij", key, of_query)
    assert relative_distance(scores, expected) < 0.02
    expected = np.einsum("bhij,ijhk->bihk", g, of_key)
    assert relative_distance(d_query, expected) < 0.02
    expected = np.einsum("bhij,ijhk->bjhk", g, of_query)
    assert relative_distance(d_key, expected) < 0.02


def test_gpus_round_products_that_are_rounded_anyway():
    """GPUs write them in bfloat16, but not logits and gradients of parameters."""
    c = dataclasses.replace(TINY, dtype="bfloat16", num_layers=2, scan_layers=False)
    pretraining, classifier = masked_lm.MaskedLm(c), classification.Classification(c, 3)

    def results(objective, platform):
        """Return pairs of the shape and the type of a product's result."""
        params = jax.eval_shape(lambda: nn.unbox(objective.init(jax.random.key(0))))
        batch = batch_of(objective, rows=8, length=24)

        def loss(params):
            sums = sums_of(objective, params, batch)
            return sum(sums[name].sum for name in objective.loss_weights)

        traced = jax.jit(jax.grad(loss)).trace(params)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        return set(re.findall(r"dot_general .*-> tensor<([\dx]+)x(\w+)>", text))

    for objective in (pretraining, classifier):
        assert {dtype for _, dtype in results(objective, "tpu")} == {"f32"}
    for objective, logits in ((pretraining, "x128"), (classifier, "8x3")):
        types = results(objective, "cuda")
        of_logits = {dtype for shape, dtype in types if shape.endswith(logits)}
        of_intermediate = {dtype for shape, dtype in types if shape == "192x48"}
        of_gradients = {dtype for shape, dtype in types if shape in ("32x48", "48x32")}
        assert of_logits == of_gradients == {"f32"} and of_intermediate == {"bf16"}
        assert ("192x32", "bf16") in types
