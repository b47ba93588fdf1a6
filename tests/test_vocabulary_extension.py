"""Vocabularies and checkpoints extended by the words of a new text."""

import collections
import dataclasses
import json

import numpy as np
import published
import pytest
import runs
import tokenizers
from commands import assert_refused, call, succeed

from bert_jax import tokenizer as tokenizer_lib
from bert_jax import vocabulary_extension
from bert_jax.corpus import sources, text_sample
from bert_jax.errors import UserError
from bert_jax.interop import lazy_checkpoint
from bert_jax.tokenizer import pipelines

TEXT = """\
The Haemoglobin of the patient, and haemoglobin of others; 1874 1874 1874.
Thrombocytopenia is no haemoglobin. 1874 thrombocytopenia, or thrombocytopenia!
The words the and of are in the vocabulary: the, of, and.
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("new") / "medical.txt"
    path.write_text("\n\n".join([TEXT] * 6), encoding="utf-8")
    return path


def source(path):
    return sources.Source(str(path), "text")


def test_counts_of_words_equal_counts_of_runs_of_letters(wordpiece, documents):
    texts = documents[:20]
    letters = collections.Counter()
    for text in texts:
        for character in set(text):
            if not (character.isascii() and character.isalnum()):
                text = text.replace(character, " ")
        letters.update(text.lower().split())
    known = set(wordpiece.tokens)
    expected = {
        word: count
        for word, count in letters.items()
        if count >= 5 and word not in known and not word.isdigit()
    }
    assert len(expected) > 20
    found = vocabulary_extension.find_words(wordpiece, texts, min_count=5)
    assert {n.word: n.count for n in found if n.word.isalnum()} == expected
    assert found == sorted(found, key=lambda n: (-n.tokens_saved, n.word))
    for new in found:
        assert list(new.pieces) == wordpiece.encode(new.word)
        # An unknown word counts as two tokens.
        assert new.tokens_saved == new.count * max(1, len(new.pieces) - 1)


def test_words_around_an_added_token_are_left_out(wordpiece):
    """The library cuts the token out of them, so that no text has them."""
    pipeline = tokenizers.Tokenizer.from_str(wordpiece.pipeline)
    pipeline.add_tokens(["globin"])
    tokenizer = tokenizer_lib.make(pipeline)
    texts = ["haemoglobin globins thrombocytopenia \u2603"]
    found = vocabulary_extension.find_words(tokenizer, texts, min_count=1)
    words = [new.word for new in found]
    assert sorted(words) == ["thrombocytopenia", "\u2603"]
    extended, ids = vocabulary_extension.extend_tokenizer(tokenizer, words)
    assert extended.encode(" ".join(words)) == ids


def test_pieces_are_of_the_normalised_word(wordpiece):
    """This normalizer would change it again."""
    pipeline = tokenizers.Tokenizer.from_str(wordpiece.pipeline)
    twice = tokenizers.normalizers.Replace("g", "gg")
    pipeline.normalizer = tokenizers.normalizers.Sequence([pipeline.normalizer, twice])
    tokenizer = tokenizer_lib.make(pipeline)
    [new] = vocabulary_extension.find_words(tokenizer, ["haemoglobin"], min_count=1)
    assert new.word == "haemogglobin"
    assert list(new.pieces) == tokenizer.encode("haemoglobin")


def test_continuations_are_no_words(wordpiece):
    """A pipeline may split at spaces only."""
    pipeline = tokenizers.Tokenizer.from_str(wordpiece.pipeline)
    pipeline.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    texts = ["##tag thrombocytopenia"]
    tokenizer = tokenizer_lib.make(pipeline)
    found = vocabulary_extension.find_words(tokenizer, texts, min_count=1)
    assert [new.word for new in found] == ["thrombocytopenia"]


def test_unused_tokens_are_replaced_first(wordpiece):
    """Then new rows are added. All other tokens keep their ids."""
    tokens = [*wordpiece.tokens, "[unused1]", "[unused99]", "[unused2]", "[unused3]"]
    tokens.insert(7, "[unused0]")
    pipeline = pipelines.wordpiece(tokens, True, True)
    pipeline.add_special_tokens(["[unused2]"])
    pipeline.add_tokens(["[unused3]"])
    roomy = tokenizer_lib.make(pipeline)
    words = ["haemoglobin", "patient", "thrombocytopenia", "leukocyte"]
    extended, ids = vocabulary_extension.extend_tokenizer(roomy, words)
    assert ids == [7, len(tokens) - 4, len(tokens) - 3, len(tokens)]
    assert [extended.tokens[i] for i in ids] == words
    kept = [i for i in range(len(tokens)) if i not in ids]
    assert [extended.tokens[i] for i in kept] == [tokens[i] for i in kept]
    assert extended.encode("Leukocyte haemoglobin") == [ids[3], ids[0]]
    assert extended.encode("PATI\u00cbNT") == [ids[1]]
    # Declared tokens are in use, whatever their name.
    library = tokenizers.Tokenizer.from_str(extended.pipeline)
    encoded = library.encode("[unused2] patient [unused3]", add_special_tokens=False)
    assert encoded.ids == [len(tokens) - 2, ids[1], len(tokens) - 1]


def test_new_rows_are_means_of_pieces(pretrained, text, tmp_path):
    flags = [f"--init_from={pretrained}", f"--input={text}", "--words=2"]
    done = call("extend_vocabulary", *flags, "--min_count=2")
    assert_refused(done, "--output is missing")
    flags += ["--min_count=2", f"--output={tmp_path / 'e'}"]
    done = succeed("extend_vocabulary", *flags)
    words = {"haemoglobin", "thrombocytopenia"}
    assert {line.split("\t")[0] for line in done.stdout.splitlines()} == words
    before = lazy_checkpoint.read(str(pretrained)).metadata
    after = lazy_checkpoint.read(str(tmp_path / "e")).metadata
    old, new = before.tokenizer, after.tokenizer
    assert after.encoder.vocab_size == new.vocab_size == old.vocab_size + 2
    assert new == tokenizer_lib.Tokenizer.load(tmp_path / "e/tokenizer")
    before, after = runs.params(pretrained), runs.params(tmp_path / "e")
    assert before.keys() == after.keys()
    changed = {"encoder/embeddings/token_embedding", "mlm_head/output_bias"}
    for path, value in after.items():
        rows = before[path]
        if path not in changed:
            np.testing.assert_array_equal(value, rows)
            continue
        np.testing.assert_array_equal(value[: old.vocab_size], rows[: old.vocab_size])
        for word in words:
            (at,) = new.encode(word)
            pieces = rows[np.array(old.encode(word))]
            np.testing.assert_allclose(value[at], pieces.mean(0), rtol=1e-6, atol=1e-9)
    texts = text_sample.read(source(text), 9**9)
    sizes = [sum(map(len, t.encode_batch(texts))) for t in (old, new)]
    assert (
        "2 new words, of which 0 replace unused tokens; the text has "
        f"{1 - sizes[1] / sizes[0]:.1%} fewer tokens" in done.stderr
    )


def test_unusable_vocabularies_texts_and_folders_are_refused(
    pretrained, text, tmp_path, monkeypatch
):
    def extend(init_from, output, text=text, min_count=1):
        settings = {"words": 5, "min_count": min_count, "sample_bytes": 9**9}
        given = str(init_from), source(text), str(tmp_path / output)
        vocabulary_extension.extend(*given, **settings)

    xlnet = published.folder("xlnet_bare")
    with pytest.raises(UserError, match="WordPiece vocabulary .* has a Unigram voc"):
        extend(xlnet, "a", text=tmp_path / "missing.txt")  # which it does not read
    opened = lazy_checkpoint.read(pretrained)
    values = json.loads(opened.metadata.tokenizer.pipeline) | {"pre_tokenizer": None}
    tokenizer = tokenizer_lib.make(values)
    metadata = dataclasses.replace(opened.metadata, tokenizer=tokenizer)
    with monkeypatch.context() as patch:
        changed = dataclasses.replace(opened, metadata=metadata)
        patch.setattr(lazy_checkpoint, "read", lambda source: changed)
        with pytest.raises(UserError, match="a WordPiece vocabulary and no pre-token"):
            extend(pretrained, "a")
    with pytest.raises(UserError, match="no word that occurs 1000 times or more"):
        extend(pretrained, "a", min_count=1000)
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not empty; give a new folder"):
        extend(pretrained, "")
