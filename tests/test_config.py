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
    text = json.dumps(knobs.to_dict(PRETRAIN))
    assert knobs.load_json(config.PretrainConfig, text, "x.json") == PRETRAIN


def test_json_of_another_shape_names_file_and_field():
    values = knobs.to_dict(PRETRAIN)
    values["encoder"]["hiden_size"] = 3
    with pytest.raises(UserError, match=r"x\.json .* encoder\.hiden_size"):
        knobs.load_json(config.PretrainConfig, json.dumps(values), "x.json")


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
            {"phases": {"learning_rate": 1e-3}},
            r"phases\[1\].learning_rate is 0; all phases have one, or none has",
        ),
        (
            {"phases": {"warmup_fraction": 0.1}},
            r"phases\[0\].warmup_fraction=0.1 needs a phases\[0\].learning_rate",
        ),
        ({"phases": {"length": 1024}}, r"phases\[0\].length=1024 is more than .*512"),
        ({"phases": {"micro_batches": 3}}, "micro_batches=3 does not divide .*256"),
        ({"objective": {"masking.max_predictions": -1}}, "predictions=-1 must be at l"),
        ({"data": {"shard_groups": 3}}, "shard_groups=3 does not divide"),
        ({"objective": {"masking.mask_token_rate": 0.95}}, "add up to more than 1"),
        ({"optimizer": {"schedule": "cosine"}}, "schedule='cosine' must be one of"),
        ({"mesh": {"fsdp": -1}}, "mesh: only one of data, fsdp and tensor"),
        ({"mesh": {"fsdp": 0}}, "mesh.fsdp=0 must be at least 1, or -1"),
        ({"loop": {"log_every": 0}}, "log_every=0 must be at least 1"),
    ],
)
def test_what_cannot_work_is_refused(groups, message):
    with pytest.raises(UserError, match=message):
        knobs.from_configdict(config.PretrainConfig, changed(**groups))


@pytest.mark.parametrize("name", ["learning_rate", "warmup_fraction"])
def test_a_rate_that_no_phase_would_have_is_refused(name):
    cfg = changed(phases={"learning_rate": 1e-3})
    cfg.phases[1].learning_rate = 2e-3
    assert knobs.from_configdict(config.PretrainConfig, cfg).phases[0].learning_rate
    cfg.optimizer[name] = 0.05
    message = rf"optimizer.{name}=0.05 is of no use where .* set phases\[0\].{name}"
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
