"""Masks of whole words and n-grams in scripts without spaces between words."""

import unicodedata

import numpy as np
import pytest
from corpora import build_text
from made_batches import configure, make

from bert_jax import config as config_lib
from bert_jax.corpus import tokenizer_training
from bert_jax.tokenizer import unspaced

UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


@pytest.fixture(scope="module")
def texts():
    """Return documents in Chinese, Japanese, Thai, Hindi and English."""
    rng = np.random.default_rng(0)

    def sentences(begin, count, end):
        letters = [chr(c) for c in range(begin, begin + count)]
        return [
            "".join(rng.choice(letters, rng.integers(20, 60))) + end for _ in range(60)
        ]

    chinese, kana = sentences(0x4E00, 90, "。"), sentences(0x3042, 60, "。")
    thai = sentences(0x0E01, 40, " ")
    hindi = ["हम पार्क में घूमने गए।", "आज मौसम बहुत अच्छा है।"] * 20
    english = ["The park is large. BERTは2018年に発表された。"] * 20
    return [
        "".join(part[i : i + 6])
        for part in (chinese, kana, thai, hindi, english)
        for i in range(0, len(part), 6)
    ]


@pytest.mark.parametrize("kind", tokenizer_training.TRAINERS)
def test_each_token_of_a_script_without_spaces_is_a_word(kind, texts):
    tokenizer = tokenizer_training.TRAINERS[kind](texts, 600)
    begins = tokenizer.begins_word
    assert begins.dtype == bool
    assert begins.shape == (tokenizer.vocab_size,)
    assert begins[~tokenizer.continues_word].all()
    seen = set()
    for text, token, is_begin in zip(
        tokenizer.texts, tokenizer.tokens, begins, strict=True
    ):
        text = text.lstrip("\ufffd")  # parts of characters
        if text and "\ufffd" not in text:
            is_unspaced = unicodedata.name(text[0], "").startswith(UNSPACED)
            if is_unspaced:
                seen.add(unicodedata.name(text[0]).split()[0])
                assert is_begin, token
            elif text[0].isalpha():
                continues = tokenizer.continues_word[tokenizer.tokens.index(token)]
                assert is_begin == (not continues), token
    assert {"CJK", "HIRAGANA", "THAI"} <= seen


def test_a_cut_character_counts_if_it_may_be_of_a_script_without_spaces():
    for text in ("中", "の", "ค", "ກ", "ក", "မ", "𠀀", "。"):
        whole = text.encode()
        for cut in range(1, len(whole) + 1):
            assert unspaced.begins_unspaced(whole[:cut])
            assert not unspaced.begins_unspaced(whole[cut:])
        assert unspaced.begins_unspaced(b"\x85" + whole)  # the end of another before
    for text in ("", "a", "é", "हि", "ế", "한"):
        assert not unspaced.begins_unspaced(text.encode())
    # Two bytes tell Devanagari from Thai, and Vietnamese from Khmer.
    for text in ("ह", "ế"):
        assert not unspaced.begins_unspaced(text.encode()[:2])


def masked(unit, segments="next_sentence"):
    masking = config_lib.MaskingConfig(unit=unit)
    return configure(config_lib.MaskedLmConfig(masking=masking, segments=segments))


@pytest.mark.parametrize("kind", tokenizer_training.TRAINERS)
def test_rows_of_chinese_have_as_many_predictions_as_asked(kind, texts, tmp_path):
    tokenizer = tokenizer_training.TRAINERS[kind](texts, 600)
    corpus = build_text(texts[:20], tokenizer, tmp_path / "c")
    for unit in ("word", "ngram"):
        made = make(corpus, masked(unit))
        assert made.describe(1) == []
        batch = made.batch(0)
        asked = np.round(0.15 * batch["attention_mask"].sum(axis=1))
        assert (batch["mlm_weights"].any(axis=1)).all()
        assert batch["mlm_weights"].sum() > 0.9 * asked.sum()


def test_a_run_says_if_units_are_too_long_for_the_predictions(tmp_path):
    rng = np.random.default_rng(0)
    letters = ["".join(rng.choice(list("abcdefgh"), 40)) for _ in range(400)]
    texts = [" ".join(letters[i : i + 10]) + "." for i in range(0, 400, 10)]
    tokenizer = tokenizer_training.train_wordpiece(texts, 60)
    corpus = build_text(texts, tokenizer, tmp_path / "c")
    words, tokens = (masked(unit, "doc_sentences") for unit in ("word", "token"))
    (line,) = make(corpus, words).describe(1)
    assert "of its tokens, less than half of objective.masking.rate=0.15: m" in line
    assert make(corpus, tokens).describe(1) == []
    assert make(corpus, words, phase=1).describe(1) == []
