"""Scores of minimal pairs, beside losses of objectives."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import assert_refused, call, succeed
from saved import save
from toy import TINY, sums_of

from bert_jax import config, prediction
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import causal_lm, masked_lm, permutation_lm, replaced_tokens
from bert_jax.prediction import minimal_pair_files as files
from bert_jax.prediction import minimal_pairs
from bert_jax.tokenizer import pipelines

# Words of two letters, and the same as later pieces of words.
WORDS = [f"{a}{b}" for a in "abcdefgh" for b in "uvwxyz"]
TOKENS = [*tokenizer_lib.SPECIAL_TOKENS, *WORDS, *(f"##{word}" for word in WORDS)]
LENGTH = 24
TOKENIZER = tokenizer_lib.make(pipelines.wordpiece(TOKENS, True, True))
OBJECTIVES = {
    "masked": masked_lm.MaskedLm(TINY, config.MaskedLmConfig(segments="doc_sentences")),
    "causal": causal_lm.CausalLm(dataclasses.replace(TINY, causal=True)),
    "permutation": permutation_lm.PermutationLm(
        dataclasses.replace(TINY, positions="relative")
    ),
    "replaced": replaced_tokens.ReplacedTokens(TINY),
}


@pytest.fixture(scope="module", params=OBJECTIVES)
def trained(request, tmp_path_factory):
    """Return an objective, its checkpoint with random weights, and the parameters."""
    objective = OBJECTIVES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return objective, folder, save(folder, objective, TOKENIZER)


def sentences(count):
    """Return texts of one to eight tokens, some of which continue a word."""
    rng = np.random.default_rng(0)
    texts = []
    for size in rng.integers(1, 9, count):
        words = rng.choice(WORDS, size)
        ends = rng.choice([" ", " ", ""], size)
        texts.append("".join(np.char.add(words, ends)).strip())
    return texts


def loss_sum(objective, params, batch):
    """Return the sum of an objective's first loss over a batch."""
    sums = sums_of(objective, params, batch)
    return sums[next(iter(objective.loss_weights))].sum


def batch_of(ids):
    """Return a batch of one row, padded to the length of all rows."""
    mask = np.arange(LENGTH)[None] < len(ids)
    row = np.array([[*ids, *[TOKENIZER.pad_id] * (LENGTH - len(ids))]], np.int32)
    return {"input_ids": row, "attention_mask": mask, "weights": np.ones(1)}


def restated(objective, params, text, within_word=False):
    """Score a sentence by an objective's loss, one token at a time."""
    ids = [TOKENIZER.cls_id, *TOKENIZER.encode(text), TOKENIZER.sep_id]
    if isinstance(objective, causal_lm.CausalLm):
        return -float(loss_sum(objective, params, batch_of(ids)))
    if isinstance(objective, replaced_tokens.ReplacedTokens):
        apply = jax.jit(objective.model.apply, static_argnames="method")
        inputs = Inputs.of(jax.tree.map(jnp.asarray, batch_of(ids)))
        logits = apply({"params": params}, inputs, method="discriminate")
        logits = np.asarray(logits, float)[0, 1 : len(ids) - 1]
        replaced = 1 / (1 + np.exp(-logits))
        return np.log(1 - replaced).sum()
    total = 0.0
    for at in range(1, len(ids) - 1):
        prediction = {"labels": ids[at], "positions": at, "weights": 1.0}
        prediction = {name: np.array([[x]]) for name, x in prediction.items()}
        if isinstance(objective, permutation_lm.PermutationLm):
            batch = {f"target_{name}": x for name, x in prediction.items()}
            ranks = np.where(np.arange(LENGTH) == at, 7, -1)
            batch |= batch_of(ids) | {"ranks": ranks[None]}
        else:
            end = at + 1
            while within_word and TOKENIZER.tokens[ids[end]].startswith("##"):
                end += 1
            masked = [*ids[:at], *[TOKENIZER.mask_id] * (end - at), *ids[end:]]
            batch = {f"mlm_{name}": x for name, x in prediction.items()}
            batch |= batch_of(masked)
        total -= float(loss_sum(objective, params, batch))
    return total


def test_scores_are_sums_of_losses_of_single_tokens(trained):
    objective, folder, params = trained
    texts = sentences(2)
    scores = prediction.load(str(folder)).score_pairs([texts])
    expected = [restated(objective, params, text) for text in texts]
    np.testing.assert_allclose(np.ravel(list(scores)), expected, rtol=1e-5)


def test_scores_do_not_depend_on_the_batches_in_memory(trained, monkeypatch):
    model = prediction.load(str(trained[1]))
    pairs = [sentences(2), sentences(2)[::-1]]
    expected = list(model.score_pairs(pairs))
    assert expected[1] == pytest.approx(expected[0][::-1], rel=1e-5)
    monkeypatch.setattr(minimal_pairs, "_BATCHES", 1)
    monkeypatch.setattr(minimal_pairs, "_BATCH_TOKENS", 3 * LENGTH)
    for got, want in zip(model.score_pairs(pairs), expected, strict=True):
        assert got == pytest.approx(want, rel=1e-5)


def test_later_pieces_of_a_word_are_masked_with_each_piece(trained):
    objective, folder, params = trained
    scores = prediction.load(str(folder)).score_pairs(
        [("au bv cw", "aubvcw dx")], within_word=True
    )
    if not isinstance(objective, masked_lm.MaskedLm):
        with pytest.raises(UserError, match="within_word applies to masked tokens"):
            next(scores)
        return
    ((single, several),) = scores
    assert single == pytest.approx(restated(objective, params, "au bv cw"), rel=1e-5)
    assert several == pytest.approx(
        restated(objective, params, "aubvcw dx", within_word=True), rel=1e-5
    )


def test_a_byte_level_word_does_not_include_punctuation(byte_bpe, tmp_path):
    """Test that the two scores are equal where each word is a single token."""
    encoder = dataclasses.replace(TINY, vocab_size=byte_bpe.vocab_size)
    objective = dataclasses.replace(OBJECTIVES["masked"], encoder=encoder)
    save(tmp_path, objective, byte_bpe)
    known = [t[1:] for t in byte_bpe.tokens if re.fullmatch("Ġ[a-z]{3,}", t)]
    pair = f"{known[0]}, {known[1]}.", f"{known[2]} ({known[3]})"
    score = prediction.load(str(tmp_path)).score_pairs
    ((*each,), (*within,)) = (next(score([pair], within_word=w)) for w in (False, True))
    assert within == pytest.approx(each, rel=1e-5)


@pytest.mark.parametrize("trained", ["masked"], indirect=True)
def test_the_program_prints_and_writes_accuracies(trained, tmp_path):
    _, folder, _ = trained
    texts = sentences(12)
    names = "sentence_good", "sentence_bad", "linguistics_term"
    terms = [f"term {i % 2}" for i in range(6)]
    pairs = [
        dict(zip(names, pair, strict=True))
        for pair in zip(texts[::2], texts[1::2], terms, strict=True)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    out = tmp_path / "out"
    done = succeed(
        "minimal_pairs", f"--init_from={folder}", f"--file={path}", f"--output={out}"
    )
    lines = (out / "pairs.jsonl").read_text().splitlines()
    written = [json.loads(line) for line in lines]
    right = [pair["score_good"] > pair["score_bad"] for pair in written]
    results = json.loads((out / "accuracy.json").read_text())
    assert results["term 1"]["pairs"] == 3
    assert results["term 1"]["right"] == sum(right[1::2])
    share = sum(right) / 6
    assert results[files.ALL]["accuracy"] == share
    assert results[files.ALL]["standard_error"] == (share * (1 - share) / 6) ** 0.5
    last = done.stdout.splitlines()[-1]
    assert last.split()[:3] == ["all", "pairs", "6"]
    assert f"{share:.1%} ±" in last
    assert (out / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_names_and_titles_may_have_any_letters(tmp_path):
    groups = ["$a_$b", "\u4e2d"]
    pair = {"sentence_good": "au", "sentence_bad": "av"}
    pairs = [pair | {"group": group} for group in groups]
    scores = [(1.0, 0.0), (0.0, 1.0)]
    measured = files.accuracies(pairs, scores, "group")
    files.write(tmp_path, pairs, scores, measured, "of /data/$a_$b/\u4e2d")
    drawn = files.draw(measured, "of /data/$a_$b/run")
    (axis,) = drawn.axes
    places = {x.get_text(): x.get_position()[1] for x in axis.get_yticklabels()}
    bars = {bar.get_y() + bar.get_height() / 2: bar.get_width() for bar in axis.patches}
    assert {name: bars[at] for name, at in places.items()} == {
        "$a_$b": 100,
        "\u4e2d": 0,
        files.ALL: 50,
    }


def test_one_pair_has_no_standard_error(tmp_path):
    pairs = [{"group": name} for name in ("one", "two", "two")]
    scores = [(1.0, 0.0), (0.0, 0.0), (1.0, 0.0)]  # equal scores are wrong
    measured = files.accuracies(pairs, scores, "group")
    files.write(tmp_path, pairs, scores, measured, "")
    results = json.loads((tmp_path / "accuracy.json").read_text())
    assert results["one"]["standard_error"] is None
    np.testing.assert_allclose(results["two"]["standard_error"], 0.5 / 2**0.5)
    rows = files.table(measured).splitlines()
    assert rows[1].endswith(" 1  100.0%")
    assert rows[2].endswith(" 2   50.0% ± 35.4%")


@pytest.mark.parametrize("trained", ["masked"], indirect=True)
@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "pairs.jsonl, line 2: not JSON"),
        ('{"sentence_good": "au"}', "pairs.jsonl, line 2 has no text 'sentence_bad'"),
        ('{"sentence_good": "au", "sentence_bad": ""}', "line 2: '' has no tokens"),
        (r'{"sentence_good": "a", "x": "\ud800"}', r"\ud800': an escape such as"),
    ],
)
def test_mistaken_pairs_are_refused_with_their_line(trained, tmp_path, line, message):
    _, folder, _ = trained
    path = tmp_path / "pairs.jsonl"
    good = '{"sentence_good": "au", "sentence_bad": "av"}'
    path.write_text(f"{good}\n{line}\n\n")  # a blank line is skipped
    done = call("minimal_pairs", f"--init_from={folder}", f"--file={path}")
    assert_refused(done, message)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--output=gs://bucket/x", "--output=gs://bucket/x must be a local folder"),
        ("--output=pairs.jsonl", "pairs.jsonl is a file or a broken link; give a"),
        ("--group_by=x", "--group_by=x: no pair has this field; the first one has"),
    ],
)
def test_wrong_flags_are_refused_before_scoring(flag, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pair = {"sentence_good": "the cat sat", "sentence_bad": "the sat cat"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    flags = "--init_from=none", "--file=pairs.jsonl", flag
    assert_refused(call("minimal_pairs", *flags), message)


@pytest.mark.parametrize("trained", ["masked"], indirect=True)
def test_items_that_are_no_pairs_are_refused(trained):
    model = prediction.load(str(trained[1]))
    for items, index, message in (
        (["au"], 0, "'au' is one sentence; give pairs, "),
        ([("au", "")], 0, "'' has no tokens"),
        ([("au", "av"), ("au", "av", "aw")], 1, "a pair must have two texts, got 3"),
    ):
        with pytest.raises(prediction.TextError, match=message) as error:
            list(model.score_pairs(items))
        assert error.value.index == index
