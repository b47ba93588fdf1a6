import dataclasses
import functools
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from toy import TINY, batch_of, relative_distance

from bert_jax import config
from bert_jax.errors import UserError
from bert_jax.model import heads
from bert_jax.model import parameters as tree_by_path
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import distillation, masked_lm, permutation_lm, replaced_tokens
from bert_jax.training import optimizer, sharding, step

OPTIMIZER = config.OptimizerConfig(learning_rate=1e-3, warmup_fraction=0.1)
AXES = {"data": 2, "fsdp": 2, "tensor": 2}
STEPS = 4


BERT = masked_lm.MaskedLm(TINY)
ONE_LAYER = dataclasses.replace(TINY, num_layers=1)
SHARED = dataclasses.replace(TINY, num_layers=2, embedding_size=12, num_layer_groups=1)
TAUGHT = distillation.Distillation(
    ONE_LAYER,
    config.DistillationConfig(
        teacher_encoder=dataclasses.replace(TINY, num_layers=2, norm_placement="pre"),
        hidden_weight=2.0,
        hidden_layers="all",
    ),
)
RELATIVES = {
    "a teacher": TAUGHT,
    "shared layers": masked_lm.MaskedLm(SHARED),
    # The compiler aborted in their lookup of positions.
    "packed rows": masked_lm.MaskedLm(
        ONE_LAYER, config.MaskedLmConfig(examples_per_row=3)
    ),
    "replaced tokens": replaced_tokens.ReplacedTokens(
        dataclasses.replace(ONE_LAYER, positions="disentangled"),
        config.ReplacedTokensConfig(
            generator_size=0.5, embedding_sharing="gradient_disentangled"
        ),
    ),
    "two streams": permutation_lm.PermutationLm(
        dataclasses.replace(ONE_LAYER, positions="relative")
    ),
}


def initialised(init, mesh, seed):
    return sharding.initialise(
        init, sharding.state_shapes(init, mesh), jax.random.key(seed)
    )


def loss_curve(mesh, objective, name="adamw", state=None):
    """Return the losses of some steps, and the states before and after them.

    The steps have dropout and micro-batches.
    """
    asked = dataclasses.replace(OPTIMIZER, name=name)
    tx = optimizer.make_optimizer(asked, optimizer.make_schedule(asked, 100))
    init = functools.partial(step.init_state, objective, tx)
    shardings = sharding.shardings_of(sharding.state_shapes(init, mesh))
    if state is None:
        state = initialised(init, mesh, 0)
    first = state = jax.device_put(state, shardings)
    constants = {}
    if objective is TAUGHT:
        constants = initialised(objective.init_constants, mesh, 1)
    sum_over_replicas = functools.partial(
        sharding.sum_over_replicas, mesh=mesh, dtype=jnp.float32
    )

    def train_step(state, batch, constants):
        return step.train_step(
            objective,
            tx,
            state,
            batch,
            seed=1,
            micro_batches=2,
            sum_over_replicas=sum_over_replicas,
            constants=constants,
        )

    train = jax.jit(train_step, out_shardings=(shardings, sharding.replicated(mesh)))
    batch = jax.tree.map(np.asarray, batch_of(objective, rows=16))
    batch, sums = sharding.to_devices(mesh, batch, 16), []
    with sharding.use(mesh):
        for _ in range(STEPS):
            state, _ = train(state, batch, constants)
            sums.append(
                sum(float(state.metric_sums[x].sum) for x in objective.loss_weights)
            )
    return np.diff([0.0, *sums]), first, state


def compare(objective, *, initialises=False, axes=AXES, **options):
    """Compare loss curves of a mesh and one device; return both final states.

    The mesh initialises the state itself, or has that of the device, which compiles
    less.
    """
    one = sharding.make_mesh(config.MeshConfig(), jax.devices()[:1])
    mesh = sharding.make_mesh(config.MeshConfig(**axes))
    expected, first, expected_state = loss_curve(one, objective, **options)
    first = None if initialises else first
    curve, _, state = loss_curve(mesh, objective, state=first, **options)
    np.testing.assert_allclose(curve, expected, rtol=1e-5)
    assert curve[-1] < curve[0]
    return state, expected_state


def assert_split(tree):
    """Check that an array stayed where it was put."""
    kernel = tree["encoder"]["layers"]["intermediate"]["kernel"]
    assert kernel.sharding.spec == P(None, "fsdp", "tensor")
    assert kernel.addressable_shards[0].data.size == kernel.size // 4


@pytest.mark.slow
def test_a_mesh_gives_the_loss_curve_of_one_device_to_muon():
    """Three layers do not divide evenly among the devices."""
    state, expected = compare(BERT, initialises=True, name="muon")
    muon_state, moments = state.opt_state[1]
    assert_split(state.params)
    assert_split(muon_state.mu)
    assert "kernel" not in moments.mean["encoder"]["layers"]["intermediate"]
    assert relative_distance(state.params, expected.params) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", RELATIVES)
def test_a_mesh_gives_the_losses_of_one_device_to_relatives(name):
    state, _ = compare(RELATIVES[name])
    assert_split(state.opt_state[1].mean)


def test_a_mesh_without_tensor_gives_the_losses_of_one_device():
    objective = RELATIVES["packed rows"]
    state, expected = compare(objective, axes={"data": 2, "fsdp": 4})
    assert relative_distance(state.params, expected.params) < 1e-4


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_any_number_of_rows_can_be_looked_up(rows):
    """A step initialises its teacher's shapes on the mesh, with a single row."""
    mesh = sharding.make_mesh(config.MeshConfig(fsdp=4), jax.devices()[:4])
    encoder = heads.make_encoder(ONE_LAYER)
    ids = np.arange(3 * rows, dtype=np.int32).reshape(rows, 3)
    inputs = Inputs(ids, ids >= 0)
    params = nn.unbox(encoder.init(jax.random.key(0), inputs))
    with sharding.use(mesh):
        on_mesh = nn.unbox(encoder.init(jax.random.key(0), inputs))
        got = jax.jit(encoder.apply)(on_mesh, inputs)
    assert relative_distance(got, encoder.apply(params, inputs)) < 1e-6


def test_gradients_are_summed_in_bfloat16():
    """The gradients of each copy are rounded, and so is their sum."""
    mesh = sharding.make_mesh(config.MeshConfig(**AXES))
    copies = mesh.shape["data"]
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(16, 8)), rng.normal(size=(8, 4))
    x, w = x.astype(np.float32), w.astype(np.float32)

    def differentiate(w, batch, rows, scale):
        def loss(w):
            return jnp.sum((batch["x"] @ w + rows["y"][:, None]) ** 2) * scale

        return jax.value_and_grad(loss)(w)

    y = np.arange(16, dtype=np.float32)
    summed = sharding.sum_over_replicas(differentiate, mesh, jnp.bfloat16)
    with sharding.use(mesh):
        loss, got = jax.jit(summed)(w, {"x": x}, {"y": y}, np.float32(0.5))
    error = x @ w + y[:, None]
    np.testing.assert_allclose(loss, 0.5 * np.sum(error**2), rtol=1e-6)
    gradients = [
        x.T @ e
        for x, e in zip(np.split(x, copies), np.split(error, copies), strict=True)
    ]
    rounded = [g.astype(jnp.bfloat16).astype(np.float32) for g in gradients]
    expected = sum(rounded).astype(jnp.bfloat16).astype(np.float32)
    assert np.mean(got == expected) > 0.9  # but for the order of the sum
    np.testing.assert_allclose(got, expected, rtol=2**-7)
    assert np.mean(got == sum(gradients)) < 0.1
    assert got.dtype == np.float32


def test_every_name_has_a_rule_and_every_rule_a_use():
    boxes = [
        box
        for objective in (BERT, *RELATIVES.values())
        for box in jax.tree.leaves(
            jax.eval_shape(objective.init, jax.random.key(0)),
            is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned),
        )
    ]
    used = {name for box in boxes for name in box.names}
    activations = {"batch", "length"}
    assert used | activations == {name for name, _ in sharding.RULES}


def test_parameters_are_split_over_both_axes_of_a_model():
    """W[D, F] and W[F, D], in the scaling book's notation, with stacked layers."""
    mesh = sharding.make_mesh(config.MeshConfig(**AXES))
    shapes = tree_by_path.flatten(sharding.state_shapes(BERT.init, mesh))
    for path, spec in {
        "layers/intermediate/kernel": P(None, "fsdp", "tensor"),
        "layers/output/kernel": P(None, "tensor", "fsdp"),
        "layers/attention/query/kernel": P(None, "fsdp", "tensor", None),
        "layers/attention/output/kernel": P(None, "tensor", None, "fsdp"),
        "embeddings/token_embedding": P("tensor", "fsdp"),
    }.items():
        assert shapes[f"encoder/{path}"].sharding.spec == spec, path


def test_each_device_gets_its_rows_of_a_batch():
    mesh = sharding.make_mesh(config.MeshConfig(**AXES))
    assert sharding.local_rows(mesh, 16).tolist() == list(range(16))
    batch = {"x": np.arange(32).reshape(16, 2)}
    placed = sharding.to_devices(mesh, batch, 16)["x"]
    assert np.array_equal(placed, batch["x"])
    assert {shard.data.shape for shard in placed.addressable_shards} == {(4, 2)}


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"data": 3}, r"mesh\.data=3, .* must be the number of devices here, 8"),
        ({"fsdp": 3}, r"mesh\.data=-1, mesh\.fsdp=3"),
    ],
)
def test_meshes_that_do_not_fit_are_refused(axes, message):
    with pytest.raises(UserError, match=message):
        sharding.make_mesh(config.MeshConfig(**axes))


def test_float64_is_refused():
    with jax.enable_x64(True), pytest.raises(UserError, match="jax_enable_x64 is set"):
        sharding.make_mesh(config.MeshConfig())


@pytest.mark.parametrize("axis", ["batch", "data"])
def test_muon_works_under_a_mesh_of_other_axes(axis):
    explicit = (jax.sharding.AxisType.Explicit,)
    with jax.set_mesh(jax.make_mesh((8,), (axis,), explicit)):
        assert sharding.map_layers(lambda x: 2 * x, jnp.ones(3)).tolist() == [2, 2, 2]


def test_models_and_batches_that_do_not_fit_are_refused():
    mesh = sharding.make_mesh(config.MeshConfig(data=1, tensor=8))
    with pytest.raises(UserError, match=r"mesh\.tensor=8 .* encoder\.num_heads=4"):
        sharding.check_encoder(mesh, TINY)
    odd = dataclasses.replace(TINY, num_heads=8, vocab_multiple=1, vocab_size=101)
    with pytest.raises(UserError, match="of 101 tokens; set another mesh.tensor, or"):
        sharding.check_encoder(mesh, odd)
    head = config.PredictionHeadConfig(num_layers=1, width=10)
    wide = dataclasses.replace(TINY, prediction_head=head)
    mesh = sharding.make_mesh(config.MeshConfig(data=2, fsdp=4))
    with pytest.raises(UserError, match=r"fsdp=4 .* generator's prediction_head\.wi"):
        sharding.check_encoder(mesh, wide, config.FIELD_PREFIXES["generator"])
    with pytest.raises(UserError, match=r"phases\[0\]\.batch_size=12 .* 8 parts"):
        sharding.check_batch(mesh, "phases[0].", 12, 1)
    with pytest.raises(UserError, match=r"batch_size=9 .* 16: .* 2 micro-batches"):
        sharding.check_batch(mesh, "", 9, 2)
    with pytest.raises(UserError, match=r"micro_batches=2 must divide 3, .* 8 parts"):
        sharding.check_batch(mesh, "", 24, 2)


def fake_devices(slices, each):
    """Return devices that only know which slice they are in."""
    return [
        types.SimpleNamespace(
            id=i, slice_index=i // each, process_index=i, platform="cpu", device_kind=""
        )
        for i in range(slices * each)
    ]


def test_slices_split_data_and_nothing_else(monkeypatch):
    grids = []
    monkeypatch.setattr(sharding, "Mesh", lambda grid, *_, **__: grids.append(grid))
    sharding.make_mesh(config.MeshConfig(fsdp=2, tensor=2), fake_devices(2, 8))
    (grid,) = grids
    assert grid.shape == (4, 2, 2)
    slice_of = np.vectorize(lambda device: device.slice_index)(grid)
    assert (slice_of == np.array([0, 0, 1, 1])[:, None, None]).all()
    with pytest.raises(UserError, match=r"mesh\.data=3 is not a multiple of the 6"):
        sharding.make_mesh(config.MeshConfig(data=3, fsdp=4), fake_devices(6, 2))


def test_each_array_is_split_over_data_where_it_can_be():
    mesh = sharding.make_mesh(config.MeshConfig(data=4, fsdp=2))

    def split(shape, *spec):
        given = jax.sharding.NamedSharding(mesh, P(*spec))
        leaf = jax.ShapeDtypeStruct(shape, np.float32, sharding=given)
        return sharding.split_over_data(leaf).sharding.spec

    assert split((12, 64, 256), None, "fsdp", None) == P(None, "fsdp", "data")
    assert split((12, 64, 30), None, "fsdp", None) == P(None, ("fsdp", "data"), None)
    assert split((4, 6), None, "fsdp") == P("data", "fsdp")
    assert split((3, 6), None, "fsdp") == P(None, "fsdp")
    assert split(()) == P()
