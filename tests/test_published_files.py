"""Folders with the files that models have on the Hub, as their authors wrote them.

`published_configs.json` has the configs of the models that recipes reproduce. Many
tokenizers on the Hub were written by releases of `tokenizers` before 0.10 or 0.15.
"""

import dataclasses
import json
import re

import jax
import numpy as np
import published
import pytest
import recipes
import sentencepiece
import tokenizers
from other_pipelines import BUILDERS, hostile_texts

from bert_jax import config as config_lib
from bert_jax import prediction
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.interop import checkpoints, configs, convert, tokenizer_files
from bert_jax.tokenizer import pipelines

CONFIGS = json.loads((published.FIXTURES / "published_configs.json").read_text())
SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings", "architectures"),
    "num_key_value_heads",
)
# Fields in which recipes differ. The original BERT and XLNet compute GELU by tanh, and
# RoBERTa's segment table has one row.
DIFFERENT = {
    "bert_base": {"activation"},
    "bert_large": {"activation"},
    "xlnet:base": {"activation"},
    "roberta:base": {"type_vocab_size"},
    "modernbert:base": {"pooler"},
    "nomicbert": {"prediction_head"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_recipes_have_the_architectures_of_published_models(name, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[name]))
    got = configs.read(path).encoder
    encoder = recipes.build(name).encoder
    differ = {
        field.name
        for field in config_lib.architecture(got)
        if getattr(got, field.name) != getattr(encoder, field.name)
    }
    assert differ == {"vocab_size"} | DIFFERENT.get(name, set())


def write_config(folder, values, kept=()):
    """Replace the config of a folder, except for some values."""
    path = folder / "config.json"
    old = json.loads(path.read_text())
    path.write_text(json.dumps(values | {name: old[name] for name in kept}))


def older(values):
    """Return a `tokenizer.json` as releases of `tokenizers` of 2020 wrote it."""
    values = json.loads(json.dumps(values))
    model = values["model"]
    for name in ("type", "byte_fallback", "ignore_merges"):
        model.pop(name, None)
    if "merges" in model:
        model["merges"] = [" ".join(pair) for pair in model["merges"]]
    for name in ("pre_tokenizer", "decoder"):
        step = values[name] or {}
        if step.get("type") == "Metaspace":
            values[name] = {"type": "Metaspace", "replacement": "▁", "str_rep": "▁"}
            values[name]["add_prefix_space"] = True
        if step.get("type") == "ByteLevel":
            del step["use_regex"]
    return values


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm_roberta"])
def test_older_tokenizer_files_are_read(name, documents, tmp_path):
    lines = [line for text in documents[:30] for line in text.splitlines()]
    pipeline = BUILDERS[name](lines)
    values = older(json.loads(pipeline.to_str()))
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    tokenizer = tokenizer_files.read(tmp_path)
    reference = tokenizers.Tokenizer.from_str(json.dumps(values))
    reference.encode_special_tokens = True
    texts = [*lines[:300], *(t for t in hostile_texts(200) if not {*t} & {*"<[|"})]
    expected = reference.encode_batch(texts, add_special_tokens=False)
    assert tokenizer.encode_batch(texts) == [each.ids for each in expected]
    # The text behind a blank has a space of its own, or none.
    ids = tokenizer.encode_with_blanks("the value of [MASK] attribute")
    assert ids.count(tokenizer.mask_id) == 1
    assert ids[-1] == tokenizer.encode("the attribute")[-1]


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_older_folders_name_their_special_tokens(file, tmp_path):
    """Tokens of unusual names have their roles, also beside tokens of usual names."""
    roles = ("unk", "pad", "cls", "sep", "mask")
    named = {f"{role}_token": f"<{role.upper()}>" for role in roles}
    named["mask_token"] = {"content": named["mask_token"], "lstrip": True}
    tokens = [*(f"<{role.upper()}>" for role in roles), "a", "b"]
    (tmp_path / file).write_text(json.dumps(named))
    files = {
        1: ("vocab.txt", "\n".join([*tokens, "[UNK]", "[SEP]", "[MASK]"])),
        2: ("vocab.json", json.dumps({token: i for i, token in enumerate(tokens)})),
    }
    (tmp_path / "merges.txt").write_text("")
    for separators, (name, content) in files.items():
        (tmp_path / name).write_text(content)
        tokenizer = tokenizer_files.read(tmp_path)
        special = [getattr(tokenizer, f"{role}_id") for role in roles]
        assert special == [0, 1, 2, 3, 4]
        assert tokenizer.pair_separators == [3] * separators
        (tmp_path / name).unlink()
        if name == "vocab.txt":
            assert tokenizer.encode("a ? b") == [5, 0, 6]
        pipeline = tokenizers.Tokenizer.from_str(tokenizer.pipeline)
        pair = [2, 5, *[3] * separators, 6, 3]
        assert pipeline.encode("a", "b").ids == pair
        assert pipeline.encode("<MASK>", add_special_tokens=False).ids == [4]


@pytest.mark.parametrize("special", [False, True])
def test_special_tokens_may_be_listed_as_added_ones(special, tmp_path):
    """Only added tokens are missing in the vocabulary of the model."""
    listed = {"<mask>": 6, "<pad>": 5, "a": 3}
    named = {"mask_token": "<mask>", "pad_token": "<pad>"}
    tokens = ["<unk>", "<s>", "</s>", "a", "b"]
    ids = {token: i for i, token in enumerate(tokens)}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text("")
    pipeline = pipelines.byte_bpe_steps(tokenizers.models.BPE(ids, []), False)
    pipeline.save(str(tmp_path / "tokenizer.json"))
    if special:
        decoder = {i: {"content": t, "special": True} for t, i in listed.items()}
        named["added_tokens_decoder"] = decoder
    else:
        named["added_tokens_decoder"] = None
        (tmp_path / "added_tokens.json").write_text(json.dumps(listed))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    for _ in range(2):
        tokenizer = tokenizer_files.read(tmp_path)
        assert tokenizer.tokens == [*tokens, "<pad>", "<mask>"]
        assert (tokenizer.pad_id, tokenizer.mask_id) == (5, 6)
        assert tokenizer.encode_with_blanks("a[MASK]b") == [3, 6, 4]
        assert tokenizer_lib.Tokenizer.loads(tokenizer.dumps()) == tokenizer
        (tmp_path / "tokenizer.json").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("settings", "config", "added", "cls"),
    [
        # facebookresearch/fairseq: a piece's id, and how much is added to it.
        ({}, {"model_type": "xlm-roberta"}, 1, 0),
        ({"tokenizer_class": "XLMRobertaTokenizer"}, {"model_type": "bert"}, 1, 0),
        ({"tokenizer_class": "CamembertTokenizer"}, {}, 4, 5),
    ],
)
def test_sentencepiece_of_fairseq(settings, config, added, cls, documents, tmp_path):
    content = published.pieces_of_fairseq(documents[:20])
    (tmp_path / "sentencepiece.bpe.model").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = tokenizer_files.read(tmp_path)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=content)
    lines = {line for text in documents[:40] for line in text.splitlines()}
    # Runs of one character have several segmentations of the same score.
    texts = [line for line in sorted(lines) if not re.search(r"(.)\1{2}", line)]
    assert len(texts) > 500
    texts.append("Ünïcode \u4e00")
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        expected = pieces.encode(text)
        assert ids == [i + added if i != pieces.unk_id() else 3 for i in expected]
    special = tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id, tokenizer.mask_id
    assert special == (cls, 1, cls + 1 if cls else 2, len(pieces) + added)
    assert tokenizer.pair_separators == [tokenizer.sep_id] * 2
    # The ids of another class are not known.
    settings["tokenizer_class"] = "FNetTokenizer"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="or CamembertTokenizer, got FNetTokenizer"):
        tokenizer_files.read(tmp_path)


def test_the_files_of_a_eurobert(tmp_path):
    folder = published.write("eurobert_classification", tmp_path / "model")
    expected = checkpoints.open_published(folder).metadata
    pooling = expected.encoder.pooler.pooling
    names = (*SIZES, "id2label", "label2id")
    for given, read in (("late", "late_mean"), ("mean", "mean"), ("bos", "cls")):
        values = CONFIGS["eurobert:210m"] | {"rope_theta": 500, "clf_pooling": given}
        write_config(folder, values, names)
        got = checkpoints.open_published(folder).metadata
        assert got.encoder.pooler.pooling == read
        assert (got == expected) == (read == pooling)


def test_the_files_of_a_nomicbert(tmp_path):
    folder = published.write("nomicbert_masked_lm", tmp_path / "model")
    expected = published.params(folder)
    (rows,) = {len(x) for n, x in published.arrays_of(folder).items() if "word_e" in n}
    arrays = {
        name.replace("nomic_bert.", "bert."): array
        for name, array in published.arrays_of(folder).items()
    }
    without = ["cls.predictions.bias", "cls.predictions.transform.dense.bias"]
    for name in without:
        del arrays[name]
    copy = arrays["bert.embeddings.word_embeddings.weight"]
    arrays["cls.predictions.decoder.weight"] = copy
    published.write_arrays(folder, arrays)
    values = CONFIGS["nomicbert"] | {"n_embd": 16, "n_head": 2, "n_inner": 20}
    values |= {"n_layer": 2, "n_positions": 20, "rotary_emb_base": 50}
    values |= {"vocab_size": rows}
    write_config(folder, values)
    head = expected["mlm_head"]
    del head["output_bias"], head["transform"]["bias"]
    jax.tree.map(np.testing.assert_array_equal, published.params(folder), expected)
    read = checkpoints.open_published(folder)
    encoder = read.metadata.encoder
    assert read.spec.name == "NomicBertForMaskedLM"
    assert not (encoder.prediction_head.bias or encoder.prediction_head.output_bias)
    native = checkpoints.open_published(published.folder("nomicbert_masked_lm"))
    same = native.metadata.encoder.prediction_head
    assert dataclasses.replace(encoder, prediction_head=same) == native.metadata.encoder
    assert len(prediction.load(str(folder)).fill(["aa [MASK]"], top=3)[0][0]) == 3
    # `transformers` has no head without biases.
    with pytest.raises(UserError, match="supports encoder.prediction_head"):
        convert.convert(str(folder), str(tmp_path / "out"), "huggingface")
    # nomic-embed-text-v1-unsupervised scales its positions in long rows.
    for name, value in (("rotary_scaling_factor", 2), ("mlp_fc1_bias", True)):
        write_config(folder, values | {name: value})
        with pytest.raises(UserError, match=f"{name} is {value}; bert_jax supports"):
            checkpoints.open_published(folder)
