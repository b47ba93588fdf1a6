"""Byte-level BPE, compared with GPT-2's own code."""

import json
import pathlib

import pytest
from commands import assert_refused, call
from corpora import build_text, documents_of, with_prefix_space
from other_pipelines import hostile_texts

from bert_jax.corpus import splits
from bert_jax.errors import UserError
from bert_jax.interop import tokenizer_files

STORED = json.loads(
    (pathlib.Path(__file__).parent / "fixtures/byte_bpe.json").read_text()
)
TEXTS = STORED["texts"]


@pytest.fixture
def folder(tmp_path):
    """Folder in the format of a published RoBERTa."""
    path = tmp_path / "published"
    path.mkdir()
    for name in ("vocab.json", "merges.txt"):
        (path / name).write_text(STORED[name], encoding="utf-8")
    return path


@pytest.fixture
def published(folder):
    return tokenizer_files.read(folder)


@pytest.fixture
def spaced(published):
    return with_prefix_space(published, True)


def test_ids_equal_those_of_gpt2(published, spaced):
    """The stored ids are from encoder.py of openai/gpt-2."""
    assert published.encode_batch(TEXTS) == STORED["ids"]
    assert [published.encode(text) for text in TEXTS] == STORED["ids"]
    for text, ids in zip(TEXTS, STORED["ids_after_a_space"], strict=True):
        # The library adds the space in front of a line break, too.
        if text[:1] in ("", " ") or not text[0].isspace():
            assert spaced.encode(text) == ids


def test_decoding_gives_the_text_back(published, spaced, byte_bpe):
    for text in (*TEXTS, *hostile_texts(300)):
        assert published.decode(published.encode(text)) == text
        for tokenizer in (spaced, byte_bpe):
            assert tokenizer.decode(tokenizer.encode(text)) == text.removeprefix(" ")


def test_decoding_shows_special_tokens_and_cut_characters(published):
    t = published
    ids = [t.cls_id, *t.encode("a\U0001d54f"), t.sep_id, t.pad_id, t.mask_id]
    assert t.decode(ids) == "<s>a\U0001d54f</s><mask>"
    cut = t.encode("\U0001d54f")
    assert len(cut) > 1
    assert t.decode(cut[:1]) == "\ufffd"


def test_special_tokens_are_those_of_roberta(published, byte_bpe):
    assert published.special_tokens == ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    t = byte_bpe
    assert (t.cls_id, t.pad_id, t.sep_id, t.unk_id) == (0, 1, 2, 3)
    assert t.mask_id == t.vocab_size - 1  # as in the published vocabulary


def test_offsets_of_split_characters(published, spaced):
    """Each token of a character covers all of it, and no token the space before."""
    text = "a \U0001d54f\U0001d54f  the\n\u4e00 the"
    for tokenizer in (published, spaced):
        (encoding,) = tokenizer.encode_with_offsets([text])
        assert encoding.ids == tokenizer.encode(text)
        for i, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            piece = tokenizer.texts[i]
            if "\ufffd" in piece:
                assert text[begin:end] in ("\U0001d54f", "\u4e00")
            else:
                assert text[begin:end] == piece.strip()
        covered = {i for begin, end in encoding.offsets for i in range(begin, end)}
        assert covered == {i for i, c in enumerate(text) if not c.isspace()}


# ---- in text


def test_sentences_of_a_document_begin_with_the_space_between_them():
    segments = ["One two.  ", " \n", "the three\n   four!\r\n", "\tfive?", "\u4e00."]
    sentences = splits.normalise_spaces(segments)
    assert sentences == ["One two.", " the three four!", " five?", "\u4e00."]
    segments = [
        "本当か。\n\u3000",
        "そうだ。",
        "\u3000",
        "\xa0はい。",
        "いいえ。\u3000",
    ]
    sentences = ["本当か。", " \u3000そうだ。", "\u3000\xa0はい。", "いいえ。\u3000"]
    assert splits.normalise_spaces(segments) == sentences
    assert splits.normalise_spaces(["\xa0\n\n", "Text."]) == ["\xa0 Text."]
    assert splits.normalise_spaces(["\n", "\u3000"]) == ["\u3000"]
    assert splits.normalise_spaces([""]) == [""]


def test_a_corpus_has_no_spaces_that_its_text_has_not(byte_bpe, tmp_path):
    text = "今天很好。我们去公园吧!他说:“好的。”然后走了。\n“好。” Yes."
    corpus = build_text([text] * 2, byte_bpe, tmp_path / "corpus")
    document, _ = documents_of(corpus, "train")
    assert len(document["sentence_starts"]) > 4
    assert byte_bpe.decode(document["tokens"]) == text.replace("\n", " ")


def test_long_runs_of_spaces_take_no_time():
    """Hours, if each space of a run were tried as the first before a line break."""
    spaces = " " * 1_000_000
    got = splits.normalise_spaces([f"a{spaces}b ", f"c{spaces}\n\td"])
    assert "".join(got) == f"a{spaces}b c d"


def test_blanks_take_the_space_before_them(published, spaced):
    for t, first in ((published, "the"), (spaced, " the")):
        the, end = t.encode_batch([first])[0], published.encode(" end.")
        for blank in ("[MASK]", "<mask>"):
            assert t.encode_with_blanks(f"the {blank} end.") == [*the, t.mask_id, *end]
            assert t.encode_with_blanks(f"the{blank} end.") == [*the, t.mask_id, *end]
            assert t.encode_with_blanks(f"{blank} end.") == [t.mask_id, *end]
            got = t.encode_with_blanks(f"the {blank}, {blank}.")
            comma, stop = published.encode(","), published.encode(".")
            assert got == [*the, t.mask_id, *comma, t.mask_id, *stop]
        assert t.mask_id not in t.encode_with_blanks("no blank <s>")


def test_mask_token_of_roberta_is_text_for_wordpiece(wordpiece):
    assert wordpiece.mask_id not in wordpiece.encode_with_blanks("the <mask> end")
    before, after = wordpiece.encode_batch(["the", "end"])
    ids = wordpiece.encode_with_blanks("the [MASK] end")
    assert ids == [*before, wordpiece.mask_id, *after]


# ---- on disk


def test_the_files_of_a_folder(folder, published):
    """Formatting does not matter; a `tokenizer.json` comes first."""
    ids = json.loads(STORED["vocab.json"])
    shuffled = dict(sorted(ids.items()))
    (folder / "vocab.json").write_text(json.dumps(shuffled, indent=1))
    lines = STORED["merges.txt"].split("\n")[1:]
    (folder / "merges.txt").write_bytes("\r\n".join(lines).encode())
    assert tokenizer_files.read(folder) == published
    config = folder / "tokenizer_config.json"
    for value in (True, False, None):
        config.write_text(json.dumps({"add_prefix_space": value}))
        assert tokenizer_files.read(folder) == with_prefix_space(published, bool(value))
    for value in ("[]", "{"):
        config.write_text(value)
        with pytest.raises(UserError, match="tokenizer_config"):
            tokenizer_files.read(folder)
    config.unlink()
    with_prefix_space(published, True).save(folder)
    assert tokenizer_files.read(folder) == with_prefix_space(published, True)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vocab.json", lambda s: s[:-9], "vocab.json or merges.txt is damaged: "),
        ("vocab.json", lambda s: s.replace('"<s>":0', '"<s>":"0"'), "json is damaged"),
        ("vocab.json", lambda s: s.replace('"the":', '"thex":'), "is not a pair of"),
        ("vocab.json", lambda s: s.replace('"<mask>"', '"x<"'), "has no .*<mask>"),
        ("merges.txt", lambda s: s + "a b c\n", "'a', 'b', 'c'. is not a pair"),
        ("merges.txt", lambda s: s + "q q\n", "'q', 'q'. is not a pair of tokens in"),
        ("merges.txt", lambda s: s + "\udcff", "can't decode"),
    ],
)
def test_damaged_files_are_refused(name, change, message, folder):
    changed = change(STORED[name]).encode("utf-8", "surrogateescape")
    (folder / name).write_bytes(changed)
    with pytest.raises(UserError, match=rf"published: .*{message}"):
        tokenizer_files.read(folder)


# ---- programs


def test_training_does_not_lower_case(text_file, tmp_path):
    flags = [f"--input={text_file}", "--kind=byte_bpe", f"--output={tmp_path / 't'}"]
    for flag in ("--lower_case", "--strip_accents"):
        done = call("train_tokenizer", *flags, flag)
        assert_refused(done, f"{flag} does not apply to byte_bpe, which keeps text as")
