"""Published checkpoints agree with transformers: outputs, losses, tokens, loading."""

import dataclasses
import functools
import json
import re
import shutil
import unicodedata

import flax.serialization
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import published
import pytest
import safetensors
import sentencepiece
import tokenizers
from commands import assert_refused, call, succeed
from toy import TINY

from bert_jax import config, prediction
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import tokenizer_training
from bert_jax.errors import UserError
from bert_jax.interop import (
    checkpoints,
    configs,
    convert,
    lazy_checkpoint,
    tokenizer_files,
)
from bert_jax.interop import safetensors as safetensors_lib
from bert_jax.model import parameters
from bert_jax.objectives import classification
from bert_jax.tasks import choice as task_choice
from bert_jax.tasks import choice_files, token_rows
from bert_jax.tokenizer import Tokenizer, sentencepiece_model
from bert_jax.tokenizer.special_tokens import SPECIAL_TOKENS
from bert_jax.training import sharding

# ---- tokenizers


def test_tokens_agree_with_transformers(tmp_path):
    """Several scripts, combining marks, control characters and a literal [MASK]."""
    for case, settings in (
        ("tokenizer_uncased", {}),
        ("tokenizer_cased", {"do_lower_case": False}),
        ("tokenizer_lower_with_accents", {"strip_accents": False}),
    ):
        folder = published.write(case, tmp_path / case)
        tokenizer = tokenizer_files.read(folder)
        expected = published.ids(case)
        assert tokenizer.encode_batch(published.texts()) == expected
        assert len({i for ids in expected for i in ids}) > 100
        # After a round trip, and from a vocab.txt.
        assert (
            tokenizer_files.read(written(tokenizer, tmp_path / f"{case}2")) == tokenizer
        )
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.txt").write_text("\n".join(tokenizer.tokens))
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        older = tokenizer_files.read(folder)
        assert older.encode_batch(published.texts()) == expected
        assert older.special_tokens == tokenizer.special_tokens


def written(tokenizer, folder):
    """Write the files of a tokenizer into a folder, and return the folder."""
    folder.mkdir()
    tokenizer_files.write(tokenizer, folder, TINY)
    return folder


def learn_sentencepiece(texts, size, **cleaning):
    """Return a tokenizer, and a function with the library's ids of a text."""
    tokenizer = tokenizer_training.train_sentencepiece(texts, size, **cleaning)
    normalizer = sentencepiece_model.normalizer(**cleaning)
    counts = tokenizer_training._sentencepiece_characters(texts, normalizer)
    characters = [t for t in tokenizer.tokens if len(t) == 1 and t != "\u2581"]
    given = texts, normalizer, counts, characters, tokenizer.vocab_size
    model = tokenizer_training._sentencepiece_model(*given)
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    return tokenizer, lambda text: reference.encode(normalizer.normalize_str(text))


def test_learnt_sentencepiece_models_give_the_ids_of_the_library(documents):
    for clean in (False, True):
        cleaning = {"lower_case": clean, "strip_accents": clean}
        tokenizer, ids = learn_sentencepiece(documents[:20], 300, **cleaning)
        for text in filter(is_alike, [*published.texts(), *documents[:20]]):
            assert tokenizer.encode(text) == ids(text), text
        pipeline = tokenizers.Tokenizer.from_str(tokenizer.pipeline)
        assert_same_pair(pipeline, tokenizer)


@pytest.mark.parametrize("strip_accents", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "한국어 문장은 이렇게 쓴다 나는 학교에 간다",
        "がぎぐげご ばびぶべぼ パピプペポ だった",
        "ﾊﾟｿｺﾝ ｶﾞｽ ﾊﾞｽ ﾃﾞｰﾀ ｸﾞﾙｰﾌﾟ ﾋﾞﾙ ﾍﾟﾝ",
        "Tiếng Việt được dùng ở những nước",
        "ἄνθρωπος ἦν ἐν ἀρχῇ ὁ λόγος",
    ],
)
def test_decomposed_text_is_composed_as_the_library_does(text, strip_accents):
    decomposed = unicodedata.normalize("NFD", text)
    cleaning = {"lower_case": False, "strip_accents": strip_accents}
    tokenizer, ids_of = learn_sentencepiece([decomposed] * 50, 90, **cleaning)
    ids = tokenizer.encode(decomposed)
    assert ids == ids_of(decomposed) == tokenizer.encode(text)
    assert tokenizer.unk_id not in ids


def test_pieces_of_several_words(documents):
    settings = {"split_by_whitespace": False, "vocab_size": 1000}
    model = published._pieces(iter(documents), "<pad>,<mask>", **settings)
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = map(reference.id_to_piece, range(reference.get_piece_size()))
    assert any("▁" in piece[1:] for piece in pieces)
    tokenizer = tokenizer_lib.make(sentencepiece_model.pipeline(model, False, False))
    for text in filter(is_alike, documents[:20]):
        assert tokenizer.encode(text) == reference.encode(text)


def test_sentencepiece_models_with_spaces_after_words_are_refused(documents):
    model = published._pieces(iter(documents), "", treat_whitespace_as_suffix=True)
    with pytest.raises(UserError, match="model has treat_whitespace_as_suffix"):
        sentencepiece_model.pipeline(model, False, False)


def test_sentencepiece_models_spell_unknown_characters_in_bytes(documents):
    """If the model was trained with `byte_fallback`."""
    settings = {"vocab_size": 600, "byte_fallback": True, "pad_id": 3}
    model = published._pieces(iter(documents[:20]), "<mask>", **settings)
    reference = sentencepiece.SentencePieceProcessor(model_proto=model)
    pipeline = sentencepiece_model.pipeline(model, False, False)
    tokenizer = tokenizer_lib.make(pipeline)
    spelt = "the <0xE5> is <0x41>"  # these bytes are text
    for text in ("the \u5317 value", "\U0001f600x the", spelt, *documents[:3]):
        assert tokenizer.encode(text) == reference.encode(text)
        assert tokenizer.unk_id not in tokenizer.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split())


def assert_same_pair(reference, tokenizer):
    """Compare special tokens and segments with rows of a task."""
    for texts in (("one", ""), ("one", "and two")):
        encoded = reference.encode(*filter(None, texts))
        length = len(encoded.ids)
        rows, _ = token_rows.to_rows([texts], tokenizer, length)
        assert rows["input_ids"][0].tolist() == encoded.ids
        assert rows["segment_ids"][0].tolist() == encoded.type_ids
        assert rows["attention_mask"].all()


def test_pairs_are_exported_as_bert_jax_joins_them(tmp_path):
    """Also with two different tokens between the texts."""
    case = published.write("bare", tmp_path / "bare")
    pipeline = tokenizers.Tokenizer.from_file(str(case / "tokenizer.json"))
    pipeline.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A",
        pair="[CLS] $A [SEP] [CLS] $B",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer = tokenizer_lib.make(pipeline)
    out = written(tokenizer, tmp_path / "out")
    exported = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    assert_same_pair(exported, tokenizer)


def test_the_vocabulary_of_a_roberta(tmp_path, documents):
    """`test_byte_bpe.py` reads vocab.json with merges.txt."""
    folder = published.write("roberta_bare", tmp_path / "model")
    tokenizer = tokenizer_files.read(folder)
    assert tokenizer.special_tokens.mask == "<mask>"
    assert (tokenizer.cls_id, tokenizer.pad_id, tokenizer.mask_id) == (0, 1, 265)
    assert tokenizer.pair_separators == [2, 2]
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [*published.texts(), *documents[:5]]

    def ids(pipeline):
        pipeline.encode_special_tokens = True
        return [pipeline.encode(text, add_special_tokens=False).ids for text in texts]

    assert tokenizer.encode_batch(texts) == ids(reference)
    # A pair is <s> A </s></s> B </s>, in all tasks.
    native, _ = token_rows.to_rows([("one", "two")], tokenizer, 40)
    pair = reference.encode("one", "two").ids
    assert pair.count(tokenizer.sep_id) == 3
    assert native["input_ids"][0, : len(pair)].tolist() == pair
    assert native["attention_mask"].sum() == len(pair)
    asked = [choice_files.Question(1, "one", ("two", "three"), 0)]
    rows, _ = task_choice.make_rows(asked, tokenizer, len(pair), 2)
    assert rows["input_ids"][0, 0].tolist() == pair
    learnt = tokenizer_training.train_byte_bpe(documents[:20], 400)
    assert_same_pair(tokenizers.Tokenizer.from_str(learnt.pipeline), learnt)
    (folder / "tokenizer.json").unlink()
    ids_of_tokens = {token: i for i, token in enumerate(tokenizer.tokens)}
    (folder / "vocab.json").write_text(json.dumps(ids_of_tokens))
    with pytest.raises(UserError, match="or vocab.json with merges.txt"):
        tokenizer_files.read(folder)


def test_the_vocabulary_of_an_albert(tmp_path, documents):
    """A SentencePiece model with the special tokens `<pad>` and `<unk>`."""
    folder = published.sentencepiece_of_albert(tmp_path / "model", documents[:20])
    reference = sentencepiece.SentencePieceProcessor(str(folder / "spiece.model"))
    tokenizer = tokenizer_files.read(folder)
    special = tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.mask_id
    assert special == (0, 1, 2, 4)
    assert tokenizer.tokens[5:] == [reference.id_to_piece(i) for i in range(5, 300)]
    text = "the file, or the one that was opened before; \u5317 it"
    assert tokenizer.encode(f"The FIL\u00c9{text[8:]}") == reference.encode(
        f"the file{text[8:]}"
    )
    assert 1 in tokenizer.encode(text)
    settings = {"do_lower_case": False, "keep_accents": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = tokenizer_files.read(folder)
    assert tokenizer.encode("FIL\u00c9") == reference.encode("FIL\u00c9")
    assert tokenizer_files.read(written(tokenizer, tmp_path / "again")) == tokenizer


def test_the_vocabulary_of_an_xlnet(tmp_path):
    """Special tokens such as `<cls>`, and [CLS] behind the text."""
    folder = published.write("xlnet_bare", tmp_path / "model")
    tokenizer = checkpoints.read_metadata(checkpoints.find(folder)).tokenizer
    special = tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
    assert (*special, tokenizer.mask_id) == (0, 3, 4, 5, 6)
    again = tmp_path / "again"
    convert.convert(str(folder), str(again), "huggingface")
    written_again = checkpoints.read_metadata(checkpoints.find(again)).tokenizer
    assert written_again.steps() == tokenizer.steps()
    reference = tokenizers.Tokenizer.from_file(str(again / "tokenizer.json"))
    pair = reference.encode("one", "two")
    native, _ = token_rows.to_rows([("one", "two")], tokenizer, len(pair.ids))
    assert np.roll(native["input_ids"][0], -1).tolist() == pair.ids
    assert pair.type_ids[-2:] == [1, 2]
    reference.encode_special_tokens = True  # as text
    for text, ids in zip(
        published.texts(), tokenizer.encode_batch(published.texts()), strict=True
    ):
        assert reference.encode(text, add_special_tokens=False).ids == ids, text
    settings = json.loads((again / "tokenizer_config.json").read_text())
    assert settings["padding_side"] == "left"


def test_the_folder_of_a_published_deberta(tmp_path):
    """Pieces without [MASK], 100 rows at a time, and heads of no class."""
    folder = published.write("deberta_other_masked_lm", tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (folder / "spm.model").write_bytes(published.pieces_of_deberta())
    reference = sentencepiece.SentencePieceProcessor(str(folder / "spm.model"))
    count = len(reference)
    rows = -(-(count + 1) // 100) * 100
    values = json.loads((folder / "config.json").read_text()) | {"vocab_size": rows}
    del values["architectures"], values["legacy"]
    (folder / "config.json").write_text(json.dumps(values))
    arrays = published.arrays_of(folder)
    head = {name: x for name, x in arrays.items() if name.startswith("lm_predictions")}
    assert len(head) == 5
    arrays["mask_predictions.dense.weight"] = np.ones((16, 16), np.float32)
    table = "deberta.embeddings.word_embeddings.weight"
    arrays[table] = np.resize(arrays[table], (rows, 16))
    published.write_arrays(folder, arrays)
    read = lazy_checkpoint.read(str(folder))
    assert read.metadata.config == {"kind": "bare encoder"}
    assert sorted(read.ignored) == sorted([*head, "mask_predictions.dense.weight"])
    tokenizer = read.metadata.tokenizer
    special = tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id
    assert (*special, tokenizer.mask_id) == (0, 1, 2, 3, count)
    for text in ("the folder of a case", "  Names, and\tarrays  of Caf\u00e9 \u5317"):
        assert tokenizer.encode(text) == reference.encode(text)
    (folder / "tokenizer_config.json").write_text('{"split_by_punct": true}')
    with pytest.raises(UserError, match="split_by_punct is true in tokenizer_config"):
        tokenizer_files.read(folder)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": "false"}')
    with pytest.raises(UserError, match="do_lower_case must be of type bool, got 'fa"):
        tokenizer_files.read(folder)


def test_a_corpus_is_built_with_the_tokenizer_of_a_folder(tmp_path):
    (tmp_path / "text.txt").write_text("aa ab. ac\n\nad ae\n" * 9)
    for case in ("pretraining", "xlnet_bare"):
        folder = published.write(case, tmp_path / case)
        (folder / "model.safetensors").unlink()
        output = tmp_path / f"corpus_of_{case}"
        flags = f"--input={tmp_path}/text.txt", "--format=text", f"--output={output}"
        succeed("build_corpus", *flags, f"--tokenizer={folder}", "--workers=1")
        built = Tokenizer.load(output / "tokenizer")
        assert built == tokenizer_files.read(folder)
    path = tmp_path / "pretraining/tokenizer.json"
    text = path.read_text()
    flags = f"--input={tmp_path}/text.txt", "--format=text", f"--output={tmp_path}/y"
    flags += f"--tokenizer={tmp_path}/pretraining", "--special_tokens"
    for given, message in (
        ("mask", "expected ROLE=TOKEN with the role pad, cls, sep, mask, got 'mask'"),
        ("mask=[X]", "the vocabulary has no [X]"),
        ("mask=[SEP]", "padding, separator and mask must be different tokens"),
    ):
        assert_refused(call("build_corpus", *flags, given), message)
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "aa"]))
    of_file = *flags[:-2], f"--tokenizer={tmp_path}/vocab.txt", flags[-1]
    done = call("build_corpus", *of_file, "mask=aa")
    assert_refused(done, "--special_tokens applies to the folder of a tokenizer only")
    (tmp_path / "google").mkdir()
    (tmp_path / "vocab.txt").rename(tmp_path / "google/vocab.txt")
    (tmp_path / "google/bert_config.json").write_text("{}")
    of_google = *flags[:-2], f"--tokenizer={tmp_path}/google", flags[-1]
    done = call("build_corpus", *of_google, "mask=aa")
    assert_refused(done, f"--special_tokens does not apply to {tmp_path}/google: its v")
    succeed("build_corpus", *flags, "mask=aa,cls=[SEP]", "--workers=1")
    special = Tokenizer.load(tmp_path / "y/tokenizer").special_tokens
    assert (special.mask, special.cls, special.sep) == ("aa", "[SEP]", "[SEP]")
    assert path.read_text() == text
    path.write_text('{"model": {}}')
    flags = f"--input={tmp_path}/text.txt", "--format=text", f"--output={tmp_path}/x"
    done = call("build_corpus", *flags, f"--tokenizer={tmp_path}/pretraining")
    assert_refused(done, "pretraining cannot be used: ")


def is_alike(text):
    """Return whether `tokenizers` and SentencePiece give the same ids to a text.

    They lower-case a final sigma differently, a run of one character has several
    segmentations of the same score, and `tokenizers` finds special tokens in text.
    """
    return not re.search(r"Σ|\[(MASK|CLS)\]|(.)\2{3}", text)


# ---- loading


def test_older_names_and_copies_are_read(tmp_path):
    """`gamma` and `beta`, no prefix, buffers, and a copy of the decoder."""
    source = published.folder("pretraining")
    expected = published.params(source)
    older = {}
    for name, array in safetensors_lib.read(source / "model.safetensors").items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old = old.replace("LayerNorm.bias", "LayerNorm.beta").removeprefix("bert.")
        older[old] = array.read()
    older["embeddings.position_ids"] = np.arange(20)[None]
    decoder = "cls.predictions.decoder"
    older[f"{decoder}.weight"] = older["embeddings.word_embeddings.weight"]
    older[f"{decoder}.bias"] = older.pop("cls.predictions.bias")
    changed = copy_with(source, tmp_path / "older", older)
    read = checkpoints.open_published(changed)
    jax.tree.map(np.testing.assert_array_equal, published.params(changed), expected)
    assert len(read.ignored) == 2
    # `save_model` of safetensors writes a tied array under its first name only.
    once = older.copy()
    del once["embeddings.word_embeddings.weight"]
    alone = copy_with(source, tmp_path / "once", once)
    jax.tree.map(np.testing.assert_array_equal, published.params(alone), expected)
    assert checkpoints.open_published(alone).metadata == read.metadata
    # A decoder that differs is an output embedding, which pads the vocabulary, too.
    own = older[f"{decoder}.weight"] = older[f"{decoder}.weight"] + 1
    untied = copy_with(source, tmp_path / "untied", older)
    read = checkpoints.open_published(untied)
    assert not read.metadata.encoder.prediction_head.tied
    table = read.parameter("mlm_head/output_embedding")
    assert table.shape == (128, own.shape[1])
    np.testing.assert_array_equal(table[: len(own)], own)
    assert not table[len(own) :].any()
    convert.convert(str(untied), str(tmp_path / "again"), "huggingface")
    again = checkpoints.open_published(tmp_path / "again")
    assert again.metadata == read.metadata
    np.testing.assert_array_equal(again.arrays[f"{decoder}.weight"].read(), own)
    # `transformers` computes with the bias of the decoder, if there are two.
    biases = "cls.predictions.bias", f"{decoder}.bias"
    written = published.arrays_of(tmp_path / "again")
    np.testing.assert_array_equal(*(written[name] for name in biases))
    both = older | {biases[0]: older[biases[1]] + 1}
    bias = checkpoints.open_published(copy_with(source, tmp_path / "both", both))
    np.testing.assert_array_equal(
        bias.parameter("mlm_head/output_bias"), read.parameter("mlm_head/output_bias")
    )
    assert len(prediction.load(untied).fill(["aa [MASK]"], top=3)[0][0]) == 3
    with pytest.raises(UserError, match="tied=False cannot be exported to TensorFlow"):
        convert.convert(str(untied), str(tmp_path / "original"), "tensorflow")


@pytest.fixture
def encoder_of(tmp_path):
    """Return a function that reads the encoder of a case with another config."""

    def read(case, removed=(), **changes):
        values = json.loads((published.folder(case) / "config.json").read_text())
        kept = {n: value for n, value in values.items() if n not in removed}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(kept | changes))
        return configs.read(path).encoder

    return read


def test_older_configs_of_modernbert_are_read(encoder_of):
    """Configs of the models on the Hub were written before `transformers` 5."""
    encoder = functools.partial(encoder_of, "modernbert")
    expected = encoder()
    newer = ("layer_types", "rope_parameters")
    older = {"global_rope_theta": 5000.0, "local_rope_theta": 40.0}
    every = {"global_attn_every_n_layers": 3}
    assert encoder(newer, **older, **every) == expected
    assert encoder(newer, **older) == expected  # 3 is the default
    assert encoder(position_embedding_type="sans_pos") == expected  # mmBERT's
    bases = encoder(newer)
    assert (bases.rotary_base, bases.local_rotary_base) == (160_000, 10_000)
    all_global = encoder(newer, global_attn_every_n_layers=1)
    assert (all_global.attention_window, all_global.global_layer_every) == (0, 1)
    # Values that `transformers` reads too, though it does not write them.
    scaled = encoder(rope_scaling={"rope_type": "default", "rope_theta": 77.0})
    assert (scaled.rotary_base, scaled.local_rotary_base) == (77, 77)
    assert encoder(sliding_window=3).attention_window == 3


def test_scaling_replaces_the_bases_of_eurobert(encoder_of):
    """`rope_scaling` has precedence over `rope_parameters`, as in `transformers`."""
    assert encoder_of("eurobert_bare").rotary_base == 500
    default = {"rope_type": "default"}
    for changes, base in (
        ({"rope_scaling": default | {"rope_theta": 77.0}}, 77),
        ({"rope_scaling": default}, 10_000),
        ({"rope_scaling": default, "rope_theta": 33}, 33),
    ):
        assert encoder_of("eurobert_bare", **changes).rotary_base == base


@pytest.mark.parametrize(
    ("case", "first_names"),
    [
        ("distilbert_bare", ("dim", "n_layers", "n_heads")),
        ("xlnet_bare", ("d_model", "n_layer", "n_head")),
    ],
)
def test_the_second_name_of_a_value_has_precedence(case, first_names, encoder_of):
    """As in `transformers`, whether the first is there or not."""
    expected = encoder_of(case)
    names = ["hidden_size", "num_hidden_layers", "num_attention_heads"]
    fields = ["hidden_size", "num_layers", "num_heads"]
    for name, first, field in zip(names, first_names, fields, strict=True):
        value = getattr(expected, field)
        changed = dataclasses.replace(expected, **{field: 2 * value})
        assert encoder_of(case, **{name: 2 * value}) == changed
        assert encoder_of(case, [first], **{name: value}) == expected
    if case == "xlnet_bare":
        assert encoder_of(case, n_token=400).vocab_size == 400


@pytest.mark.parametrize(
    ("model_type", "begin"), [("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert")]
)
def test_families_with_the_arrays_of_roberta_are_read(model_type, begin, tmp_path):
    for case in ("roberta_masked_lm", "roberta_classification"):
        folder = published.write(case, tmp_path / case)
        expected = checkpoints.open_published(folder)
        name = expected.spec.name.replace("Roberta", begin)
        changes = {"architectures": [name], "model_type": model_type}
        published.edit(folder / "config.json", **changes)
        read = checkpoints.open_published(folder)
        assert read.spec.family.model_type == model_type
        assert (read.metadata, read.shapes) == (expected.metadata, expected.shapes)
        done = convert.convert(str(folder), str(tmp_path / f"{case}2"), "huggingface")
        assert done.name == expected.spec.name


def copy_with(source, folder, arrays):
    """Copy a folder with other arrays in it; return the copy."""
    shutil.copytree(source, folder)
    published.write_arrays(folder, arrays)
    return folder


def test_old_flax_checkpoints_are_read(tmp_path):
    for case in ("pretraining", "roberta_masked_lm", "electra_discriminator"):
        folder = published.write(case, tmp_path / case)
        expected = checkpoints.open_published(folder)
        tree = published.write_flax(folder)
        (folder / "model.safetensors").rename(folder / "kept")
        got = checkpoints.open_published(folder)
        assert (got.shapes, got.spec) == (expected.shapes, expected.spec)
        (folder / "kept").rename(folder / "model.safetensors")
        for path in expected.shapes:
            np.testing.assert_array_equal(got.parameter(path), expected.parameter(path))
    (folder / "model.safetensors").unlink()
    tree = jax.tree.map(lambda array: array.astype(np.int8), tree)
    content = flax.serialization.msgpack_serialize(tree)
    (folder / "flax_model.msgpack").write_bytes(content)
    with pytest.raises(UserError, match="is of type int8; weights must be floating"):
        checkpoints.open_published(folder).parameter(path)


def test_safetensors_files(tmp_path):
    """Files that the library of the format reads and writes."""
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(4, dtype=np.float32)[::-1],
        "nothing": np.zeros((0, 4), np.float32),
    }
    path = tmp_path / "model.safetensors"
    shapes = {name: array.shape for name, array in arrays.items()}
    safetensors_lib.write(path, shapes, reversed(arrays.items()))
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0  # aligned
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}
    jax.tree.map(np.testing.assert_array_equal, published.arrays_of(tmp_path), arrays)
    half = np.float16([[0.5], [3]]), np.asarray(jnp.array([1.5, -2], jnp.bfloat16))
    arrays |= dict(zip("cd", half, strict=True))
    published.write_arrays(tmp_path, arrays)
    read = safetensors_lib.read(path)
    for name, array in arrays.items():
        got = read[name].read()
        assert (got.dtype, got.shape) == (array.dtype, read[name].shape)
        np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize(
    ("case", "new", "ignored"),
    [
        (
            "tagging",
            ["encoder/pooler/bias", "encoder/pooler/kernel"],
            ["classifier.bias", "classifier.weight"],
        ),
        # The projection of the embeddings is loaded, too.
        ("albert_bare", [], []),
    ],
)
def test_a_classifier_starts_with_the_encoder(case, new, ignored):
    source = checkpoints.find(published.folder(case))
    encoder = checkpoints.read_metadata(source).encoder
    objective = classification.Classification(encoder, 3)
    mesh = sharding.make_mesh(config.MeshConfig())
    shapes = sharding.state_shapes(objective.init, mesh)
    loaded = checkpoints.load_params(source, {"encoder": shapes["encoder"]})
    assert loaded.missing == new
    assert loaded.ignored == ignored
    assert f"ignored: {len(ignored)} parameters" in loaded.describe(source)
    projection = "encoder/embedding_projection/kernel"
    assert (projection in loaded.params) == (case == "albert_bare")
    expected = parameters.flatten(published.params(source))
    for path, array in loaded.params.items():
        np.testing.assert_array_equal(np.asarray(array), expected[path])
