"""Mixtures of several corpora: their rows, shares and order."""

import contextlib
import dataclasses
import io

import numpy as np
import pytest
import restatement
from corpora import build_text, documents_of
from made_batches import assert_rows_equal, configure, make
from recipes import load
from runs import metrics

from bert_jax import config as config_lib
from bert_jax import pretraining
from bert_jax.corpus import mixture, tokenizer_training
from bert_jax.data import mixing
from bert_jax.errors import UserError


@pytest.fixture(scope="module")
def corpora(documents, wordpiece, tmp_path_factory):
    """Return corpora "large", "small" and "tiny"; "tiny" has nothing held out."""
    folder = tmp_path_factory.mktemp("corpora")
    ends = {"large": (0, 50, 0.2), "small": (50, 61, 0.4), "tiny": (77, 79, 0.0)}
    return [
        build_text(
            documents[begin:end],
            wordpiece,
            folder / name,
            held_out=held_out,
            split_bytes=4_000,
        )
        for name, (begin, end, held_out) in ends.items()
    ]


def mixed(config, **data):
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **data))


# ---- batches


def test_batches_equal_the_restatement(corpora):
    weights = (0.5, 3.0, 1.0)
    packed = config_lib.MaskedLmConfig(examples_per_row=4, short_sequence_rate=0.5)
    config = configure(packed, batch_size=31)
    config = mixed(config, weights=weights)
    made = make(corpora, config, phase=1)
    reference = restatement.Mixture(corpora, config, weights, phase=1)
    # The phase begins at row 279. The second of these steps is in two blocks.
    for step in (0, (2**16 - 279) // 31, 10**6):
        positions = step * 31 + np.arange(31)
        assert_rows_equal(made.batch(step), reference, positions, step)


def test_weights_of_phases_equal_the_restatement(corpora, monkeypatch):
    """Weights change in the middle of blocks, with two groups of shards."""
    for module in (mixture, mixing, restatement):  # an eighth of the rows
        monkeypatch.setattr(module, "BLOCK", 2**13)
    config = configure(groups=2)
    shapes = [
        (4000, 64, (0.5, 3.0)),
        (7, 16, (1.0, 6.0)),  # the same shares
        (40, 16, (0.005, 1.0)),  # a block has fewer rows of the first than are left
        (9, 32, ()),
    ]
    phases = tuple(
        config_lib.PhaseConfig(
            steps=steps, batch_size=batch_size, length=64, corpus_weights=weights
        )
        for steps, batch_size, weights in shapes
    )
    weights = (1.0, 2.0)
    config = mixed(dataclasses.replace(config, phases=phases), weights=weights)
    made, half = make(corpora[:2], config, phase=3), 16
    for group in range(2):
        reference = restatement.Mixture(
            corpora[:2], config, weights, phase=3, group=group
        )
        own = slice(group * half, (group + 1) * half)
        for step in (0, 10**4):
            batch = {n: values[own] for n, values in made.batch(step).items()}
            positions = step * half + np.arange(half)
            assert_rows_equal(batch, reference, positions, step)


def test_a_process_with_one_of_two_groups_reports_the_rows_of_the_run(corpora):
    config = mixed(configure(groups=2, batch_size=32), weights=(1.0, 3.0))
    (line, _) = make(corpora[:2], config, rows=np.arange(16)).describe(100)
    assert line.startswith("corpus large: 25.00% of the rows, about 800; ")
    counts = [int(line.rpartition(" ")[2].replace(",", ""))]
    for rows in (np.arange(16), np.arange(32)):
        made = make(corpora[:2], config, rows=rows)
        own = [group.corpora[0].order.count for group in made._groups]
        counts.append(2 * np.mean(own))
    assert counts[0] == counts[1] == pytest.approx(counts[2], rel=0.2)


def test_a_process_may_have_rows_of_one_corpus_only(corpora):
    """The corpus may change from step to step."""
    corpora = corpora[:2]
    config = mixed(configure(), weights=(1.0, 1.0))
    alone, all_rows = make(corpora, config, rows=[5]), make(corpora, config)
    for step in range(6):
        whole = all_rows.batch(step)
        for name, values in alone.batch(step).items():
            assert np.array_equal(values, whole[name][5:6]), (step, name)


# ---- shares


def test_weights_are_sizes_to_a_power(corpora):
    """As in multilingual.md: shares to the power, normalised."""
    sizes = np.array([corpus.count("train", "tokens") for corpus in corpora])
    assert sizes[0] > 3 * sizes[1] > 9 * sizes[2]
    for exponent in (1.0, 0.7, 0.0):
        data = config_lib.DataConfig(weight_exponent=exponent)
        expected = (sizes / sizes.sum()) ** exponent
        expected /= expected.sum()
        np.testing.assert_allclose(mixture.weights(data, corpora), expected)
        counts = mixture.rows_of_block(data, corpora)
        assert counts.sum() == 2**16
        assert np.abs(counts - expected * 2**16).max() < 1


def test_each_round_has_the_shares_and_a_random_order(corpora):
    """A corpus is read in its order, but for the shuffle in a round.

    Counts in a quarter of a round are those of draws without replacement.
    """
    weights = (3.0, 2.0, 100 / 2**16)  # of the last, 20 rows in a block
    config = mixed(configure(batch_size=64), weights=weights)
    (group,) = make(corpora, config)._groups
    block = 5
    of, row = group.mixing.at(np.arange(block * 2**16, (block + 1) * 2**16))
    of, row = of.numpy().reshape(256, 256), row.numpy().reshape(256, 256)
    counts = np.bincount(of.ravel())
    assert counts.tolist() == [39310, 26206, 20]
    for i, count in enumerate(counts):
        in_rounds = [
            round_[is_own] for round_, is_own in zip(row, of == i, strict=True)
        ]
        assert np.concatenate(list(map(np.sort, in_rounds))).tolist() == list(
            range(block * count, (block + 1) * count)
        )
        sizes = np.array(list(map(len, in_rounds)))
        assert set(sizes.tolist()) == {count // 256, count // 256 + 1}
        quarters = (of == i).reshape(256, 4, 64).sum(2)
        p = (sizes / 256)[:, None]
        off = (quarters - 64 * p) / np.sqrt(64 * p * (1 - p) * 192 / 255 + 1e-9)
        if count > 256:
            assert np.abs(off).max() < 4.5
            assert abs(np.mean(off**2) - 1) < 4 * np.sqrt(2 / off.size)
        else:  # the rounds with a row are scattered over the block
            assert np.sum(np.diff(sizes) == 1) > count / 2
    other = group.mixing.at(np.arange(2**16))[0].numpy()
    assert np.mean(other == of.ravel()) < 0.6  # other blocks have other orders


@pytest.mark.parametrize("eval_batches", [0, 1])
def test_baselines_weigh_corpora_as_training_does(eval_batches, corpora):
    """Also where an evaluation reads a part of the held-out text."""
    weights = (0.25, 0.75)
    config = mixed(configure(batch_size=8), weights=weights)
    loop = dataclasses.replace(config.loop, eval_batches=eval_batches)
    config = dataclasses.replace(config, loop=loop)
    levels = pretraining.open_data(config, corpora[:2], 0, np.arange(8)).baselines
    shares = 0
    for corpus, weight in zip(corpora[:2], weights, strict=True):
        tokens = np.concatenate(
            [document["tokens"] for document in documents_of(corpus, "held_out")]
        )
        counts = np.bincount(tokens, minlength=corpus.tokenizer.vocab_size)
        rows = make([corpus], config, held_out=True).num_rows
        shares += weight * counts / rows
    shares = shares[shares > 0] / shares.sum()
    entropy = -(shares * np.log(shares)).sum()
    assert levels["unigram_entropy"] == pytest.approx(entropy)


# ---- refused configs


def test_corpora_that_cannot_be_mixed_are_refused(corpora, documents, tmp_path):
    folders = [str(corpus.folder) for corpus in corpora]
    other = tokenizer_training.train_wordpiece(documents, 500)
    unlike = build_text(documents[:3], other, tmp_path / "b")
    with pytest.raises(UserError) as refused:
        mixture.open_corpora([folders[0], str(unlike.folder)])
    for text in ("large", str(unlike.folder), "tokenizers", other.fingerprint):
        assert text in str(refused.value)
    with pytest.raises(UserError, match="small and .*small are the same corpus; give"):
        mixture.open_corpora([folders[1], folders[1]])
    data = config_lib.DataConfig(weights=(1.0, 1e-6, 1.0))
    with pytest.raises(UserError, match="corpus small would have a share of 5e-07"):
        mixture.rows_of_block(data, corpora)
    # Also in a later phase, before the first one is trained.
    later = config_lib.PhaseConfig(corpus_weights=(1.0, 1e-6, 1.0))
    config = config_lib.PretrainConfig(phases=(config_lib.PhaseConfig(), later))
    message = r"phases\[1\].corpus_weights: the corpus small would have a share"
    with pytest.raises(UserError, match=message):
        mixture.check_counts(config, corpora)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"weights": (1.0,)}, "weights has 1 values for 2 folders in"),
        ({"weight_exponent": 1.5}, "weight_exponent=1.5 must be .* at most 1"),
        ({"weights": (1.0, 2.0), "weight_exponent": 0.7}, "0.7 does not go with"),
        ({"corpus": "a,"}, "data.corpus='a,' has a folder without a name; remove"),
    ],
)
def test_wrong_folders_and_weights_are_refused(data, message):
    data = config_lib.DataConfig(**{"corpus": "a, b"} | data)
    config = config_lib.PretrainConfig(data=data)
    with pytest.raises(UserError, match=message):
        config_lib.check(config)


def test_weights_that_are_no_numbers_are_refused():
    cfg = load("multilingual", "smoke")
    cfg.data.weights = ("1,nan",)  # as on the command line
    with pytest.raises(UserError, match=r"data.weights='1,nan': expected numbers with"):
        config_lib.from_dict(config_lib.PretrainConfig, cfg)
    assert config_lib.DataConfig(corpus="a, b").folders == ("a", "b")


def test_wrong_weights_of_a_phase_are_refused():
    phase = config_lib.PhaseConfig(corpus_weights=(1.0, 2.0, 3.0))
    config = config_lib.PretrainConfig(phases=(config_lib.PhaseConfig(), phase))
    config_lib.check(config)  # the folders may be given later
    data = config_lib.DataConfig(corpus="a, b")
    message = r"^phases\[1\].corpus_weights has 3 values for 2 folders in data"
    with pytest.raises(UserError, match=message):
        config_lib.check(dataclasses.replace(config, data=data))


def test_corpora_with_folders_of_one_name_have_their_paths_as_names(corpora, tmp_path):
    folders = [tmp_path / language / "corpus" for language in ("en", "de")]
    for folder, corpus in zip(folders, corpora, strict=False):
        folder.parent.mkdir()
        folder.symlink_to(corpus.folder)
    opened = mixture.open_corpora(list(map(str, folders)))
    assert mixture.names(opened) == list(map(str, folders))
    assert mixture.names(corpora) == ["large", "small", "tiny"]


def test_corpora_that_hold_out_other_fractions_are_reported(corpora):
    """One copy of a document may be held out, and another one trained on."""
    assert "(large 0.2, small 0.4, tiny 0.0)" in mixture.held_out_warning(corpora)
    assert mixture.held_out_warning(corpora[:1] * 2) == ""


# ---- runs


@pytest.fixture(scope="module")
def run(corpora, tmp_path_factory):
    """Return workdir, config and messages of a run of the recipe."""
    workdir, messages = tmp_path_factory.mktemp("runs") / "run", io.StringIO()
    cfg = load("multilingual", "smoke")
    cfg.data.corpus = ",".join(str(corpus.folder) for corpus in corpora)
    cfg.phases = cfg.phases[:1]
    config = config_lib.from_dict(config_lib.PretrainConfig, cfg)
    with contextlib.redirect_stderr(messages):
        _, config = pretraining.pretrain(config, str(workdir))
    return workdir, config, messages.getvalue()


@pytest.mark.runs
def test_a_run_reports_each_corpus_and_all_together(run, corpora):
    """The mean has the weights of training, without corpora that hold nothing out."""
    workdir, config, _ = run
    assert config.data.fingerprint.split(",") == [c.fingerprint for c in corpora]
    weights = mixture.weights(config.data, corpora)[:2]
    records = [r for r in metrics(workdir) if r["split"] == "eval"]
    assert len(records) == 2
    for record in records:
        assert not any(name.startswith("tiny") for name in record)
        of_each = [
            {n.removeprefix(f"{c}/"): x for n, x in record.items() if n.startswith(c)}
            for c in ("large", "small")
        ]
        assert (
            of_each[0].keys()
            == of_each[1].keys()
            == {name for name in record if "/" not in name} - {"step", "split"}
        )
        # A row of each has one pair, so that shares of rows are those of pairs.
        for name in ("nsp_loss", "nsp_accuracy"):
            mean = np.dot(weights, [values[name] for values in of_each]) / sum(weights)
            assert record[name] == pytest.approx(mean, rel=1e-5)
        low, high = sorted(values["mlm_loss"] for values in of_each)
        assert low < record["mlm_loss"] < high
        assert record["loss"] == pytest.approx(
            record["mlm_loss"] + record["nsp_loss"], rel=1e-5
        )


@pytest.mark.slow
def test_each_corpus_is_evaluated_as_if_it_were_alone(run, corpora):
    """Runs on other mixtures are evaluated on the same rows with the same masks."""
    workdir, config, _ = run
    rows = np.arange(8)
    data = pretraining.open_data(config, corpora, 0, rows)
    assert [part.name for part in data.held_out] == ["large", "small"]
    for corpus, part in zip(corpora, data.held_out, strict=False):
        alone = dataclasses.replace(config, data=config_lib.DataConfig())
        (single,) = pretraining.open_data(alone, [corpus], 0, rows).held_out
        for a, b in zip(part.batches(), single.batches(), strict=True):
            assert all(np.array_equal(a[name], b[name]) for name in a)
        assert part.baselines == single.baselines
    entropy = data.baselines["unigram_entropy"]
    assert metrics(workdir)[-1]["unigram_entropy"] == pytest.approx(entropy, rel=1e-6)


@pytest.mark.runs
def test_a_run_keeps_its_first_corpora_and_weights(run):
    workdir, config, _ = run
    before = {p: p.read_bytes() for p in workdir.glob("*.json*")}
    reverse = {"corpus": ",".join(config.data.folders[::-1]), "fingerprint": ""}
    for data, message in (
        ({"weight_exponent": 0.5}, r"data\.weight_exponent: was 0\.7, is now 0\.5"),
        (reverse, r"data\.fingerprint: was "),
    ):
        with pytest.raises(UserError, match=message):
            pretraining.pretrain(mixed(config, **data), str(workdir))
    assert before == {p: p.read_bytes() for p in workdir.glob("*.json*")}


@pytest.mark.runs
def test_weights_and_epochs_are_reported_at_the_start(run, corpora):
    _, config, messages = run
    share = mixture.weights(config.data, corpora)[1]
    rows = config.phases[0].steps * config.phases[0].batch_size
    expected = f"corpus small: {share:.2%} of the rows, about {rows * share:.0f}; 0."
    assert expected in messages
    assert (
        "the corpus tiny is not evaluated: it has fewer than two held-out documents"
        in messages
    )
