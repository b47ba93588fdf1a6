import base64
import dataclasses
import json
import pathlib
import pickle
import re
import subprocess
import sys
import unicodedata

import pytest

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import vocabulary
from bert_jax.errors import UserError
from bert_jax.tokenizer import wordpiece as wordpiece_lib

VOCABULARIES = pathlib.Path(__file__).parents[2] / "shared/data/vocab"


@pytest.fixture(params=tokenizer_lib.KINDS)
def tokenizer(request):
    return request.getfixturevalue(request.param)


def reference_wordpiece(tokenizer, text):
    """The paper's tokenisation, restated: google-research/bert tokenization.py."""
    vocabulary = {token: i for i, token in enumerate(tokenizer.tokens)}
    text = unicodedata.normalize("NFD", text.lower())
    text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    spaced = ""
    for c in text:
        ascii_punctuation = c.isascii() and not c.isalnum() and not c.isspace()
        is_punctuation = ascii_punctuation or unicodedata.category(c)[0] == "P"
        spaced += f" {c} " if is_punctuation else c
    ids = []
    for word in spaced.split():
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                if prefix + word[start:end] in vocabulary:
                    pieces.append(vocabulary[prefix + word[start:end]])
                    start = end
                    break
            else:
                pieces = [tokenizer.unk_id]
                break
        ids += pieces
    return ids


def test_wordpiece_agrees_with_a_restatement(wordpiece, documents):
    texts = [*documents[:20], "Ünïcödé naïve façade", "x" * 150, "a\u00a0b\u3000c"]
    for text, ids in zip(texts, wordpiece.encode_batch(texts), strict=True):
        assert ids == reference_wordpiece(wordpiece, text)


@pytest.mark.parametrize(
    "text",
    ["foo\x1cbar baz", "x\u2028y", "tab\tnew\x0bline", "\ufeffbom", "İstanbul ΑΣ'Σ"],
)
def test_word_memory_changes_nothing(wordpiece, text):
    model = wordpiece_lib.WordPiece(wordpiece.model, True, True, 200)
    direct = model.pipeline.encode(text, add_special_tokens=False).ids
    assert wordpiece.encode(text) == direct
    assert wordpiece.encode(text) == direct


def test_published_vocabularies():
    if not VOCABULARIES.exists():
        pytest.skip("no published vocabularies here")
    path = VOCABULARIES / "bert-base-uncased.txt"
    uncased = tokenizer_lib.from_vocab_file(path, lower_case=True, strip_accents=True)
    assert uncased.vocab_size == 30_522
    special = (uncased.pad_id, uncased.unk_id, uncased.cls_id)
    assert special == (0, 100, 101)
    assert (uncased.sep_id, uncased.mask_id) == (102, 103)
    # The worked example of google-research/bert's README.
    tokens = [uncased.tokens[i] for i in uncased.encode("John Johanson's house")]
    assert tokens == ["john", "johan", "##son", "'", "s", "house"]
    assert uncased.encode("unaffable") == [14477, 20961, 3468]


def test_special_tokens_in_text_stay_text(tokenizer):
    text = f"[MASK] [CLS] [SEP] [PAD] {' '.join(tokenizer.special_tokens)} is text"
    special = {tokenizer.mask_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id}
    assert special.isdisjoint(tokenizer.encode(text))


def test_round_trip_through_folder_json_and_pickle(tokenizer, tmp_path, documents):
    expected = tokenizer.encode_batch(documents[:5])
    tokenizer.save(tmp_path / "t")
    copies = [
        tokenizer_lib.Tokenizer.load(tmp_path / "t"),
        tokenizer_lib.Tokenizer.loads(tokenizer.dumps()),
        pickle.loads(pickle.dumps(tokenizer)),
    ]
    for copy in copies:
        assert copy == tokenizer
        assert copy.fingerprint == tokenizer.fingerprint
        assert copy.encode_batch(documents[:5]) == expected


def test_offsets_are_of_the_characters(tokenizer, documents):
    """In the order of the text, and the characters of a token are its own."""
    texts = ["", " \t two  spaces ", "NAÏVE Ὀδυσσεύς 東京 ½x… a\x00b", *documents[:20]]
    encoded = tokenizer.encode_with_offsets(texts)
    assert [e.ids for e in encoded] == tokenizer.encode_batch(texts)
    for text, encoding in zip(texts, encoded, strict=True):
        end_before = 0
        for i, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            assert 0 <= begin <= end <= len(text)
            assert begin >= end_before - 1 and end >= end_before
            end_before = end
            piece = tokenizer.texts[i].strip()
            if piece.isascii() and text.isascii() and i != tokenizer.unk_id:
                assert text[begin:end].lower() == piece.lower()


def test_decode_gives_words_back(tokenizer):
    text = "the value of the attribute is an object"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    pad = tokenizer.pad_id
    ids = [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id, pad, pad]
    is_bpe = tokenizer.kind == "byte_bpe"
    shown = f"<s> {text}</s>" if is_bpe else f"[CLS] {text} [SEP]"
    assert tokenizer.decode(ids) == shown


def test_continues_word_marks_all_pieces_but_the_first(tokenizer):
    ids = tokenizer.encode("the unparenthesised attributes")
    starts = [not tokenizer.continues_word[i] for i in ids]
    assert starts[0]
    assert sum(starts) == 3
    special = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id)
    assert not tokenizer.continues_word[list(special)].any()


def words_of(tokenizer, text):
    """Tokens of a text in groups: a token, and those after it that continue it."""
    words = []
    for i in tokenizer.encode(text):
        if words and tokenizer.continues_word[i]:
            words[-1].append(tokenizer.tokens[i])
        else:
            words.append([tokenizer.tokens[i]])
    return words


def test_words_are_what_stands_between_spaces(sentencepiece):
    """Of SentencePiece; also where characters are unknown, or `▁` stands alone."""
    text = "the unparenthesised attributes, na\u4e00ve \u4e00\u4e8c x\u4e00 (the) end."
    words = words_of(sentencepiece, text)
    assert len(words) == len(text.split())
    for word, expected in zip(words, text.split(), strict=True):
        shown = "".join(word).removeprefix("\u2581")
        known = re.sub("[\u4e00\u4e8c]+", "[UNK]", expected)
        assert shown == known
    assert ["\u2581", "[UNK]"] in words
    shown = text.replace("\u4e00\u4e8c", "[UNK]").replace("\u4e00", "[UNK]")
    assert sentencepiece.decode(sentencepiece.encode(text)) == shown


def test_an_unknown_word_is_a_word(wordpiece):
    assert words_of(wordpiece, "the \u4e00\u4e8c object") == [
        ["the"],
        ["[UNK]"],  # each of these characters is a word of its own
        ["[UNK]"],
        ["object"],
    ]
    assert not wordpiece.continues_word[wordpiece.unk_id]


def test_case_and_accents_are_separate(wordpiece):
    def tokens(lower_case, strip_accents):
        settings = {"lower_case": lower_case, "strip_accents": strip_accents}
        words = ["É", "é", "E", "e", *tokenizer_lib.SPECIAL_TOKENS]
        model = "".join(word + "\n" for word in words).encode()
        tokenizer = dataclasses.replace(wordpiece, **settings, model=model)
        return "".join(tokenizer.tokens[i] for i in tokenizer.encode("É é E e"))

    assert tokens(False, False) == "ÉéEe"
    assert tokens(True, False) == "éé" + "ee"
    assert tokens(False, True) == "Ee" + "Ee"
    assert tokens(True, True) == "eeee"
    for lower in (False, True):
        for strip in (False, True):
            text = tokenizer_lib.normalise("É é E e", lower, strip)
            text = unicodedata.normalize("NFC", text).replace(" ", "")
            assert text == tokens(lower, strip)


def test_settings_are_part_of_the_fingerprint(wordpiece):
    cased = dataclasses.replace(wordpiece, lower_case=False)
    accents = dataclasses.replace(wordpiece, strip_accents=False)
    prints = {t.fingerprint for t in (wordpiece, cased, accents)}
    assert len(prints) == 3


def test_training_is_the_same_in_every_process(
    documents, wordpiece, byte_bpe, text_file
):
    script = (
        "import sys, pathlib; from bert_jax.corpus import vocabulary;"
        "texts = pathlib.Path(sys.argv[1]).read_text().split('\\n\\n');"
        "print(vocabulary.train_wordpiece(texts, 1000).fingerprint);"
        "print(vocabulary.train_byte_bpe(texts, 1000).fingerprint)"
    )
    command = [sys.executable, "-c", script, str(text_file)]
    other = subprocess.run(command, capture_output=True, text=True, check=True)
    assert other.stdout.split() == [wordpiece.fingerprint, byte_bpe.fingerprint]


@pytest.mark.parametrize("kind", tokenizer_lib.KINDS)
def test_too_little_text_gives_a_smaller_vocabulary(kind):
    train = getattr(vocabulary, f"train_{kind}")
    texts = ["a few words, a few words more", "and a few words again"] * 5
    tokenizer = train(texts, 5000)
    least = 5 + 256 if kind == "byte_bpe" else 15
    assert least < tokenizer.vocab_size < least + 45
    assert tokenizer.unk_id not in tokenizer.encode(texts[0])
    assert train(texts, tokenizer.vocab_size) == tokenizer


@pytest.mark.parametrize("kind", tokenizer_lib.KINDS)
def test_sizes_and_texts_that_give_no_vocabulary(kind):
    train = getattr(vocabulary, f"train_{kind}")
    for size in (10**6 + 1, 2 * 10**9, 2**70):
        with pytest.raises(
            UserError, match=f"vocab_size={size} must be at most 1000000"
        ):
            train(["a few words"], size)
    with pytest.raises(UserError, match="vocab_size=9 is too small .* give at least"):
        train(["a few words"], 9)
    nothing = ["  ", "\n"] if kind == "byte_bpe" else ["\u200b", "\x00"]
    for texts in ([], nothing, nothing[1:] * 3):
        with pytest.raises(UserError, match="the text has no characters to learn from"):
            train(texts, 100)


def test_learning_can_be_stopped():
    class Stopped(list):
        def __iter__(self):
            yield "a few words"
            raise KeyboardInterrupt

    for kind in tokenizer_lib.KINDS:
        with pytest.raises(KeyboardInterrupt):
            getattr(vocabulary, f"train_{kind}")(Stopped(), 300)


def test_one_long_line_is_text():
    text = "the value of the attribute is an object " * 2000
    tokenizer = vocabulary.train_sentencepiece([text], 25)
    assert tokenizer.unk_id not in tokenizer.encode(text)


def test_bad_vocabulary_files(tmp_path):
    path = tmp_path / "vocab.txt"
    for content, message in [
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\n", r"has no \[MASK\]"),
        (b"[PAD]\n\n[UNK]\n", "line 2: no token"),
        (b"\xff\xfe", "cannot read"),
    ]:
        path.write_bytes(content)
        with pytest.raises(UserError, match=message):
            tokenizer_lib.from_vocab_file(path, lower_case=True, strip_accents=True)
    with pytest.raises(
        UserError, match=r"no tokenizer in .* tokenizer\.json is missing"
    ):
        tokenizer_lib.Tokenizer.load(tmp_path)
    with pytest.raises(UserError, match="no tokenizer in"):
        tokenizer_lib.Tokenizer.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("kind"), "kind is None"),
        (lambda v: v.pop("lower_case"), "lower_case is missing"),
        (lambda v: v.update(kind="bpe"), "kind is 'bpe'"),
        (lambda v: v.update(kind=["wordpiece"]), r"kind is \['wordpiece'\]"),
        (lambda v: v.update(lower_case="false"), "lower_case is 'false', not true or"),
        (lambda v: v.update(strip_accents=None), "strip_accents is None, not true or"),
        (lambda v: v.update(strip_accents=False), "have changed since they were saved"),
        (lambda v: v.update(fingerprint=7), "have changed since they were saved"),
    ],
)
def test_settings_that_were_edited(change, message, tokenizer, tmp_path):
    """In a folder, and in the text that a checkpoint carries."""
    if tokenizer.kind == "byte_bpe":
        pytest.skip("it has no such settings; test_byte_bpe.py has its own")
    if tokenizer.kind == "sentencepiece":  # neither is dropped
        tokenizer = dataclasses.replace(tokenizer, strip_accents=True)
    tokenizer.save(tmp_path / "t")
    path = tmp_path / "t/tokenizer.json"
    for text, read in (
        (path.read_text(), lambda text: path.write_text(text) and None),
        (tokenizer.dumps(), tokenizer_lib.Tokenizer.loads),
    ):
        values = json.loads(text)
        change(values)
        with pytest.raises(UserError, match=message) as refusal:
            read(json.dumps(values))
            tokenizer_lib.Tokenizer.load(tmp_path / "t")
        assert "damaged" in str(refusal.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", "[" * 100_000, '{"kind": 1}'])
def test_settings_that_are_none(text, wordpiece, tmp_path):
    wordpiece.save(tmp_path / "t")
    (tmp_path / "t/tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"the tokenizer in .*t is damaged: "):
        tokenizer_lib.Tokenizer.load(tmp_path / "t")
    with pytest.raises(UserError, match=r"the saved tokenizer is damaged: "):
        tokenizer_lib.Tokenizer.loads(text)


def test_models_that_were_damaged(tokenizer, tmp_path):
    if tokenizer.kind == "byte_bpe":
        pytest.skip("it has two files; test_byte_bpe.py damages them")
    tokenizer.save(tmp_path / "t")
    name = {"wordpiece": "vocab.txt", "sentencepiece": "spm.model"}[tokenizer.kind]
    model = tokenizer.model
    flipped = model[:999] + bytes([model[999] ^ 1]) + model[1000:]
    cuts = [0, 1, len(model) // 2, len(model) - 3, model.rindex(b"\n", 0, 900) + 1]
    for damaged in [*(model[:cut] for cut in cuts), flipped, b"\xff" + model]:
        (tmp_path / "t" / name).write_bytes(damaged)
        with pytest.raises(UserError, match=r"the tokenizer in .*t is damaged: ") as at:
            tokenizer_lib.Tokenizer.load(tmp_path / "t")
        assert "\n" not in str(at.value)
        values = json.loads(tokenizer.dumps())
        values["model"] = base64.b64encode(damaged).decode()
        with pytest.raises(UserError, match=r"the saved tokenizer is damaged: "):
            tokenizer_lib.Tokenizer.loads(json.dumps(values))
    (tmp_path / "t" / name).unlink()
    with pytest.raises(UserError, match="damaged: .*No such file"):
        tokenizer_lib.Tokenizer.load(tmp_path / "t")
    for text in (
        tokenizer.dumps()[:-9],
        tokenizer.dumps().replace('"model": "', '"model": "?'),
    ):
        with pytest.raises(UserError, match=r"the saved tokenizer is damaged: "):
            tokenizer_lib.Tokenizer.loads(text)


def test_what_was_saved_without_a_fingerprint_is_read(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t")
    path = tmp_path / "t/tokenizer.json"
    values = json.loads(path.read_text())
    del values["fingerprint"]
    path.write_text(json.dumps(values))
    assert tokenizer_lib.Tokenizer.load(tmp_path / "t") == tokenizer
    values = json.loads(tokenizer.dumps())
    del values["fingerprint"]
    assert tokenizer_lib.Tokenizer.loads(json.dumps(values)) == tokenizer
