"""Conversion of checkpoints: the same bits come back, or one line says why not."""

import dataclasses
import errno
import functools
import json
import re
import shutil
from unittest import mock

import numpy as np
import other_pipelines
import published
import pytest
import saved
import tokenizers
from commands import assert_refused, call, succeed
from saved import native_model, run_of
from tokenizers import normalizers, processors
from toy import FAMILIES, metadata
from toy import TINY as WITH_LOOP

from bert_jax import config, prediction
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.interop import (
    checkpoints,
    convert,
    lazy_checkpoint,
    model_classes,
    tensorflow,
    tokenizer_files,
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
from bert_jax.tasks import tagging as task_tagging
from bert_jax.training import checkpoint
from bert_jax.training import metadata as metadata_lib

# Published configs do not say whether layers are computed in a loop.
TINY = dataclasses.replace(WITH_LOOP, scan_layers=False)
TOKENIZER = metadata().tokenizer
VOCABULARY = "\n".join(TOKENIZER.tokens)


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, array in got.items():
        assert array.tobytes() == np.asarray(expected[name]).tobytes(), name


def assert_same_folder(done, folder, source):
    """Compare arrays, metadata, config and card."""
    assert not done.missing
    expected, got = published.arrays_of(source), published.arrays_of(folder)
    assert done.written == list(got)
    expected = {n: x.astype(np.float32) for n, x in expected.items()}
    original = json.loads((source / "config.json").read_text())
    unread = []
    # Only one of XLNet's classes has the target embedding.
    if original["model_type"] == "xlnet" and done.name != "XLNetLMHeadModel":
        (name,) = (name for name in expected if "mask_emb" in name)
        expected[name] = np.zeros_like(expected[name])
        unread = ["transformer.mask_emb"]
    assert done.ignored == unread
    if original["model_type"] == "roberta":  # no token has the first two positions
        (name,) = (name for name in expected if "position_embeddings" in name)
        expected[name][:2] = 0
    assert_same(got, expected)
    before, after = map(checkpoints.open_published, (source, folder))
    # The written pipeline puts [CLS] behind the text of an XLNet.
    given, written = before.metadata.tokenizer, after.metadata.tokenizer
    assert written.fingerprint == given.fingerprint
    assert dataclasses.replace(after.metadata, tokenizer=given) == before.metadata
    written = json.loads((folder / "config.json").read_text())
    assert written["architectures"] == original["architectures"]
    assert written["mask_token_id"] == given.mask_id
    for name in written.keys() & original.keys() - {"dtype", "hidden_act", "label2id"}:
        assert written[name] == original[name], name
    assert f"`{written['architectures'][0]}`" in (folder / "README.md").read_text()


# Each family, each way to lay out the arrays, and each of their types.
PUBLISHED = (
    *("pretraining", "causal_lm", "bare", "albert_pretraining"),
    *("electra_discriminator", "roberta_classification", "xlnet_language_model"),
    *("modernbert_masked_lm", "distilbert_masked_lm", "eurobert_classification"),
    *("nomicbert_masked_lm", "ultrabert_regression", "deberta_masked_lm"),
)


def test_published_folders_come_back_bit_for_bit(tmp_path):
    for case in PUBLISHED:
        source, out = published.folder(case), tmp_path / case
        done = convert.convert(str(source), str(out), "huggingface")
        assert_same_folder(done, out, source)


@pytest.mark.parametrize(
    "case",
    [
        "tagging",
        "modernbert",
        pytest.param("nomicbert_tagging", marks=pytest.mark.slow),
    ],
)
def test_a_published_folder_comes_back_from_a_native_checkpoint(case, tmp_path):
    source, native = published.folder(case), tmp_path / "native"
    convert.convert(str(source), str(native))
    before = checkpoints.read_metadata(source)
    assert checkpoints.read_metadata(checkpoints.find(native)) == before
    assert tokenizer_lib.Tokenizer.load(native / "tokenizer") == before.tokenizer
    done = convert.convert(str(native), str(tmp_path / "again"))
    assert_same_folder(done, tmp_path / "again", source)


# Some variables in the index of the published BERT-Base.
BERT_VARIABLES = {
    "bert/embeddings/LayerNorm/beta",
    "bert/embeddings/word_embeddings",
    "bert/encoder/layer_2/attention/output/LayerNorm/gamma",
    "bert/encoder/layer_0/attention/self/key/kernel",
    "bert/pooler/dense/bias",
    "cls/predictions/output_bias",
    "cls/predictions/transform/dense/kernel",
    "cls/seq_relationship/output_bias",
    "cls/seq_relationship/output_weights",
}


def test_native_checkpoints_come_back_bit_for_bit(tmp_path):
    """Except for rows that pad the vocabulary, which become 0."""
    model, expected = native_model(masked_lm.MaskedLm(TINY))
    convert.write_native(model, str(tmp_path / "run"))
    for to in ("huggingface", "tensorflow"):
        folder = tmp_path / to
        done = convert.convert(str(tmp_path / "run"), str(folder), to)
        if to == "tensorflow":
            assert set(done.written) >= BERT_VARIABLES
        got = lazy_checkpoint.read(str(folder))
        params = saved.parameters_of(folder)
        for path in ("encoder/embeddings/token_embedding", "mlm_head/output_bias"):
            assert not params[path][TINY.vocab_size :].any()
        saved.assert_came_back(folder, expected)
        assert got.metadata.encoder == TINY
        assert got.metadata.tokenizer == TOKENIZER


ALBERT = dataclasses.replace(
    TINY, embedding_size=8, num_layers=4, num_layer_groups=2, activation="gelu_erf"
)
ELECTRA = dataclasses.replace(
    TINY,
    embedding_size=8,
    activation="gelu_erf",
    pooler=config.PoolerConfig(activation="gelu_erf"),
)
XLNET = dataclasses.replace(TINY, positions="relative", max_position_embeddings=512)
MODERNBERT = dataclasses.replace(
    TINY,
    **FAMILIES["modernbert"],
    pooler=config.PoolerConfig(
        activation="gelu_erf", bias=False, norm=True, per_token=True
    ),
)
ONE_LAYER = dataclasses.replace(
    MODERNBERT,
    num_layers=1,
    local_rotary_base=0.0,
    attention_window=0,
    global_layer_every=1,
)
EUROBERT = dataclasses.replace(
    TINY,
    **FAMILIES["eurobert"],
    dropout_rate=0.0,
    pooler=config.PoolerConfig(activation="gelu_erf"),
)
DEBERTA = dataclasses.replace(
    TINY, **FAMILIES["deberta"], pooler=config.PoolerConfig(activation="gelu_erf")
)
# With the vocabulary of a RoBERTa, of bytes.
ROBERTA = dataclasses.replace(
    TINY, vocab_size=266, type_vocab_size=1, activation="gelu_erf"
)
IN_ORDER = config.MaskedLmConfig(segments="sentence_order")
WITHOUT_QUESTION = config.MaskedLmConfig(segments="consecutive")
WITHOUT_PAIRS = config.MaskedLmConfig(segments="full_sentences")


def test_native_models_of_each_class_come_back_bit_for_bit(tmp_path):
    bert_like = dataclasses.replace(TINY, embedding_size=TINY.hidden_size)
    roberta = tokenizer_files.read(published.folder("roberta_bare"))
    for number, (objective, name) in enumerate(
        (
            (masked_lm.MaskedLm(ALBERT, IN_ORDER), "AlbertForPreTraining"),
            (masked_lm.MaskedLm(ALBERT, WITHOUT_QUESTION), "AlbertForMaskedLM"),
            (choice.Choice(ALBERT, 2), "AlbertForMultipleChoice"),
            (tagging.Tagging(ALBERT, 3), "AlbertForTokenClassification"),
            (spans.Spans(ALBERT), "AlbertForQuestionAnswering"),
            (masked_lm.MaskedLm(ELECTRA, WITHOUT_QUESTION), "ElectraForMaskedLM"),
            (spans.Spans(ELECTRA), "ElectraForQuestionAnswering"),
            (spans.Spans(ROBERTA), "RobertaForQuestionAnswering"),
            (permutation_lm.PermutationLm(XLNET), "XLNetLMHeadModel"),
            (spans.Spans(XLNET), "XLNetForQuestionAnsweringSimple"),
            (masked_lm.MaskedLm(MODERNBERT, WITHOUT_PAIRS), "ModernBertForMaskedLM"),
            (tagging.Tagging(MODERNBERT, 3), "ModernBertForTokenClassification"),
            # No layer has a norm before its attention.
            (masked_lm.MaskedLm(ONE_LAYER, WITHOUT_PAIRS), "ModernBertForMaskedLM"),
            # An ELECTRA whose embeddings need no projection is a BERT.
            (
                classification.Classification(bert_like, 3),
                "BertForSequenceClassification",
            ),
        )
    ):
        folder = str(tmp_path / str(number))
        is_tagger = isinstance(objective, tagging.Tagging)
        settings = {"tags" if is_tagger else "labels": ["O", "B-x", "I-x"]}
        tokenizer = roberta if objective.encoder == ROBERTA else TOKENIZER
        model, expected = native_model(objective, settings, tokenizer)
        done = convert.export(model, folder)
        assert (done.name, done.missing, done.ignored) == (name, [], [])
        got = lazy_checkpoint.read(folder)
        saved.assert_came_back(folder, expected)
        encoder = got.metadata.encoder
        assert encoder.num_layer_groups == objective.encoder.num_layer_groups
        assert name.startswith("Bert") or encoder == objective.encoder
        assert got.metadata.tokenizer.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    ("family", "encoder", "pipeline", "is_stripped"),
    [
        ("Roberta", ROBERTA, None, False),
        ("EuroBert", EUROBERT, "eurobert", False),
        ("ModernBert", MODERNBERT, "mmbert", False),
        ("ModernBert", MODERNBERT, "mmbert", True),
    ],
)
def test_words_of_an_exported_tagger_have_a_space_before_them(
    family, encoder, pipeline, is_stripped, documents, tmp_path
):
    """Compare with `is_split_into_words` of transformers, which calls the library."""
    if pipeline:
        lines = [line for text in documents[:9] for line in text.splitlines()]
        learnt = other_pipelines.BUILDERS[pipeline](lines)
        if is_stripped:
            steps = [normalizers.Strip(), learnt.normalizer]
            learnt.normalizer = normalizers.Sequence(steps)
        native = tokenizer_lib.make(learnt)
    else:
        native = tokenizer_files.read(published.folder("roberta_bare"))
    encoder = dataclasses.replace(encoder, vocab_size=native.vocab_size)
    settings = {"tags": ["O", "B-x", "I-x"]}
    model, expected = native_model(tagging.Tagging(encoder, 3), settings, native)
    done = convert.export(model, str(tmp_path))
    assert done.name == f"{family}ForTokenClassification"
    saved.assert_came_back(tmp_path, expected)
    words = ["The", "value", "of", "an", "object", "isn't", "123456", "(", "東京", "."]
    pipeline = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    given = pipeline.encode(words, is_pretokenized=True).ids
    read = lazy_checkpoint.read(str(tmp_path)).metadata.tokenizer
    for tokenizer in native, read:
        arrays = task_tagging.make_rows([words], tokenizer, 128).arrays
        assert arrays["input_ids"][arrays["attention_mask"]].tolist() == given
    assert tokenizer_files.with_space_before_words(read) == read


def test_positions_are_counted_from_any_padding_token(tmp_path):
    """RoBERTa's own has the id 1, this one 0."""
    learnt = other_pipelines.BUILDERS["roberta"](["the value of an object"])
    ends = [(token, learnt.token_to_id(token)) for token in ("</s>", "<s>")]
    learnt.post_processor = processors.RobertaProcessing(*ends)
    tokenizer = tokenizer_lib.make(learnt)
    encoder = dataclasses.replace(ROBERTA, vocab_size=tokenizer.vocab_size)
    objective = masked_lm.MaskedLm(encoder, WITHOUT_PAIRS)
    model, expected = native_model(objective, tokenizer=tokenizer)
    assert convert.export(model, str(tmp_path)).name == "RobertaForMaskedLM"
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["pad_token_id"] == tokenizer.pad_id == 0
    positions = encoder.max_position_embeddings
    assert written["max_position_embeddings"] == positions + 1
    assert lazy_checkpoint.read(str(tmp_path)).metadata.encoder == encoder
    saved.assert_came_back(tmp_path, expected)


def test_a_classifier_with_one_output_keeps_its_name_and_type(tmp_path):
    """A pipeline of transformers applies a sigmoid, but not for a regression."""
    source = published.write("ultrabert_regression", tmp_path / "source")
    for name, problem in (("relevance", None), ("LABEL_0", "regression")):
        changes = {"id2label": {"0": name}, "problem_type": problem}
        published.edit(source / "config.json", **changes)
        out = tmp_path / name
        convert.convert(str(source), str(out), "huggingface")
        written = json.loads((out / "config.json").read_text())
        assert written["id2label"] == {"0": name}
        assert written["label2id"] == {name: 0}
        assert written.get("problem_type") == problem


def spec_of(objective):
    """Return the class for a model of an objective, without its parameters."""
    run = config.to_dict(run_of(objective))
    about = metadata_lib.Metadata(run, objective.encoder, TOKENIZER)
    return model_classes.export_spec(about, "run")


HEAD = EUROBERT.prediction_head


@pytest.mark.parametrize(
    ("encoder", "changes"),
    [
        (EUROBERT, {"norm_bias": False}),  # of RMS norms
        (EUROBERT, {"prediction_head": dataclasses.replace(HEAD, bias=False)}),
        (
            EUROBERT,
            {"prediction_head": dataclasses.replace(HEAD, activation="gelu_erf")},
        ),
        (MODERNBERT, {"num_layers": 1}),  # a global one
        (MODERNBERT, {"num_layers": 2}),  # less than a period
        # Only heads of tasks read the pooler.
        (MODERNBERT, {"pooler": config.PoolerConfig()}),
        (MODERNBERT, {"pooler": config.PoolerConfig(norm=True, per_token=True)}),
    ],
)
def test_fields_without_effect_do_not_prevent_an_export(encoder, changes):
    changed = dataclasses.replace(encoder, **changes)
    config.check(changed)
    assert changed != encoder
    spec = spec_of(masked_lm.MaskedLm(changed, WITHOUT_PAIRS))
    assert spec.name.endswith("ForMaskedLM")


def test_both_halves_of_an_electra_come_back(tmp_path):
    """The discriminator is in the folder, and the generator in a subfolder."""
    asked = config.ReplacedTokensConfig(generator_size=0.5, generator_layers=0.34)
    objective = replaced_tokens.ReplacedTokens(ELECTRA, asked)
    model, expected = native_model(objective)
    done = convert.export(model, str(tmp_path / "out"))
    assert done.name == "ElectraForPreTraining"
    assert (done.missing, done.ignored) == ([], [])
    assert "generator/generator_lm_head.bias" in done.written
    got = lazy_checkpoint.read(str(tmp_path / "out"))
    assert got.metadata.encoder == ELECTRA
    assert got.metadata.config["objective"]["kind"] == "replaced_tokens"
    half = {p: x for p, x in expected.items() if not p.startswith("generator")}
    saved.assert_came_back(tmp_path / "out", half)
    got = lazy_checkpoint.read(str(tmp_path / "out/generator"))
    assert got.metadata.encoder == objective.generator
    half = {
        path.replace("generator_head/", "mlm_head/").replace(
            "generator/", "encoder/"
        ): x
        for path, x in expected.items()
        if path.startswith(("encoder/embeddings/", "generator"))
    }
    saved.assert_came_back(tmp_path / "out/generator", half)
    # A native checkpoint has both halves, and TensorFlow's format neither.
    done = convert.export(model, str(tmp_path / "native"), "native")
    assert done.written == sorted(expected)
    with pytest.raises(UserError, match="to ElectraForPreTraining, which google"):
        convert.export(model, str(tmp_path / "original"), "tensorflow")


@pytest.mark.slow
def test_a_deberta_with_disentangled_embeddings_goes_out_with_the_sums(tmp_path):
    """The generator has the shared embeddings, and a native checkpoint both parts."""
    asked = config.ReplacedTokensConfig(
        generator_size=1.0,
        generator_layers=0.34,
        embedding_sharing="gradient_disentangled",
    )
    model, expected = native_model(replaced_tokens.ReplacedTokens(DEBERTA, asked))
    shared = {p: x for p, x in expected.items() if p.startswith("encoder/embeddings/")}
    sums = {
        path: value
        + expected[path.replace("encoder/embeddings", "embedding_differences")]
        for path, value in shared.items()
    }
    assert len(sums) == 3
    encoder = {
        path: sums.get(path, value)
        for path, value in expected.items()
        if path.startswith("encoder/")
    }
    done = convert.export(model, str(tmp_path / "native"), "native")
    assert done.written == sorted(expected)
    done = convert.convert(str(tmp_path / "native"), str(tmp_path / "out"))
    assert (done.name, done.missing) == ("DebertaV2Model", [])
    assert {path.split("/")[0] for path in done.ignored} == {
        "discriminator",
        "discriminator_transform",
    }
    got = lazy_checkpoint.read(str(tmp_path / "out"))
    assert got.metadata.encoder == DEBERTA
    saved.assert_came_back(tmp_path / "out", encoder)
    got = saved.parameters_of(tmp_path / "out/generator")
    assert {"mlm_head/output_bias", "encoder/distance_embedding"} < got.keys()
    for path, value in shared.items():
        rows = TINY.vocab_size if path.endswith("token_embedding") else None
        np.testing.assert_array_equal(got[path][:rows], value[:rows])
    # Fine-tuning and predictions load the sums, too.
    loaded = prediction.load(str(tmp_path / "native"))
    features = loaded.features(["aa ab"], layers=(0,))
    again = prediction.load(str(tmp_path / "out")).features(["aa ab"], layers=(0,))
    np.testing.assert_array_equal(next(features).values, next(again).values)


def test_parameters_without_a_class_are_ignored(tmp_path):
    """A generator whose head is no exact GELU, and objectives of other families."""
    encoder = dataclasses.replace(ELECTRA, activation="gelu_tanh")
    asked = config.ReplacedTokensConfig(generator_size=0.5)
    model, _ = native_model(replaced_tokens.ReplacedTokens(encoder, asked))
    done = convert.export(model, str(tmp_path / "electra"))
    assert done.name == "ElectraForPreTraining"
    heads = {path.split("/")[0] for path in done.ignored}
    assert heads == {"generator", "generator_head"}
    assert not (tmp_path / "electra/generator").exists()
    model, _ = native_model(masked_lm.MaskedLm(TINY, IN_ORDER))
    done = convert.export(model, str(tmp_path / "bert"))
    assert done.name == "BertForMaskedLM"
    assert done.ignored == ["sop_head/bias", "sop_head/kernel"]
    xlnet = dataclasses.replace(TINY, positions="relative")
    for name, objective in (
        ("XLNetModel", masked_lm.MaskedLm(xlnet)),
        ("AlbertModel", replaced_tokens.ReplacedTokens(ALBERT)),
    ):
        model, expected = native_model(objective)
        done = convert.export(model, str(tmp_path / name))
        assert done.name == name
        heads = {path for path in expected if not path.startswith("encoder/")}
        assert heads <= {*done.ignored}
        kept = {path: x for path, x in expected.items() if path not in done.ignored}
        saved.assert_came_back(tmp_path / name, kept)


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_a_pooler_beside_a_head_for_masked_tokens_is_kept(family, tmp_path):
    """As ALBERT was published, and as `transformers` 3 saved BertForMaskedLM."""
    pretraining = {"bert": "pretraining", "albert": "albert_pretraining"}[family]
    source = published.write(pretraining, tmp_path / "source")
    arrays = published.arrays_of(source)
    without = ("cls.seq_relationship", "sop_classifier")
    kept = {n: x for n, x in arrays.items() if not n.startswith(without)}
    assert len(kept) == len(arrays) - 2
    published.write_arrays(source, kept)
    for begin, end in (("source", "native"), ("native", "huggingface")):
        done = convert.convert(str(tmp_path / begin), str(tmp_path / end), end)
        assert not (done.missing or done.ignored)
    assert_same(published.arrays_of(tmp_path / "huggingface"), kept)


def test_the_card_of_a_folder_that_is_named_like_a_step(tmp_path):
    source = published.write("masked_lm", tmp_path / "2024")
    convert.convert(str(source), str(tmp_path / "out"), "huggingface")
    assert "| steps |" not in (tmp_path / "out/README.md").read_text()


def test_the_card_describes_the_run(tmp_path):
    """Shape, schedule and the last evaluation up to the step."""
    run = tmp_path / "run"
    model, _ = native_model(masked_lm.MaskedLm(TINY))
    convert.write_native(model, str(run))
    (run / "checkpoints/0").rename(run / "checkpoints/1")
    records = [
        {"step": 1, "split": "train", "loss": 9.0},
        {"step": 1, "split": "eval", "mlm_loss": 6.25, "mlm_accuracy": 0.0625},
        {"step": 2, "split": "eval", "mlm_loss": 5.5},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (run / "metrics.jsonl").write_text(lines)
    (run / "results.json").write_text('{"step": 1, "accuracy": 0.75}')
    convert.convert(str(run / "checkpoints/1"), str(tmp_path / "out"))
    card = (tmp_path / "out/README.md").read_text()
    assert "| steps | 1 |" in card
    assert "| held out, mlm_loss | 6.25 |" in card
    assert "5.5" not in card
    assert "| results, accuracy | 0.75 |" in card
    assert f"| vocabulary | {TINY.vocab_size} tokens, WordPiece |" in card
    assert "| steps planned | 900,000 of 256 sequences of 128 tokens |" in card
    assert "BertForPreTraining.from_pretrained" in card
    (run / "results.json").write_text('{"step": 2, "accuracy": 0.75}')
    convert.convert(str(run / "checkpoints/1"), str(tmp_path / "again"))
    assert "results, " not in (tmp_path / "again/README.md").read_text()


# ---- refusals


NARROW = {"embedding_size": 8, "activation": "gelu_erf"}


def test_encoders_that_no_class_computes_are_refused():
    tagger = functools.partial(tagging.Tagging, num_classes=3)
    classifier = functools.partial(classification.Classification, num_classes=3)
    without_pairs = functools.partial(masked_lm.MaskedLm, config=WITHOUT_PAIRS)
    masked = masked_lm.MaskedLm
    no_norm = config.PredictionHeadConfig(norm=False)
    rotary = {"positions": "rotary", "type_vocab_size": 0}
    disentangled = {"positions": "disentangled", "distance_buckets": 8}
    for settings, objective, message in (
        ({"num_layer_groups": 1}, masked, "hidden_size=32 columns; ALBERT .* projects"),
        (
            {"positions": "relative", "num_layer_groups": 1},
            tagger,
            "XLNet of transformers supports encoder.num_layer_groups=0 only, got 1",
        ),
        ({"causal": True}, classifier, "is causal; .* pools the first token"),
        (
            vars(ALBERT) | {"causal": True},
            tagger,
            "is causal; .* no causal class of ALBERT",
        ),
        (
            disentangled | {"pooler": config.PoolerConfig(activation="")},
            classifier,
            "DeBERTa .* encoder.pooler.activation='gelu_erf' only, got ''",
        ),
        (NARROW | {"activation": "gelu_tanh"}, masked, "head .*gelu_erf; .*gelu_tanh"),
        (NARROW, classifier, "ELECTRA .*pooler.activation='gelu_erf' only, got 'tanh'"),
        ({"activation": "relu_squared"}, masked, "activation='gelu_erf' only, got 're"),
        ({"feed_forward": "gated"}, masked, "BERT .*.feed_forward='plain' only"),
        ({"prediction_head": no_norm}, masked, "BERT .*_head.norm=True only"),
        (rotary, without_pairs, "NomicBERT .* encoder.feed_forward='gated' only"),
        (rotary, spans.Spans, "NomicBERT of transformers has no class for answering"),
        (
            vars(MODERNBERT) | {"pooler": config.PoolerConfig()},
            tagger,
            "ModernBERT .* encoder.pooler.per_token=True only, got False; .* fine-tune "
            "again from the folder that run.convert --to=huggingface makes",
        ),
        (
            vars(MODERNBERT) | {"type_vocab_size": 2, "first_attention_norm": True},
            masked,
            "ModernBERT .* encoder.type_vocab_size=0 only, got 2; "
            "encoder.first_attention_norm=False only, got True",
        ),
    ):
        made = objective(dataclasses.replace(TINY, **settings))
        with pytest.raises(UserError, match=f"run cannot be exported: .*{message}"):
            spec_of(made)


def test_refusals_leave_nothing_behind(tmp_path, monkeypatch):
    source, out = published.folder("pretraining"), tmp_path / "out"

    def refused(message, to="huggingface", source=source, out=out):
        flags = f"--input={source}", f"--output={out}", f"--to={to}"
        assert_refused(call("convert", *flags), message)
        assert {path.name for path in tmp_path.iterdir()} <= {"full"}

    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    refused("full is not empty; give a new folder", out=tmp_path / "full")
    refused("x is a file; give a new folder", out=tmp_path / "full/x")
    refused("x is a file; give a new folder", out=tmp_path / "full/x/deeper")
    refused("must be a local folder", "native", out="memory://none/out")
    refused("nothing is not a folder", source=tmp_path / "nothing")
    refused("activation='gelu_erf' cannot be exported to TensorFlow", to="tensorflow")
    with monkeypatch.context() as patched:
        full = OSError(errno.ENOSPC, "No space left on device")
        patched.setattr(tokenizer_files, "write", mock.Mock(side_effect=full))
        refused("out: No space left on device; give another folder")
        full = ValueError("RESOURCE_EXHAUSTED: Failed: No space left on device")
        patched.setattr(checkpoint, "save_parameters", mock.Mock(side_effect=full))
        refused("out: No space left on device; give another folder", "native")
    assert_refused(call("convert", f"--output={out}"), "--input is missing")
    assert_refused(call("convert", f"--input={source}"), "--output is missing")
    out.mkdir()  # an empty folder is a new one
    done = succeed(
        "convert", f"--input={source}", f"--output={out}", "--to=huggingface"
    )
    assert "written  bert.pooler.dense.bias\n" in done.stdout
    assert "BertForPreTraining, 62 arrays; missing: 0, ignored: 0" in done.stderr


# ---- TensorFlow


# Names in google-research/albert and electra, by names in `transformers`.
ALBERT_LAYER = {
    "attention.query": "attention_1/self/query",
    "attention.key": "attention_1/self/key",
    "attention.value": "attention_1/self/value",
    "attention.dense": "attention_1/output/dense",
    "attention.LayerNorm": "LayerNorm",
    "ffn": "ffn_1/intermediate/dense",
    "ffn_output": "ffn_1/intermediate/output/dense",
    "full_layer_layer_norm": "LayerNorm_1",
}
ALBERT_NAMES = {
    "albert.embeddings.LayerNorm": "bert/embeddings/LayerNorm",
    "albert.encoder.embedding_hidden_mapping_in": (
        "bert/encoder/embedding_hidden_mapping_in"
    ),
    "albert.pooler": "bert/pooler/dense",
    "predictions.dense": "cls/predictions/transform/dense",
    "predictions.LayerNorm": "cls/predictions/transform/LayerNorm",
    "predictions.bias": "cls/predictions/output_bias",
    "sop_classifier.classifier.weight": "cls/seq_relationship/output_weights",
    "sop_classifier.classifier.bias": "cls/seq_relationship/output_bias",
} | {
    f"albert.encoder.albert_layer_groups.{i}.albert_layers.0.{name}": (
        f"bert/encoder/transformer/group_{i}/inner_group_0/{original}"
    )
    for i in range(2)
    for name, original in ALBERT_LAYER.items()
}
ELECTRA_NAMES = {
    "electra.embeddings.LayerNorm": "electra/embeddings/LayerNorm",
    "electra.embeddings_project": "electra/embeddings_project",
    "discriminator_predictions.dense": "discriminator_predictions/dense",
    "discriminator_predictions.dense_prediction": "discriminator_predictions/dense_1",
} | {
    f"electra.encoder.layer.{i}.{name}": (
        f"electra/encoder/layer_{i}/{name.replace('.', '/')}"
    )
    for i in range(4)
    for name in (
        *("attention.self.query", "attention.self.key", "attention.self.value"),
        *("attention.output.dense", "attention.output.LayerNorm"),
        *("intermediate.dense", "output.dense", "output.LayerNorm"),
    )
}


def write_tensorflow(folder, names, arrays, prefix):
    """Write the arrays of a model of `transformers` under the original names."""
    import tensorflow as tf

    variables = {}
    for name, value in arrays.items():
        layer, _, leaf = name.rpartition(".")
        if name in names:
            variables[names[name]] = value
        elif layer in names and "LayerNorm" in names[layer]:
            leaf = {"weight": "gamma", "bias": "beta"}[leaf]
            variables[f"{names[layer]}/{leaf}"] = value
        elif layer in names and leaf == "weight":
            variables[f"{names[layer]}/kernel"] = value.T
        elif layer in names:
            variables[f"{names[layer]}/bias"] = value
        else:
            table = re.fullmatch(r"(\w+)\.embeddings\.(\w+_embeddings)\.weight", name)
            scope = table[1].replace("albert", "bert")
            variables[f"{scope}/embeddings/{table[2]}"] = value
    tf.raw_ops.SaveV2(
        prefix=str(folder / prefix),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=list(variables.values()),
    )


def test_a_head_without_arrays_is_not_missing():
    """EuroBERT's head is the embedding alone, if it is tied."""
    spec = checkpoints.open_published(published.folder("eurobert_masked_lm")).spec
    assert spec.heads == ["mlm_head"]
    tied = dataclasses.replace(spec.encoder.prediction_head, tied=True)
    encoder = dataclasses.replace(spec.encoder, prediction_head=tied)
    assert dataclasses.replace(spec, encoder=encoder).heads == []


@pytest.mark.parametrize(
    ("removed", "missing"),
    [
        (("classifier.bias",), ["classifier/bias"]),
        (
            ("classifier.bias", "bert.pooler.dense.bias", "bert.pooler.dense.weight"),
            ["encoder/pooler", "classifier/bias"],
        ),
    ],
)
def test_heads_and_single_parameters_of_heads_may_be_missing(
    removed, missing, tmp_path
):
    source = published.write("classification", tmp_path / "source")
    arrays = published.arrays_of(source)
    kept = {name: array for name, array in arrays.items() if name not in removed}
    assert len(kept) == len(arrays) - len(removed)
    published.write_arrays(source, kept)
    for to in ("native", "huggingface"):
        done = convert.convert(str(source), str(tmp_path / to), to)
        assert done.missing == missing


@pytest.mark.parametrize(
    "case",
    ["electra_generator", pytest.param("roberta_masked_lm", marks=pytest.mark.slow)],
)
def test_a_head_has_the_activation_of_its_class(case, tmp_path):
    """ELECTRA's and RoBERTa's heads compute GELU, whatever `hidden_act` says."""
    source = published.write(case, tmp_path / "source")
    published.edit(source / "config.json", hidden_act="silu")
    encoder = checkpoints.open_published(source).metadata.encoder
    assert (encoder.activation, encoder.head_activation) == ("silu", "gelu_erf")
    convert.convert(str(source), str(tmp_path / "native"), "native")
    done = convert.convert(str(tmp_path / "native"), str(tmp_path / "out"))
    assert not done.missing and not done.ignored
    got = checkpoints.open_published(tmp_path / "out").metadata.encoder
    assert (got.activation, got.head_activation) == ("silu", "gelu_erf")


def test_a_checkpoint_of_albert_in_tensorflow(tmp_path, documents):
    """Parameters and config equal those of the same model in `transformers`."""
    source = published.folder("albert_pretraining")
    expected = checkpoints.open_published(source)
    folder = published.sentencepiece_of_albert(tmp_path / "albert", documents[:20])
    values = json.loads((source / "config.json").read_text()) | {"vocab_size": 300}
    assert values.pop("hidden_act") == "gelu_new"
    values["hidden_act"] = "gelu"
    (folder / "albert_config.json").write_text(json.dumps(values))
    arrays = published.arrays_of(source)
    table = "albert.embeddings.word_embeddings.weight"
    for name, columns in ((table, (12,)), ("predictions.bias", ())):
        arrays[name] = np.resize(arrays[name], (300, *columns))
    write_tensorflow(folder, ALBERT_NAMES, arrays, "model.ckpt-best")
    got = checkpoints.open_published(folder)
    assert got.spec.name == "AlbertForPreTraining"
    assert got.spec.encoder == dataclasses.replace(
        expected.spec.encoder, vocab_size=300
    )
    assert not got.ignored
    assert got.metadata.tokenizer.mask_id == 4
    assert got.shapes.keys() == expected.shapes.keys()
    for path in expected.shapes:
        if not parameters.is_vocabulary_table(path):
            np.testing.assert_array_equal(got.parameter(path), expected.parameter(path))
    model = (folder / "spiece.model").rename(folder / "30k-clean.model")
    assert tokenizer_files.read(folder) == got.metadata.tokenizer
    model.write_bytes(model.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"read .*30k-clean.model: the Sent.*damaged"):
        checkpoints.open_published(folder)
    model.unlink()
    with pytest.raises(UserError, match=r"has 0 files \*.model; expected one"):
        checkpoints.open_published(folder)


def test_a_checkpoint_of_electra_in_tensorflow(tmp_path, monkeypatch):
    """It has no config, and its generator is ignored."""
    source = published.folder("electra_discriminator")
    expected = checkpoints.open_published(source)
    folder = tmp_path / "electra"
    folder.mkdir()
    arrays = published.arrays_of(source)
    names = ELECTRA_NAMES | {"x": "generator_predictions/output_bias"}
    write_tensorflow(folder, names, arrays | {"x": np.zeros(45)}, "electra_small")
    vocabulary = "\n".join(expected.metadata.tokenizer.tokens)
    (folder / "vocab.txt").write_text(vocabulary)
    monkeypatch.setattr(tensorflow, "_ELECTRA_HEAD", 8)
    got = checkpoints.open_published(folder)
    assert got.spec == expected.spec
    assert got.shapes == expected.shapes
    for path in expected.shapes:
        np.testing.assert_array_equal(got.parameter(path), expected.parameter(path))
    # With a capital letter, nothing is lower-cased.
    for text in (vocabulary, vocabulary.replace("\naa\n", "\nAa\n")):
        (folder / "vocab.txt").write_text(text)
        read = checkpoints.open_published(folder).metadata.tokenizer
        assert tokenizer_files.read(folder).fingerprint == read.fingerprint


def test_checkpoints_of_the_saver_of_tensorflow(tmp_path):
    """With variables of the optimizer, and without settings of the tokenizer."""
    import tensorflow as tf

    out = tmp_path / "out"
    objective = classification.Classification(TINY, 3)
    settings = {"labels": ["left", "no side", "on the other side"]}
    model, expected = native_model(objective, settings)
    done = convert.export(model, str(out), "tensorflow")
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
    (other / "vocab.txt").write_text(VOCABULARY)
    for path in (other, other / "model.ckpt-7"):
        read = lazy_checkpoint.read(str(path))
        assert not read.ignored
        got = saved.parameters_of(path)
        got.pop("encoder/embeddings/token_embedding")
        assert_same(got, {name: expected[name] for name in got})
        assert read.metadata.tokenizer == TOKENIZER  # no capital in it
        assert read.metadata.task == {"labels": ["LABEL_0", "LABEL_1", "LABEL_2"]}
        assert str(checkpoints.find(path)) == str(path)
    (other / "vocab.txt").write_text(VOCABULARY.replace("aa", "Aa"))
    tokenizer = checkpoints.read_metadata(checkpoints.find(other)).tokenizer
    normaliser = tokenizer.steps()["normalizer"]
    assert not normaliser["lowercase"] and not normaliser["strip_accents"]
    assert tokenizer_files.read(other) == tokenizer  # for a corpus
    (other / "bert_config.json").rename(other / "kept")
    with pytest.raises(UserError, match=r"has no bert_config.json"):
        checkpoints.find(other)
    tf.train.Checkpoint(v=tf.Variable(1.0)).write(str(out / "bert_model.ckpt"))
    with pytest.raises(UserError, match=r"/bert_model.ckpt is a .* of TensorFlow 2; "):
        checkpoints.find(out)
    (other / "kept").rename(other / "bert_config.json")
    damaged = next(other.glob("*.data-*"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(UserError, match="is damaged|cannot be used"):
        saved.parameters_of(other)
    damaged.unlink()
    with pytest.raises(UserError, match=r"has no model.ckpt-7.data-00000-of-00001"):
        checkpoints.find(other)
