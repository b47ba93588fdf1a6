"""Pipelines of other origins, compared with the library `tokenizers` itself.

They are built from the public definitions of the published ones, with small
vocabularies.
"""

import json
import random
import re
import unicodedata

import pytest
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import vocabulary
from bert_jax.errors import UserError
from bert_jax.tokenizer import special_tokens

BERT = list(special_tokens.SPECIAL_TOKENS)
ROBERTA = list(special_tokens.BYTE_BPE_SPECIAL_TOKENS)
# The split into words of GPT-4 and Llama 3, without look-ahead.
DIGITS_IN_THREES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
)


def learn(model, trainer, texts, special, normalizer=None, splitter=None):
    """Train a pipeline of the given parts."""
    pipeline = tokenizers.Tokenizer(model)
    pipeline.normalizer, pipeline.pre_tokenizer = normalizer, splitter
    kwargs = {"special_tokens": special, "show_progress": False, "vocab_size": 700}
    pipeline.train_from_iterator(texts, trainer(**kwargs))
    return pipeline


def wordpiece(texts, normalizer, splitter):
    trainer = tokenizers.trainers.WordPieceTrainer
    model = models.WordPiece(unk_token="[UNK]")
    return learn(model, trainer, texts, BERT, normalizer, splitter)


def bpe(texts, special, splitter, normalizer=None, **settings):
    def trainer(**kwargs):
        alphabet = [] if settings else pre_tokenizers.ByteLevel.alphabet()
        return tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet, **kwargs)

    return learn(models.BPE(**settings), trainer, texts, special, normalizer, splitter)


def unigram(texts, special, unk, normalizer, splitter):
    def trainer(**kwargs):
        return tokenizers.trainers.UnigramTrainer(unk_token=unk, **kwargs)

    return learn(models.Unigram(), trainer, texts, special, normalizer, splitter)


def modernbert(texts):
    pipeline = bpe(texts, BERT, pre_tokenizers.ByteLevel(False), normalizers.NFC())
    pipeline.add_tokens([AddedToken(" " * n, normalized=False) for n in (2, 3, 8)])
    pipeline.add_tokens([AddedToken("|||IP_ADDRESS|||", normalized=False)])
    return pipeline


def eurobert(texts):
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(DIGITS_IN_THREES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    names = ("begin_of_text", "end_of_text", "pad", "mask")
    pipeline = bpe(texts, [f"<|{name}|>" for name in names], splitter)
    values = json.loads(pipeline.to_str())
    values["model"]["ignore_merges"] = True
    return tokenizers.Tokenizer.from_str(json.dumps(values))


def mmbert(texts):
    pipeline = bpe(
        [f" {word}" for text in texts for word in text.split()],
        ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"],
        pre_tokenizers.Split(" ", "merged_with_previous"),
        normalizers.Replace(" ", "▁"),
        unk_token="<unk>",
        fuse_unk=True,
    )
    values = json.loads(pipeline.to_str())
    ids = values["model"]["vocab"]
    for byte in range(256):
        ids[f"<0x{byte:02X}>"] = len(ids)
    values["model"]["byte_fallback"] = True
    return tokenizers.Tokenizer.from_str(json.dumps(values))


def xlm_roberta(texts):
    return unigram(
        texts,
        ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        "<unk>",
        normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
        ),
        pre_tokenizers.Metaspace(),
    )


def deberta_v3(texts):
    return unigram(
        texts,
        ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"],
        "[UNK]",
        normalizers.Sequence([normalizers.Strip(), normalizers.NFKC()]),
        pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
        ),
    )


def japanese(texts):
    """Return WordPiece without a normaliser, split at spaces and scripts."""
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.UnicodeScripts()]
    )
    return wordpiece(texts, None, splitter)


def word_level(texts):
    trainer = tokenizers.trainers.WordLevelTrainer
    model = models.WordLevel(unk_token="[UNK]")
    return learn(model, trainer, texts, BERT, splitter=pre_tokenizers.WhitespaceSplit())


BUILDERS = {
    "bert": lambda texts: wordpiece(
        texts, normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    ),
    "cased_nfc": lambda texts: wordpiece(
        texts, normalizers.NFC(), pre_tokenizers.BertPreTokenizer()
    ),
    "sequence": lambda texts: wordpiece(
        texts,
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        pre_tokenizers.Whitespace(),
    ),
    "japanese": japanese,
    "word_level": word_level,
    "roberta": lambda texts: bpe(texts, ROBERTA, pre_tokenizers.ByteLevel(False)),
    "prefix_space": lambda texts: bpe(texts, ROBERTA, pre_tokenizers.ByteLevel()),
    "modernbert": modernbert,
    "eurobert": eurobert,
    "mmbert": mmbert,
    "xlm_roberta": xlm_roberta,
    "deberta_v3": deberta_v3,
}


@pytest.fixture(scope="module")
def pipelines(documents):
    texts = [line for text in documents[:30] for line in text.splitlines()]
    return {name: build(texts) for name, build in BUILDERS.items()}


def hostile_texts(count):
    """Yield texts of all scripts, spelt special tokens, marks, and odd white space."""
    rng = random.Random(0)
    words = [*BERT, *ROBERTA, "<|mask|>", "<|pad|>", "<0x41>", "▁", "Ġ", "##a"]
    words += [
        "the ",
        "attribute",
        "İΣß",
        "e\u0301",
        "東京は",
        "ไทย",
        "हिन्दी",
        "1234567",
    ]
    words += ["\n\n", "\t", "  ", "        ", "\u00a0", "\u2028", "\x00", "\ufeff"]
    words += ["|||IP_ADDRESS|||", "don't", "😀👩‍👩‍👧", "ﬁ½", "\ud7a3\u1112\u1161"]
    limits = (0x80, 0x800, 0xD800, 0x110000)
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(12)):
            code = rng.randrange(rng.choice(limits))
            is_text = unicodedata.category(chr(code)) != "Cs"
            parts.append(chr(code) if is_text and rng.random() < 0.4 else "")
            parts.append(rng.choice(words) if rng.random() < 0.6 else " ")
        yield "".join(parts)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_pipelines_are_used_as_they_are_on_5000_texts(name, pipelines):
    check(pipelines[name], list(hostile_texts(5000)))


@pytest.mark.parametrize("name", BUILDERS)
def test_words_begin_where_the_text_has_spaces(name, pipelines):
    """A vocabulary without markers has a word for each token."""
    tokenizer = tokenizer_lib.make(pipelines[name])
    text = "the attributes of unparenthesised objects"
    ids = tokenizer.encode(f" {text}" if tokenizer.space_marker else text)
    starts = [not tokenizer.continues_word[i] for i in ids]
    assert sum(starts) == len(text.split())
    words = []
    for i, is_start in zip(ids, starts, strict=True):
        if is_start:
            words.append("")
        words[-1] += tokenizer.texts[i]
    if tokenizer.unk_id not in ids:
        assert words == text.split()


def test_blanks_of_other_pipelines(pipelines):
    for name in BUILDERS:
        tokenizer = tokenizer_lib.make(pipelines[name])
        for blank in ("[MASK]", tokenizer.special_tokens.mask):
            ids = tokenizer.encode_with_blanks(f"the {blank} of the {blank}")
            assert ids.count(tokenizer.mask_id) == 2
            assert ids[-1] == tokenizer.mask_id != ids[0]


def test_special_tokens_are_named_or_known(pipelines, tmp_path):
    def named(**values):
        return tokenizer_lib.make(pipelines["bert"], values).special_tokens

    assert named() == special_tokens.SPECIAL_TOKENS
    assert named(mask_token={"content": "the"}).mask == "the"
    assert named(bos_token="the").cls == "the"
    assert named(bos_token="the", cls_token="[CLS]").cls == "[CLS]"
    for values, message in (
        ({"pad_token": "[NONE]"}, r"the vocabulary has no \[NONE\]"),
        ({"pad_token": 3}, "a special token must be a text, got 3"),
        ({"pad_token": "[SEP]"}, "must be different tokens"),
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
        models.WordLevel(unk_token="?"),
        tokenizers.trainers.WordLevelTrainer,
        ["a b c"],
        ["?"],
        splitter=pre_tokenizers.WhitespaceSplit(),
    )
    with pytest.raises(UserError, match=r"has no \[PAD\] or .*; name its pad token as"):
        tokenizer_lib.make(unnamed)
    special = {"pad_token": "a", "bos_token": "b", "eos_token": "b", "mask_token": "c"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    unnamed.save(str(tmp_path / "tokenizer.json"))
    assert tokenizer_lib.Tokenizer.load(tmp_path).special_tokens.mask == "c"


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


def test_learnt_pipelines_are_read_by_the_library(documents):
    """Their special tokens are put around texts."""
    for train in vocabulary.KINDS.values():
        tokenizer = train(documents[:20], 500)
        pipeline = tokenizers.Tokenizer.from_str(tokenizer.pipeline)
        ids = pipeline.encode("the object").ids
        inner = tokenizer.encode("the object")
        assert ids == [tokenizer.cls_id, *inner, tokenizer.sep_id]
