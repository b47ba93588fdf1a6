import dataclasses
import pathlib
import pickle
import subprocess
import sys
import unicodedata

import pytest

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError

VOCABULARIES = pathlib.Path(__file__).parents[2] / "shared/data/vocab"


@pytest.fixture(scope="module")
def sentencepiece(documents):
    return tokenizer_lib.train_sentencepiece(documents, 800)


@pytest.fixture(params=["wordpiece", "sentencepiece"])
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
    direct = wordpiece._wordpiece.encode(text, add_special_tokens=False).ids
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
    text = "[MASK] [CLS] [SEP] [PAD] is text"
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


def test_decode_gives_words_back(tokenizer):
    text = "the value of the attribute is an object"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id, 0, 0]
    assert tokenizer.decode(ids) == f"[CLS] {text} [SEP]"


def test_continues_word_marks_all_pieces_but_the_first(tokenizer):
    ids = tokenizer.encode("the unparenthesised attributes")
    starts = [not tokenizer.continues_word[i] for i in ids]
    assert starts[0]
    assert sum(starts) == 3
    special = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id)
    assert not tokenizer.continues_word[list(special)].any()


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


def test_training_is_the_same_in_every_process(documents, wordpiece, text_file):
    script = (
        "import sys, pathlib; from bert_jax import tokenizer;"
        "texts = pathlib.Path(sys.argv[1]).read_text().split('\\n\\n');"
        "print(tokenizer.train_wordpiece(texts, 1000).fingerprint)"
    )
    command = [sys.executable, "-c", script, str(text_file)]
    other = subprocess.run(command, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == wordpiece.fingerprint


def test_too_little_text_is_said():
    for train in (tokenizer_lib.train_wordpiece, tokenizer_lib.train_sentencepiece):
        with pytest.raises(
            UserError, match=r"gives only \d+ tokens, fewer than .*5000"
        ):
            train(["a few words, a few words more", "and a few words again"] * 5, 5000)


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
    with pytest.raises(UserError, match="no tokenizer in"):
        tokenizer_lib.Tokenizer.load(tmp_path)
