import dataclasses
import json

import pytest

from bert_jax import config
from bert_jax.errors import UserError

PRETRAIN = config.PretrainConfig()


def test_configdict_and_back():
    cfg = config.to_configdict(PRETRAIN)
    cfg.optimizer.learning_rate = 2e-4
    cfg.phases[1].steps = 7
    rebuilt = config.from_configdict(config.PretrainConfig, cfg)
    assert rebuilt.optimizer.learning_rate == 2e-4
    assert [phase.steps for phase in rebuilt.phases] == [900_000, 7]
    assert dataclasses.replace(rebuilt.phases[1], steps=100_000) == PRETRAIN.phases[1]


def test_json_and_back():
    text = json.dumps(config.to_dict(PRETRAIN))
    assert config.load_json(config.PretrainConfig, text, "x.json") == PRETRAIN


def test_json_of_another_shape_names_file_and_field():
    values = config.to_dict(PRETRAIN)
    values["encoder"]["hiden_size"] = 3
    with pytest.raises(UserError, match=r"x\.json .* encoder\.hiden_size"):
        config.load_json(config.PretrainConfig, json.dumps(values), "x.json")


def test_what_was_saved_before_a_field_existed_is_readable():
    values = config.to_dict(PRETRAIN)
    del values["encoder"]["remat"], values["phases"][0]["micro_batches"]
    assert config.from_dict(config.PretrainConfig, values) == PRETRAIN


def changed(**groups):
    """A ConfigDict with fields changed: `changed(encoder={"num_heads": 5})`."""
    cfg = config.to_configdict(PRETRAIN)
    for group, fields in groups.items():
        for name, value in fields.items():
            if group == "phases":
                cfg.phases[0][name] = value
            else:
                cfg[group][name] = value
    return cfg


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"encoder": {"num_heads": 5}}, "num_heads=5 does not divide .*768"),
        ({"encoder": {"activation": "relu"}}, "activation='relu' must be one of"),
        ({"encoder": {"dropout_rate": 1.0}}, "dropout_rate=1.0 must be"),
        ({"phases": {"length": 1024}}, r"phases\[0\].length=1024 is more than .*512"),
        ({"phases": {"micro_batches": 3}}, "micro_batches=3 does not divide .*256"),
        ({"phases": {"max_predictions": 0}}, "max_predictions=0 must be from 1"),
        ({"data": {"shard_groups": 3}}, "shard_groups=3 does not divide"),
        ({"data": {"mask_token_rate": 0.95}}, "add up to more than 1"),
        ({"optimizer": {"schedule": "cosine"}}, "schedule='cosine' must be one of"),
        ({"mesh": {"fsdp": -1}}, "only one of data, fsdp and tensor"),
        ({"run": {"log_every": 0}}, "log_every=0 must be at least 1"),
    ],
)
def test_what_cannot_work_is_refused(groups, message):
    with pytest.raises(UserError, match=message):
        config.from_configdict(config.PretrainConfig, changed(**groups))


def test_classifier_says_what_is_missing():
    cfg = config.to_configdict(config.ClassifierConfig())
    with pytest.raises(UserError, match=r"pass --config\.task\.train"):
        config.from_configdict(config.ClassifierConfig, cfg)


def test_differences_are_told_apart_by_what_they_change():
    new = dataclasses.replace(
        PRETRAIN,
        run=dataclasses.replace(PRETRAIN.run, log_every=7),
        optimizer=dataclasses.replace(PRETRAIN.optimizer, learning_rate=1.0),
        phases=PRETRAIN.phases[:1],
    )
    refused = config.differences(PRETRAIN, new, free_fields=False)
    assert len(refused) == 2
    assert "optimizer.learning_rate: was 0.0001, is now 1.0" in refused
    allowed = config.differences(PRETRAIN, new, free_fields=True)
    assert allowed == ["run.log_every: was 100, is now 7"]


def test_vocabulary_follows_the_tokenizer_or_agrees_with_it():
    encoder = config.EncoderConfig(vocab_size=0)
    assert config.with_vocabulary(encoder, 1000).vocab_size == 1000
    assert config.with_vocabulary(encoder, 1000).padded_vocab_size == 1024
    with pytest.raises(UserError, match="vocab_size=30522, but the tokenizer has 1000"):
        config.with_vocabulary(config.EncoderConfig(), 1000)
