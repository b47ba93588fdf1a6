"""Pretraining that begins with a checkpoint, native or published."""

import dataclasses
import shutil

import numpy as np
import published
import pytest
import recipes
import saved
from commands import ROOT, assert_refused, call
from toy import TINY, state_of

from bert_jax import config, pretraining, recipe_variants, warm_start
from bert_jax.errors import UserError
from bert_jax.interop import checkpoints, convert
from bert_jax.model import parameters
from bert_jax.objectives import causal_lm, masked_lm, replaced_tokens
from bert_jax.training import metrics_file, restore, sharding, workdir


def make_config(corpus, init_from, **changes):
    cfg = config.to_configdict(config.PretrainConfig())
    recipe_variants.shrink_pretraining(cfg)
    cfg.phases = cfg.phases[:1]
    cfg.data.corpus = str(corpus.folder)
    cfg.init_from = str(init_from)
    cfg.encoder.dtype = "float32"
    made = config.from_dict(config.PretrainConfig, cfg)
    return dataclasses.replace(made, **changes)


def test_the_corpus_has_to_be_of_its_tokenizer(corpus, tmp_path):
    source = published.write("pretraining", tmp_path / "theirs")
    asked = make_config(corpus, source)
    message = rf"the checkpoint's tokenizer: run.convert --input={source} --output=DIR"
    with pytest.raises(UserError, match=message):
        pretraining.pretrain(asked, str(tmp_path / "run"))
    for init_from, message in (
        ("/nowhere", "nowhere is not a folder"),
        ("CHECKPOINT", "init_from is not set; pass --config.init_from=DIR"),
        ("", "init_from is not set; pass --config.init_from=DIR"),
    ):
        asked = make_config(corpus, init_from)
        with pytest.raises(UserError, match=message):
            pretraining.pretrain(asked, str(tmp_path / "run"), ["init_from"])
    assert not (tmp_path / "run").exists()


# ---- the encoder's config


@pytest.fixture(scope="module")
def metadata(pretrained):
    """Metadata of a checkpoint with 2 layers of 32 columns and 64 positions."""
    return checkpoints.read_metadata(checkpoints.find(pretrained))


def adopt(asked, metadata, overrides=(), **changes):
    """Return the config of a run with the encoder of a checkpoint."""
    changed = dataclasses.replace(metadata, **changes)
    source = warm_start.PretrainedCheckpoint("SOURCE", changed)
    return warm_start.adopt_encoder(asked, source, overrides)


def adopted(metadata, overrides=(), **fields):
    """Return the encoder of a run whose config has these fields."""
    asked = config.EncoderConfig(**fields)
    source = warm_start.PretrainedCheckpoint("SOURCE", metadata)
    return warm_start.resolve_encoder(asked, source, overrides)


def test_the_architecture_is_the_checkpoints_and_the_rest_the_configs(metadata):
    fields = {
        "dropout_rate": 0.25,
        "attention_dropout_rate": 0.5,
        "initializer_range": 0.125,
        "depth_scaled_init": True,
        "dtype": "float32",
        "scan_layers": True,
        "remat": "layer",
        "kernels": "off",
    }
    expected = dataclasses.replace(metadata.encoder, **fields)
    assert (expected.num_layers, expected.hidden_size) == (2, 32)
    assert adopted(metadata, **fields) == expected
    # Set, and the same.
    assert adopted(metadata, num_layers=2, vocab_size=0, **fields) == expected


@pytest.mark.parametrize(
    ("fields", "overrides", "message"),
    [
        ({"num_layers": 7}, (), "encoder.num_layers=7, but .* SOURCE has 2; leave"),
        # A default that was typed is asked for as any other value.
        ({}, ["encoder.num_layers"], "encoder.num_layers=12, but .* has 2; leave"),
        (
            {"prediction_head": config.PredictionHeadConfig(num_layers=0)},
            (),
            "encoder.prediction_head.num_layers=0, but .* has 1",
        ),
        ({"vocab_size": 999}, (), "encoder.vocab_size=999, but .* has 1000"),
    ],
)
def test_contradictions_are_refused_by_name(fields, overrides, message, metadata):
    with pytest.raises(UserError, match=message):
        adopted(metadata, overrides, **fields)


def test_positions_and_segments_may_change(metadata):
    theirs = metadata.encoder
    got = adopted(metadata, max_position_embeddings=96, type_vocab_size=3)
    assert got == dataclasses.replace(
        theirs, max_position_embeddings=96, type_vocab_size=3, dtype=got.dtype
    )
    # Not set: the checkpoint's 64, unless the default was typed.
    assert adopted(metadata).max_position_embeddings == 64
    path = "encoder.max_position_embeddings"
    assert adopted(metadata, [path]).max_position_embeddings == 512


def test_rotary_bases_may_change(corpus, metadata):
    """They are set in a recipe whose own positions are absolute."""
    bases = {"rotary_base": 160_000.0, "local_rotary_base": 500.0}
    cfg = recipes.load("continued")
    cfg.data.corpus = str(corpus.folder)
    cfg.phases[0].length = 32
    cfg.encoder.update(bases)
    asked = config.from_dict(config.PretrainConfig, cfg)
    overrides = [f"encoder.{base}" for base in bases]
    message = "encoder.rotary_base=160000.0 .*positions=absolute"
    with pytest.raises(UserError, match=message):
        adopt(asked, metadata, overrides).check_phases_fit()
    fields = {"positions": "rotary", "attention_window": 8, "global_layer_every": 2}
    rotary = dataclasses.replace(metadata.encoder, **fields)
    got = adopt(asked, metadata, overrides, encoder=rotary)
    got.check_phases_fit()
    changed = bases | {"dtype": asked.encoder.dtype}
    assert got.encoder == dataclasses.replace(rotary, **changed)


def test_an_encoder_learns_left_to_right_first(corpus, metadata):
    """Then it sees both sides. Nothing else of the encoder changes."""
    in_order = config.CausalLmConfig()
    masked = config.MaskedLmConfig(segments="doc_sentences")
    for first, then in ((in_order, masked), (masked, in_order)):
        encoder = dataclasses.replace(metadata.encoder, causal=first.causal)
        asked = make_config(corpus, "SOURCE", objective=then)
        config.check(asked)
        got = adopt(asked, metadata, encoder=encoder)
        assert got.encoder == dataclasses.replace(encoder, causal=then.causal)
    given = dataclasses.replace(asked.encoder, causal=False)
    asked = dataclasses.replace(asked, encoder=given)
    with pytest.raises(UserError, match="encoder.causal=False does not go with"):
        adopt(asked, metadata, ["encoder.causal"], encoder=encoder)


def test_a_generator_is_checked_when_the_encoder_is_known(corpus, metadata):
    """An eighth of BERT-Base is not a multiple of a head; of the checkpoint, it is."""
    objective = config.ReplacedTokensConfig(
        generator_size=0.125, segments="full_sentences"
    )
    encoder = config.EncoderConfig(vocab_size=0)
    asked = make_config(corpus, "SOURCE", objective=objective, encoder=encoder)
    config.check(asked)
    encoder = dataclasses.replace(metadata.encoder, num_heads=8)
    got = adopt(asked, metadata, encoder=encoder)
    assert got.encoders["generator"].hidden_size == 4
    encoder = dataclasses.replace(encoder, num_heads=2)
    with pytest.raises(UserError, match="SOURCE does not fit this config: .*size=4"):
        adopt(asked, metadata, encoder=encoder)


@pytest.mark.parametrize("name", ["roberta:base", "modernbert:base", "eurobert:210m"])
def test_encoders_without_segments_are_continued(name, corpus, metadata):
    theirs = recipes.load(name).encoder
    theirs.vocab_size = corpus.tokenizer.vocab_size
    encoder = config.from_dict(config.EncoderConfig, theirs)
    cfg = recipes.load("continued")
    cfg.data.corpus = str(corpus.folder)
    asked = config.from_dict(config.PretrainConfig, cfg)
    assert adopt(asked, metadata, encoder=encoder).encoder.type_vocab_size == 0
    pairs = dataclasses.replace(asked, objective=config.MaskedLmConfig())
    with pytest.raises(UserError, match="SOURCE does not fit this config: .*segments="):
        adopt(pairs, metadata, encoder=encoder)


def test_a_padded_vocabulary_is_named_by_its_tokens(metadata):
    """The table of a published checkpoint may have more rows than there are tokens."""
    encoder = dataclasses.replace(metadata.encoder, vocab_size=1024)
    padded = dataclasses.replace(metadata, encoder=encoder)
    for size in (0, 1000, 1024, config.EncoderConfig.vocab_size):
        assert adopted(padded, vocab_size=size).vocab_size == 1024


def test_a_default_that_was_typed_is_refused_from_the_command_line(
    corpus, pretrained, tmp_path
):
    layers = config.EncoderConfig.num_layers
    done = call(
        "pretrain",
        f"--config={ROOT}/configs/continued.py:smoke",
        f"--config.init_from={pretrained}",
        f"--config.data.corpus={corpus.folder}",
        f"--config.encoder.num_layers={layers}",
        f"--workdir={tmp_path / 'run'}",
        "--nohuge_pages",
    )
    message = f"encoder.num_layers={layers}, but the checkpoint {pretrained}"
    assert_refused(done, message)
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_its_source_once_it_has_a_checkpoint(corpus, pretrained, tmp_path):
    gone = str(pretrained / "checkpoints" / "77"), "hash of its parameters"
    started = make_config(corpus, gone[0], init_fingerprint=gone[1])
    with workdir.claim(tmp_path / "run", started):
        pass
    asked = str(pretrained), str(tmp_path / "run"), config.PretrainConfig
    assert checkpoints.initial_checkpoint(*asked) == (checkpoints.find(pretrained), "")
    workdir.note_checkpoint(tmp_path / "run")
    path, fingerprint = checkpoints.initial_checkpoint(*asked)
    assert (str(path), fingerprint) == gone
    # Another host has its own path of the source, which is gone there, too.
    elsewhere = str(tmp_path / "elsewhere"), *asked[1:]
    path, fingerprint = checkpoints.initial_checkpoint(*elsewhere)
    assert (str(path), fingerprint) == gone
    # Without a checkpoint, the run reads its source again, which may have changed.
    source = checkpoints.find(pretrained)
    with workdir.claim(
        tmp_path / "b", make_config(corpus, str(source), init_fingerprint=gone[1])
    ):
        pass
    asked = str(source), str(tmp_path / "b"), config.PretrainConfig
    assert checkpoints.initial_checkpoint(*asked) == (source, "")
    other = make_config(corpus, str(source), init_fingerprint="another")
    message = f"the run began with {gone[0]}; give another --workdir"
    with pytest.raises(UserError, match=message):
        workdir.claim(tmp_path / "run", other).__enter__()


def test_all_processes_take_the_fingerprint_that_process_0_knows(
    corpus, metadata, monkeypatch
):
    """Otherwise some would compute it together, and others not."""
    source = warm_start.PretrainedCheckpoint("SOURCE", metadata)
    monkeypatch.setattr(warm_start.processes, "call_on_main", lambda _: "known")
    got = warm_start.fill_in_fingerprint(make_config(corpus, "SOURCE"), source)
    assert got.init_fingerprint == "known"


def test_a_start_that_trained_nothing_keeps_no_source(corpus, pretrained, tmp_path):
    """Another config may then have the folder, and the newest checkpoint."""
    copy, run = tmp_path / "source", tmp_path / "run"
    shutil.copytree(pretrained, copy)
    older = checkpoints.find(copy)
    newer = older.parent / "999"
    shutil.copytree(older, newer)
    with workdir.claim(run, make_config(corpus, str(older))):
        pass
    asked = str(copy), str(run), config.PretrainConfig
    assert checkpoints.initial_checkpoint(*asked) == (newer, "")
    (run / metrics_file.FILE).write_text('{"step": 1, "split": "train"}\n')
    assert checkpoints.initial_checkpoint(*asked) == (older, "")


def test_phases_are_checked_when_the_architecture_is_known():
    phases = (config.PhaseConfig(length=1024, rotary_base=1e5),)
    asked = config.PretrainConfig(phases=phases, init_from="checkpoint")
    asked.check("")
    message = "length=1024 is more than encoder.max_position_embeddings=512"
    for check in (
        asked.check_phases_fit,
        dataclasses.replace(asked, init_from="").check,
    ):
        with pytest.raises(UserError, match=message):
            check("")
    longer = dataclasses.replace(asked.encoder, max_position_embeddings=1024)
    imitates = config.DistillationConfig(teacher_encoder=asked.encoder)
    distilled = dataclasses.replace(asked, encoder=longer, objective=imitates)
    message = "more than objective.teacher_encoder.max_position_embeddings=512"
    with pytest.raises(UserError, match=message):
        distilled.check_phases_fit()
    with pytest.raises(UserError, match="needs encoder.positions='rotary'"):
        dataclasses.replace(asked, encoder=longer).check_phases_fit()


# ---- parameters


def save_source(objective, corpus, folder):
    """Save a checkpoint of an objective, and return its parameters by path."""
    return parameters.flatten(saved.save(folder, objective, corpus.tokenizer))


def begin(asked, corpus, folder):
    """Return the initial parameters of a run by path, at random and with its source."""
    source = warm_start.find_checkpoint(asked, str(folder))
    run = pretraining.make_run(asked, sharding.make_mesh(asked.mesh), [corpus])
    state = state_of(run.state_shapes)
    begun = warm_start.load_initial_params(run, source, state)
    return parameters.flatten(state.params), parameters.flatten(begun.params)


def test_tables_are_extended_and_cut(corpus, pretrained, tmp_path, capsys):
    """The first rows are the checkpoint's; new rows keep their initial values."""
    asked = make_config(corpus, pretrained)
    source = warm_start.find_checkpoint(asked, str(tmp_path))
    sizes = {"max_position_embeddings": 96, "type_vocab_size": 1}
    encoder = dataclasses.replace(source.metadata.encoder, **sizes)
    objective = config.MaskedLmConfig(segments="full_sentences")
    asked = dataclasses.replace(asked, encoder=encoder, objective=objective)
    random, begun = begin(asked, corpus, tmp_path)
    before = saved.parameters_of(pretrained)
    for name, size in (("position", 96), ("segment", 1)):
        path = f"encoder/embeddings/{name}_embedding"
        expected = np.array(random[path])
        rows = before[path][:size]
        expected[: len(rows)] = rows
        assert len(expected) == size
        np.testing.assert_array_equal(begun[path], expected)
    reported = capsys.readouterr().err
    assert "embeddings/position_embedding: rows 64 to 95 are new\n" in reported
    assert "embeddings/segment_embedding: rows 1 to 1 are dropped\n" in reported


def test_a_run_warns_if_the_rows_of_its_source_come_again(
    corpus, pretrained, tmp_path, capsys
):
    asked = make_config(corpus, pretrained)
    source = warm_start.find_checkpoint(asked, str(tmp_path))
    asked = warm_start.adopt_encoder(asked, source, ())
    shorter = dataclasses.replace(asked.phases[0], length=16)
    fingerprint = asked.data.fingerprint

    def with_corpora(*fingerprints):
        return {"data": config.DataConfig(fingerprint=",".join(fingerprints))}

    for changes, expected in (
        ({}, True),
        ({"seed": 1}, False),
        ({"phases": (shorter,)}, False),
        ({"phases": (asked.phases[0], shorter)}, True),
        # Rows depend on the first phase of their length, and the number of the corpus.
        ({"phases": (shorter, asked.phases[0])}, False),
        (with_corpora("another"), False),
        (with_corpora(fingerprint, "another"), True),
        (with_corpora("another", fingerprint), False),
        ({"objective": config.MaskedLmConfig(segments="doc_sentences")}, False),
    ):
        begin(dataclasses.replace(asked, **changes), corpus, tmp_path)
        warning = "this run repeats rows of the checkpoint's run, which had"
        assert (warning in capsys.readouterr().err) == expected


@pytest.mark.parametrize("was_causal", [True, False])
def test_the_head_goes_on_with_the_other_order(was_causal, corpus, tmp_path, capsys):
    """Masked tokens follow left to right, or the reverse."""
    encoder = dataclasses.replace(
        TINY, vocab_size=corpus.tokenizer.vocab_size, causal=was_causal
    )
    one_segment = {"segments": "full_sentences"}
    causal = config.CausalLmConfig(**one_segment)
    masked = config.MaskedLmConfig(**one_segment)
    first, then = masked_lm.MaskedLm(encoder, masked), causal
    head, next_head = "mlm_head", "lm_head"
    if was_causal:
        first, then = causal_lm.CausalLm(encoder, causal), masked
        head, next_head = next_head, head
    before = save_source(first, corpus, tmp_path / "source")
    changes = {"encoder": config.EncoderConfig(), "objective": then}
    asked = make_config(corpus, tmp_path / "source", **changes)
    source = warm_start.find_checkpoint(asked, str(tmp_path))
    asked = warm_start.adopt_encoder(asked, source, ())
    _, got = begin(asked, corpus, tmp_path)
    paths = [path for path in before if path.startswith(f"{head}/")]
    assert paths
    for path in paths:
        after = got[path.replace(head, next_head)]
        np.testing.assert_array_equal(after, before[path])
    said = capsys.readouterr().err
    assert "new: 0 parameters\n  ignored: 0 parameters\n" in said
    order = "left to right" if was_causal else "in both directions"
    assert f"the checkpoint was trained {order}, and this run is not" in said


def test_xlnets_head_does_not_continue_another(corpus, tmp_path, capsys):
    """It has one parameter, whose name a head of masked tokens has, too."""
    encoder = dataclasses.replace(
        TINY, vocab_size=corpus.tokenizer.vocab_size, positions="relative"
    )
    save_source(masked_lm.MaskedLm(encoder), corpus, tmp_path / "source")
    changes = {"encoder": encoder, "objective": config.PermutationLmConfig()}
    asked = make_config(corpus, tmp_path / "source", **changes)
    random, got = begin(asked, corpus, tmp_path)
    for path in ("lm_head/output_bias", "target_embedding"):
        np.testing.assert_array_equal(got[path], random[path])
    reported = capsys.readouterr().err
    assert "new: 2 parameters (lm_head, target_embedding)\n" in reported
    assert "(encoder, mlm_head, nsp_head)\n" in reported  # ignored


def test_differences_of_embeddings_are_extended(corpus, tmp_path):
    """New rows of the discriminator's differences keep their initial values."""
    objective = config.ReplacedTokensConfig(
        generator_size=0.5, embedding_sharing="gradient_disentangled"
    )
    encoder = dataclasses.replace(TINY, vocab_size=corpus.tokenizer.vocab_size)
    trained = replaced_tokens.ReplacedTokens(encoder, objective)
    before = save_source(trained, corpus, tmp_path / "source")
    longer = dataclasses.replace(encoder, max_position_embeddings=96)
    changes = {"encoder": longer, "objective": objective}
    asked = make_config(corpus, tmp_path / "source", **changes)
    path = "embedding_differences/position_embedding"
    random, begun = begin(asked, corpus, tmp_path)
    rows = encoder.max_position_embeddings
    expected = np.concatenate([before[path], random[path][rows:]])
    np.testing.assert_array_equal(begun[path], expected)


def test_a_published_discriminator_starts_a_generator_of_any_size(tmp_path):
    theirs = published.write("electra_discriminator", tmp_path / "theirs")
    convert.convert(str(theirs), str(tmp_path / "native"))
    asked = config.PretrainConfig(
        objective=config.ReplacedTokensConfig(generator_size=0.25)
    )
    for folder in theirs, checkpoints.find(tmp_path / "native"):
        source = warm_start.read_checkpoint(folder)
        begun = warm_start.adopt_encoder(asked, source, ())
        assert begun.objective == asked.objective


def test_a_generator_keeps_its_size_and_embeddings(corpus, metadata):
    tied = config.ReplacedTokensConfig(generator_size=0.5)
    disentangled = dataclasses.replace(tied, embedding_sharing="gradient_disentangled")

    def begin_with(trained, then):
        saved_by = config.to_dict(config.PretrainConfig(objective=trained))
        asked = make_config(corpus, "SOURCE", objective=then)
        adopt(asked, metadata, config=saved_by)

    begin_with(tied, disentangled)
    begin_with(disentangled, disentangled)
    begin_with(disentangled, config.MaskedLmConfig())
    message = "embedding_sharing='tied', but the checkpoint SOURCE has 'gradient_d"
    with pytest.raises(UserError, match=message):
        begin_with(disentangled, tied)
    larger = dataclasses.replace(tied, generator_size=1.0)
    message = r"generator_size=0\.5, but the checkpoint SOURCE has 1\.0; set obj"
    with pytest.raises(UserError, match=message):
        begin_with(larger, tied)
    shallower = dataclasses.replace(tied, generator_layers=0.5)
    with pytest.raises(UserError, match=r"generator_layers=1\.0, but .* has 0\.5;"):
        begin_with(shallower, tied)
    # These shares round to the same size.
    begin_with(dataclasses.replace(tied, generator_size=0.501), tied)


@pytest.mark.slow
def test_run_from_a_published_checkpoint(corpus, pretrained, tmp_path):
    """The encoder is the checkpoint's, not the recipe's."""
    published_folder, folder = tmp_path / "published", tmp_path / "run"
    convert.convert(str(pretrained), str(published_folder))
    asked = make_config(corpus, published_folder, seed=5)
    state, resolved = pretraining.pretrain(asked, str(folder))
    source = checkpoints.find(published_folder)
    assert resolved.encoder == checkpoints.read_metadata(source).encoder
    assert resolved.init_fingerprint == checkpoints.fingerprint(source)
    assert int(state.step) == int(restore.find(folder).name)
    # The learning rate is small, so the parameters are still near the initial ones.
    ended = saved.parameters_of(folder)
    for path, array in saved.parameters_of(published_folder).items():
        np.testing.assert_allclose(array, ended[path], atol=0.01, err_msg=path)
    # The same command again has nothing left to do, even without its source.
    published_folder.rename(tmp_path / "away")
    pretraining.pretrain(asked, str(folder))
