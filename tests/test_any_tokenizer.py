"""Pipelines of other origins, compared with the library `tokenizers` itself."""

import hashlib
import json
import re

import numpy as np
import pytest
import tokenizers
from corpora import build_text
from other_pipelines import BERT, BUILDERS, ROBERTA, bpe, hostile_texts, learn, unigram
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from bert_jax import config
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import splits
from bert_jax.data import masking
from bert_jax.errors import UserError
from bert_jax.interop import special_token_layout, tokenizer_files
from bert_jax.prediction import filling
from bert_jax.tasks import tagging
from bert_jax.tokenizer import plain_text, special_tokens


@pytest.fixture(scope="module")
def pipelines(documents):
    texts = [line for text in documents[:30] for line in text.splitlines()]
    return {name: build(texts) for name, build in BUILDERS.items()}


def check(pipeline, texts):
    """Compare a tokenizer with its pipeline, and check offsets and special tokens."""
    tokenizer = tokenizer_lib.make(pipeline)
    reference = tokenizers.Tokenizer.from_str(tokenizer.pipeline)
    reference.encode_special_tokens = True
    special = {
        reference.token_to_id(token.content)
        for token in reference.get_added_tokens_decoder().values()
        if token.special
    }
    assert len(special) >= 4
    batch = tokenizer.encode_batch(texts)
    spelt = re.compile("|".join(map(re.escape, [*BERT, *ROBERTA])))
    for text, ids, encoding in zip(
        texts, batch, tokenizer.encode_with_offsets(texts), strict=True
    ):
        assert encoding.ids == ids
        assert special - {tokenizer.unk_id} == special - {tokenizer.unk_id} - {*ids}
        if not spelt.search(text):
            assert ids == reference.encode(text, add_special_tokens=False).ids
        for begin, end in encoding.offsets:
            assert 0 <= begin <= end <= len(text)
            assert begin == end or not text[begin].isspace()
    return tokenizer


def test_unigram_models_without_a_token_for_unknown_text_are_refused(tmp_path):
    """The library raises an error in the middle of a corpus; this is its default."""
    pipeline = unigram(["a cat sat"] * 9, BERT, unk=None)
    pipeline.save(str(tmp_path / "tokenizer.json"))
    message = "unk_id of the Unigram model .* is null; set it to the id"
    with pytest.raises(UserError, match=message):
        tokenizer_files.read(tmp_path)
    values = json.loads(pipeline.to_str())
    values["model"]["unk_id"] = BERT.index("[UNK]")
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    tokenizer = tokenizer_files.read(tmp_path)
    assert tokenizer.unk_id in tokenizer.encode("zebra")


def test_stripped_texts_keep_the_spaces_between_words(documents):
    """ByteLevel marks words by the space before them, which Strip would remove."""
    normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline = bpe(documents[:5], ROBERTA, splitter, normalizer)
    check(pipeline, ["hello world again", " the  end ", *documents[:2]])


@pytest.mark.parametrize("content", [" ", ""])
def test_replaced_words_may_vanish_or_become_spaces(content, documents):
    """Then the spaces around them are one, which words alone do not show."""
    runs = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    normalizer = normalizers.Sequence([normalizers.Replace("-", content), runs])
    pipeline = unigram(documents[:5], normalizer=normalizer)
    check(pipeline, ["the cat - the mat", "a well-known - cat"])


def test_dropout_of_pieces_is_off(documents):
    """A text would have other ids each time."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline = bpe(documents[:5], ROBERTA, splitter, dropout=0.5)
    tokenizer = tokenizer_lib.make(pipeline)
    assert len({tuple(tokenizer.encode(documents[0])) for _ in range(3)}) == 1


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_the_text_after_a_blank_follows_the_prepend_scheme(scheme, documents):
    splitter = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    pipeline = unigram(documents[:5], splitter=splitter)
    pipeline.add_special_tokens([*ROBERTA])
    expected = pipeline.encode("(<mask>)", add_special_tokens=False).ids
    assert tokenizer_lib.make(pipeline).encode_with_blanks("(<mask>)") == expected


@pytest.mark.parametrize("name", BUILDERS)
def test_pipelines_are_used_as_they_are(name, pipelines, documents, tmp_path):
    pipeline = pipelines[name]
    sentences = [f" {line}" for text in documents[:30] for line in text.splitlines()]
    tokenizer = check(pipeline, [*hostile_texts(400), *documents[:3], *sentences])
    # Folders and checkpoints hold the same pipeline.
    tokenizer.save(tmp_path)
    assert tokenizer_lib.Tokenizer.load(tmp_path) == tokenizer
    assert tokenizer_lib.Tokenizer.loads(tokenizer.dumps()) == tokenizer
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    assert saved == json.loads(pipeline.to_str())


@pytest.mark.parametrize("name", BUILDERS)
def test_words_begin_where_the_text_has_spaces(name, pipelines):
    """A vocabulary without markers has a word for each token."""
    tokenizer = tokenizer_lib.make(pipelines[name])
    text = "the attributes of unparenthesised objects"
    (ids,) = tokenizer.encode_continuations([f" {text}"])
    starts = [not tokenizer.continues_word[i] for i in ids]
    assert sum(starts) == len(text.split())
    words = []
    for i, is_start in zip(ids, starts, strict=True):
        if is_start:
            words.append("")
        words[-1] += tokenizer.texts[i]
    if tokenizer.unk_id not in ids:
        assert words == text.split()
    # Special tokens are words, and unknown text is a part of one if spaces are marked.
    t, continues = tokenizer, tokenizer.continues_word
    assert not continues[[t.cls_id, t.sep_id, t.pad_id]].any()
    assert continues[t.unk_id] == bool(t.space_marker)


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "word_level"])
def test_sentences_and_words_have_the_ids_of_their_line(name, pipelines):
    """In "word_level", words end at spaces only."""
    tokenizer = tokenizer_lib.make(pipelines[name])
    line = "The object is left. It is the end.The value is set (the end)."
    expected = pipelines[name].encode(line, add_special_tokens=False).ids
    first, *others = splits.normalise_spaces(splits.split_sentences("en", line))
    assert len(others) == 2
    ids = [tokenizer.encode(first), *tokenizer.encode_continuations(others)]
    assert sum(ids, []) == expected
    rows = tagging.make_rows([line.split()], tokenizer, 64)
    ids = rows.arrays["input_ids"][0][rows.arrays["attention_mask"][0]]
    first = tokenizer.encode("The")  # in a list, its space is a part of it
    assert ids[rows.words[1, 1] : -1].tolist() == expected[len(first) :]
    line = "The object is left.\u3000It is the end.\n\u3000The value is set."
    first, *others = splits.normalise_spaces(splits.split_sentences("en", line))
    ids = [tokenizer.encode(first), *tokenizer.encode_continuations(others)]
    line = line.replace("\n", " ")
    assert sum(ids, []) == pipelines[name].encode(line, add_special_tokens=False).ids


def test_blanks_of_other_pipelines(pipelines):
    for name in BUILDERS:
        tokenizer = tokenizer_lib.make(pipelines[name])
        for blank in ("[MASK]", tokenizer.special_tokens.mask):
            ids = tokenizer.encode_with_blanks(f"the {blank} of the {blank}")
            assert ids.count(tokenizer.mask_id) == 2
            assert ids[-1] == tokenizer.mask_id != ids[0]


def test_special_tokens_that_the_merges_spell_are_text_in_a_text():
    """The trainer gives a merge that spells a special token this token's id."""
    text = "an <s>old</s> <mask> of 1,000 <mask> <s> </s>"
    splitter = pre_tokenizers.WhitespaceSplit()
    pipeline = bpe([text] * 50, ROBERTA, splitter, unk_token="<unk>")
    ids = {token: pipeline.token_to_id(token) for token in ROBERTA}
    merges = json.loads(pipeline.to_str())["model"]["merges"]
    assert ids.keys() & {"".join(pair) for pair in merges}
    encoded = tokenizer_lib.make(pipeline).encode(text)
    assert not {*ids.values()} & {*encoded}


def test_a_special_token_without_a_role_is_text_in_a_text(documents):
    """Unigram has special tokens among its pieces."""
    pipeline = unigram(documents[:5], [*ROBERTA, "<extra>"])
    (ids,) = tokenizer_lib.make(pipeline).encode_batch(["a <extra> b"])
    assert pipeline.token_to_id("<extra>") not in ids


def test_special_tokens_are_named_or_known(pipelines, tmp_path):
    def named(pipeline="bert", **values):
        return tokenizer_lib.make(pipelines[pipeline], values).special_tokens

    assert named() == special_tokens.SPECIAL_TOKENS
    assert named(mask_token={"content": "the"}).mask == "the"
    # In BERT and XLNet of transformers, too, bos_token does not replace cls_token.
    assert named(bos_token="the").cls == "[CLS]"
    assert named(bos_token="the", cls_token="of").cls == "of"
    assert named("roberta", bos_token="the").cls == "the"
    for values, message in (
        ({"pad_token": "[NONE]"}, r"has no \[NONE\], named as its pad token"),
        ({"pad_token": 3}, "a special token must be a text, got 3"),
        ({"pad_token": "[SEP]"}, "must be different tokens"),
        ({"pad_token": "[UNK]"}, r"\[UNK\] is the pad token, and the model gives"),
        ({"mask_token": "."}, r"the mask token, '\.', has one character"),
    ):
        with pytest.raises(UserError, match=message):
            named(**values)
    # A token may be added as an ordinary one.
    values = json.loads(pipelines["modernbert"].to_str())
    for token in values["added_tokens"]:
        token["special"] = False
    ordinary = tokenizer_lib.make(values)
    assert ordinary.mask_id not in ordinary.encode("the [MASK]")
    unnamed = learn(
        models.WordLevel(unk_token="[?]"),
        tokenizers.trainers.WordLevelTrainer,
        ["aa bb cc"],
        ["[?]", "[M]"],
        splitter=pre_tokenizers.WhitespaceSplit(),
    )
    with pytest.raises(UserError, match=r"has no \[PAD\] or .*; name its pad token as"):
        tokenizer_lib.make(unnamed)
    names = ("pad_token", "bos_token", "eos_token", "mask_token")
    special = dict(zip(names, ("aa", "bb", "bb", "cc"), strict=True))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    unnamed.save(str(tmp_path / "tokenizer.json"))
    assert tokenizer_lib.Tokenizer.load(tmp_path).special_tokens.mask == "cc"
    # If two files disagree, transformers reads one of them.
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"mask_token": "[M]", "pad_token": None}))
    assert tokenizer_lib.Tokenizer.load(tmp_path).special_tokens.mask == "cc"
    path.write_text(
        json.dumps(special | {"mask_token": "[M]", "added_tokens_decoder": {}})
    )
    assert tokenizer_lib.Tokenizer.load(tmp_path).special_tokens.mask == "[M]"


def test_pairs_are_joined_as_the_pipeline_joins_them(pipelines):
    pipeline = tokenizers.Tokenizer.from_str(pipelines["eurobert"].to_str())
    begin, end = "<|begin_of_text|>", "<|end_of_text|>"
    ids = [(token, pipeline.token_to_id(token)) for token in (begin, end)]
    for between, expected in (
        (f"$A {end}", [1]),
        (f"$A {end} {begin}", [1, 0]),
        ("$A", [1]),
    ):
        pipeline.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} {between} $B {end}",
            special_tokens=ids,
        )
        assert tokenizer_lib.make(pipeline).pair_separators == expected


def test_a_vocabulary_without_latin_letters(tmp_path, capsys):
    """It joins pairs, and drops what it lacks. A build of a corpus says so."""
    text = "नमस्ते दुनिया"
    pipeline = learn(
        models.BPE(),
        trainers.BpeTrainer,
        [text],
        [token for token in ROBERTA if token != "<unk>"],
        splitter=pre_tokenizers.Whitespace(),
    )
    pipeline.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, pipeline.token_to_id(token)) for token in ROBERTA[2:4]],
    )
    tokenizer = tokenizer_lib.make(pipeline)
    assert tokenizer.encode("a b") == []
    assert tokenizer.pair_separators == [tokenizer.sep_id] * 2
    special_token_layout.check("x", tokenizer, cls_is_last=False, has_segments=False)
    build_text([f"{text} and more"], tokenizer, tmp_path / "corpus")
    assert "not in its vocabulary will be missing" in capsys.readouterr().err


def test_last_digits_of_scores_make_no_other_tokenizer(documents):
    """`tokenizers` changes them when it saves a file that it has read."""
    first = tokenizer_lib.make(unigram(documents[:5]))
    saved = tokenizers.Tokenizer.from_str(first.pipeline).to_str()
    again = tokenizer_lib.make(json.loads(saved))
    assert again.steps() != first.steps()
    assert again.fingerprint == first.fingerprint
    # Earlier versions hashed all digits.
    text = json.dumps([first.steps(), first.special_tokens], sort_keys=True)
    exact = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert first.has_fingerprint(exact) and not again.has_fingerprint(exact)
    values = json.loads(first.pipeline)
    values["model"]["vocab"][-1][1] -= 1e-3
    assert tokenizer_lib.make(values).fingerprint != first.fingerprint


def test_the_form_of_merges_makes_no_other_tokenizer(documents):
    values = json.loads(
        bpe(documents[:5], ROBERTA, pre_tokenizers.ByteLevel()).to_str()
    )
    pairs = tokenizer_lib.make(values)
    merges = [" ".join(pair) for pair in values["model"]["merges"]]
    values["model"]["merges"] = merges
    older = tokenizer_lib.make(values)
    assert older.steps() != pairs.steps()
    assert older.fingerprint == pairs.fingerprint
    values["model"]["merges"] = merges[:-1]
    assert tokenizer_lib.make(values).fingerprint != pairs.fingerprint


def test_words_are_forgotten_when_they_are_many(pipelines, documents, monkeypatch):
    tokenizer = tokenizer_lib.make(pipelines["bert"])
    expected = tokenizer.encode_batch(documents[:20])
    monkeypatch.setattr(plain_text.WordCache, "_MAX_CHARACTERS", 100)
    again = tokenizer_lib.make(pipelines["bert"])
    assert [again.encode(text) for text in documents[:20]] == expected
    words = again._words._known
    assert sum(map(len, words)) == again._words._characters
    assert again.encode("a b") == tokenizer.encode("a b")


def test_a_stripping_normaliser_keeps_the_space_before_an_added_token(documents):
    """The whole text is stripped before an added token is found in it."""
    splitter = pre_tokenizers.Metaspace(prepend_scheme="always")
    pipeline = unigram(documents[:5], normalizer=normalizers.Strip(), splitter=splitter)
    pipeline.add_tokens([tokenizers.AddedToken("covid", normalized=True)])
    check(pipeline, ["the cat covid sat", "covid", " a covid"])


def test_a_vocabulary_that_marks_the_ends_of_words(documents):
    """Its whole words fill blanks; where words begin is unknown."""
    pipeline = tokenizers.Tokenizer(
        models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
    )
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*ROBERTA], end_of_word_suffix="</w>"
    )
    pipeline.train_from_iterator(documents[:9], trainer)
    tokenizer = check(pipeline, documents[:3])
    assert tokenizer.texts[tokenizer.tokens.index("the</w>")] == "the"
    words = [tokenizer.tokens[i] for i in np.flatnonzero(filling.is_word(tokenizer))]
    assert "the</w>" in words and all(word.endswith("</w>") for word in words)
    settings = config.MaskingConfig(unit="word")
    with pytest.raises(UserError, match="unit='word' needs tokens that show where a w"):
        masking.Masking(settings, 32, tokenizer, held_out=False)
