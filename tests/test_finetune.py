import dataclasses
import itertools
import json
import pathlib
import shutil
import statistics
import types

import jax
import numpy as np
import pytest
import runs
from commands import ROOT, assert_refused, call, run

from bert_jax import config, finetuning, knobs, prediction
from bert_jax.errors import UserError
from bert_jax.finetuning import batches, initialise, repeats
from bert_jax.training import restore


def write_tsv(path, rows, header="text\tlabel"):
    lines = [header, *("\t".join(row) for row in rows)]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Whether a sentence is about a statement or a class: a word decides."""
    folder = tmp_path_factory.mktemp("task")
    rng = np.random.default_rng(0)
    words = ["the", "a", "object", "value", "name", "module", "is", "of", "to", "in"]
    rows = []
    for i in range(240):
        label = ["class", "statement"][i % 2]
        text = [*rng.choice(words, 6), label, *rng.choice(words, 3)]
        rows.append((" ".join(text), f"about {label}"))
    return {
        "train": write_tsv(folder / "train.tsv", rows[:200]),
        "eval": write_tsv(folder / "eval.tsv", rows[200:]),
    }


def make_config(pretrained, files, **changes):
    cfg = knobs.to_configdict(config.FinetuneConfig())
    cfg.init_from = str(pretrained)
    cfg.task.update(files, length=32)
    cfg.optimizer.learning_rate = 3e-3
    cfg.epochs = 8.0
    cfg.lengths = 1  # one program to compile
    cfg.loop.log_every = 10
    cfg.update(changes)
    return knobs.from_configdict(config.FinetuneConfig, cfg)


@pytest.fixture(scope="module")
def finetuned(pretrained, task, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetuned")
    results = finetuning.finetune(make_config(pretrained, task), str(folder))
    return folder, results


def test_config_overrides_dropout_and_dtype_of_the_encoder():
    pretrained = config.EncoderConfig(
        num_layers=3, dtype="float32", remat="layer", initializer_range=0.5
    )
    asked = config.FinetuneConfig(dropout_rate=0.2, attention_dropout_rate=0.3)
    expected = dataclasses.replace(
        pretrained, dropout_rate=0.2, attention_dropout_rate=0.3
    )
    assert initialise.encoder(asked, pretrained) == expected
    changes = {"dtype": "bfloat16", "kernels": "off"}
    asked = dataclasses.replace(asked, **changes)
    expected = dataclasses.replace(expected, **changes)
    assert initialise.encoder(asked, pretrained) == expected


def test_simple_task_is_learned_and_reported(finetuned, pretrained, task):
    folder, results = finetuned
    assert results["accuracy"] > 0.9
    assert results["examples"] == 40
    assert results["labels"] == ["about class", "about statement"]
    assert results["truncated"] == {"train": 0, "eval": 0}
    assert (folder / "confusion.png").read_bytes()[:4] == b"\x89PNG"
    assert results["init_from"] == str(restore.find(pretrained))
    assert json.loads((folder / "results.json").read_text()) == results
    lines = (folder / "predictions.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    predicted = [line.split("\t")[1] for line in lines[1:]]
    expected = [results["labels"][i % 2] for i in range(200, 240)]
    agreement = np.mean([a == b for a, b in zip(predicted, expected, strict=True)])
    assert agreement == pytest.approx(results["accuracy"])
    rows = pathlib.Path(task["eval"]).read_text(encoding="utf-8").splitlines()[1:]
    texts = [row.split("\t")[0] for row in rows]
    classified = prediction.load(str(folder)).classify(texts)
    assert [each.label for each in classified] == predicted
    evaluated = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert evaluated["split"] == "eval"
    assert evaluated["accuracy"] == pytest.approx(results["accuracy"])


@pytest.mark.slow
@pytest.mark.runs
def test_regression(pretrained, tmp_path):
    """The same words decide; the numbers are not centred."""
    rng = np.random.default_rng(0)
    words = ["the", "a", "object", "value", "name", "module", "is", "of", "to", "in"]
    rows = []
    for i in range(120):
        which = ["class", "statement"][i % 2]
        rows.append((" ".join([*rng.choice(words, 4), which]), str(1.5 + 2 * (i % 2))))
    files = {
        "train": write_tsv(tmp_path / "train.tsv", rows[:100]),
        "eval": write_tsv(tmp_path / "eval.tsv", rows[100:]),
        "test": write_tsv(tmp_path / "test.tsv", [("a class",)], header="text"),
    }
    made = make_config(pretrained, {**files, "target": "number"}, epochs=30.0)
    results = finetuning.finetune(made, str(tmp_path / "run"))
    assert results["pearson"] > 0.8 and "accuracy" not in results
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert "confusion.png" not in names
    lines = (tmp_path / "run/predictions.tsv").read_text().splitlines()[1:]
    predicted = np.array([float(line.split("\t")[1]) for line in lines])
    labels = np.array([float(label) for _, label in rows[100:]])
    got = np.corrcoef(predicted, labels)[0, 1]
    assert got == pytest.approx(results["pearson"], rel=1e-4)
    evaluated = json.loads(
        (tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1]
    )
    squares = np.square(predicted - labels).mean()
    assert evaluated["regression_loss"] == pytest.approx(squares, rel=1e-4)
    lines = (tmp_path / "run/test_predictions.tsv").read_text().splitlines()
    assert len(lines) == 2


def test_encoder_is_loaded_from_the_checkpoint(pretrained, task, tmp_path, capsys):
    source = restore.find(pretrained)
    still = {"epochs": 0.01, "optimizer": {"learning_rate": 0.0}}
    one_step = make_config(pretrained, task, **still)
    finetuning.finetune(one_step, str(tmp_path / "a"))
    reported = capsys.readouterr().err
    assert "loaded: 23 parameters (encoder)" in reported
    assert "new: 2 parameters (classifier)" in reported
    assert "ignored: 7 parameters (mlm_head, nsp_head)" in reported
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    metadata = restore.ocp.checkpointables_metadata(str(source)).metadata["params"]
    shapes = jax.tree.map(
        lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=one), metadata
    )
    expected = restore.load_params(source, shapes).params
    got = restore.load_params(restore.find(tmp_path / "a"), shapes)
    assert len(got.loaded) == 23
    for path in got.loaded:
        assert np.array_equal(got.params[path], expected[path]), path
    # From one checkpoint of the run, or random: other weights in the second case.
    by_step = make_config(source, task, **still, dropout_rate=0.0)
    finetuning.finetune(by_step, str(tmp_path / "b"))
    encoder = restore.read_metadata(restore.find(tmp_path / "b")).encoder
    assert (encoder.dropout_rate, encoder.attention_dropout_rate) == (0.0, 0.1)
    random = make_config(pretrained, task, **still, random_init=True)
    results = finetuning.finetune(random, str(tmp_path / "c"))
    assert results["init_from"] == "random"
    same, other = (
        restore.load_params(restore.find(tmp_path / name), shapes).params
        for name in "bc"
    )
    path = "encoder/embeddings/token_embedding"
    assert np.array_equal(same[path], expected[path])
    assert not np.array_equal(other[path], expected[path])


def test_finished_run_reports_again(finetuned, pretrained, task):
    folder, results = finetuned
    before = (folder / "metrics.jsonl").read_text()
    again = finetuning.finetune(make_config(pretrained, task), str(folder))
    assert again == results
    assert (folder / "metrics.jsonl").read_text() == before


def test_continuation_keeps_its_initial_checkpoint(pretrained, task, tmp_path):
    """The source folder may change or vanish."""
    source = tmp_path / "source"
    shutil.copytree(pretrained, source)
    short = make_config(source, task, epochs=0.3)
    first = finetuning.finetune(short, str(tmp_path / "run"))
    newest = restore.find(source)
    shutil.copytree(newest, newest.with_name("999"))
    again = finetuning.finetune(short, str(tmp_path / "run"))
    assert again == first
    assert first["init_from"] == str(newest)
    shutil.rmtree(source)
    assert finetuning.finetune(short, str(tmp_path / "run")) == first


def test_head_of_another_classifier_is_not_loaded(finetuned, task, tmp_path, capsys):
    folder, _ = finetuned
    short = make_config(folder, task, epochs=0.1)
    finetuning.finetune(short, str(tmp_path / "run"))
    reported = capsys.readouterr().err
    assert "new: 2 parameters (classifier)" in reported
    assert "ignored: 2 parameters (classifier)" in reported


def test_changed_examples_are_refused(finetuned, pretrained, task, tmp_path):
    folder, _ = finetuned
    rows = [("a class", "about class"), ("a statement", "about statement")] * 30
    changed = {**task, "train": write_tsv(tmp_path / "t.tsv", rows)}
    with pytest.raises(UserError, match=r"another config \(task\.fingerprint"):
        finetuning.finetune(make_config(pretrained, changed), str(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init_from": "/nowhere"}, "/nowhere is no folder"),
        ({"init_from": str(pathlib.Path(__file__).parent)}, "holds no complete check"),
        ({"task": {"length": 65}}, "task.length=65 is more than the 64 positions"),
        ({"reinit_layers": 3}, "reinit_layers=3 is more than the 2 distinct layers"),
        ({"keep_best": "f1"}, "keep_best='f1' must be one of 'loss', 'classification"),
        ({"keep_best": "padding_fraction"}, "must be one of .* 'accuracy'$"),
        ({"batch_size": 12, "mesh": {"data": 8}}, "batch_size=12 is not a multiple of"),
    ],
)
def test_invalid_configs_are_refused(changes, message, pretrained, task, tmp_path):
    with pytest.raises(UserError, match=message):
        finetuning.finetune(make_config(pretrained, task, **changes), str(tmp_path))


def test_from_the_command_line(pretrained, task, tmp_path):
    flags = [
        f"--config={ROOT}/configs/classifier.py:smoke",
        f"--config.task.train={task['train']}",
        f"--config.task.eval={task['eval']}",
        f"--config.init_from={pretrained}",
        f"--workdir={tmp_path / 'run'}",
    ]
    done = call("finetune_classifier", *flags)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["examples"] == 40
    missing = [flag for flag in flags if "train=" not in flag]
    refused = call("finetune_classifier", *missing)
    assert_refused(refused, "pass --config.task.train=FILE.tsv")

    damaged = tmp_path / "damaged"
    shutil.copytree(restore.find(pretrained), damaged)
    file = damaged / "params" / "manifest.ocdbt"
    file.write_bytes(file.read_bytes()[:20])
    flags[-2:] = f"--config.init_from={damaged}", f"--workdir={tmp_path / 'other'}"
    refused = run("finetune_classifier", *flags)
    assert_refused(refused, f"{damaged} cannot be used: ValueError: the metadata of p")
    assert "Failed to get metadata" not in refused.stderr


# ---- options of fine-tuning


def params_of(workdir, prefix=""):
    """Return the parameters of a workdir's checkpoint, by path."""
    return {
        path: values
        for path, values in runs.params(workdir).items()
        if path.startswith(prefix)
    }


def test_frozen_encoder_does_not_change(pretrained, task, tmp_path):
    results = finetuning.finetune(
        make_config(pretrained, task, frozen=True, epochs=0.5), str(tmp_path)
    )
    before, after = params_of(pretrained, "encoder/"), params_of(tmp_path, "encoder/")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[path], after[path]) for path in before)
    head = params_of(tmp_path, "classifier/")
    assert np.abs(head["classifier/bias"]).max() > 0
    assert results["steps"] == 4
    state = restore.ocp.checkpointables_metadata(str(restore.find(tmp_path))).metadata
    moments = [x.shape for x in jax.tree.leaves(state["train"]["opt_state"])]
    # Two moments of kernel and bias, and none of the encoder.
    assert sum(len(shape) > 0 for shape in moments) == 4


def test_top_layers_are_reinitialised(pretrained, task, tmp_path):
    still = {"epochs": 0.01, "optimizer": {"learning_rate": 0.0}}
    changed = make_config(pretrained, task, **still, reinit_layers=1)
    finetuning.finetune(changed, str(tmp_path))
    before, after = params_of(pretrained), params_of(tmp_path)
    for path in (
        "encoder/layers/attention/query/kernel",
        "encoder/layers/output/kernel",
    ):
        assert np.array_equal(before[path][0], after[path][0])
        assert not np.array_equal(before[path][1], after[path][1])
        assert np.std(after[path][1]) == pytest.approx(0.0176, rel=0.1)
    path = "encoder/pooler/kernel"
    assert not np.array_equal(before[path], after[path])
    path = "encoder/embeddings/token_embedding"
    assert np.array_equal(before[path], after[path])


@pytest.mark.runs
def test_best_checkpoint_is_kept(pretrained, task, tmp_path):
    """A rate that is far too high after a good start: the end is not the best."""
    changes = {"epochs": 4.0, "keep_best": "loss", "loop": {"eval_every": 5}}
    config = make_config(pretrained, task, **changes)
    results = finetuning.finetune(config, str(tmp_path))
    records = [r for r in runs.metrics(tmp_path) if r["split"] == "eval"]
    assert [r["step"] for r in records] == [5, 10, 15, 20, 25]
    best = min(records, key=lambda r: r["loss"])
    assert results["step"] == best["step"]
    assert results["accuracy"] == pytest.approx(best["accuracy"])
    assert [p.name for p in (tmp_path / "best").iterdir()] == [str(best["step"])]
    # Later runs load it.
    assert restore.find(tmp_path) == tmp_path / "best" / str(best["step"])
    assert finetuning.finetune(config, str(tmp_path)) == results


@pytest.mark.slow
@pytest.mark.runs
def test_several_seeds(pretrained, task, tmp_path):
    config = make_config(pretrained, task, epochs=0.5, repeats=3, seed=5)
    results = finetuning.finetune(config, str(tmp_path))
    scores = {
        f"seed-{seed}": json.loads(
            (tmp_path / f"seed-{seed}/results.json").read_text()
        )["accuracy"]
        for seed in (5, 6, 7)
    }
    values = list(scores.values())
    got = results["scores"]["accuracy"]
    assert got["median"] == statistics.median(values)
    assert got["mean"] == pytest.approx(statistics.mean(values))
    assert got["standard_deviation"] == pytest.approx(statistics.stdev(values))
    assert (got["least"], got["greatest"]) == (min(values), max(values))
    assert scores[results["best"]["run"]] == max(values)
    assert json.loads((tmp_path / "results.json").read_text()) == results
    best = tmp_path / results["best"]["run"]
    with pytest.raises(UserError, match=f"3 runs; give the best of them, {best}$"):
        prediction.load(tmp_path)
    alone = make_config(pretrained, task, epochs=0.5, seed=6)
    finetuning.finetune(alone, str(tmp_path / "alone"))
    runs.assert_same_end(tmp_path / "seed-6", tmp_path / "alone")


def test_folder_of_several_seeds_is_not_a_checkpoint(tmp_path):
    """The message names the best run."""
    for seed in (9, 10, 11):
        (tmp_path / f"seed-{seed}/checkpoints").mkdir(parents=True)
    run = config.FinetuneConfig(init_from=str(tmp_path))

    def assert_says(message):
        message = f"^{tmp_path} holds no complete checkpoint, but 3 runs; {message}$"
        with pytest.raises(UserError, match=message):
            prediction.load(str(tmp_path))
        with pytest.raises(UserError, match=message):
            initialise.source(run, str(tmp_path / "new"))

    assert_says(f"give one of them, such as {tmp_path}/seed-10")
    scores = {"seed-9": {"f1": 0.5}, "seed-10": {"f1": 0.7}, "seed-11": {"f1": 0.6}}
    results = tmp_path / "results.json"
    results.write_text(json.dumps(repeats.summarise(scores)))
    assert_says(f"give the best of them, {tmp_path}/seed-10")
    scores["seed-11"]["f1"] = 0.8
    results.write_text(json.dumps(repeats.summarise(scores)))
    assert_says(f"give the best of them, {tmp_path}/seed-11")
    results.write_text("[]")
    assert_says(f"give one of them, such as {tmp_path}/seed-10")


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 16])
def test_lengths_minimise_padding(count):
    """Compare with all choices."""
    rng = np.random.default_rng(count)
    for _ in range(10):
        used = rng.integers(1, rng.integers(10, 60), 50)
        others = sorted(rng.choice(np.arange(1, 60), 7, replace=False).tolist())

        def positions(chosen, used=used):
            return np.array(chosen)[np.searchsorted(chosen, used)].sum()

        got = batches.least_padding(used, [*others, 60], count)
        assert len(got) <= count and set(got) <= {*others, 60} and got[-1] == 60
        assert positions(got) == min(
            positions([*shorter, 60])
            for size in range(min(count, 8))
            for shorter in itertools.combinations(others, size)
        )


@pytest.mark.parametrize(
    ("longest", "length", "expected"),
    [
        (20, 128, {8, 16, 24}),
        (17, 20, {8, 16, 20}),
        (5, 5, {5}),
        (300, 384, {*range(8, 128, 8), 128, 256, 384}),
        (130, 192, {*range(8, 128, 8), 128, 192}),
    ],
)
def test_lengths_of_a_task(longest, length, expected):
    """With no limit on their number, all multiples that some row needs."""
    ends = np.arange(1, longest + 1)
    train = {"attention_mask": np.arange(length) < np.array([*ends[:-1], 1])[:, None]}
    # The longest row is a held-out example with two choices.
    mask = np.arange(length) < np.array([[3, longest]])[..., None]
    task = types.SimpleNamespace(
        train=train, held_out={"eval": {"attention_mask": mask}}, length=length
    )
    got = batches.lengths(config.FinetuneConfig(lengths=100), task)
    assert set(got) == expected and list(got) == sorted(got)


def test_longer_held_out_rows_do_not_change_training_lengths():
    """A test file may be added when a run continues, which must not change."""
    used = np.random.default_rng(0).geometric(0.07, 500).clip(1, 70)
    train = {"attention_mask": np.arange(128) < used[:, None]}
    lengths = {}
    for longest in (9, 100, 128):
        held_out = {"eval": {"attention_mask": np.arange(128)[None] < longest}}
        task = types.SimpleNamespace(train=train, held_out=held_out, length=128)
        lengths[longest] = batches.lengths(config.FinetuneConfig(), task)
    assert len(lengths[9]) == 6
    assert lengths[100] == (*lengths[9], 104) and lengths[128] == (*lengths[9], 128)


@pytest.mark.runs
def test_lengths_do_not_change_results(pretrained, tmp_path):
    still = {"epochs": 0.01, "optimizer": {"learning_rate": 0.0}, "lengths": 1}
    rows = [("the value " * (1 + i % 12), f"about {i % 2}") for i in range(60)]
    files = {
        name: write_tsv(tmp_path / f"{name}.tsv", rows) for name in ("train", "eval")
    }
    whole = make_config(pretrained, files, **still)
    outputs = []
    for lengths in (1, 4):
        folder = tmp_path / str(lengths)
        finetuning.finetune(dataclasses.replace(whole, lengths=lengths), str(folder))
        outputs.append(runs.metrics(folder)[-1])
    assert outputs[0]["loss"] == pytest.approx(outputs[1]["loss"], rel=1e-6)
    assert outputs[0]["accuracy"] == outputs[1]["accuracy"]
    assert outputs[0]["padding_fraction"] > outputs[1]["padding_fraction"]
