"""Tagging: files in CoNLL columns, schemes, windows, scores."""

import itertools
import tracemalloc

import numpy as np
import pytest
from corpora import COMPRESS

from bert_jax import config as config_lib
from bert_jax import finetuning, storage
from bert_jax.errors import UserError
from bert_jax.interop import model_classes
from bert_jax.tasks import conll, entities, tagging

SCHEMES = ("IOB1", "IOB2", "BIOES")


def write(path, text):
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(text.encode()))
    return path


def read(path, text, word_column=0, tag_column=-1, needs_tags=True):
    file = write(path, text)
    return conll.read(file, word_column, tag_column, needs_tags=needs_tags)


# ---- files


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffThe O\r\nRhine   B-river\r\n\r\nflows O",
        "-DOCSTART- -X-\n\n\nThe O\nRhine B-river\n-DOCSTART- -X-\nflows O\n\n\n",
        "The\tO\nRhine\tB-river\n\t\nflows\tO\n",
    ],
)
def test_one_content_in_many_forms(text, tmp_path):
    file = read(tmp_path / "a.conll.gz", text)
    assert [(s.words, s.tags) for s in file.sentences] == [
        (["The", "Rhine"], ["O", "B-river"]),
        (["flows"], ["O"]),
    ]
    lines = text.replace("\ufeff", "").splitlines()
    for sentence in file.sentences:
        assert lines[sentence.line - 1].startswith(sentence.words[0])
    line = 1 + [line.startswith("Rhine") for line in lines].index(True)
    assert file.where("B-river").endswith(f"a.conll.gz, line {line}")


def test_columns_are_chosen(tmp_path):
    text = "1\tNew York\tPROPN\tB-place \n2\t \tPUNCT\tO\n"
    file = read(tmp_path / "a", text, word_column=1, tag_column=2)
    assert file.sentences == [conll.Sentence(1, ["New York", " "], ["PROPN", "PUNCT"])]
    assert read(tmp_path / "a", text, 1).sentences[0].tags == ["B-place", "O"]
    file = read(tmp_path / "a", "The\nRhine\n", needs_tags=False)
    assert file.sentences == [conll.Sentence(1, ["The", "Rhine"], [])]


def test_a_long_sentence_may_stand_beside_another_or_have_no_tags(tmp_path):
    for text in ("a O\n" * 500, "a O\n" * 501 + "\na O\n"):
        assert len(read(tmp_path / "a", text).sentences[0].words) >= 500
    untagged = read(tmp_path / "a", "a\n" * 501, needs_tags=False)
    assert len(untagged.sentences[0].words) == 501


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("-DOCSTART- O\n\n", (), "a has no words"),
        pytest.param(
            "a O\n" * 501,
            (),
            "a: all 501 words are one sentence; a blank line must end each",
            id="no blank line",
        ),
        ("a O\nb\n", (), "line 2: 1 column, not 2 as in the first line with a word"),
        ("a\tO\n\tO\n", (), "line 2: the word is empty"),
        ("a O\nb O\n\nc\tO\n", (), "line 1: 1 column separated by tabs, as in line 4"),
        ("a\nb\n", (), "line 1: 1 column, and none for tags beside task.word_column=0"),
        ("\na O\n", (0, 9), "line 2: 2 columns, but task.tag_column=9, counted"),
        ("1\ta\tO\n# text = b\n", (), r"line 2: 1 column .*grep -P '\^\(\\d\+\\t\|\$"),
    ],
)
def test_invalid_files_are_refused(text, columns, message, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / "a", text, *columns)
    assert "\n" not in str(caught.value)


# ---- schemes


# Type, begin and length of the entities of sentences of ten words; many are adjacent.
SPANS = [
    [("one-type", 0, 1), ("one-type", 1, 2), ("other", 3, 1), ("other", 4, 3)],
    [("other", 2, 3), ("one-type", 5, 1), ("one-type", 6, 3)],
    [("one-type", 1, 1), ("other", 9, 1)],
    [],
]


def tags_of(spans, length, scheme):
    tags = ["O"] * length
    for kind, begin, size in spans:
        letters = "B" + "I" * (size - 1)
        if scheme == "BIOES":
            letters = "S" if size == 1 else letters[:-1] + "E"
        elif scheme == "IOB1":
            touches = begin > 0 and tags[begin - 1][2:] == kind
            letters = ("B" if touches else "I") + "I" * (size - 1)
        for i, letter in enumerate(letters):
            tags[begin + i] = f"{letter}-{kind}"
    return tags


def file_of(tags):
    sentences = [conll.Sentence(1, list("abcdefghijklmnop")[: len(t)], t) for t in tags]
    return conll.TaggedFile("x.conll", sentences, " ", True)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_of_every_scheme(scheme):
    file = file_of([tags_of(spans, 10, scheme) for spans in SPANS])
    assert entities.infer_scheme(file) == scheme
    entities.check(file, scheme)
    assert entities.count_invalid_tags(file, scheme) == 0
    for sentence, expected in zip(file.sentences, SPANS, strict=True):
        for name in (scheme, "lenient"):
            got = entities.entities(sentence.words, sentence.tags, name)
            assert [(e.kind, e.begin, e.end - e.begin) for e in got] == expected
            assert [e.text.split() for e in got] == [
                sentence.words[begin : begin + size] for _, begin, size in expected
            ]


def test_other_names_form_no_entities_in_the_lenient_mode():
    tags = ["B-PER", "X", "[CLS]", "I-LOC", "O"]
    got = entities.entities(list("abcde"), tags, "lenient")
    assert [(e.kind, e.text) for e in got] == [("PER", "a"), ("LOC", "d")]


@pytest.mark.parametrize(
    ("tags", "scheme", "count"),
    [
        ("O I-x I-x O", "IOB2", 2),
        ("B-x I-y I-y B-x I-x", "IOB2", 2),
        ("O I-x I-y O I-x", "IOB1", 0),
        ("I-y B-x", "IOB1", 1),
        ("B-x E-x S-x", "BIOES", 0),
        ("B-x I-x O E-y", "BIOES", 3),
        ("NN I-x B-x", "none", 0),
    ],
)
def test_words_with_a_type_outside_of_entities_are_counted(tags, scheme, count):
    file = file_of([tags.split()])
    assert entities.count_invalid_tags(file, scheme) == count


def test_the_scheme_is_inferred_despite_mistakes():
    good = ["B-x", "I-x", "I-x", "O", "B-x"]
    assert entities.infer_scheme(file_of([good, ["O", "I-x"], good])) == "IOB2"
    good = ["I-x", "I-x", "O", "I-x", "B-x"]
    assert entities.infer_scheme(file_of([good, ["O", "B-x"], good])) == "IOB1"
    # Entities may only be at the beginnings of sentences.
    assert entities.infer_scheme(file_of([["I-x", "I-x", "O"], ["I-y"]])) == "IOB1"
    assert entities.infer_scheme(file_of([["NN", "VBZ", "-LRB-"]])) == "none"


def test_tags_of_no_scheme_are_refused():
    with pytest.raises(UserError, match="x.conll, line 2: the tag 'PER' names no ent"):
        entities.infer_scheme(file_of([["B-x", "PER"]]))
    with pytest.raises(UserError, match="BILOU or BMES.* replace L- by E-, U- by S-"):
        entities.infer_scheme(file_of([["B-x", "M-x", "E-x"]]))
    with pytest.raises(UserError, match="the tags are IOE, .* convert them to BIOES"):
        entities.infer_scheme(file_of([["I-x", "E-x", "O", "E-y"]]))
    with pytest.raises(UserError, match="line 3: 'E-x' is not a tag of IOB2; .*B-TYPE"):
        entities.check(file_of([["B-x", "O", "E-x"]]), "IOB2")
    entities.check(file_of([["B-x", "O", "E-x"]]), "none")


def test_an_imported_tagger_keeps_its_entities_in_both_schemes():
    """The names of the tags do not say whether they are IOB1 or IOB2."""
    scheme = model_classes._scheme(["B-x", "I-x", "O"])
    for tags in (["O", "I-x", "B-x"], ["O", "B-x", "B-x"]):
        got = entities.entities("abc", tags, scheme)
        assert [(e.begin, e.end) for e in got] == [(1, 2), (2, 3)]


def test_an_imported_tagger_of_single_words_has_no_ends():
    """B, I, S and other labels; BIOES decoded strictly would need an E."""
    scheme = model_classes._scheme(["B-x", "I-x", "S-x", "O", "X"])
    got = entities.entities("abcde", ["B-x", "I-x", "X", "S-x", "O"], scheme)
    assert [(e.begin, e.end) for e in got] == [(0, 2), (3, 4)]


# ---- scores


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_count_whole_entities(scheme):
    """Of 3 entities, 2 are found; of 4 claims, 2 are true."""
    actual = [[("x", 0, 2), ("x", 2, 1)], [("y", 1, 2)]]
    claims = [[("x", 0, 2), ("y", 2, 1)], [("y", 1, 2), ("x", 3, 1)]]
    got = tagging.metrics(
        *([tags_of(spans, 4, scheme) for spans in each] for each in (actual, claims)),
        scheme,
    )
    expected = {"f1": 4 / 7, "precision": 2 / 4, "recall": 2 / 3}
    assert {name: got[name] for name in expected} == pytest.approx(expected)
    assert got["types"] == {
        "x": pytest.approx({"f1": 0.5, "precision": 0.5, "recall": 0.5, "entities": 2}),
        "y": pytest.approx({"f1": 2 / 3, "precision": 0.5, "recall": 1, "entities": 1}),
    }


def test_predictions_without_entities_score_0_without_a_warning():
    actual = [["B-x", "I-x", "O"]]
    got = tagging.metrics(actual, [["O", "O", "O"]], "IOB2")
    assert (got["precision"], got["recall"], got["f1"]) == (0, 0, 0)
    assert got["accuracy"] == pytest.approx(1 / 3)
    # An entity of strict IOB2 begins with B; conlleval also takes I.
    got = tagging.metrics(actual, [["I-x", "I-x", "O"]], "IOB2")
    assert got["f1"] == 0
    assert [got[f"lenient_{x}"] for x in ("f1", "precision", "recall")] == [1, 1, 1]
    assert tagging.metrics([["O"]], [["O"]], "IOB2")["types"] == {}
    got = tagging.metrics([["N", "V"], ["N", "N"]], [["N", "N"], ["N", "V"]], "none")
    # N: 2 of 3 are hit, 2 of 3 claims are true; V: nothing.
    assert got == {"accuracy": 0.5, "macro_f1": pytest.approx((2 / 3 + 0) / 2)}


# ---- rows


def test_the_first_token_of_a_word_has_its_tag(wordpiece):
    sentences = [["the", "unbelievable", "\u200b", "value"], ["a"]]
    rows = tagging.make_rows(sentences, wordpiece, 16, [[2, 1, 0, 2], [1]])
    pieces = [wordpiece.encode(word) for word in sentences[0]]
    assert len(pieces[1]) > 1 and pieces[2] == []
    pieces[2] = [wordpiece.unk_id]
    ids = [wordpiece.cls_id, *itertools.chain(*pieces), wordpiece.sep_id]
    arrays = rows.arrays
    padding = 16 - len(ids)
    assert arrays["input_ids"][0].tolist() == ids + [wordpiece.pad_id] * padding
    assert arrays["attention_mask"].sum(1).tolist() == [len(ids), 3]
    expected = [-1]
    for piece, label in zip(pieces, [2, 1, 0, 2], strict=True):
        expected += [label] + [-1] * (len(piece) - 1)
    assert arrays["labels"][0, : len(expected)].tolist() == expected
    assert (arrays["labels"] >= 0).sum() == 5
    assert rows.decode(arrays["labels"], "xyz") == [list("zyxz"), ["y"]]
    assert rows.in_windows == 0 and not rows.truncated.any()
    # Rows without labels have weight 0.
    unknown = tagging.make_rows(sentences, wordpiece, 16).arrays
    assert unknown["weights"].tolist() == [0, 0] and (unknown["labels"] < 0).all()
    assert np.array_equal(unknown["input_ids"], arrays["input_ids"])


def test_a_word_may_have_megabytes():
    word = "b" * 6_000_000
    assert [place for _, place in tagging.split(f"a {word}.")] == [
        (0, 1), (2, 2 + len(word)), (2 + len(word), 3 + len(word)),
    ]  # fmt: skip


def test_no_word_is_left_without_a_prediction(wordpiece):
    rng = np.random.default_rng(0)
    vocabulary = ["the", "value", "unbelievable", "x" * 60, "a", "\u200b"]
    sizes = [1, 5, 40, 200]
    sentences = [rng.choice(vocabulary, size).tolist() for size in sizes]
    labels = [rng.integers(0, 7, size).tolist() for size in sizes]
    longest = len(wordpiece.encode(vocabulary[3]))  # which fills a row, but fits
    for length in (8, 20, 64, longest + 2):
        rows = tagging.make_rows(sentences, wordpiece, length, labels)
        arrays = rows.arrays
        assert rows.decode(arrays["labels"], range(7)) == labels
        assert (arrays["labels"] >= 0).sum() == sum(sizes)
        assert set(arrays["weights"]) == {1.0}
        assert rows.in_windows >= 1
        assert rows.truncated.tolist() == [
            sum(len(wordpiece.encode(w)) > length - 2 for w in s) for s in sentences
        ]
        # The token at a word's position is the first of the word.
        words = itertools.chain(*sentences)
        for word, (row, position) in zip(words, rows.words, strict=True):
            first = (wordpiece.encode(word) or [wordpiece.unk_id])[0]
            assert arrays["input_ids"][row, position] == first


@pytest.mark.parametrize("capacity", [6, 7, 30])
def test_windows_overlap_and_each_word_has_the_one_with_most_context(capacity):
    rng = np.random.default_rng(capacity)
    for _ in range(20):
        lengths = rng.integers(1, 1 + rng.integers(1, capacity + 1), 40).tolist()
        spans, owners = tagging.windows(lengths, capacity)
        assert spans[0][0] == 0 and spans[-1][1] == len(lengths)
        for (begin, end), (next_begin, next_end) in itertools.pairwise(spans):
            assert begin < next_begin <= end < next_end
            assert sum(lengths[next_begin:end]) <= capacity // 2
        for begin, end in spans:
            assert 0 < sum(lengths[begin:end]) <= capacity
        for word, owner in enumerate(owners):
            context = [
                min(sum(lengths[begin:word]), sum(lengths[word + 1 : end]))
                if begin <= word < end
                else -1
                for begin, end in spans
            ]
            assert context[owner] == max(context) >= 0


def test_overlaps_are_half_a_window_where_words_are_short():
    spans, owners = tagging.windows([1] * 20, 8)
    assert spans == [(0, 8), (4, 12), (8, 16), (12, 20)]
    assert owners == [0] * 6 + [1] * 4 + [2] * 4 + [3] * 6


def test_windows_of_a_whole_book_fit_in_memory():
    """An array of windows times words would have 50 MB."""
    tracemalloc.start()
    tagging.windows([1] * 20_000, 126)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10e6


# ---- the task


@pytest.fixture
def files(tmp_path):
    train = "the O\nRhine B-river\n\na O\nblue O\nDanube I-river\n"
    return {
        "train": str(write(tmp_path / "train", train)),
        "eval": str(write(tmp_path / "eval", "the\tO\nNile\tB-river\n")),
    }


def make(files, tokenizer, **more):
    config = config_lib.TaggingConfig(**{**files, "length": 16, **more})
    return tagging.Tagging(config, tokenizer)


def test_scores_and_files_of_a_test_set(files, wordpiece, tmp_path):
    write(tmp_path / "test", "the O\nNile B-river\n\nRhine B-river\n")
    task = make(files, wordpiece, test=str(tmp_path / "test"))
    assert task.settings == {"tags": ["B-river", "I-river", "O"], "scheme": "IOB2"}
    assert task.description["stray_tags"] == {"train": 1, "eval": 0, "test": 0}
    outputs = {
        name: {"predictions": np.maximum(rows["labels"], 0)}
        for name, rows in task.held_out.items()
    }
    outputs["test"]["predictions"][1, 1] = 2
    predictions = {n: task.decode(n, x) for n, x in outputs.items()}
    scores = finetuning.all_scores(task, predictions)
    assert (scores["f1"], scores["test_recall"]) == (1.0, 0.5)
    assert scores["test_types"]["river"]["entities"] == 2
    folder = storage.path(tmp_path)
    for name, predicted in predictions.items():
        task.write(folder, name, predicted)
    got = (tmp_path / "predictions.conll").read_text()
    assert got == "the\tO\tO\nNile\tB-river\tB-river\n\n"
    got = (tmp_path / "test_predictions.conll").read_text()
    assert got == "the O O\nNile B-river B-river\n\nRhine B-river O\n\n"
    # The same words without tags.
    write(tmp_path / "test", "the\nNile\n\nRhine\n")
    task = make(files, wordpiece, test=str(tmp_path / "test"))
    assert task.held_out["test"]["weights"].tolist() == [0, 0]
    # The best of several runs is that with the best first score.
    predictions = {n: task.decode(n, x) for n, x in outputs.items()}
    scores = finetuning.all_scores(task, predictions)
    assert next(iter(scores)) == "f1" and "test_f1" not in scores
    for name, predicted in predictions.items():
        task.write(folder, name, predicted)
    got = (tmp_path / "test_predictions.conll").read_text()
    assert got == "the O\nNile B-river\n\nRhine O\n\n"


def test_the_scheme_may_be_declared(files, wordpiece):
    assert make(files, wordpiece).settings["scheme"] == "IOB2"
    as_words = make(files, wordpiece, scheme="none")
    outputs = {"predictions": as_words.held_out["eval"]["labels"]}
    assert as_words.scores("eval", as_words.decode("eval", outputs)) == {
        "accuracy": 1.0,
        "macro_f1": 1.0,
    }
    assert make(files, wordpiece, scheme="IOB1").settings["scheme"] == "IOB1"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("eval", "the O\n\nNile B-lake\n", "eval, line 3: no word of the training"),
        ("eval", "the O\nNile S-river\n", "line 2: 'S-river' is not a tag of IOB2"),
        ("test", "the B-lake\n", "test, line 1: no word .* its tags are B-river, I-"),
        ("train", "the O\n\na O\n", "all words of .*train have the tag 'O'"),
    ],
)
def test_unknown_and_missing_tags_are_refused(
    name, text, message, files, wordpiece, tmp_path
):
    write(tmp_path / name, text)
    with pytest.raises(UserError, match=message):
        make(files, wordpiece, **{name: str(tmp_path / name)})
