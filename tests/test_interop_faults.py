"""Folders of other projects that are refused with one clear line."""

import json
import shutil

import numpy as np
import published
import pytest
import tokenizers
from published import edit

from bert_jax import prediction
from bert_jax.errors import UserError
from bert_jax.interop import checkpoints, convert
from bert_jax.interop import published as published_lib


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes the folder of a case, to be damaged."""
    return lambda case: published.write(case, tmp_path / case)


def refused(path, message):
    with pytest.raises(UserError, match=message) as raised:
        checkpoints.find(path)
    assert "\n" not in str(raised.value)


GLOBAL, LOCAL = "full_attention", "sliding_attention"
SCALED = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}
REFUSED_CONFIGS = {
    "pretraining": [
        ({"model_type": "gpt2"}, "unknown model_type 'gpt2'; expected 'albert'"),
        ({"hidden_act": "relu"}, "is 'relu'; bert_jax supports 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "a quantization_config"),
        ({"position_embedding_type": "relative_key"}, "'absolute' only"),
        ({"add_cross_attention": True}, "is True; .* supports False"),
        ({"is_causal": True}, "is_causal is True; .* supports False"),
        ({"hidden_size": "32"}, "hidden_size must be of type int, got"),
        ({"hidden_size": 48}, r"bias has shape \(32,\); expected \(48,\)"),
        ({"num_attention_heads": 5}, "num_heads=5 does not divide hidden"),
        ({"num_hidden_layers": 2}, "has arrays of 3 layers; .* says 2"),
        ({"vocab_size": 44}, "has 45 tokens, the model 44 "),
        ({"vocab_size": 1069}, "has 45 tokens, the model 1069 .* or up to 1023"),
        ({"vocab_size": 48}, r"\(45, 32\); expected \(48, 32\) from conf"),
        ({"architectures": ["BertForSlots"]}, "reads BertForMaskedLM, .*, BertModel"),
    ],
    "classification": [
        ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "id2label names two classes"),
        ({"id2label": {"0": "a", "1": "b"}}, "id2label must name the 3 classes"),
    ],
    "albert_bare": [
        ({"inner_group_num": 2}, "_num is 2; .* supports 1 only"),
        ({"num_hidden_groups": 1}, "2 groups of layers; .* says 1"),
        ({"num_hidden_groups": 3}, "num_layer_groups=3 does not divide"),
        ({"embedding_size": 24}, "ALBERT of transformers projects them"),
        ({"is_decoder": True}, "causal; .* has no causal class of ALBERT"),
    ],
    "electra_tagging": [
        ({"model_type": "bert", "architectures": None}, "has no arrays bert.encoder.l")
    ],
    "roberta_masked_lm": [({"pad_token_id": 0}, "pad_token_id, from which .* is 0 in")],
    "electra_choice": [
        ({"summary_activation": "relu"}, "summary_activation is 'relu'; .* 'gelu' only")
    ],
    "eurobert_bare": [
        ({"head_dim": 8}, "head_dim is 8; .* hidden_size / num_attention_heads only"),
        ({"mlp_bias": True}, "attention_bias is False and mlp_bias is True; .* equal"),
        ({"head_dim": {}}, "head_dim must be of type int, got {}"),
        ({"rope_parameters": SCALED}, "rope_type is 'yarn'; .* 'default' only"),
        ({"rope_parameters": None, "rope_theta": [1e4]}, "rope_theta must be of type"),
        ({"classifier_pooling": "max"}, "is 'max'; bert_jax supports 'late', 'bos'"),
    ],
    "nomicbert_bare": [
        ({"rope_scaling": {"type": "dynamic"}}, "rope_type is 'dynamic'; .* only"),
        ({"head_dim": 16}, "head_dim is 16; .* hidden_size / num_attention_heads"),
    ],
    "ultrabert_bare": [
        ({"attention_windows": [2, 2, None, 2]}, "attention_windows is of an older"),
        ({"rope_parameters": {GLOBAL: SCALED}}, "rope_type is 'yarn'; .* 'default'"),
        ({"sliding_window": 0}, "local_rotary_base=30.0 .*attention_window=0"),
    ],
    "deberta_other_masked_lm": [
        ({"relative_attention": False}, "relative_attention is False; .* True only"),
        ({"share_att_key": None}, "share_att_key is None; .* True only"),
        ({"position_biased_input": True}, "position_biased_input is True; .* False"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd is 'none'; .* 'layer_norm' only"),
        ({"conv_kernel_size": 3}, "conv_kernel_size is 3; bert_jax supports 0 only"),
        ({"embedding_size": 8}, "embedding_size is 8; bert_jax supports 16 only"),
        ({"pooler_hidden_size": 8}, "pooler_hidden_size is 8; .* 16 only"),
        ({"attention_head_size": 4}, "attention_head_size is 4; .* 8 only"),
        ({"num_attention_heads": 0}, "num_heads=0 must be at least 1"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False; .* True only"),
        ({"pos_att_type": ["c2p"]}, r"pos_att_type is \['c2p'\]; .* 'p2c|c2p' only"),
        ({"pooler_hidden_act": "mish"}, "pooler_hidden_act is 'mish'; .* 'gelu'"),
        ({"pos_att_type": ["p2c|c2p"]}, r"pos_att_type is \['p2c\|c2p'\]; .* only"),
        ({"position_buckets": -1}, "position_buckets is -1; .* buckets of distances"),
        ({"max_relative_positions": 5}, "max_distance=5 must be at least .*=6"),
        ({"model_type": "deberta"}, "unknown model_type 'deberta'; expected"),
    ],
    "xlnet_bare": [({"n_layer": 1}, "has arrays of 2 layers; .* says 1")],
    "modernbert": [
        ({"mlp_bias": True}, "attention_bias is False and mlp_bias is True; .* equal"),
        ({"rope_parameters": {LOCAL: SCALED}}, "rope_type is 'yarn'; .* 'default'"),
        ({"rope_parameters": 3}, "rope_parameters must be of type dict, got 3"),
        ({"rope_parameters": {"rope_theta": 3.0}}, "must have the keys full_attention"),
        (
            {"rope_parameters": {GLOBAL: {}}, "local_rope_theta": None},
            "local_rope_theta must be of type float, got None",
        ),
        (
            {"layer_types": [GLOBAL, GLOBAL, LOCAL, *[GLOBAL] * 5]},
            "layer_types is .*full_attention., .sliding_attention., .* K-th",
        ),
        ({"layer_types": [GLOBAL] * 7}, "layer_types is .*; .* every K-th of 8 layers"),
        ({"layer_types": 3}, "layer_types is 3; .* every K-th of 8 layers"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max'; .*'cls', 'mean'"),
        ({"classifier_activation": "relu"}, "fier_activation is 'relu'; .*'gelu'"),
        ({"local_attention": 1}, "does not go with attention_window=0"),
    ],
}


@pytest.mark.parametrize("case", REFUSED_CONFIGS)
def test_configs_that_do_not_fit_are_refused(case, folder):
    source = folder(case)
    original = (source / "config.json").read_text()
    for values, message in REFUSED_CONFIGS[case]:
        (source / "config.json").write_text(original)
        edit(source / "config.json", **values)
        refused(source, message)


def test_a_config_may_name_one_class_or_none(folder):
    source = folder("classification")
    expected = checkpoints.read_metadata(source)
    edit(source / "config.json", architectures="BertForSequenceClassification")
    assert checkpoints.read_metadata(source) == expected
    edit(source / "config.json", architectures=None)
    with pytest.raises(UserError, match="or name the class of its head"):
        prediction.load(str(source)).classify(["text"])


def test_kinds_of_positions_are_a_list_or_a_text_of_any_case(folder):
    source = folder("deberta_bare")
    expected = checkpoints.read_metadata(source)
    for kinds in ("P2C | c2p", ["c2p", "p2c"]):
        edit(source / "config.json", pos_att_type=kinds)
        assert checkpoints.read_metadata(source) == expected


def test_of_some_classes_only_the_encoder_is_read(folder):
    source = folder("electra_tagging")
    edit(source / "config.json", architectures=["ElectraForCausalLM"])
    read = checkpoints.open_published(source)
    assert read.metadata.config == {"kind": "bare encoder"}
    assert {path.split("/")[0] for path in read.shapes} == {"encoder"}


def test_classifiers_of_several_labels_or_numbers_are_refused(folder):
    source = folder("classification")
    for problem in ("multi_label_classification", "regression"):
        edit(source / "config.json", problem_type=problem)
        message = f"problem_type is '{problem}', with 3 outputs; .* set architectures"
        refused(source, message)
    edit(source / "config.json", architectures=["BertModel"])
    assert checkpoints.open_published(source).metadata.config == {
        "kind": "bare encoder"
    }


def test_weights_that_are_no_finite_numbers_are_refused(folder, tmp_path):
    source = folder("pretraining")
    arrays = published.arrays_of(source)
    name = "bert.encoder.layer.1.output.dense.weight"
    nan = arrays[name].copy()
    nan[3, 4] = np.nan
    for value, message in (
        (nan, f"{name} has NaN or infinite values"),
        (nan.view(np.int32), f"{name} is of type I32; weights must be F64, F32"),
    ):
        changed = arrays | {name: value}
        published.write_arrays(source, changed)
        for use in (
            lambda: list(prediction.load(source).features(["aa ab"])),
            lambda: convert.convert(str(source), str(tmp_path / "out"), "huggingface"),
        ):
            with pytest.raises(UserError, match=message):
                use()
        assert not (tmp_path / "out").exists()


def test_missing_and_damaged_files_are_refused(folder):
    source = folder("pretraining")
    file, kept = source / "model.safetensors", source / "kept"
    content = file.read_bytes()
    for damaged, message in (
        (content[:-1], "model.safetensors cannot be used: .*; fetch the file again"),
        (b"", "model.safetensors cannot be used: .*; fetch the file again"),
    ):
        file.write_bytes(damaged)
        refused(source, message)
    file.rename(kept)
    refused(source, "has no model.safetensors, .*index.json or flax_model.msgpack")
    (source / "flax_model.msgpack").write_bytes(b"\x81\xa4bert")
    refused(source, "flax_model.msgpack cannot be used: .*; fetch the file again")
    (source / "flax_model.msgpack").unlink()
    (source / "pytorch_model.bin").write_bytes(b"x")
    refused(source, "pytorch_model.bin is a pickle, .* can run code; write its arrays")
    # The first configs had neither of these fields.
    config = json.loads((source / "config.json").read_text())
    del config["model_type"], config["architectures"]
    (source / "config.json").write_text(json.dumps(config))
    refused(source, "pytorch_model.bin is a pickle")
    (source / "bert_config.json").write_text(json.dumps(config))
    refused(source, "has no bert_model.ckpt.index")  # TensorFlow's files come first
    (source / "bert_config.json").unlink()
    (source / "pytorch_model.bin").unlink()
    file.write_bytes(content)
    checkpoints.find(source)
    (source / "config.json").rename(kept)
    refused(source, "has no config.json")


def test_missing_shards_are_refused(folder):
    source = folder("tagging")
    shards = sorted(source.glob("model-*.safetensors"))
    assert len(shards) == 5
    shards[2].unlink()
    refused(source, f"has no {shards[2].name}, one of 5 in model.safetensors.index")
    # A copy of another shard.
    shutil.copy(shards[1], shards[2])
    refused(source, "has no array ")
    for value, message in (
        ({}, "has no arrays bert.encoder.layer.0"),
        ({"x": 3}, "has no 3, one of 1 in model.safetensors.index"),
        ({"x": [3]}, r"has no \[3\], one of 1 in model"),
    ):
        edit(source / "model.safetensors.index.json", weight_map=value)
        refused(source, message)


def test_arrays_of_other_shapes_are_refused(folder):
    source = folder("classification")
    arrays = published.arrays_of(source)
    kernel = "bert.encoder.layer.0.output.dense.weight"
    for name, value, message in (
        (kernel, arrays[kernel].T, rf"{kernel} has shape \(36, 16\); .* \(16, 36\)"),
        (kernel, None, f"has no array {kernel}"),
        ("bert.pooler.dense.bias", np.zeros(3), r"pooler.dense.bias has shape \(3,\)"),
        ("classifier.weight", np.zeros((4, 16)), "id2label must name the 4"),
    ):
        changed = {**arrays, name: value}
        kept = {key: array for key, array in changed.items() if array is not None}
        published.write_arrays(source, kept)
        refused(source, message)
    # As torch.compile and DistributedDataParallel name them.
    for wrapper in ("_orig_mod", "module"):
        wrapped = {f"{wrapper}.{name}": array for name, array in arrays.items()}
        published.write_arrays(source, wrapped)
        refused(source, rf"bert.encoder.layer.0.\*, as BERT has .*, but {wrapper}.bert")


def test_embeddings_may_have_rows_without_a_token():
    check = published_lib._check_vocabulary
    for tokens, rows in (
        (30522, 30522),
        (30522, 30528),  # to 8, 16, 32 and 64
        (30522, 30592),  # to 128
        (50265, 51200),  # to 1024
    ):
        check("x", "config.json", tokens, rows, tokens_are_lines=True)
    # The first one lacks a line of the vocabulary.
    for tokens, rows in (
        (30521, 30522),
        (30522, 30529),
        (30522, 32768),
        (30522, 30521),
    ):
        with pytest.raises(UserError, match="vocab_size in config.json"):
            check("x", "config.json", tokens, rows, tokens_are_lines=True)
    # Multilingual MiniLM: XLM-R's SentencePiece, in which no token can be missing.
    check("x", "config.json", 250002, 250037, tokens_are_lines=False)
    for rows in (250001, 251026):
        with pytest.raises(UserError, match="expected the same .* or up to 1023 more"):
            check("x", "config.json", 250002, rows, tokens_are_lines=False)


def test_vocabularies_that_do_not_fit_are_refused(folder):
    source = folder("pretraining")
    tokens = list(json.loads((source / "tokenizer.json").read_text())["model"]["vocab"])
    (source / "tokenizer.json").unlink()
    refused(source, "no tokenizer.json, vocab.txt, spiece.model, spm.model, sent")
    (source / "vocab.txt").write_text("\r\n".join(tokens))
    assert checkpoints.read_metadata(source).tokenizer.tokens == tokens
    for changed, message in (
        ([*tokens, "more", "and more"], "has 47 tokens, the model 45"),
        (tokens[:4] + tokens[5:], r"the vocabulary has no \[MASK\]"),
        ([*tokens[:9], "", *tokens[10:]], f"^{source}: vocabulary, line 10"),
        (tokens[:-5], "has 40 tokens, the model 45 .*resize_token_embeddings.40."),
    ):
        (source / "vocab.txt").write_text("\n".join(changed))
        refused(source, message)
    (source / "added_tokens.json").write_text('{"covid": 41}')
    refused(source, "added token 'covid' has the id 41; the vocabulary gives it 40")
    (source / "added_tokens.json").unlink()
    (source / "vocab.txt").write_text("\n".join(tokens))
    checkpoints.find(source)
    settings = source / "tokenizer_config.json"
    for damaged in ([], {"40": "covid"}, {"40": {"id": 40}}, {"?": {"content": "a"}}):
        edit(settings, added_tokens_decoder=damaged)
        refused(source, "added tokens cannot be used: ")
    edit(settings, added_tokens_decoder={})
    edit(settings, tokenizer_class="BertJapaneseTokenizer")
    refused(source, "tokenizer_class 'BertJapaneseTokenizer' splits texts in its own")
    edit(settings, tokenize_chinese_chars=False, tokenizer_class="BertTokenizer")
    refused(source, "tokenize_chinese_chars is false in tokenizer_config.json")


BERT = {"cls": ["[CLS]", 2], "sep": ["[SEP]", 3]}


def template(single, pair):
    special = [*map(tuple, BERT.values())]
    made = tokenizers.processors.TemplateProcessing(single, pair, special)
    return json.loads(made.__getstate__())


@pytest.mark.parametrize(
    ("case", "part", "values", "message"),
    [
        ("bare", "model", {"type": "WordPiece", "vocab": 3}, "cannot be used"),
        ("bare", "model", {"unk_token": "zzz"}, "the vocabulary has no zzz"),
        ("roberta_bare", "model", {"merges": [["a", "z"]]}, "cannot be used: .*az"),
        (
            "bare",
            "post_processor",
            BERT | {"type": "BertProcessing", "cls": ["[SEP]", 3]},
            r"joins text pairs as \[SEP\] A \[SEP\] B \[SEP\]; bert_jax supports "
            r"\[CLS\] A \[SEP\] B \[SEP\] only",
        ),
        (
            "bare",
            "post_processor",
            template("[CLS] $A", "[CLS] $A [SEP] $B:1 [SEP]:1"),
            r"surrounds a text as \[CLS\] A; bert_jax supports \[CLS\] A \[SEP\] only",
        ),
        (
            "pretraining",
            "post_processor",
            template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]"),
            r"the segments \[0, 0, 0, 1, 0\] to the pair .* \[0, 0, 0, 1, 1\] only",
        ),
    ],
)
def test_pipelines_that_cannot_be_used_are_refused(case, part, values, message, folder):
    source = folder(case)
    pipeline = json.loads((source / "tokenizer.json").read_text())
    edited = pipeline[part] | values if part == "model" else values
    edit(source / "tokenizer.json", **{part: edited})
    refused(source, message)


def test_pairs_may_have_two_separators(folder):
    source = folder("bare")
    processor = {"type": "RobertaProcessing", "trim_offsets": True}
    processor |= BERT | {"add_prefix_space": False}
    edit(source / "tokenizer.json", post_processor=processor)
    assert checkpoints.read_metadata(source).tokenizer.pair_separators == [3, 3]


@pytest.mark.parametrize(
    ("steps", "name", "value", "reason"),
    [
        ([], "do_lower_case", False, "lowercase is True"),
        ([], "strip_accents", False, "strip_accents is True"),
        ([], "tokenize_chinese_chars", False, "handle_chinese_chars is True"),
        (["Lowercase"], "do_lower_case", False, "has the step Lowercase"),
        (["StripAccents"], "keep_accents", True, "has the step StripAccents"),
    ],
)
def test_settings_that_contradict_the_pipeline_are_refused(
    steps, name, value, reason, folder
):
    """`transformers` would change the pipeline by them."""
    source = folder("bare")
    if steps:
        normalizers = [{"type": step} for step in steps]
        normalizer = {"type": "Sequence", "normalizers": normalizers}
        edit(source / "tokenizer.json", normalizer=normalizer)
    edit(source / "tokenizer_config.json", **{name: value})
    refused(source, f"{name} is {value} in tokenizer_config.json, .*{reason}.*; make")
    edit(source / "tokenizer_config.json", **{name: not value})
    checkpoints.find(source)


@pytest.mark.parametrize(
    ("settings", "part", "values", "reason"),
    [
        (
            {"tokenizer_class": "BertTokenizer"},
            "normalizer",
            {"lowercase": False},
            "do_lower_case is True by default in the BertTokenizer of",
        ),
        # Without a class, the one of the model; null is no value.
        ({"do_lower_case": None}, "normalizer", {"lowercase": False}, "do_lower_case"),
        ({"do_lower_case": True}, "normalizer", {"strip_accents": False}, "strip_"),
        ({}, "normalizer", {"handle_chinese_chars": False}, "tokenize_chinese_chars"),
        (
            {"tokenizer_class": "RobertaTokenizerFast"},
            "pre_tokenizer",
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
            "add_prefix_space is False by default in the RobertaTokenizerFast",
        ),
    ],
)
def test_defaults_that_contradict_the_pipeline_are_refused(
    settings, part, values, reason, folder
):
    """The classes of `transformers` build the pipeline anew by their defaults."""
    source = folder("bare")
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    checkpoints.find(source)  # the pipeline has the defaults
    pipeline = json.loads((source / "tokenizer.json").read_text())
    edit(source / "tokenizer.json", **{part: pipeline[part] | values})
    refused(source, f"{reason}.*; make them equal in tokenizer_config.json, or set")
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    checkpoints.find(source)


def test_a_model_whose_pairs_have_one_segment(folder):
    """Its second row of the table is not read, as with both rows equal to the first."""
    source = folder("classification")
    arrays = published.arrays_of(source)
    name = "bert.embeddings.token_type_embeddings.weight"
    equal = arrays | {name: arrays[name][[0, 0]]}
    published.write_arrays(source, equal)
    pairs = [("aa ab", "ac"), ("b", "ba bb")]
    expected = prediction.load(source).classify(pairs)
    published.write_arrays(source, arrays)
    settings = source / "tokenizer_config.json"
    bert = {"backend": "tokenizers", "tokenizer_class": "BertTokenizer"}
    for written, segments in (
        ({}, 2),
        ({"tokenizer_class": "XLMRobertaTokenizer"}, 1),  # multilingual MiniLM
        ({"tokenizer_class": "DistilBertTokenizerFast"}, 1),
        # Release 5 of `transformers` writes its class, and no names that are default.
        (bert, 2),
        (bert | {"model_input_names": ["input_ids", "attention_mask"]}, 1),
        (bert | {"tokenizer_class": "TokenizersBackend"}, 1),
    ):
        settings.write_text(json.dumps(written))
        assert checkpoints.read_metadata(source).encoder.type_vocab_size == segments
    one = prediction.load(source).classify(pairs)
    for got, wanted in zip(one, expected, strict=True):
        assert got.probabilities == pytest.approx(wanted.probabilities, abs=1e-6)
    edit(settings, model_input_names="input_ids")
    refused(source, "model_input_names must be of type list, got 'input_ids'")


def test_pipelines_may_pad_or_add_no_special_tokens(folder):
    source = folder("pretraining")
    pad = {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]", "direction": "Right"}
    pad |= {"strategy": {"Fixed": 8}, "pad_to_multiple_of": None}
    cut = {"max_length": 2, "strategy": "LongestFirst", "stride": 0}
    cut |= {"direction": "Right"}
    edit(source / "tokenizer.json", padding=pad, truncation=cut)
    checkpoints.find(source)
    byte_level = {"add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    for processor in (
        None,
        byte_level | {"type": "ByteLevel"},
        BERT | {"type": "BertProcessing"},
    ):
        edit(source / "tokenizer.json", post_processor=processor)
        checkpoints.find(source)


def test_other_folders_are_read_as_native_checkpoints(tmp_path):
    assert checkpoints.open_published(tmp_path) is None
    assert checkpoints.open_published(tmp_path / "nothing") is None
    refused(tmp_path, "holds no complete checkpoint$")
    inner = tmp_path / "snapshots/123"
    inner.mkdir(parents=True)
    (inner / "config.json").write_text("{}")
    refused(tmp_path, f"give a folder below it, such as {inner}")
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "holds no complete checkpoint")
    (tmp_path / "config.json").write_text("no JSON")
    with pytest.raises(UserError, match="config.json cannot be used"):
        checkpoints.find(tmp_path)
