"""Folders of other projects that cannot be used: one line that says why, each."""

import contextlib
import json
import shutil

import numpy as np
import published
import pytest

from bert_jax.errors import UserError
from bert_jax.interop import checkpoints, safetensors
from bert_jax.interop import published as published_lib


@pytest.fixture
def folder(tmp_path):
    """Gives the folder of a case, to damage."""
    return lambda case: published.write(case, tmp_path / case)


def refused(path, message):
    with pytest.raises(UserError, match=message) as raised:
        checkpoints.find(path)
    assert "\n" not in str(raised.value)


def edit(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def arrays_of(path):
    stored = safetensors.read(path)
    return {name: array.read().copy() for name, array in stored.items()}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model_type": "gpt2"},
            "unknown model_type 'gpt2'; expected 'albert', 'bert', 'electra'",
        ),
        ({"model_type": "t5"}, "unknown model_type 't5'"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; bert_jax supports 'gelu'"),
        ({"position_embedding_type": "relative_key"}, "supports 'absolute' only"),
        ({"add_cross_attention": True}, "is True; bert_jax supports False only"),
        ({"hidden_size": "32"}, "hidden_size is '32', which is no int"),
        ({"hidden_size": 48}, r"LayerNorm.bias has shape \(32,\), but by config.json"),
        ({"num_attention_heads": 5}, "num_heads=5 does not divide hidden_size=32"),
        ({"num_hidden_layers": 2}, "the arrays are of 3 layers, but num_hidden_layers"),
        ({"num_hidden_layers": 4}, "the arrays are of 3 layers"),
        ({"vocab_size": 44}, "the vocabulary has 45 tokens, the model only 44"),
        ({"vocab_size": 46}, "has 45 tokens, the model 46 .* no padding of them to a"),
        ({"vocab_size": 48}, r"has shape \(45, 32\), but by config.json .*\(48, 32\)"),
        ({"layer_norm_eps": -1.0}, "layer_norm_epsilon=-1.0 must be more than 0"),
    ],
)
def test_a_config_that_does_not_fit(values, message, folder):
    source = folder("pretraining")
    edit(source / "config.json", **values)
    refused(source, message)


@pytest.mark.parametrize(
    ("case", "values", "message"),
    [
        (
            "albert_bare",
            {"inner_group_num": 2},
            "_num is 2; .* supports 1 only",
        ),
        (
            "albert_bare",
            {"num_hidden_groups": 1},
            "2 groups of layers, but num_hidden_",
        ),
        ("albert_bare", {"num_hidden_groups": 3}, "num_layer_groups=3 does not divide"),
        ("albert_bare", {"embedding_size": 24}, "ALBERT of transformers projects them"),
        ("albert_bare", {"is_decoder": True}, "causal; ALBERT of transformers has no"),
        ("electra_generator", {"hidden_act": "gelu_new"}, "head of ElectraForMaskedLM"),
        ("electra_tagging", {"embedding_size": None}, "embedding_size is None, which"),
        ("electra_tagging", {"embedding_size": 13}, r"config.json it has \(24, 13\)"),
        ("electra_tagging", {"num_hidden_layers": 3}, "arrays are of 2 layers, but"),
        ("electra_tagging", {"model_type": "bert"}, "arrays are of 0 layers, but"),
        (
            "roberta_bare",
            {"pad_token_id": 0},
            "counted from pad_token_id, 0 in",
        ),
        (
            "roberta_bare",
            {"pad_token_id": None},
            "pad_token_id is None, which",
        ),
        ("roberta_masked_lm", {"hidden_act": "gelu_new"}, "head of RobertaForMaskedLM"),
    ],
)
def test_relatives_that_do_not_fit(case, values, message, folder):
    source = folder(case)
    edit(source / "config.json", **values)
    refused(source, message)


def test_a_classifier_that_ours_is_not(folder):
    """ELECTRA's has a GELU where ours has a tanh: the encoder is what can be read."""
    source = folder("electra_tagging")
    edit(source / "config.json", architectures=["ElectraForSequenceClassification"])
    arrays = arrays_of(source / "model.safetensors")
    for name in ("weight", "bias"):
        arrays[f"classifier.out_proj.{name}"] = arrays.pop(f"classifier.{name}")
    arrays["classifier.dense.weight"] = np.zeros((24, 24), np.float32)
    safetensors.write(source / "model.safetensors", arrays, arrays.items())
    read = checkpoints.published(source)
    assert read.metadata.config == {"kind": "bare encoder"}
    assert {path.split("/")[0] for path in read.shapes} == {"encoder"}


def test_a_missing_or_damaged_file(folder):
    source = folder("pretraining")
    file, kept = source / "model.safetensors", source / "kept"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    for damaged, message in (
        (content[:-1], "model.safetensors cannot be used: it is truncated"),
        (content[: 8 + length], "it is truncated: the arrays have 0 bytes"),
        (content[:100], "it ends before its header does"),
        (b"", "it ends before its header does"),
        (content.replace(b"F32", b"X32"), "of type X32, not of"),
        (content.replace(b'"shape":[45,32]', b'"shape":[45,33]'), "is said to have"),
    ):
        file.write_bytes(damaged)
        refused(source, message)
    file.rename(kept)
    refused(source, "has no model.safetensors, and no model.safetensors.index.json")
    (source / "pytorch_model.bin").write_bytes(b"x")
    refused(
        source, "pytorch_model.bin is a pickle, which can run code.*save_pretrained"
    )
    (source / "pytorch_model.bin").unlink()
    file.write_bytes(content)
    checkpoints.find(source)
    (source / "config.json").rename(kept)
    refused(source, "has no config.json")


def test_a_missing_shard(folder):
    source = folder("tagging")
    shards = sorted(source.glob("model-*.safetensors"))
    assert len(shards) == 5
    content = shards[2].read_bytes()
    shards[2].unlink()
    refused(
        source, f"has no {shards[2].name}, one of 5 in model.safetensors.index.json"
    )
    # A file in the place of another.
    shutil.copy(shards[1], shards[2])
    refused(source, "index.json lists .*, and no file has it")
    shards[2].write_bytes(content)
    checkpoints.find(source)
    index = source / "model.safetensors.index.json"
    for value in ({}, {"x": 3}, {"x": "../model.safetensors"}):
        edit(index, weight_map=value)
        refused(source, "weight_map names no files|has no ../model.safetensors")


def test_arrays_that_do_not_fit(folder):
    source = folder("classification")
    arrays = arrays_of(source / "model.safetensors")
    kernel = "bert.encoder.layer.0.output.dense.weight"
    for name, value, message in (
        (kernel, arrays[kernel].T, rf"{kernel} has shape \(36, 16\), .* \(16, 36\)"),
        (kernel, None, f"has no array {kernel}"),
        ("bert.pooler.dense.bias", np.zeros(3), r"pooler.dense.bias has shape \(3,\)"),
        ("classifier.weight", np.zeros((4, 16)), "id2label does not name the 4"),
    ):
        changed = {**arrays, name: value}
        kept = {key: array for key, array in changed.items() if array is not None}
        safetensors.write(source / "model.safetensors", kept, kept.items())
        refused(source, message)


def test_a_vocabulary_that_does_not_fit(folder):
    source = folder("pretraining")
    pipeline = json.loads((source / "tokenizer.json").read_text())
    settings = source / "tokenizer_config.json"
    edit(settings, tokenize_chinese_chars=False)
    refused(source, "switches off the split of Chinese characters")
    settings.unlink()  # then the defaults hold
    assert checkpoints.read_metadata(checkpoints.find(source)).tokenizer.lower_case
    vocabulary = pipeline["model"]["vocab"]
    for change, message in (
        ({"type": "Unigram"}, "holds a model of type Unigram, not WordPiece or BPE"),
        ({"type": "BPE"}, "its BPE is not of bytes"),
        ({"continuing_subword_prefix": "@@"}, "the prefix of word pieces is not ##"),
        ({"vocab": 3}, "the vocabulary is damaged"),
        ({"vocab": {**vocabulary, "more": 77}}, "not 0 to 45, each once"),
    ):
        changed = {**pipeline, "model": pipeline["model"] | change}
        (source / "tokenizer.json").write_text(json.dumps(changed))
        refused(source, message)
    (source / "tokenizer.json").unlink()
    refused(source, "has no vocabulary: no vocab.txt")
    tokens = list(vocabulary)
    (source / "vocab.txt").write_text("\n".join([*tokens, "more", "and more"]))
    refused(source, "the vocabulary has 47 tokens, the model only 45")
    (source / "vocab.txt").write_text("\n".join(t for t in tokens if t != "[MASK]"))
    refused(source, r"the vocabulary has no \[MASK\]")
    (source / "vocab.txt").write_text("\n".join(tokens[:-5]))
    refused(source, "has 40 tokens, the model 45 .*resize_token_embeddings.40.")
    # What was added by hand stands in a file of its own.
    added = source / "added_tokens.json"
    added.write_text(json.dumps({tokens[-5 + i]: 40 + i for i in range(5)}))
    assert checkpoints.read_metadata(source).tokenizer.tokens == tokens
    added.write_text(json.dumps({"covid": 41}))
    refused(source, "added_tokens.json: the ids are not those behind the 40 tokens")


@pytest.mark.parametrize(
    ("tokens", "rows", "fits"),
    [
        (30522, 30522, True),
        (30522, 30528, True),  # to 8, 16, 32 and 64
        (30522, 30592, True),  # to 128
        (50265, 51200, True),  # to 1024
        (30521, 30522, False),  # a line is lost
        (30522, 30529, False),
        (30522, 32768, False),
        (30522, 30521, False),
    ],
)
def test_an_embedding_may_be_padded(tokens, rows, fits):
    """To a multiple of a power of two, no further than that."""
    context = contextlib.nullcontext() if fits else pytest.raises(UserError)
    with context:
        published_lib._check_vocabulary("x", "config.json", tokens, rows)


def test_pairs_that_are_others_here(folder):
    """A template says where special tokens stand; ours has to be the same."""
    source = folder("pretraining")
    path = source / "tokenizer.json"
    pipeline = json.loads(path.read_text())
    bert = {"cls": ["[CLS]", 2], "sep": ["[SEP]", 3]}
    for processor, message in (
        (
            bert | {"type": "RobertaProcessing"},
            r"joins text pairs as \[CLS\] A \[SEP\] \[SEP\] B \[SEP\]; with wordpiece",
        ),
        ({"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A"}}]}, "as A;"),
        ({"type": "TemplateProcessing", "pair": 3}, "its post_processor is damaged"),
    ):
        nested = {"type": "Sequence", "processors": [{"type": "ByteLevel"}, processor]}
        for each in (processor, nested):
            path.write_text(json.dumps(pipeline | {"post_processor": each}))
            refused(source, message)
    for processor in (None, {"type": "ByteLevel"}, bert | {"type": "BertProcessing"}):
        path.write_text(json.dumps(pipeline | {"post_processor": processor}))
        checkpoints.find(source)


def test_bytes_that_do_not_fit(folder):
    source = folder("roberta_bare")
    path = source / "tokenizer.json"
    pipeline = json.loads(path.read_text())
    model = pipeline["model"]
    without = {t: i for t, i in model["vocab"].items() if t != "the"}
    for change, message in (
        ({"pre_tokenizer": {"type": "Whitespace"}}, "its BPE is not of bytes"),
        ({"normalizer": {"type": "Lowercase"}}, "normalises text"),
        ({"model": model | {"merges": None}}, "the merges are damaged"),
        ({"model": model | {"merges": [["a", "z"]]}}, "'az' is not in vocab.json"),
        ({"model": model | {"vocab": without}}, "the ids are not 0 to 264, each once"),
        ({"model": model | {"vocab": [3]}}, "the vocabulary is damaged"),
    ):
        path.write_text(json.dumps(pipeline | change))
        refused(source, f"tokenizer.json.*{message}")


def test_what_is_no_published_folder_is_one_of_ours(tmp_path):
    assert checkpoints.published(tmp_path) is None
    assert checkpoints.published(tmp_path / "nothing") is None
    refused(tmp_path, "holds no complete checkpoint")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "holds no complete checkpoint")
    (tmp_path / "config.json").write_text("no JSON")
    with pytest.raises(UserError, match="config.json cannot be used"):
        checkpoints.find(tmp_path)
