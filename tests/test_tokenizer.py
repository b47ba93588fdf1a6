import base64
import json
import pickle
import random
import re
import subprocess
import sys
import unicodedata

import pytest
import tokenizers
from commands import shared_data

from bert_jax import tokenizer as tokenizer_lib
from bert_jax import vocabulary_extension
from bert_jax.corpus import sources, tokenizer_training
from bert_jax.errors import UserError
from bert_jax.interop import tokenizer_files
from bert_jax.tokenizer import pipelines, sentencepiece_model, special_tokens


@pytest.fixture(params=tokenizer_training.TRAINERS)
def tokenizer(request):
    return request.getfixturevalue(request.param)


def test_words_of_150_characters_are_known(wordpiece):
    """As in google-research/bert; `transformers` has a limit of 100."""
    assert wordpiece.unk_id not in wordpiece.encode("x" * 150)


def test_published_vocabularies():
    path = shared_data("vocab/bert-base-uncased.txt")
    uncased = tokenizer_files.read_wordpiece(path, True, True)
    assert uncased.vocab_size == 30_522
    special = (uncased.pad_id, uncased.unk_id, uncased.cls_id)
    assert special == (0, 100, 101)
    assert (uncased.sep_id, uncased.mask_id) == (102, 103)
    # The worked example of google-research/bert's README.
    tokens = [uncased.tokens[i] for i in uncased.encode("John Johanson's house")]
    assert tokens == ["john", "johan", "##son", "'", "s", "house"]
    assert uncased.encode("unaffable") == [14477, 20961, 3468]


def test_a_tokenizer_that_was_used_can_be_pickled(tokenizer, documents):
    """As for the processes of a build."""
    expected = tokenizer.encode_batch(documents[:5])
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy == tokenizer and copy.encode_batch(documents[:5]) == expected


def test_offsets_point_at_the_characters_of_tokens(tokenizer, documents):
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


def test_decoding_joins_words(tokenizer):
    text = "the value of the attribute is an object"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    pad = tokenizer.pad_id
    ids = [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id, pad, pad]
    shown = {
        "WordPiece": f"[CLS] {text} [SEP]",
        "Unigram": f"[CLS] {text}[SEP]",
        "BPE": f"<s> {text}</s>",
    }
    assert tokenizer.decode(ids) == shown[tokenizer.model_type]


def test_words_of_sentencepiece(sentencepiece):
    """Test unknown characters, and a word that begins with a `▁` of its own."""
    text = "the unparenthesised attributes, na\u4e00ve \u4e00\u4e8c x\u4e00 (the) end."
    words = []
    for i in sentencepiece.encode(text):
        if words and sentencepiece.continues_word[i]:
            words[-1] += sentencepiece.tokens[i]
        else:
            words.append(sentencepiece.tokens[i])
    shown = re.sub("[\u4e00\u4e8c]+", "[UNK]", text)
    assert [word.removeprefix("\u2581") for word in words] == shown.split()
    assert "\u2581[UNK]" in words
    assert sentencepiece.decode(sentencepiece.encode(text)) == shown


def test_words_end_where_pipelines_split_texts(tokenizer):
    text = "Don't redo un-done words, 3rd."
    spans: dict[int, tuple[int, int]] = {}
    (encoding,) = tokenizer.encode_with_offsets([text])
    (numbers,) = tokenizer.word_ids([text])
    for number, (begin, end) in zip(numbers, encoding.offsets, strict=True):
        spans[number] = spans.get(number, (begin, end))[0], end
    # google-research/bert, tokenization.py; a SentencePiece model knows spaces only;
    # openai/gpt-2, encoder.py.
    expected = {
        "WordPiece": "Don ' t redo un - done words , 3rd .",
        "Unigram": text,
        "BPE": "Don 't redo un - done words , 3 rd .",
    }
    assert list(spans) == list(range(1, len(spans) + 1))
    words = [text[begin:end] for begin, end in spans.values()]
    assert " ".join(words) == expected[tokenizer.model_type]


def test_sentences_without_spaces_are_several_words(byte_bpe):
    """The units that are masked as words; GPT-2's split leaves a sentence whole."""
    (numbers,) = byte_bpe.word_ids(["我在北京工作"])
    assert numbers == [1, *(n // 3 + 2 for n in range(18))]  # a space first


def test_case_and_accents_are_separate():
    def tokens(lower_case, strip_accents):
        words = ["É", "é", "E", "e", *tokenizer_lib.SPECIAL_TOKENS]
        pipeline = pipelines.wordpiece(words, lower_case, strip_accents)
        tokenizer = tokenizer_lib.make(pipeline)
        return "".join(tokenizer.tokens[i] for i in tokenizer.encode("É é E e"))

    assert tokens(False, False) == "ÉéEe"
    assert tokens(True, False) == "éé" + "ee"
    assert tokens(False, True) == "Ee" + "Ee"
    assert tokens(True, True) == "eeee"
    for lower in (False, True):
        for strip in (False, True):
            normalizer = sentencepiece_model.normalizer(lower, strip)
            text = normalizer.normalize_str("É é E e")
            text = unicodedata.normalize("NFC", text).replace(" ", "")
            assert text == tokens(lower, strip)


def test_training_is_the_same_in_every_process(wordpiece, byte_bpe, text_file):
    script = (
        "import sys, pathlib; from bert_jax.corpus import tokenizer_training;"
        "texts = pathlib.Path(sys.argv[1]).read_text().split('\\n\\n');"
        "print(tokenizer_training.train_wordpiece(texts, 1000).fingerprint);"
        "print(tokenizer_training.train_byte_bpe(texts, 1000).fingerprint)"
    )
    command = [sys.executable, "-c", script, str(text_file)]
    other = subprocess.run(command, capture_output=True, text=True, check=True)
    assert other.stdout.split() == [wordpiece.fingerprint, byte_bpe.fingerprint]


@pytest.mark.parametrize("kind", tokenizer_training.TRAINERS)
def test_too_little_text_gives_a_smaller_vocabulary(kind):
    train = tokenizer_training.TRAINERS[kind]
    texts = ["a few words, a few words more", "and a few words again"] * 5
    tokenizer = train(texts, 5000)
    least = 5 + 256 if kind == "byte_bpe" else 15
    assert least < tokenizer.vocab_size < least + 45
    assert tokenizer.unk_id not in tokenizer.encode(texts[0])
    assert train(texts, tokenizer.vocab_size) == tokenizer


def test_wordpiece_keeps_the_characters_that_cover_the_text(capsys):
    characters = [chr(0x4E00 + i) for i in range(3000)]
    lines = ["".join(characters[i : i + 50]) for i in range(0, 3000, 50)] * 2
    tokenizer = tokenizer_training.train_wordpiece(lines, 9000)
    # Of 6,000 characters 3 may be left out.
    assert len({*characters} - {*tokenizer.tokens}) == 1
    assert capsys.readouterr().err == (
        "warning: 1 rare character, 0.033% of the text, such as \u59b7, will be [UNK]\n"
    )
    tokenizer = tokenizer_training.train_wordpiece(lines, 2000)
    assert tokenizer.vocab_size == 2000
    assert "1,005 rare characters, 33.500% of" in (error := capsys.readouterr().err)
    assert error.endswith("will be [UNK]; increase vocab_size to keep more\n")
    assert "##\u4e00" not in tokenizer.tokens  # a Chinese character is a word


@pytest.mark.parametrize(
    ("text", "is_warned"),
    [
        ("\u0939\u093f\u0928\u094d\u0926\u0940 ", True),  # Hindi
        ("\u304c\u3050 ", True),  # Japanese
        ("\ud55c\uad6d\uc5b4 ", False),  # Korean
        ("ti\u1ebfng Vi\u1ec7t ", True),
        ("caf\u00e9 cafe\u0301 x\u0301 \u0439 ", False),
    ],
)
def test_stripping_accents_of_scripts_that_need_marks_is_reported(
    text, is_warned, tmp_path, capsys
):
    (tmp_path / "a.txt").write_text(text * 50)
    source = sources.Source(f"{tmp_path}/a.txt", "text")
    options = {"lower_case": True, "sample_bytes": 10**6}
    tokenizer_training.learn(source, "wordpiece", 200, strip_accents=True, **options)
    assert ("use --nostrip_accents" in capsys.readouterr().err) == is_warned
    tokenizer_training.learn(source, "wordpiece", 200, strip_accents=False, **options)
    assert "use --nostrip_accents" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", tokenizer_training.TRAINERS)
def test_impossible_sizes_and_texts_are_refused(kind):
    train = tokenizer_training.TRAINERS[kind]
    with pytest.raises(UserError, match="vocab_size=9 is too small .* be at least"):
        train(["a few words"], 9)
    nothing = ["  ", "\n"] if kind == "byte_bpe" else ["\u200b", "\x00"]
    for texts in ([], nothing, nothing[1:] * 3):
        with pytest.raises(UserError, match="the text has no characters to learn from"):
            train(texts, 100)


@pytest.mark.parametrize("kind", tokenizer_training.TRAINERS)
def test_learning_can_be_interrupted(kind):
    class Stopped(list):
        is_last_reading = kind != "sentencepiece"  # counts the characters first

        def __iter__(self):
            yield "a few words"
            if self.is_last_reading:
                raise KeyboardInterrupt
            self.is_last_reading = True

    with pytest.raises(KeyboardInterrupt):
        tokenizer_training.TRAINERS[kind](Stopped(), 300)


def test_sentencepiece_learns_from_text_as_it_reads_it():
    """Python's `str.lower` would end words with another letter than the pipeline."""
    words = ["ΟΔΟΣ", "ΤΗΣ", "ΠΟΛΕΩΣ", "ΝΟΜΟΣ", "ΦΩΣ"]
    texts = [" ".join(words[i % 5] for i in range(j, j + 7)) for j in range(50)]
    tokenizer = tokenizer_training.train_sentencepiece(texts, 40, lower_case=True)
    assert tokenizer.unk_id not in tokenizer.encode(texts[0])
    letters = set("".join(tokenizer.tokens[len(tokenizer_lib.SPECIAL_TOKENS) :]))
    assert letters == {"▁", *"οδσ", *"τησ", *"πολεωσ", *"νομοσ", *"φωσ"}


def test_sentencepiece_keeps_rare_characters(capsys):
    """Its default leaves out 0.05 % of the text, however few characters it has."""
    texts = ["a few words and a few more words"] * 200 + ["(1850): \u00a3 7"]
    tokenizer = tokenizer_training.train_sentencepiece(texts, 80)
    assert tokenizer.unk_id not in tokenizer.encode(texts[-1])
    assert capsys.readouterr().err == ""


def test_sentencepiece_leaves_out_as_many_characters_as_it_says(capsys):
    """Its own share counts the spaces between words, too."""
    frequent, rare = (list(map(chr, range(0x4E00, end))) for end in (0x5000, 0x5100))
    rare = rare[len(frequent) :]
    texts = [" ".join(frequent)] * 500 + rare
    tokenizer = tokenizer_training.train_sentencepiece(texts, 2000)
    unknown = [c for c in rare if tokenizer.unk_id in tokenizer.encode(c)]
    assert unknown == sorted(rare)[-len(unknown) :]
    total = 500 * len(frequent) + len(rare)
    assert len(unknown) == int(0.0005 * total)
    said = f"{len(unknown)} rare characters, {len(unknown) / total:.3%} of the text"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("vocab_size", [255, 280])
def test_sentencepiece_chooses_characters_of_texts_with_few_spaces(vocab_size):
    """It takes them until they cover a share of the text, spaces included."""
    letters = list(map(chr, range(0x4E00, 0x4F00)))
    text = "".join(c * (300 - i) for i, c in enumerate(letters))
    texts = [text, "".join(letters[::2]) + " \u2585"]  # the second is left out
    tokenizer = tokenizer_training.train_sentencepiece(texts, vocab_size)
    kept = {token for token in tokenizer.tokens if len(token) == 1}
    room = vocab_size - len(tokenizer_lib.SPECIAL_TOKENS) - 1
    assert kept == {"\u2581", *letters[:room]}  # 249, or all 256


def test_rare_characters_take_a_quarter_of_a_small_vocabulary(capsys):
    """A thousand of them would leave no room for the pieces of the others."""
    text = "the value of the attribute is an object"
    rare = list(map(chr, range(0x4E00, 0x4F00)))
    tokenizer = tokenizer_training.train_sentencepiece([text] * 20_000 + rare, 300)
    kept = {c for c in rare if tokenizer.unk_id not in tokenizer.encode(c)}
    assert len(kept | {*text} - {" "}) == 75
    assert f"{256 - len(kept)} rare characters" in capsys.readouterr().err


def test_sentencepiece_adds_a_space_to_a_text_but_not_after_a_blank(sentencepiece):
    assert sentencepiece.encode("  the value ") == sentencepiece.encode("the value")
    *before, full_stop = sentencepiece.encode("the value.")
    expected = [*before, sentencepiece.mask_id, full_stop]
    assert sentencepiece.encode_with_blanks("the value [MASK].") == expected


def test_sentencepiece_learns_from_one_long_line():
    text = "the value of the attribute is an object " * 200  # the default: 4192 bytes
    tokenizer = tokenizer_training.train_sentencepiece([text], 25)
    assert tokenizer.unk_id not in tokenizer.encode(text)


def test_sentencepiece_learns_from_a_sample_of_many_lines(documents, monkeypatch):
    """SentencePiece's own sample would differ in each process."""
    documents = documents[:40]
    sample = random.Random(0).sample(documents, 20)
    expected = tokenizer_training.train_sentencepiece(sample, 300)
    assert tokenizer_training.train_sentencepiece(documents, 300) != expected
    monkeypatch.setattr(tokenizer_training, "_MAX_LINES", 20)
    assert tokenizer_training.train_sentencepiece(documents, 300) == expected


def test_byte_order_mark_spaces_and_line_ends_of_a_vocabulary_do_not_matter(
    wordpiece, tmp_path
):
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbf" + " \t\r\n ".join(wordpiece.tokens).encode())
    assert tokenizer_files.read_wordpiece(path, True, True) == wordpiece


def test_bad_vocabulary_files_are_refused(tmp_path):
    path = tmp_path / "vocab.txt"
    for content, message in [
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\n", r"has no \[MASK\]"),
        (b"[PAD]\n\n[UNK]\n", "line 2: no token"),
        (b"\xff\xfe", "vocab.txt is damaged"),
        (None, "cannot read .*: No such file or directory"),
    ]:
        path.write_bytes(content) if content else path.unlink()
        with pytest.raises(UserError, match=message):
            tokenizer_files.read_wordpiece(path, True, True)
    for missing in (tmp_path, path):
        with pytest.raises(UserError, match=r"no tokenizer in .*\.json is missing"):
            tokenizer_lib.Tokenizer.load(missing)


def test_a_repeated_token_has_its_last_id(tmp_path):
    tokens = [*tokenizer_lib.SPECIAL_TOKENS, "aa", "aa", "bb"]
    tokenizer = tokenizer_lib.make(pipelines.wordpiece(tokens, True, True))
    assert tokenizer.encode("aa bb") == [6, 7]
    assert tokenizer.vocab_size == 8 and tokenizer.texts[5] == ""
    tokenizer_files.write_wordpiece(tokenizer, tmp_path)
    again = tokenizer_files.read_wordpiece(tmp_path / "vocab.txt", True, True)
    assert again.vocab_size == 8 and again.encode("aa bb") == [6, 7]
    extended, ids = vocabulary_extension.extend_tokenizer(tokenizer, ["cc"])
    assert extended.encode("aa bb cc") == [6, 7, *ids] == [6, 7, 8]
    assert "" not in extended.steps()["model"]["vocab"]


def test_writing_a_vocabulary_leaves_the_tokenizer_as_it_is(tmp_path):
    """In bert-base-uncased, accents are stripped because case is."""
    pipeline = pipelines.wordpiece([*tokenizer_lib.SPECIAL_TOKENS, "a"], True, True)
    pipeline.normalizer = tokenizers.normalizers.BertNormalizer(strip_accents=None)
    tokenizer = tokenizer_lib.make(pipeline)
    before = tokenizer.fingerprint, tokenizer.dumps()
    tokenizer_files.write_wordpiece(tokenizer, tmp_path)
    assert (tokenizer.fingerprint, tokenizer.dumps()) == before
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings == {"do_lower_case": True, "strip_accents": True}


def test_a_vocabulary_with_added_tokens_has_no_vocab_txt(tmp_path):
    """google-research/bert would split the text of such a token."""
    pipeline = pipelines.wordpiece([*tokenizer_lib.SPECIAL_TOKENS, "a"], True, True)
    pipeline.add_tokens(["a b"])
    with pytest.raises(UserError, match="no WordPiece tokenizer that splits texts lik"):
        tokenizer_files.write_wordpiece(tokenizer_lib.make(pipeline), tmp_path)


def test_a_vocabulary_with_other_markers_has_no_vocab_txt(tmp_path):
    """google-research/bert knows `##` and BERT's special tokens only."""
    for names, prefix in (
        (special_tokens.SPECIAL_TOKENS, "@@"),
        (special_tokens.BYTE_BPE_SPECIAL_TOKENS, "##"),
    ):
        model = tokenizers.models.WordPiece(
            {token: i for i, token in enumerate([*names, "a", f"{prefix}a"])},
            unk_token=names.unk,
            continuing_subword_prefix=prefix,
        )
        tokenizer = tokenizer_lib.make(pipelines.bert_steps(model, True, True))
        assert tokenizer.encode("aa") == [5, 6]
        with pytest.raises(UserError, match="no WordPiece tokenizer that splits"):
            tokenizer_files.write_wordpiece(tokenizer, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("model"), ""),
        (lambda v: v["model"].update(type="Other"), "damaged"),
        (lambda v: v["model"]["vocab"].pop("the"), "it has changed since it was saved"),
        (lambda v: v["model"].update(unk_token="[XYZ]"), r"has no \[XYZ\]"),
        *((text, "") for text in ("", "[1]", "[" * 100_000, '{"model": 1}')),
    ],
)
def test_damaged_tokenizers_are_refused(change, message, wordpiece, tmp_path):
    """In a folder, and in the text that a checkpoint carries."""
    wordpiece.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    for text, use, part in (
        (path.read_text(), lambda text: tokenizer_lib.Tokenizer.load(tmp_path), None),
        (wordpiece.dumps(), tokenizer_lib.Tokenizer.loads, "pipeline"),
    ):
        values = json.loads(text)
        if isinstance(change, str):
            changed = change
        else:
            change(values[part] if part else values)
            changed = json.dumps(values)
        if "changed since" in message and not part:
            continue  # a user may edit the file
        path.write_text(changed)
        with pytest.raises(UserError, match=f"(damaged|cannot be used): .*{message}"):
            use(changed)


def test_damaged_sentencepiece_models_are_refused(documents):
    normalizer = sentencepiece_model.normalizer(True, True)
    texts = documents[:20]
    counts = tokenizer_training._sentencepiece_characters(texts, normalizer)
    model = tokenizer_training._sentencepiece_model(texts, normalizer, counts, "", 300)
    for damaged, message in ((b"", "empty"), (model[: len(model) // 2], "damaged")):
        with pytest.raises(UserError, match=f"the SentencePiece model is {message}"):
            sentencepiece_model.pipeline(damaged, True, True)


# ---- the legacy format


def legacy(model, **settings):
    """Return the text that earlier versions saved in checkpoints."""
    values = {"kind": "wordpiece", "lower_case": True, "strip_accents": True}
    values |= settings
    return json.dumps(values | {"model": base64.b64encode(model).decode()})


def test_tokenizers_of_earlier_versions_are_read(wordpiece, tmp_path):
    model = "".join(f"{token}\n" for token in wordpiece.tokens).encode()
    text = legacy(model)
    read = tokenizer_lib.Tokenizer.loads(text)
    assert read == wordpiece and read.legacy_fingerprint
    shorter = tokenizer_lib.Tokenizer.loads(legacy(model, longest_word=3))
    assert shorter.encode("attribute") == [shorter.unk_id]
    assert shorter.legacy_fingerprint != read.legacy_fingerprint
    other = legacy(model, kind="byte_bpe")
    # Its folder has no vocab.txt.
    (tmp_path / "tokenizer.json").write_text(other)
    for use, given in (
        (tokenizer_lib.Tokenizer.loads, other),
        (tokenizer_lib.Tokenizer.load, tmp_path),
    ):
        with pytest.raises(
            UserError, match="cannot be used: .* it as 'byte_bpe'; only 'wo"
        ):
            use(given)
    # A folder has the model in a file, and the fingerprint.
    values = {**json.loads(text), "fingerprint": read.legacy_fingerprint}
    del values["model"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="cannot be used: .*No such file"):
        tokenizer_lib.Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(model)
    assert tokenizer_lib.Tokenizer.load(tmp_path) == wordpiece
    (tmp_path / "vocab.txt").write_bytes(model + b"more\n")
    with pytest.raises(UserError, match="have changed since they were saved"):
        tokenizer_lib.Tokenizer.load(tmp_path)
