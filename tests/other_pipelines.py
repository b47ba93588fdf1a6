"""Pipelines of other origins, and texts that are hard on them.

The pipelines are built from the public definitions of the published ones, with small
vocabularies.
"""

import json
import random
import unicodedata

import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

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


def unigram(texts, special=ROBERTA, unk="<unk>", normalizer=None, splitter=None):
    splitter = splitter or pre_tokenizers.Metaspace()

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


def llama2(texts):
    normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    words = [word for text in texts for word in text.split()]
    return bpe(words, ROBERTA, None, normalizer, unk_token="<unk>", fuse_unk=True)


def xlm_roberta(texts):
    return unigram(
        texts,
        ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        normalizer=normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
        ),
    )


def published_xlm_roberta(texts):
    """Return XLM-R as its published file has it, and CamemBERT's, ALBERT's and T5's."""
    pipeline = xlm_roberta(texts)
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    return pipeline


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
    "llama2": llama2,
    "xlm_roberta": xlm_roberta,
    "published_xlm_roberta": published_xlm_roberta,
    "deberta_v3": deberta_v3,
}


def hostile_texts(count):
    """Yield texts of all scripts, spelt special tokens, marks, and odd white space."""
    rng = random.Random(0)
    words = [*BERT, *ROBERTA, "<|mask|>", "<|pad|>", "<0x41>", "▁", "Ġ", "##a"]
    words += ["the ", "attribute", "1234567"]
    words += ["e\u0301", "İΣß", "東京は", "ไทย", "हिन्दी"]
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
