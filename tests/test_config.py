"""The configs of the package: conditions on fields, and roles of fields."""

import typing

import pytest

from bert_jax import config
from bert_jax.errors import UserError

PRETRAIN = config.PretrainConfig()
OBJECTIVES = {cls.kind: cls() for cls in typing.get_args(config.ObjectiveConfig)}


def changed(fields):
    """Return a recipe with other fields, as in `changed({"encoder.num_heads": 5})`."""
    cfg = config.to_configdict(PRETRAIN)
    kind = fields.get("objective.kind", "masked_lm")
    cfg.objective = config.to_configdict(OBJECTIVES[kind])
    for path, value in fields.items():
        if path.startswith("phases[0]."):
            cfg.phases[0][path.removeprefix("phases[0].")] = value
        else:
            cfg.update_from_flattened_dict({path: value})
    return cfg


CAUSAL = {"objective.kind": "causal_lm"}
PERMUTED = {"objective.kind": "permutation_lm"}
REPLACED = {"objective.kind": "replaced_tokens"}
DISTILLED = {"objective.kind": "distillation"}
RELATIVE = {"encoder.positions": "relative"}
# Fractions of a phase, whose sum is too large.
FRACTIONS = {"phases[0].warmup_fraction": 0.6, "phases[0].decay_fraction": 0.6}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder.num_heads": 5}, "num_heads=5 does not divide .*768"),
        ({"phases[0].warmup_fraction": 0.1}, "warmup_fraction=0.1 .*learning_rate"),
        ({"phases[0].decay_fraction": 0.1}, "decay_fraction=0.1 .*learning_rate=0"),
        (
            {"phases[0].learning_rate": 1e-3, "phases[0].decay_fraction": 0.1},
            r"phases\[0\].decay_fraction=0.1 has no effect with .*'original'; it needs",
        ),
        (
            FRACTIONS | {"phases[0].learning_rate": 1e-3},
            r"phases\[0\].decay_fraction=0.6 must not add up to more than 1",
        ),
        ({"phases[0].micro_batches": 3}, "micro_batches=3 does not divide .*256"),
        ({"encoder.pooler.pooling": "mean"}, "pooling=mean .*=next_sentence"),
        ({"data.shard_groups": 3}, "shard_groups=3 does not divide"),
        ({"objective.masking.mask_token_rate": 0.95}, "add up to more than 1"),
        (
            {"optimizer.schedule": "cosine", "optimizer.decay_fraction": 0.2},
            "decay_fraction=0.2 does not go with optimizer.schedule=cosine; .*n=0.1",
        ),
        (
            {"optimizer.schedule": "wsd", "optimizer.warmup_fraction": 0.95},
            "warmup_fraction=0.95 and optimizer.decay_fraction=0.1 must not add up",
        ),
        (
            CAUSAL | {"encoder.causal": True, "phases[0].masking_rate": 0.3},
            r"phases\[0\].masking_rate=0.3, but .*'causal_lm' masks no",
        ),
        (
            CAUSAL | RELATIVE,
            "^encoder.positions='relative' does not go with objective.kind='causal_lm'",
        ),
        (
            PERMUTED | RELATIVE | {"encoder.prediction_head.tied": False},
            "head.tied=False does not go with objective.kind=permutation_lm",
        ),
        (PERMUTED, "positions=absolute .* set encoder.positions='relative'"),
        (
            RELATIVE | {"objective.examples_per_row": 2},
            "examples_per_row=2 .* set objective.examples_per_row=1",
        ),
        (
            {"objective.segments": "full_sentences", "objective.examples_per_row": 8},
            "examples_per_row=8 packs .*'doc_sentences'",
        ),
        *(
            (
                REPLACED | {"objective.generator_size": size},
                f"hidden_size={columns}; it must be a mult",
            )
            for size, columns in ((0.3, 230), (1e-4, 0))
        ),
        (
            REPLACED
            | {"objective.generator_layers": 0.5, "encoder.num_layer_groups": 4},
            "^objective.generator_layers=0.5 .* num_layers=6; .*encoder.num_layer_gr",
        ),
        (
            REPLACED
            | {
                "objective.embedding_sharing": "gradient_disentangled",
                "optimizer.name": "lamb",
            },
            "^objective.embedding_sharing=gradient_disentangled does not .*=lamb; set",
        ),
        (
            REPLACED | {"encoder.prediction_head.num_layers": 0},
            "^objective.generator_size=0.25 .*prediction_head.num_layers=0; .*size=1.0",
        ),
        (
            DISTILLED
            | {
                "objective.segments": "doc_sentences",
                "objective.examples_per_row": 4,
                "objective.teacher_encoder.positions": "relative",
            },
            "examples_per_row=4 .* objective.teacher_encoder.positions=relative",
        ),
        (
            DISTILLED | {"objective.hidden_layers": "all"},
            "hidden_layers=all does not go with objective.hidden_weight=0",
        ),
        (
            DISTILLED | {"objective.teacher_weight": 0.0, "objective.temperature": 4.0},
            "temperature=4.0 does not go with objective.teacher_weight=0",
        ),
        ({"objective.masking.max_ngram": 2}, "max_ngram=2 .*unit=token; .*ngram=3"),
        ({"mesh.fsdp": -1}, "mesh: only one of data, fsdp and tensor"),
        ({"mesh.fsdp": 0}, "mesh.fsdp=0 must be at least 1, or -1"),
    ],
)
def test_contradicting_fields_are_refused(fields, message):
    with pytest.raises(UserError, match=message):
        config.from_dict(config.PretrainConfig, changed(fields))


@pytest.mark.parametrize("name", ["rotary_base", "local_rotary_base"])
def test_a_rotary_base_where_positions_are_not_rotary_is_refused(name):
    cfg = changed({f"phases[0].{name}": 160_000.0})
    message = rf"phases\[0\].{name}=160000.0 needs encoder.positions='rotary', not 'ab"
    with pytest.raises(UserError, match=message):
        config.from_dict(config.PretrainConfig, cfg)
    cfg.encoder.update(positions="rotary", attention_window=8, global_layer_every=3)
    built = config.from_dict(config.PretrainConfig, cfg)
    assert getattr(built.for_phase(0).encoder, name) == 160_000
    assert built.for_phase(1).encoder == built.encoder


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder.rotary_base": 500.0}, "^encoder.rotary_base=500.0 .*=absolute"),
        (
            {
                "encoder.attention_window": 8,
                "encoder.global_layer_every": 2,
                "encoder.local_rotary_base": 9.0,
            },
            "^encoder.local_rotary_base=9.0 does not go with .*positions=absolute",
        ),
        (
            {"encoder.positions": "rotary", "encoder.local_rotary_base": 9.0},
            "^encoder.local_rotary_base=9.0 .*encoder.attention_window=0",
        ),
    ],
    ids=str,
)
def test_a_rotary_base_of_no_layer_is_refused(fields, message):
    cfg = changed(fields)
    with pytest.raises(UserError, match=message):
        config.from_dict(config.PretrainConfig, cfg)
    cfg.init_from = "CHECKPOINT"  # which may have such layers
    config.from_dict(config.PretrainConfig, cfg)


@pytest.mark.parametrize("name", ["learning_rate", "warmup_fraction"])
def test_a_rate_that_no_phase_would_have_is_refused(name):
    cfg = changed({"phases[0].learning_rate": 1e-3})
    assert config.from_dict(config.PretrainConfig, cfg).phases[0].learning_rate
    cfg.optimizer[name] = 0.05
    message = (
        rf"optimizer.{name}=0.05 has no effect beside phases.* set phases\[0\].{name}"
    )
    with pytest.raises(UserError, match=message):
        config.from_dict(config.PretrainConfig, cfg)
    cfg.optimizer[name] = getattr(config.OptimizerConfig, name)  # on the command line
    built = config.from_dict(config.PretrainConfig, cfg)
    with pytest.raises(UserError, match=rf"optimizer.{name}=0.0\d* has no effect"):
        built.check_rates(["data.corpus", f"optimizer.{name}"])


@pytest.mark.parametrize(
    ("heads", "shared", "share", "expected"),
    [(8, 4, 0.25, (2, 2)), (6, 2, 0.5, (3, 1)), (4, 0, 0.25, (1, 0))],
)
def test_a_generator_shares_keys_among_as_many_of_its_heads(
    heads, shared, share, expected
):
    encoder = config.EncoderConfig(
        hidden_size=8 * heads,
        num_heads=heads,
        num_key_value_heads=shared,
        intermediate_size=1,
    )
    objective = config.ReplacedTokensConfig(generator_size=share)
    config.PretrainConfig(encoder=encoder, objective=objective).check("")
    generator = objective.generator(encoder)
    assert (generator.num_heads, generator.num_key_value_heads) == expected
    assert generator.intermediate_size == 1
