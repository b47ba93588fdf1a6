"""Checkpoints to other projects and back: the same bits, or one line and nothing."""

import dataclasses
import errno
import functools
import json
import shutil

import flax.linen as nn
import jax
import numpy as np
import published
import pytest
import saved
from commands import assert_refused, call
from toy import TINY, metadata

from bert_jax import config
from bert_jax.errors import UserError
from bert_jax.interop import (
    checkpoints,
    convert,
    families,
    lazy_checkpoint,
    model_classes,
    safetensors,
    tensorflow,
    vocabularies,
)
from bert_jax.model import parameters
from bert_jax.objectives import (
    choice,
    classification,
    masked_lm,
    permutation_lm,
    replaced_tokens,
    spans,
    tagging,
)
from bert_jax.tokenizer import Tokenizer
from bert_jax.training import checkpoint
from bert_jax.training import metadata as metadata_lib

TOKENIZER = Tokenizer("wordpiece", True, True, metadata().tokenizer.model + b"\n")


def arrays_of(folder):
    return {
        name: array.read()
        for path in sorted(folder.glob("*.safetensors"))
        for name, array in safetensors.read(path).items()
    }


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, array in got.items():
        assert array.tobytes() == np.asarray(expected[name]).tobytes(), name


def assert_as_it_came_in(done, folder, source):
    """Every array, what they are of, and the tokenizer."""
    assert done.to == "huggingface"
    assert not done.missing
    expected, got = arrays_of(source), arrays_of(folder)
    assert done.written == list(got)
    expected = {n: x.astype(np.float32) for n, x in expected.items()}
    original = json.loads((source / "config.json").read_text())
    unread = []
    # Of XLNet's classes, one alone reads its vector for what is asked.
    if original["model_type"] == "xlnet" and done.name != "XLNetLMHeadModel":
        (name,) = (name for name in expected if "mask_emb" in name)
        expected[name] = np.zeros_like(expected[name])
        unread = ["transformer.mask_emb"]
    assert done.ignored == unread
    if original["model_type"] == "roberta":  # no token has the first two positions
        (name,) = (name for name in expected if "position_embeddings" in name)
        expected[name][:2] = 0
    assert_same(got, expected)
    before, after = map(checkpoints.published, (source, folder))
    assert after.metadata == before.metadata
    written = json.loads((folder / "config.json").read_text())
    assert written["architectures"] == original["architectures"]
    for name in written.keys() & original.keys() - {"dtype", "hidden_act", "label2id"}:
        assert written[name] == original[name], name
    assert f"`{written['architectures'][0]}`" in (folder / "README.md").read_text()


@pytest.mark.parametrize("case", published.ALL)
def test_what_came_in_goes_out_the_same(case, tmp_path):
    source = published.write(case, tmp_path / "theirs")
    done = convert.convert(str(source), str(tmp_path / "again"), "huggingface")
    assert_as_it_came_in(done, tmp_path / "again", source)


def test_so_it_does_by_way_of_ours(tmp_path):
    source, ours = published.write("tagging", tmp_path / "theirs"), tmp_path / "ours"
    assert convert.convert(str(source), str(ours)).to == "ours"
    before = checkpoints.read_metadata(source)
    assert checkpoints.read_metadata(checkpoints.find(ours)) == before
    assert Tokenizer.load(ours / "tokenizer") == before.tokenizer
    done = convert.convert(str(ours), str(tmp_path / "again"))
    assert_as_it_came_in(done, tmp_path / "again", source)


def save_random(objective, run, folder, settings=None, tokenizer=TOKENIZER):
    """A checkpoint of ours with random parameters, which are returned by path."""
    rng = np.random.default_rng(0)
    shapes = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
    params = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes
    )
    about = metadata_lib.of_run(run, objective, tokenizer, settings)
    checkpoint.save_parameters(
        folder / "checkpoints", jax.device_put(params, jax.devices()[0]), about
    )
    return parameters.flatten(params)


@pytest.mark.parametrize(
    ("to", "files"), [("huggingface", 1), ("tensorflow", 1), ("tensorflow", 6)]
)
def test_ours_comes_back_bit_for_bit(to, files, tmp_path, monkeypatch):
    """But for rows of the embedding that stand for no token, which become 0."""
    if files > 1:
        monkeypatch.setattr(tensorflow, "_PART_BYTES", 20_000)
    objective = masked_lm.MaskedLm(TINY)
    run = config.PretrainConfig(encoder=TINY)
    expected = save_random(objective, run, tmp_path / "run")
    convert.convert(str(tmp_path / "run"), str(tmp_path / "theirs"), to)
    arrays = "*.data-*" if to == "tensorflow" else "*.safetensors"
    assert len(list((tmp_path / "theirs").glob(arrays))) == files
    assert not [path for path in (tmp_path / "theirs").iterdir() if path.is_dir()]
    params = saved.parameters_of(tmp_path / "theirs")
    for path in ("encoder/embeddings/token_embedding", "mlm_head/output_bias"):
        assert not params[path][TINY.vocab_size :].any()
        params[path] = params[path][: TINY.vocab_size]
        expected[path] = expected[path][: TINY.vocab_size]
    assert_same(params, expected)
    got = lazy_checkpoint.read(str(tmp_path / "theirs"))
    assert got.metadata.encoder == TINY
    assert got.metadata.tokenizer == TOKENIZER


ALBERT = dataclasses.replace(
    TINY, embedding_size=8, num_layers=4, num_layer_groups=2, activation="gelu_erf"
)
ELECTRA = dataclasses.replace(TINY, embedding_size=8, activation="gelu_erf")
XLNET = dataclasses.replace(TINY, positions="relative", max_position_embeddings=512)
MODERNBERT = dataclasses.replace(
    TINY,
    type_vocab_size=0,
    positions="rotary",
    local_rotary_base=1000.0,
    attention_window=4,
    global_layer_every=2,
    feed_forward="gated",
    norm_bias=False,
    norm_placement="pre",
    first_attention_norm=False,
    linear_bias=False,
    depth_scaled_init=True,
)
# With the vocabulary of a RoBERTa, of bytes.
ROBERTA = dataclasses.replace(
    TINY, vocab_size=266, type_vocab_size=1, activation="gelu_erf"
)
IN_ORDER = config.MaskedLmConfig(segments="sentence_order")
WITHOUT_QUESTION = config.MaskedLmConfig(segments="consecutive")
WITHOUT_PAIRS = config.MaskedLmConfig(segments="full_sentences")


@pytest.mark.parametrize(
    ("objective", "name"),
    [
        (masked_lm.MaskedLm(ALBERT, IN_ORDER), "AlbertForPreTraining"),
        (masked_lm.MaskedLm(ALBERT, WITHOUT_QUESTION), "AlbertForMaskedLM"),
        (classification.Classification(ALBERT, 3), "AlbertForSequenceClassification"),
        (tagging.Tagging(ALBERT, 3), "AlbertForTokenClassification"),
        (spans.Spans(ALBERT), "AlbertForQuestionAnswering"),
        (choice.Choice(ALBERT, 2), "AlbertForMultipleChoice"),
        (masked_lm.MaskedLm(ELECTRA, WITHOUT_QUESTION), "ElectraForMaskedLM"),
        (tagging.Tagging(ELECTRA, 3), "ElectraForTokenClassification"),
        (spans.Spans(ELECTRA), "ElectraForQuestionAnswering"),
        (tagging.Tagging(ROBERTA, 3), "RobertaForTokenClassification"),
        (spans.Spans(ROBERTA), "RobertaForQuestionAnswering"),
        (choice.Choice(ROBERTA, 2), "RobertaForMultipleChoice"),
        (permutation_lm.PermutationLm(XLNET), "XLNetLMHeadModel"),
        (classification.Classification(XLNET, 3), "XLNetForSequenceClassification"),
        (tagging.Tagging(XLNET, 3), "XLNetForTokenClassification"),
        (spans.Spans(XLNET), "XLNetForQuestionAnsweringSimple"),
        (choice.Choice(XLNET, 2), "XLNetForMultipleChoice"),
        (masked_lm.MaskedLm(MODERNBERT, WITHOUT_PAIRS), "ModernBertForMaskedLM"),
        # As wide as hidden states: an ELECTRA that does what a BERT does.
        (
            classification.Classification(
                dataclasses.replace(TINY, embedding_size=32), 3
            ),
            "BertForSequenceClassification",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_relatives_come_back_bit_for_bit(objective, name, tmp_path):
    labels = ["O", "B-x", "I-x"]
    is_tagger = isinstance(objective, tagging.Tagging)
    settings = {"tags" if is_tagger else "labels": labels}
    tokenizer = TOKENIZER
    if objective.encoder == ROBERTA:
        tokenizer = vocabularies.read(published.write("roberta_bare", tmp_path / "b"))
    expected = save_random(
        objective, run_of(objective), tmp_path / "run", settings, tokenizer
    )
    done = convert.convert(str(tmp_path / "run"), str(tmp_path / "theirs"))
    assert done.name == name
    assert not done.missing
    assert not done.ignored
    got = lazy_checkpoint.read(str(tmp_path / "theirs"))
    if not objective.encoder.first_attention_norm:  # not exported, as it is not used
        expected["encoder/layers/attention_norm/scale"][0] = 1
    size = objective.encoder.vocab_size
    assert_same(without_padding(read_all(got), size), without_padding(expected, size))
    assert got.metadata.encoder.num_layer_groups == objective.encoder.num_layer_groups
    if not name.startswith("Bert"):
        assert got.metadata.encoder == objective.encoder
    assert got.metadata.tokenizer == tokenizer


def read_all(model):
    return {path: array.read() for path, array in model.params.items()}


def without_padding(params, size=TINY.vocab_size):
    """Parameters by path, without rows that stand for no token."""
    return {
        path: value[:size]
        if path.endswith(("token_embedding", "output_bias"))
        else value
        for path, value in params.items()
    }


def test_both_halves_of_electra_come_back(tmp_path):
    """The discriminator is the folder, and the generator a folder in it."""
    asked = config.ReplacedTokensConfig(generator_size=0.5, generator_layers=0.34)
    objective = replaced_tokens.ReplacedTokens(ELECTRA, asked)
    run = str(tmp_path / "run")
    expected = save_random(objective, run_of(objective), tmp_path / "run")
    done = convert.convert(run, str(tmp_path / "theirs"))
    assert done.name == "ElectraForPreTraining"
    assert not done.missing
    assert not done.ignored
    assert "generator/generator_lm_head.bias" in done.written
    got = lazy_checkpoint.read(str(tmp_path / "theirs"))
    assert got.metadata.encoder == ELECTRA
    assert got.metadata.config["objective"]["kind"] == "replaced_tokens"
    half = {p: x for p, x in expected.items() if not p.startswith("generator")}
    assert_same(without_padding(read_all(got)), without_padding(half))
    got = lazy_checkpoint.read(str(tmp_path / "theirs/generator"))
    assert got.metadata.encoder == objective.generator
    other = {}
    for path, value in expected.items():
        if path.startswith("encoder/embeddings/"):
            other[path] = value
        elif path.startswith("generator"):
            other[
                path.replace("generator_head/", "mlm_head/").replace(
                    "generator/", "encoder/"
                )
            ] = value
    assert_same(without_padding(read_all(got)), without_padding(other))
    # A checkpoint of ours has both.
    assert convert.convert(run, str(tmp_path / "ours"), "ours").written == sorted(
        expected
    )
    with pytest.raises(UserError, match="to ElectraForPreTraining, which google"):
        convert.convert(run, str(tmp_path / "original"), "tensorflow")


def test_a_generator_that_has_no_class_stays_out(tmp_path):
    """There, its head computes the exact GELU, whatever the encoder does."""
    encoder = dataclasses.replace(ELECTRA, activation="gelu_tanh")
    asked = config.ReplacedTokensConfig(generator_size=0.5)
    objective = replaced_tokens.ReplacedTokens(encoder, asked)
    save_random(objective, run_of(objective), tmp_path / "run")
    done = convert.convert(str(tmp_path / "run"), str(tmp_path / "theirs"))
    assert done.name == "ElectraForPreTraining"
    assert {path.split("/")[0] for path in done.ignored} == {
        "generator",
        "generator_head",
    }
    assert not (tmp_path / "theirs/generator").exists()


def test_a_run_goes_out_with_what_it_knows(corpus, tmp_path):
    """The shape, the corpus and the numbers of a run are on the card."""
    run, tokenizer = tmp_path / "run", corpus.tokenizer
    data = config.DataConfig(corpus=str(corpus.folder), fingerprint=corpus.fingerprint)
    encoder = dataclasses.replace(TINY, vocab_size=tokenizer.vocab_size)
    objective = masked_lm.MaskedLm(encoder)
    asked = config.PretrainConfig(encoder=encoder, data=data)
    save_random(objective, asked, run, tokenizer=tokenizer)
    (run / "checkpoints/0").rename(run / "checkpoints/1")
    records = [
        {"step": 1, "split": "train", "loss": 9.0},
        {"step": 1, "split": "eval", "mlm_loss": 6.25, "mlm_accuracy": 0.0625},
        {"step": 2, "split": "eval", "mlm_loss": 5.5},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (run / "metrics.jsonl").write_text(lines)
    done = convert.convert(str(run / "checkpoints/1"), str(tmp_path / "out"))
    assert done.name == "BertForPreTraining"
    card = (tmp_path / "out/README.md").read_text()
    assert "| steps | 1 |" in card
    assert "| held out, mlm_loss | 6.25 |" in card
    assert "5.5" not in card
    assert f"| vocabulary | {tokenizer.vocab_size:,} tokens" in card
    assert f", {corpus.count('train', 'tokens'):,} tokens |" in card
    assert "| steps planned | 900,000 of 256 sequences of 128 tokens |" in card
    assert "AutoModelForPreTraining.from_pretrained" in card
    read = checkpoints.published(tmp_path / "out")
    assert read.metadata.tokenizer == tokenizer
    assert read.metadata.encoder == encoder


def test_what_has_no_name_there_is_left_out(tmp_path):
    """Sentence order is no question of BERT's classes."""
    asked = config.MaskedLmConfig(segments="sentence_order")
    objective = masked_lm.MaskedLm(TINY, asked)
    run = config.PretrainConfig(encoder=TINY, objective=asked)
    save_random(objective, run, tmp_path / "run")
    done = convert.convert(str(tmp_path / "run"), str(tmp_path / "out"))
    assert done.name == "BertForMaskedLM"
    left_out = ["encoder/pooler/bias", "encoder/pooler/kernel"]
    assert done.ignored == [*left_out, "sop_head/bias", "sop_head/kernel"]


# ---- what cannot be


NARROW = {"embedding_size": 8, "activation": "gelu_erf"}


@pytest.mark.parametrize(
    ("encoder", "objective", "message"),
    [
        (
            {"num_layer_groups": 1},
            masked_lm.MaskedLm,
            "embeddings have hidden_size=32 columns; ALBERT of transformers projects",
        ),
        (
            {"positions": "relative", "num_layer_groups": 1},
            functools.partial(tagging.Tagging, num_classes=3),
            "XLNet of transformers has encoder.num_layer_groups=0 only, not 1",
        ),
        (
            {"positions": "relative"},
            masked_lm.MaskedLm,
            "XLNet of transformers has no class for masked tokens",
        ),
        (
            {"num_layer_groups": 1, "embedding_size": 8},
            replaced_tokens.ReplacedTokens,
            "ALBERT of transformers has no class for replaced tokens that",
        ),
        (
            {"num_layer_groups": 1, "embedding_size": 8, "causal": True},
            functools.partial(tagging.Tagging, num_classes=3),
            "the encoder is causal; ALBERT of transformers has no causal class",
        ),
        (
            NARROW | {"activation": "gelu_tanh"},
            masked_lm.MaskedLm,
            "head of ElectraForMaskedLM computes gelu_erf; .* computes gelu_tanh",
        ),
        (
            NARROW,
            functools.partial(classification.Classification, num_classes=3),
            "ELECTRA of transformers has no class for classification that computes",
        ),
        (
            NARROW,
            functools.partial(choice.Choice, num_choices=2),
            "ELECTRA of transformers has no class for multiple choice that computes",
        ),
        (
            {"feed_forward": "gated"},
            masked_lm.MaskedLm,
            "BERT of transformers has encoder.feed_forward='plain' only, not 'gated'",
        ),
        (
            {"prediction_head": config.PredictionHeadConfig(norm=False)},
            masked_lm.MaskedLm,
            "BERT of transformers has encoder.prediction_head.norm=True only",
        ),
        (
            {"positions": "rotary", "type_vocab_size": 0},
            functools.partial(masked_lm.MaskedLm, config=WITHOUT_PAIRS),
            "ModernBERT of transformers has encoder.feed_forward='gated' only",
        ),
        (
            {"positions": "rotary", "type_vocab_size": 0},
            functools.partial(tagging.Tagging, num_classes=3),
            "ModernBERT of transformers has no class for tagging",
        ),
    ],
)
def test_what_no_class_computes_is_refused(encoder, objective, message, tmp_path):
    """It would be a folder that loads, and is wrong."""
    made = objective(dataclasses.replace(TINY, **encoder))
    save_random(made, run_of(made), tmp_path / "run")
    for to in ("huggingface", "tensorflow"):
        with pytest.raises(UserError, match=f"run.* cannot go out: .*{message}"):
            convert.convert(str(tmp_path / "run"), str(tmp_path / "out"), to)
        assert not (tmp_path / "out").exists()


def run_of(objective):
    """The config of a run that trains an objective."""
    tasks = {
        "Classification": config.ClassificationConfig,
        "Tagging": config.TaggingConfig,
        "Spans": config.SquadConfig,
        "Choice": config.ChoiceConfig,
    }
    task = tasks.get(type(objective).__name__)
    if task:
        return config.FinetuneConfig(task=task())
    return config.PretrainConfig(encoder=objective.encoder, objective=objective.config)


def test_a_part_of_the_encoder_without_a_name_is_refused(tmp_path, monkeypatch):
    """Whatever the encoder learns to have."""
    source = published.write("electra_tagging", tmp_path / "theirs")
    names = families.ELECTRA.encoder
    read = lazy_checkpoint.read(str(source))
    lacking = dataclasses.replace(
        families.ELECTRA,
        encoder={k: v for k, v in names.items() if "projection" not in k},
    )
    monkeypatch.setattr(lazy_checkpoint, "read", lambda source: read)
    monkeypatch.setattr(model_classes, "FAMILIES", (lacking,))
    with pytest.raises(UserError, match="encoder/embedding_projection/bias, which Ele"):
        convert.convert(str(source), str(tmp_path / "out"), "huggingface")


def test_refusals_leave_nothing_behind(tmp_path, monkeypatch):
    source = published.write("pretraining", tmp_path / "theirs")
    out = tmp_path / "out"

    def refused(message, to="huggingface", source=source, out=out):
        flags = f"--input={source}", f"--output={out}", f"--to={to}"
        assert_refused(call("convert", *flags), message)
        assert {path.name for path in tmp_path.iterdir()} <= {"theirs", "full"}

    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    refused("full is not empty; give a new folder", out=tmp_path / "full")
    refused("x is a file; give a new folder", out=tmp_path / "full/x")
    refused("is written to a local folder only", "ours", out="memory://none/out")
    refused("nothing is no folder", source=tmp_path / "nothing")
    refused("activation='gelu_erf' cannot go out to TensorFlow", to="tensorflow")
    full = shutil._ntuple_diskusage(10, 9, 1)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: full)
        refused("bytes are needed, and 1 are free; make room, or give another folder")
    with monkeypatch.context() as patched:
        # The disk is full after all, when the arrays have been written.
        def fail(*arguments, **settings):
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(vocabularies, "write", fail)
        refused("out: No space left on device; make room, or give another folder")
    assert_refused(call("convert", f"--output={out}"), "--input is missing")
    assert_refused(call("convert", f"--input={source}"), "--output is missing")
    out.mkdir()  # an empty folder is a new one
    done = call("convert", f"--input={source}", f"--output={out}", "--to=huggingface")
    assert done.returncode == 0
    assert "written  bert.pooler.dense.bias\n" in done.stdout
    assert "BertForPreTraining, 62 arrays; missing: 0, ignored: 0" in done.stderr


def test_tensorflow_has_fewer_models(tmp_path):
    folder = published.write("tagging", tmp_path / "theirs")
    values = json.loads((folder / "config.json").read_text())
    values["hidden_act"] = "gelu_new"
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="to BertForTokenClassification, which google"):
        convert.convert(str(folder), str(tmp_path / "out"), "tensorflow")
    assert not (tmp_path / "out").exists()


# ---- TensorFlow


def test_names_are_those_of_the_published_index():
    """BERT-Base has 206 variables: these."""
    layer = [
        "attention/output/LayerNorm/beta",
        "attention/output/LayerNorm/gamma",
        "attention/output/dense/bias",
        "attention/output/dense/kernel",
        "attention/self/key/bias",
        "attention/self/key/kernel",
        "attention/self/query/bias",
        "attention/self/query/kernel",
        "attention/self/value/bias",
        "attention/self/value/kernel",
        "intermediate/dense/bias",
        "intermediate/dense/kernel",
        "output/LayerNorm/beta",
        "output/LayerNorm/gamma",
        "output/dense/bias",
        "output/dense/kernel",
    ]
    names = [
        "bert/embeddings/LayerNorm/beta",
        "bert/embeddings/LayerNorm/gamma",
        "bert/embeddings/position_embeddings",
        "bert/embeddings/token_type_embeddings",
        "bert/embeddings/word_embeddings",
        *(f"bert/encoder/layer_{i}/{name}" for i in range(12) for name in layer),
        "bert/pooler/dense/bias",
        "bert/pooler/dense/kernel",
        "cls/predictions/output_bias",
        "cls/predictions/transform/LayerNorm/beta",
        "cls/predictions/transform/LayerNorm/gamma",
        "cls/predictions/transform/dense/bias",
        "cls/predictions/transform/dense/kernel",
        "cls/seq_relationship/output_bias",
        "cls/seq_relationship/output_weights",
    ]
    assert len(names) == 206
    for name in names:
        assert tensorflow.original_name(tensorflow.huggingface_name(name)) == name
    theirs = [tensorflow.huggingface_name(name) for name in names]
    assert theirs[4] == "bert.embeddings.word_embeddings.weight"
    assert theirs[6] == "bert.encoder.layer.0.attention.output.LayerNorm.weight"
    assert theirs[-1] == "cls.seq_relationship.weight"
    assert theirs[-7] == "cls.predictions.bias"


def test_a_checkpoint_that_tensorflow_wrote(tmp_path):
    """By its Saver, with what its optimizer keeps; without a word about the case."""
    import tensorflow as tf

    run, out = config.FinetuneConfig(), tmp_path / "out"
    objective = classification.Classification(TINY, 3)
    settings = {"labels": ["left", "no side", "on the other side"]}
    expected = save_random(objective, run, tmp_path / "run", settings)
    done = convert.convert(str(tmp_path / "run"), str(out), "tensorflow")
    reader = tf.train.load_checkpoint(str(out / "bert_model.ckpt"))
    assert sorted(reader.get_variable_to_shape_map()) == done.written
    # As BertModel has them: a kernel has inputs first; the classifier, outputs.
    kernel = reader.get_tensor("bert/encoder/layer_1/intermediate/dense/kernel")
    assert kernel.shape == (32, 48)
    assert reader.get_tensor("output_weights").shape == (3, 32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name in done.written:
            tf.compat.v1.get_variable(name, initializer=reader.get_tensor(name))
        tf.compat.v1.get_variable("output_bias/adam_m", initializer=np.zeros(3))
        tf.compat.v1.get_variable("global_step", initializer=7)
        session.run(tf.compat.v1.global_variables_initializer())
        other = tmp_path / "other"
        other.mkdir()
        saver = tf.compat.v1.train.Saver()
        saver.save(session, str(other / "model.ckpt"), global_step=7)
    shutil.copy(out / "bert_config.json", other)
    (other / "vocab.txt").write_bytes(TOKENIZER.model)
    for path in (other, other / "model.ckpt-7"):
        read = lazy_checkpoint.read(str(path))
        read.params.pop("encoder/embeddings/token_embedding")
        assert not read.ignored
        assert_same(read_all(read), {path: expected[path] for path in read.params})
        assert read.metadata.tokenizer == TOKENIZER  # no capital in it
        assert read.metadata.task == {"labels": ["LABEL_0", "LABEL_1", "LABEL_2"]}
        assert checkpoints.find(path).exists()
    cased = TOKENIZER.model.replace(b"aa", b"Aa")
    (other / "vocab.txt").write_bytes(cased)
    tokenizer = checkpoints.read_metadata(checkpoints.find(other)).tokenizer
    assert not tokenizer.lower_case
    assert not tokenizer.strip_accents
    damaged = next(other.glob("*.data-*"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(UserError, match="is damaged|cannot be used"):
        saved.parameters_of(other)
    damaged.unlink()
    with pytest.raises(UserError, match=r"has no model.ckpt-7.data-00000-of-00001"):
        checkpoints.find(other)
    (other / "bert_config.json").unlink()
    with pytest.raises(UserError, match=r"has no bert_config.json"):
        checkpoints.find(other)
