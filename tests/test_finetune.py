"""Fine-tuning: initial parameters, options, lengths of batches, whole runs."""

import dataclasses
import functools
import itertools
import json
import math
import os
import pathlib
import shutil
import signal
import statistics
import types
from unittest import mock

import jax
import numpy as np
import pytest
import runs
from toy import state_of

from bert_jax import config, finetuning, prediction, warm_start
from bert_jax.errors import Interrupted, UserError
from bert_jax.finetuning import batches, initialise
from bert_jax.model import parameters
from bert_jax.tasks import classification
from bert_jax.training import (
    checkpoint,
    evaluation,
    inference,
    interrupts,
    loop,
    metrics_file,
    programs,
    restore,
    saving,
    workdir,
)


@pytest.fixture(scope="module")
def configure(pretrained, labelled_files):
    """Return a function that returns the config of a run, with changes."""

    def make(**changes):
        cfg = config.to_configdict(config.FinetuneConfig())
        cfg.init_from = str(pretrained)
        cfg.task.update(labelled_files, length=32)
        cfg.optimizer.learning_rate = 3e-3
        cfg.epochs = 8.0
        cfg.lengths = 1  # one program to compile
        cfg.loop.update(log_every=10, checkpoint_every=20)
        cfg.update(changes)
        return config.from_dict(config.FinetuneConfig, cfg)

    return make


@pytest.fixture(scope="module")
def finetuned(configure, pretrained, tmp_path_factory):
    """Return the workdir of a run, its results, and its config."""
    folder = tmp_path_factory.mktemp("finetuned")
    source = folder / "source"
    shutil.copytree(pretrained, source)
    made = configure(init_from=str(source))
    return folder / "run", finetuning.finetune(made, str(folder / "run")), made


def test_config_overrides_dropout_and_computation_of_the_encoder():
    pretrained = config.EncoderConfig(
        num_layers=3, dtype="float32", remat="layer", initializer_range=0.5
    )
    changes = {"dropout_rate": 0.2, "attention_dropout_rate": 0.3}
    for more in ({}, {"dtype": "bfloat16", "kernels": "off", "remat": "none"}):
        asked = config.FinetuneConfig(**changes, **more)
        expected = dataclasses.replace(pretrained, **changes, **more)
        assert initialise.resolve_encoder(asked, pretrained) == expected


def test_simple_task_is_learned_and_reported(finetuned, pretrained):
    folder, results, made = finetuned
    assert results["accuracy"] > 0.9
    assert results["examples"] == 40
    assert results["labels"] == ["about class", "about statement"]
    assert results["truncated"] == {"train": 0, "eval": 0}
    assert (folder / "confusion.png").read_bytes()[:4] == b"\x89PNG"
    newest = os.path.relpath(restore.find(pretrained), pretrained)
    assert results["init_from"] == f"{made.init_from}/{newest}"  # it may be deleted
    assert json.loads((folder / "results.json").read_text()) == results
    lines = (folder / "predictions.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["index", "prediction", *results["labels"]]
    predicted = [line.split("\t")[1] for line in lines[1:]]
    expected = [results["labels"][i % 2] for i in range(200, 240)]
    agreement = np.mean([a == b for a, b in zip(predicted, expected, strict=True)])
    assert agreement == pytest.approx(results["accuracy"])
    rows = pathlib.Path(made.task.eval).read_text(encoding="utf-8").splitlines()[1:]
    texts = [row.split("\t")[0] for row in rows]
    classified = prediction.load(str(folder)).classify(texts)
    assert [each.label for each in classified] == predicted
    evaluated = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert evaluated["split"] == "eval"
    assert evaluated["accuracy"] == pytest.approx(results["accuracy"])


def test_finished_run_reports_again_without_its_source(finetuned):
    folder, results, made = finetuned
    before = (folder / "metrics.jsonl").read_text()
    # A newer checkpoint in the source folder is ignored.
    newest = restore.find(made.init_from)
    shutil.copytree(newest, newest.with_name("999"))
    assert finetuning.finetune(made, str(folder)) == results
    shutil.rmtree(made.init_from)
    assert finetuning.finetune(made, str(folder)) == results
    assert (folder / "metrics.jsonl").read_text() == before


def test_resumed_run_is_bitwise_equal(finetuned, tmp_path):
    """A run without its last checkpoint ends with the same bits and reports."""
    folder, results, made = finetuned
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints" / str(results["step"]))
    assert finetuning.finetune(made, str(tmp_path / "run")) == results
    runs.assert_same_end(tmp_path / "run", folder)


def test_changed_examples_are_refused(finetuned, configure, tmp_path):
    folder, _, made = finetuned
    rows = "a class\tabout class\na statement\tabout statement\n" * 30
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + rows)
    changes = {"init_from": made.init_from, "task": {"train": str(tmp_path / "t.tsv")}}
    message = r"another config \(task\.fingerprint.*; restore the data"
    with pytest.raises(UserError, match=message):
        finetuning.finetune(configure(**changes), str(folder))


def run_of(config):
    about = restore.read_metadata(restore.find(config.init_from))
    made = classification.Classification(config.task, about.tokenizer)
    return finetuning.make_run(config, about.encoder, made)[0]


@pytest.mark.parametrize(
    ("epochs", "batch_size", "steps"),
    [(1.1, 4, 55), (1.1, 16, 14), (3.0, 128, 5), (1e-9, 16, 1)],
)
def test_steps_are_rounded_up(epochs, batch_size, steps, configure):
    """There are 200 examples. In float64, 1.1 * 200 / 4 is more than 55."""
    run = run_of(configure(epochs=epochs, batch_size=batch_size))
    assert run.total_steps == steps


@pytest.fixture(scope="module")
def begin(configure, pretrained):
    """Return a function that returns random parameters, and those of a run's start."""
    config = configure()
    run = run_of(config)
    state = state_of(run.state_shapes)

    def make(source=pretrained, **changes):
        changed = dataclasses.replace(config, **changes)
        changed_run = dataclasses.replace(run, config=changed)
        begun = initialise.load_initial_params(changed_run, restore.find(source), state)
        return parameters.flatten(state.params), parameters.flatten(begun.params)

    return make


def test_encoder_is_loaded_from_the_checkpoint(begin, finetuned, pretrained, capsys):
    random, begun = begin()
    reported = capsys.readouterr().err
    assert "loaded: 23 parameters (encoder)" in reported
    assert "new: 2 parameters (classifier)" in reported
    assert "ignored: 7 parameters (mlm_head, nsp_head)" in reported
    stored = runs.params(pretrained)
    for path, values in begun.items():
        expected = stored if path.startswith("encoder/") else random
        assert np.array_equal(values, expected[path]), path
    random, begun = begin(random_init=True)
    assert all(np.array_equal(values, random[path]) for path, values in begun.items())
    # The head of another classifier is not loaded.
    random, begun = begin(finetuned[0])
    assert "ignored: 2 parameters (classifier)" in capsys.readouterr().err
    path = "classifier/kernel"
    assert np.array_equal(begun[path], random[path])


def test_top_layers_are_reinitialised(begin, pretrained):
    stored = runs.params(pretrained)
    random, begun = begin(reinit_layers=1)
    path = "encoder/layers/attention/query/kernel"
    assert np.array_equal(begun[path][0], stored[path][0])
    assert np.array_equal(begun[path][1], random[path][1])
    path = "encoder/pooler/kernel"
    assert np.array_equal(begun[path], random[path])
    path = "encoder/embeddings/token_embedding"
    assert np.array_equal(begun[path], stored[path])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init_from": "/nowhere"}, "/nowhere is not a folder"),
        ({"init_from": str(pathlib.Path(__file__).parent)}, "holds no complete check"),
        ({"task": {"length": 65}}, "task.length=65 is more than the 64 positions"),
        ({"reinit_layers": 1, "frozen": True}, "reinit_layers=1 .* frozen=True"),
        (
            {"optimizer": {"layer_decay": 0.9}, "frozen": True},
            "optimizer.layer_decay=0.9 does not go with frozen=True",
        ),
        ({"reinit_layers": 3}, "reinit_layers=3 is more than the 2 distinct layers"),
        ({"reinit_layers": 2, "random_init": True}, "reinit_layers=2 .*random_init=Tr"),
        ({"keep_best": "f1"}, "keep_best='f1' must be one of loss, classification_l"),
        ({"keep_best": "padding_fraction"}, "accuracy, macro_f1, matthews$"),
        (
            {"batch_size": 12, "mesh": {"data": 8}},
            "batch_size=12 must be a multiple of",
        ),
    ],
)
def test_invalid_configs_are_refused(changes, message, configure, tmp_path):
    with pytest.raises(UserError, match=message):
        finetuning.finetune(configure(**changes), str(tmp_path))


def test_left_to_right_encoders_cannot_tell_that_there_is_no_answer():
    task = config.SquadConfig(no_answers=True, length=32, max_question=12, stride=8)
    asked = config.FinetuneConfig(task=task)
    encoder = config.EncoderConfig(causal=True)
    with pytest.raises(UserError, match="no_answers=True does not go with a left-to-"):
        finetuning._check_run(asked, encoder, None, None)


def test_processes_must_predict_the_same(monkeypatch):
    """Each reads its own test files."""

    def check(*ids):
        rows = {"input_ids": np.array([ids], np.int32)}
        task = types.SimpleNamespace(held_out={"test": rows})
        finetuning._check_same_held_out_rows(task)

    of_process_0 = []

    def call_on_main(get):
        of_process_0[:] = of_process_0 or [get()]  # the first call
        return of_process_0[0]

    monkeypatch.setattr(finetuning.processes, "call_on_main", call_on_main)
    check(5, 7)
    check(5, 7)
    with pytest.raises(UserError, match="process 0 has other examples to predict"):
        check(5, 8)


def test_counts_of_a_description_are_listed():
    counts = {"train": 1240, "eval": 0}
    listed = finetuning.describe_counts(
        {"examples": 60, "labels": ["a"], "truncated": counts, "files": {"eval": "f"}}
    )
    assert listed == "examples: 60, truncated in train: 1,240"


# ---- options of fine-tuning


def test_frozen_encoder_does_not_change(configure, pretrained, tmp_path):
    results = finetuning.finetune(configure(frozen=True, epochs=0.5), str(tmp_path))
    before, after = runs.params(pretrained), runs.params(tmp_path)
    # The pooler, which many checkpoints lack, learns with the head.
    for path, values in after.items():
        if path.startswith("encoder/"):
            is_trained = path.startswith("encoder/pooler/")
            assert np.array_equal(before[path], values) != is_trained, path
    assert np.abs(after["classifier/bias"]).max() > 0
    assert results["steps"] == 4
    state = restore.ocp.checkpointables_metadata(str(restore.find(tmp_path))).metadata
    moments = [x.shape for x in jax.tree.leaves(state["train"]["opt_state"])]
    # Two moments of two kernels and two biases, and none of the layers.
    assert sum(len(shape) > 0 for shape in moments) == 8


@pytest.mark.runs
@pytest.mark.parametrize(
    ("name", "best_of"),
    [("loss", min), pytest.param("matthews", max, marks=pytest.mark.slow)],
)
def test_best_checkpoint_is_kept(
    name, best_of, configure, tmp_path, capsys, monkeypatch
):
    """A rate that is far too high after a good start: the end is not the best."""
    changes = {"epochs": 4.0, "keep_best": name, "loop": {"eval_every": 5}}
    config = configure(**changes)
    results = finetuning.finetune(config, str(tmp_path))
    records = [r for r in runs.metrics(tmp_path) if r["split"] == "eval"]
    assert [r["step"] for r in records] == [5, 10, 15, 20, 25]
    best = best_of(records, key=lambda r: r[name])
    assert results.get(name, best[name]) == pytest.approx(best[name])
    assert results["step"] == best["step"]
    assert results["accuracy"] == pytest.approx(best["accuracy"])
    assert [p.name for p in (tmp_path / "best").iterdir()] == [str(best["step"])]
    # Later runs load it.
    assert restore.find(tmp_path) == tmp_path / "best" / str(best["step"])
    live, restore_state = [], checkpoint.Checkpoints.restore

    def measure_and_restore(self, shapes):
        live.append(sum(x.nbytes for x in jax.live_arrays() if not x.is_deleted()))
        return restore_state(self, shapes)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "restore", measure_and_restore)
        assert finetuning.finetune(config, str(tmp_path)) == results
    # The last state is gone before the best is there.
    before_last, before_best = live
    assert before_best - before_last < 10_000
    assert f"best {name} so far: {best[name]:.4g}" in capsys.readouterr().err
    records = tmp_path / metrics_file.FILE
    records.rename(tmp_path / "away")
    with pytest.raises(UserError, match="with it the scores of the checkpoint in"):
        finetuning.finetune(config, str(tmp_path))
    (tmp_path / "away").rename(records)
    shutil.rmtree(tmp_path / "best")
    with pytest.raises(UserError, match="best is missing; restore it or give another"):
        finetuning.finetune(config, str(tmp_path))
    assert json.loads((tmp_path / "results.json").read_text()) == results


@pytest.mark.slow
def test_the_best_state_may_be_earlier_than_that_of_a_killed_start(
    configure, tmp_path, monkeypatch
):
    """The second start begins at step 0 and evaluates a step that the first did not."""
    losses = {2: 0.1, 4: 0.5, 6: 0.6, 7: 0.7}
    evaluate = loop.Loop._evaluate

    def evaluate_as_given(training, killed_at):
        step = training._done
        values = {"loss": losses[step]}
        monkeypatch.setattr(evaluation.Evaluator, "evaluate", lambda *_: values)
        evaluate(training)
        if step == killed_at:
            raise KeyboardInterrupt

    def start(eval_every, killed_at):
        stub = functools.partialmethod(evaluate_as_given, killed_at)
        monkeypatch.setattr(loop.Loop, "_evaluate", stub)
        every = {"eval_every": eval_every, "checkpoint_every": 0}
        changes = {"epochs": 1.0, "keep_best": "loss", "loop": every}
        return finetuning.finetune(configure(**changes), str(tmp_path))

    with pytest.raises(KeyboardInterrupt):
        start(eval_every=4, killed_at=4)
    assert [p.name for p in (tmp_path / "best").iterdir()] == ["4"]
    # A start drops the reports, and may be killed before its first step.
    (tmp_path / metrics_file.FILE).write_text("")
    with pytest.raises(UserError, match="holds a run with another config"):
        finetuning.finetune(configure(epochs=1.0), str(tmp_path))
    results = start(eval_every=2, killed_at=None)
    records = [r for r in runs.metrics(tmp_path) if r["split"] == "eval"]
    assert {r["step"]: r["loss"] for r in records} == losses
    assert [p.name for p in (tmp_path / "best").iterdir()] == ["2"]
    assert results["step"] == 2


def test_the_first_of_equal_scores_is_the_best(configure, tmp_path, monkeypatch):
    """Also if the records of earlier ones are rounded to less. Undefined is worse."""
    given = iter([math.nan, 0.5, 0.82819383, 0.82819383])
    monkeypatch.setattr(
        evaluation.Evaluator,
        "evaluate",
        lambda *_: {"loss": 1.0, "accuracy": next(given)},
    )
    changes = {"epochs": 1.0, "keep_best": "accuracy", "loop": {"eval_every": 2}}
    results = finetuning.finetune(configure(**changes), str(tmp_path))
    assert results["step"] == 6


def test_a_frozen_encoder_has_the_operations_of_its_forward_pass(configure):
    run, frozen = (run_of(configure(frozen=frozen)) for frozen in (False, True))
    (phase,) = run.phases
    assert frozen.flops(phase, 64) == pytest.approx(run.flops(phase, 64) / 3)


def test_a_best_state_that_is_not_finite_is_not_kept(configure, tmp_path, monkeypatch):
    """The predictions of such a state have an accuracy, too."""
    save_best = saving.Saver.save_best

    def overflow(saver, step, state, phase):
        params = jax.tree.map(lambda x: x * np.inf, state.params)
        save_best(saver, step, dataclasses.replace(state, params=params), phase)

    monkeypatch.setattr(saving.Saver, "save_best", overflow)
    config = configure(epochs=1.0, keep_best="accuracy")
    with pytest.raises(UserError, match="step 7: the parameters are not finite and"):
        finetuning.finetune(config, str(tmp_path))
    assert not list((tmp_path / "best").glob("[0-9]*"))


@pytest.mark.parametrize(
    ("keep_best", "eval_every", "says"),
    [
        ("accuracy", 0, True),
        ("accuracy", 50, True),
        ("loss", 49, False),
        ("", 0, False),
    ],
)
def test_a_single_evaluation_is_announced_with_keep_best(
    keep_best, eval_every, says, configure, capsys
):
    """The run has 50 steps."""
    changes = {"keep_best": keep_best, "loop": {"eval_every": eval_every}}
    run_of(configure(**changes))
    line = f"{keep_best=} has only the evaluation of the last step, 50, to"
    assert (line in capsys.readouterr().err) == says


def test_stops_and_kills_while_the_best_state_is_scored_or_saved(
    configure, tmp_path, monkeypatch
):
    """The last of four starts ends like a run that nothing stopped.

    The first is stopped before the only evaluation. The second is killed while it saves
    the best state. The third gets a request to stop with the first of two batches to
    score.
    """
    changes = {"epochs": 1.0, "keep_best": "macro_f1"}
    config = configure(**changes)
    expected = finetuning.finetune(config, str(tmp_path / "whole"))
    folder = tmp_path / "run"
    kill = mock.Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch:
        stop = mock.Mock(side_effect=evaluation.Stopped)
        patch.setattr(evaluation.Evaluator, "evaluate", stop)
        with pytest.raises(Interrupted):
            finetuning.finetune(config, str(folder))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "delete_from", kill)
        with pytest.raises(KeyboardInterrupt):
            finetuning.finetune(config, str(folder))
    compute, asked = inference.Engine.batches, []

    def batches(engine, *arguments):
        for batch in compute(engine, *arguments):
            asked.append(batch)
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(inference.Engine, "batches", batches)
        patch.setattr(interrupts.StopRequests, "is_set", lambda _: bool(asked))
        with pytest.raises(Interrupted, match="saved at step 7 of 7"):
            finetuning.finetune(config, str(folder))
    assert len(asked) == 1
    assert finetuning.finetune(config, str(folder)) == expected
    (record,) = [r for r in runs.metrics(folder) if r["split"] == "eval"]
    assert [p.name for p in (folder / "best").iterdir()] == [str(record["step"])]
    assert expected["step"] == record["step"]


def test_a_request_after_the_last_step_keeps_the_next_seed_from_training(
    configure, tmp_path, monkeypatch, request
):
    config = configure(epochs=0.1, repeats=2)
    handler = signal.getsignal(signal.SIGTERM)  # ignored in a process that exits
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, handler))
    close = checkpoint.Checkpoints.close

    def close_and_ask(checkpoints):
        close(checkpoints)
        os.kill(os.getpid(), signal.SIGTERM)

    class Exited(Exception):
        pass

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "close", close_and_ask)
        patch.setattr(interrupts, "_exit", mock.Mock(side_effect=Exited))
        with pytest.raises(Exited):
            finetuning.finetune(config, str(tmp_path))
    assert [path.name for path in tmp_path.glob("seed-*")] == ["seed-0"]
    assert not (tmp_path / "seed-0/results.json").exists()
    assert list(finetuning.finetune(config, str(tmp_path))["runs"]) == [
        "seed-0",
        "seed-1",
    ]


def test_scoring_sends_a_heartbeat_after_each_batch(configure):
    """Scoring may take longer than the watchdog waits."""
    run = run_of(configure(keep_best="macro_f1", batch_size=16))
    data = run.phases[0].open_data(np.arange(16))
    state = state_of(run.state_shapes)
    beats = []
    data.scores(state.params, lambda: beats.append(1))
    assert len(beats) == math.ceil(40 / 16)


@pytest.mark.parametrize(
    ("repeats", "file", "message"),
    [
        (2, "config.json", "holds one run; with repeats=2, give another --workdir"),
        (1, "seed-3/config.json", "holds runs of several seeds"),
    ],
)
def test_one_run_and_several_need_folders_of_their_own(
    repeats, file, message, configure, tmp_path
):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("{}")
    config = configure(repeats=repeats)
    with pytest.raises(UserError, match=message):
        finetuning.finetune(config, str(tmp_path))


@pytest.mark.slow
def test_a_run_of_several_equals_one_alone(configure, tmp_path):
    several = configure(epochs=0.2, repeats=2, seed=5)
    finetuning.finetune(several, str(tmp_path / "several"))
    alone = configure(epochs=0.2, seed=6)
    finetuning.finetune(alone, str(tmp_path / "alone"))
    runs.assert_same_end(tmp_path / "several/seed-6", tmp_path / "alone")


def test_seeds_begin_with_one_checkpoint(configure, pretrained, tmp_path, monkeypatch):
    (old,) = (pretrained / "checkpoints").iterdir()
    begun = []

    def begin(asked, folder):
        """Write config and reports as a run does, and let pretraining save again."""
        source = warm_start.find_checkpoint(asked, folder).path
        assert pathlib.Path(folder).name == f"seed-{asked.seed}"
        begun.append((asked.seed, pathlib.Path(source).name))
        started = config.to_dict(dataclasses.replace(asked, init_from=str(source)))
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(started))
        report = json.dumps({"step": 1, "split": "train"})
        (pathlib.Path(folder) / metrics_file.FILE).write_text(report)
        steps = tmp_path / "pretraining/checkpoints"
        shutil.copytree(old, steps / str(len(begun)), dirs_exist_ok=True)
        return {"accuracy": 1.0}, {}, asked.task

    monkeypatch.setattr(finetuning, "_finetune_once", begin)
    shutil.copytree(old, tmp_path / "pretraining/checkpoints/0")
    for seeds in ((7, 8), (7, 8, 9), (6, 7)):
        changes = {"repeats": len(seeds), "seed": seeds[0]}
        changed = configure(init_from=str(tmp_path / "pretraining"), **changes)
        finetuning.finetune(changed, str(tmp_path / "runs"))
    assert begun == [(seed, "0") for seed in (7, 8, 7, 8, 9, 6, 7)]


def test_later_seeds_need_the_parameters_of_the_first(
    configure, pretrained, tmp_path, monkeypatch
):
    source = tmp_path / "pretraining"
    shutil.copytree(pretrained, source)
    (checkpoint_folder,) = (source / "checkpoints").iterdir()
    # A folder with a checkpoint, as the first seed leaves it.
    first = shutil.copytree(pretrained, tmp_path / "runs/seed-0")
    started = configure(init_from=str(checkpoint_folder), init_fingerprint="other")
    (first / "config.json").write_text(json.dumps(config.to_dict(started)))
    workdir.note_checkpoint(first)
    finetune_once = finetuning._finetune_once

    def skip_first(asked, folder):
        skipped = {"accuracy": 1.0}, {}, asked.task
        return skipped if asked.seed == 0 else finetune_once(asked, folder)

    monkeypatch.setattr(finetuning, "_finetune_once", skip_first)
    changed = configure(init_from=str(source), repeats=2)
    with pytest.raises(UserError, match=r"parameters of .* have changed"):
        finetuning.finetune(changed, str(tmp_path / "runs"))
    checkpoint_folder.rename(source / "checkpoints/1000")
    with pytest.raises(UserError, match=r"seed-1 cannot begin: .* is gone"):
        finetuning.finetune(changed, str(tmp_path / "runs"))


def test_an_incomplete_best_checkpoint_hides_no_others(
    pretrained, tmp_path, monkeypatch
):
    """In a store, a save in progress has its name."""
    folder = shutil.copytree(pretrained, tmp_path / "run")
    (folder / "best/6").mkdir(parents=True)
    with pytest.raises(UserError, match="best/6 is damaged"):
        restore.find(folder)
    monkeypatch.setattr(restore.storage, "is_remote", lambda _: True)
    assert restore.find(folder).parent == folder / "checkpoints"


def test_later_seeds_need_the_examples_of_the_first(
    configure, labelled_files, tmp_path, monkeypatch
):
    train = pathlib.Path(shutil.copy(labelled_files["train"], tmp_path))
    finetune_once = finetuning._finetune_once

    def shorten_after_first(asked, folder):
        done = finetune_once(asked, folder)
        lines = train.read_text().splitlines(keepends=True)
        train.write_text("".join(lines[:-2]))
        return done

    monkeypatch.setattr(finetuning, "_finetune_once", shorten_after_first)
    with pytest.raises(UserError, match=r"task\.fingerprint"):
        changed = configure(task={"train": str(train)}, repeats=2)
        finetuning.finetune(changed, str(tmp_path))


def test_undefined_scores(configure, tmp_path, monkeypatch):
    """They are left out of the statistics and counted, and null in JSON."""
    given = {"seed-0": math.nan, "seed-1": 0.5, "seed-2": 0.75}

    def run(config, folder):
        scores = {"pearson": given[pathlib.Path(folder).name], "other": math.nan}
        return scores, {}, config.task

    monkeypatch.setattr(finetuning, "_finetune_once", run)
    config = configure(repeats=3)
    results = finetuning.finetune(config, str(tmp_path))
    defined = [0.5, 0.75]
    assert results["scores"]["pearson"] == {
        "median": statistics.median(defined),
        "mean": statistics.mean(defined),
        "standard_deviation": pytest.approx(statistics.stdev(defined)),
        "least": 0.5,
        "greatest": 0.75,
        "undefined": 1,
    }
    assert results["scores"]["other"].pop("undefined") == 3
    assert set(results["scores"]["other"].values()) == {None}
    assert results["best"] == {"run": "seed-2", "by": "pearson"}
    loss = dataclasses.replace(config, keep_best="loss")
    assert finetuning.finetune(loss, str(tmp_path))["best"]["by"] == "pearson"
    other = dataclasses.replace(config, keep_best="other")
    assert finetuning.finetune(other, str(tmp_path))["best"]["by"] == "other"
    text = (tmp_path / "results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["runs"] == {
        "seed-0": {"pearson": None, "other": None},
        "seed-1": {"pearson": 0.5, "other": None},
        "seed-2": {"pearson": 0.75, "other": None},
    }


def test_folder_of_seeds_is_not_a_checkpoint(tmp_path):
    for seed in (9, 10):
        (tmp_path / f"seed-{seed}/checkpoints").mkdir(parents=True)
    message = f"^{tmp_path} has a run for each seed; .* {tmp_path}/seed-10$"
    with pytest.raises(UserError, match=message):
        restore.find(tmp_path)


@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_lengths_minimise_padding(count):
    """Compare with all choices."""
    rng = np.random.default_rng(count)
    for _ in range(10):
        used = rng.integers(1, rng.integers(10, 60), 50)
        others = sorted(rng.choice(np.arange(1, 60), 7, replace=False).tolist())
        got = batches.least_padding(used, [*others, 60], count)
        assert len(got) <= count and set(got) <= {*others, 60}
        choices = [
            [*shorter, 60]
            for size in range(min(count, 8))
            for shorter in itertools.combinations(others, size)
        ]
        padded, *rest = (
            np.array(chosen)[np.searchsorted(chosen, used)].sum()
            for chosen in [got, *choices]
        )
        assert padded == min(rest)


def test_lengths_above_128_are_multiples_of_128():
    """TPU kernels take such rows only."""
    rows = {"attention_mask": np.arange(600) < np.arange(121, 501)[:, None]}
    task = types.SimpleNamespace(train=rows, held_out={"eval": rows})
    settings = config.ClassificationConfig(length=600)
    asked = config.FinetuneConfig(task=settings, lengths=16)
    assert batches.lengths(asked, task) == ((128, 256, 384, 512), ())


def test_longer_held_out_rows_do_not_change_training_lengths():
    """A test file may be added when a run continues, which must not change."""
    used = np.random.default_rng(0).geometric(0.07, 500).clip(1, 70)
    train = {"attention_mask": np.arange(128) < used[:, None]}

    def lengths(longest):
        held_out = {"eval": {"attention_mask": np.arange(128)[None] < longest}}
        task = types.SimpleNamespace(train=train, held_out=held_out)
        return batches.lengths(config.FinetuneConfig(), task)

    of_training, longer = lengths(9)
    assert len(of_training) == 6 and longer == ()
    assert lengths(100) == (of_training, (104,))
    assert lengths(128) == (of_training, (128,))


def test_no_training_step_is_compiled_for_longer_held_out_rows(
    configure, tmp_path, monkeypatch
):
    """It may need more memory than the device has."""
    lower = mock.Mock(wraps=programs.lower_train_step)
    monkeypatch.setattr(programs, "lower_train_step", lower)
    longer = tmp_path / "eval.tsv"
    longer.write_text(f"text\tlabel\n{'class ' * 40}\tabout class\n")
    made = configure(task={"eval": str(longer)}, epochs=0.1)
    finetuning.finetune(made, str(tmp_path / "run"))
    [(_, _, _, batch), _] = lower.call_args_list[0]
    assert lower.call_count == 1 and batch["input_ids"].shape[-1] < 32


def test_longer_held_out_rows_do_not_change_the_order_of_training_rows():
    """All training rows have one length here, so they are not sorted."""
    asked = config.FinetuneConfig(lengths=1, batch_size=4)
    objective = types.SimpleNamespace(
        batch_shapes=lambda rows, length: {
            "attention_mask": np.empty([rows, length]),
            "weights": np.empty([rows]),
        },
        outputs=lambda *_: {},
    )

    def rows(*used):
        mask = np.arange(128) < np.array(used)[:, None]
        weights = np.arange(len(used), dtype=np.float32)
        return {"attention_mask": mask, "weights": weights}

    def training_batches(longest):
        task = types.SimpleNamespace(
            train=rows(*range(1, 17)), held_out={"eval": rows(longest)}, metrics=()
        )
        engine = types.SimpleNamespace(lengths=sum(batches.lengths(asked, task), ()))
        data = batches.open_data(asked, task, objective, engine, 4, np.arange(4))
        return [batch["weights"].tolist() for batch in data.batches(0, 4)]

    assert training_batches(100) == training_batches(9)
