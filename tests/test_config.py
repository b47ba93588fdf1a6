import dataclasses
import json

import pytest

from bert_jax import config, knobs
from bert_jax.demo.config import DemoConfig
from bert_jax.errors import UserError

PRETRAIN = config.PretrainConfig()


def test_configdict_and_back():
    cfg = knobs.to_configdict(PRETRAIN)
    cfg.optimizer.learning_rate = 2e-4
    cfg.phases[1].steps = 7
    rebuilt = knobs.from_configdict(config.PretrainConfig, cfg)
    assert rebuilt.optimizer.learning_rate == 2e-4
    assert [phase.steps for phase in rebuilt.phases] == [900_000, 7]
    assert dataclasses.replace(rebuilt.phases[1], steps=100_000) == PRETRAIN.phases[1]


def test_json_and_back():
    values = json.loads(json.dumps(knobs.to_dict(PRETRAIN)))
    assert knobs.from_dict(config.PretrainConfig, values) == PRETRAIN


def test_what_was_saved_before_a_field_existed_is_readable():
    values = knobs.to_dict(PRETRAIN)
    del values["encoder"]["remat"], values["phases"][0]["micro_batches"]
    assert knobs.from_dict(config.PretrainConfig, values) == PRETRAIN


def changed(**groups):
    """A ConfigDict with fields changed: `changed(encoder={"num_heads": 5})`."""
    cfg = knobs.to_configdict(PRETRAIN)
    for group, fields in groups.items():
        for name, value in fields.items():
            if group == "phases":
                cfg.phases[0][name] = value
            else:
                cfg.update_from_flattened_dict({f"{group}.{name}": value})
    return cfg


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"encoder": {"num_heads": 5}}, "num_heads=5 does not divide .*768"),
        ({"encoder": {"activation": "relu"}}, "activation='relu' must be one of"),
        ({"encoder": {"dropout_rate": 1.0}}, "dropout_rate=1.0 must be .* less than 1"),
        ({"encoder": {"initializer_range": -0.1}}, "range=-0.1 must be at least 0"),
        ({"encoder": {"layer_norm_epsilon": -1e-9}}, "epsilon=-1e-09 must be more tha"),
        ({"encoder": {"layer_norm_epsilon": float("nan")}}, "=nan must be a finite"),
        (
            {"encoder": {"vocab_size": 2**70}},
            "vocab_size=.* must be less than",
        ),
        ({"phases": {"steps": 3_000_000_000}}, r"phases\[0\].steps=3000000000 must be"),
        ({"optimizer": {"epsilon": 0.0}}, "optimizer.epsilon=0.0 must be more than 0"),
        ({"optimizer": {"learning_rate": float("inf")}}, "learning_rate=inf must be a"),
        (
            {"phases": {"warmup_fraction": 0.1}},
            r"phases\[0\].warmup_fraction=0.1 needs a phases\[0\].learning_rate",
        ),
        (
            {"phases": {"decay_fraction": 0.1}},
            r"phases\[0\].decay_fraction=0.1 needs a phases\[0\].learning_rate",
        ),
        (
            {"phases": {"learning_rate": 1e-3, "decay_fraction": 0.1}},
            r"phases\[0\].decay_fraction=0.1 has no effect with .*'original'; it needs",
        ),
        (
            {
                "optimizer": {"schedule": "wsd"},
                "phases": {
                    "learning_rate": 1e-3,
                    "warmup_fraction": 0.5,
                    "decay_fraction": 0.6,
                },
            },
            r"phases\[0\].decay_fraction=0.6 must not add up to more than 1",
        ),
        ({"phases": {"length": 1024}}, r"phases\[0\].length=1024 is more than .*512"),
        ({"phases": {"micro_batches": 3}}, "micro_batches=3 does not divide .*256"),
        ({"objective": {"masking.max_predictions": -1}}, "predictions=-1 must be at l"),
        ({"data": {"shard_groups": 3}}, "shard_groups=3 does not divide"),
        ({"objective": {"masking.mask_token_rate": 0.95}}, "add up to more than 1"),
        (
            {"objective": {"masking.rate": 0.0}},
            "objective.masking.rate=0.0 must be more than 0",
        ),
        (
            {"phases": {"masking_rate": 1.5}},
            r"phases\[0\].masking_rate=1.5 must be at least 0 and at most 1",
        ),
        ({"optimizer": {"schedule": "step"}}, "schedule='step' must be one of"),
        (
            {"optimizer": {"schedule": "cosine", "decay_fraction": 0.2}},
            "decay_fraction=0.2 has no effect with optimizer.schedule='cosine'; it "
            "needs optimizer.schedule='wsd'",
        ),
        (
            {"optimizer": {"schedule": "wsd", "warmup_fraction": 0.95}},
            "warmup_fraction=0.95 and optimizer.decay_fraction=0.1 must not add up",
        ),
        ({"mesh": {"fsdp": -1}}, "mesh: only one of data, fsdp and tensor"),
        ({"mesh": {"fsdp": 0}}, "mesh.fsdp=0 must be at least 1, or -1"),
        ({"loop": {"log_every": 0}}, "log_every=0 must be at least 1"),
    ],
)
def test_what_cannot_work_is_refused(groups, message):
    with pytest.raises(UserError, match=message):
        knobs.from_configdict(config.PretrainConfig, changed(**groups))


def test_a_masking_rate_where_nothing_is_masked_is_refused():
    cfg = knobs.to_configdict(config.PretrainConfig(objective=config.CausalLmConfig()))
    cfg.encoder.causal = True
    cfg.phases[1].masking_rate = 0.3
    with pytest.raises(
        UserError, match=r"phases\[1\].masking_rate=0.3, but .*'causal_lm' masks no"
    ):
        knobs.from_configdict(config.PretrainConfig, cfg)


@pytest.mark.parametrize("name", ["rotary_base", "local_rotary_base"])
def test_a_rotary_base_where_positions_are_not_rotary_is_refused(name):
    cfg = changed(phases={name: 160_000.0})
    message = rf"phases\[0\].{name}=160000.0 needs encoder.positions='rotary', not 'ab"
    with pytest.raises(UserError, match=message):
        knobs.from_configdict(config.PretrainConfig, cfg)
    cfg.encoder.update(positions="rotary", attention_window=8, global_layer_every=3)
    built = knobs.from_configdict(config.PretrainConfig, cfg)
    assert getattr(built.of_phase(0).encoder, name) == 160_000
    assert built.of_phase(1).encoder == built.encoder


@pytest.mark.parametrize("name", ["learning_rate", "warmup_fraction"])
def test_a_rate_that_no_phase_would_have_is_refused(name):
    cfg = changed(phases={"learning_rate": 1e-3})
    assert knobs.from_configdict(config.PretrainConfig, cfg).phases[0].learning_rate
    cfg.optimizer[name] = 0.05
    message = (
        rf"optimizer.{name}=0.05 has no effect beside phases.* set phases\[0\].{name}"
    )
    with pytest.raises(UserError, match=message):
        knobs.from_configdict(config.PretrainConfig, cfg)


@pytest.mark.parametrize(
    ("epochs", "message"),
    [(0.0, "more than 0"), (1e300, "at most"), (float("nan"), "a finite number")],
)
def test_epochs_that_are_none(epochs, message):
    cfg = knobs.to_configdict(config.FinetuneConfig(epochs=epochs))
    with pytest.raises(UserError, match=f"epochs=.* must be .*{message}"):
        knobs.from_configdict(config.FinetuneConfig, cfg)


@pytest.mark.parametrize(
    "default", [config.PretrainConfig(), config.FinetuneConfig(), DemoConfig()]
)
def test_defaults_keep_their_own_limits(default):
    knobs.check(default)


def test_differences_are_distinguished_by_what_they_change():
    new = dataclasses.replace(
        PRETRAIN,
        loop=dataclasses.replace(PRETRAIN.loop, log_every=7),
        optimizer=dataclasses.replace(PRETRAIN.optimizer, learning_rate=1.0),
        phases=PRETRAIN.phases[:1],
    )
    refused = knobs.differences(PRETRAIN, new, free=False)
    assert len(refused) == 2
    assert "optimizer.learning_rate: was 0.0001, is now 1.0" in refused
    allowed = knobs.differences(PRETRAIN, new, free=True)
    assert allowed == ["loop.log_every: was 100, is now 7"]


def test_fields_of_the_encoder_say_what_they_are_about():
    """A new field that is not the architecture's belongs in one of these lists."""
    fields = dataclasses.fields(config.EncoderConfig)
    computation = {"dtype", "scan_layers", "kernels", "remat"}
    regularisation = {
        *("dropout_rate", "attention_dropout_rate"),
        *("initializer_range", "depth_scaled_init"),
    }
    adaptable = {
        *("max_position_embeddings", "type_vocab_size"),
        *("rotary_base", "local_rotary_base"),
    }
    for role, names in (
        ("free", computation),
        ("regularisation", regularisation),
        ("adaptable", adaptable),
    ):
        assert {f.name for f in fields if f.metadata.get(role)} == names
    architecture = {f.name for f in knobs.architecture(PRETRAIN.encoder)}
    assert architecture == {f.name for f in fields} - computation - regularisation


def test_what_the_corpus_decides_is_filled_in_or_agrees():
    open_config = dataclasses.replace(
        PRETRAIN, encoder=config.EncoderConfig(vocab_size=0)
    )
    filled = knobs.filled_in(open_config, "encoder.vocab_size", 1000, "")
    assert filled.encoder.vocab_size == 1000
    assert filled.encoder.padded_vocab_size == 1024
    assert knobs.filled_in(filled, "encoder.vocab_size", 1000, "") == filled
    with pytest.raises(UserError, match=r"encoder\.vocab_size=30522, but there are 9"):
        knobs.filled_in(PRETRAIN, "encoder.vocab_size", 9, "there are 9")
