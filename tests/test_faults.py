"""Kills, signals, full disks and damaged files, after which a run loses nothing."""

import contextlib
import dataclasses
import errno
import functools
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import types
from unittest import mock

import commands
import jax
import numpy as np
import pytest
import runs
import saved
from corpora import flipped
from orbax.checkpoint.experimental.v1._src.synchronization import compatibility
from toy import TINY, metadata, state_of

from bert_jax.errors import Unavailable, UserError
from bert_jax.objectives import masked_lm
from bert_jax.training import checkpoint, restore

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory):
    """Return a function that makes workdirs of undisturbed runs, each once."""

    @functools.cache
    def run(processes, devices, *flags):
        workdir = tmp_path_factory.mktemp(f"undisturbed-{processes}x{devices}")
        command = runs.pretrain(corpus, workdir, *flags)
        if processes == devices == 1:
            commands.succeed("pretrain", *command[3:])
        else:
            runs.succeed(runs.launch(processes, devices, command))
        return workdir

    return run


# ---- SIGKILL

LONG = ("--config.phases[0].steps=120", "--config.loop.eval_batches=0")
EVALUATED = (*range(12, 120, 12), 120)


def unfinished_saves(workdir):
    return [p for p in (workdir / "checkpoints").glob("*") if "tmp" in p.name]


def wait_for_moment(kind, watched, workdir, rng):
    """Wait for a moment of a start; false if the run ended before it."""
    if kind == "anywhere":
        # Not before it trains: the moments before are alike, and uninteresting.
        got = watched.wait_for("train step")
        time.sleep(rng.uniform(0, 1.0))
        return got and watched.process.poll() is None
    if kind == "evaluation":
        # A step is reported first and then evaluated. The reports have multiples of 3.
        coming = [n for n in EVALUATED if n > runs.newest_step(workdir)]
        return watched.wait_for(f"train step {rng.choice(coming[:3])}/")
    deadline = time.monotonic() + 240
    stale = set(unfinished_saves(workdir))  # of the start before; it will be removed
    first = runs.newest_step(workdir) + 7 * rng.randrange(3)
    while watched.process.poll() is None:
        assert time.monotonic() < deadline
        if (
            runs.newest_step(workdir) >= first
            and set(unfinished_saves(workdir)) - stale
        ):
            return True
        time.sleep(0.0005)
    return False


def was_inside(kind, workdir):
    """Return whether a killed process left traces of a save or an evaluation."""
    if kind == "save":
        return bool(unfinished_saves(workdir))
    if kind == "evaluation":
        records = runs.metrics(workdir)
        last = records[-1]
        return last["split"] == "train" and last["step"] in EVALUATED
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    "processes", [1, 1, 1, 4], ids=lambda processes: f"{processes} processes"
)
def test_killed_five_times_ends_like_undisturbed(
    processes, undisturbed, corpus, tmp_path
):
    """Twenty kills in four runs. Of four processes, one is killed."""
    rng = random.Random(time.time_ns())
    kinds = ["anywhere", "save", "evaluation", "save", "evaluation"]
    rng.shuffle(kinds)
    workdir = tmp_path / "run"
    command = runs.launch(processes, 2, runs.pretrain(corpus, workdir, *LONG))
    while kinds:
        watched = runs.Watched(command)
        reached = wait_for_moment(kinds[0], watched, workdir, rng)
        assert reached, f"ended before {kinds}: {watched.text}"
        victim = rng.randrange(processes)
        os.kill(watched.pid(victim), signal.SIGKILL)
        assert watched.end() == 1, watched.text
        # The kill may have come just after the moment that was meant.
        if was_inside(kinds[0], workdir):
            kinds.pop(0)
    runs.succeed(command)
    runs.assert_same_end(workdir, undisturbed(processes, 2, *LONG))


@pytest.mark.slow
def test_fine_tuning_killed_three_times_ends_like_undisturbed(pretrained, tmp_path):
    """With the same results and predictions; fewer kills if the run ends before."""
    flags = [
        f"--config={runs.ROOT}/configs/classifier.py:smoke",
        f"--config.init_from={pretrained}",
        "--config.epochs=15.0",
        "--config.lengths=2",
        "--config.keep_best=loss",
        "--config.loop.eval_every=7",
        "--config.loop.checkpoint_every=5",
    ]
    rng = np.random.default_rng(0)
    words = ["the", "a", "object", "value", "name", "is", "of", "to", "in", "class"]
    for name, count in (("train", 64), ("eval", 16)):
        texts = [rng.choice(words, rng.integers(3, 25)) for _ in range(count)]
        rows = [f"{' '.join(text)}\t{'class' in text}\n" for text in texts]
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(rows))
        flags.append(f"--config.task.{name}={tmp_path / name}.tsv")
    whole, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed, command = (
        commands.command("finetune_classifier", *flags, f"--workdir={folder}")
        for folder in (whole, killed)
    )
    runs.succeed(undisturbed)
    kills = 0
    while kills < 3 and not (killed / "results.json").exists():
        watched = runs.Watched(command)
        if watched.wait_for("train step"):
            time.sleep(random.Random(time.time_ns()).uniform(0, 1))
        watched.process.kill()
        kills += watched.end() < 0
    assert kills
    runs.succeed(command)
    runs.assert_same_end(killed, whole)
    for name in ("results.json", "predictions.tsv"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    records = [r for r in runs.metrics(killed) if r["split"] == "eval"]
    results = json.loads((killed / "results.json").read_text())
    assert results["step"] == min(records, key=lambda r: r["loss"])["step"]


# ---- SIGTERM


@pytest.mark.slow
def test_sigterm_to_one_of_four_saves_all_at_one_step(undisturbed, corpus, tmp_path):
    """More SIGTERMs in the middle of the save do no harm."""
    workdir = tmp_path / "run"
    command = runs.launch(4, 2, runs.pretrain(corpus, workdir, *LONG))
    watched = runs.Watched(command)
    assert watched.wait_for("train step 9/"), watched.text
    victim = watched.pid(2)
    os.kill(victim, signal.SIGTERM)
    while watched.process.poll() is None:
        time.sleep(0.05)
        for index in range(4):
            with contextlib.suppress(ProcessLookupError):
                os.kill(watched.pid(index), signal.SIGTERM)
    assert watched.end() == 75, watched.text
    step_saved = runs.newest_step(workdir)
    assert 9 <= step_saved < 120
    for index in range(4):
        assert f"[{index}] saved at step {step_saved} of 120" in watched.text
    ended = runs.succeed(command)
    assert f"continuing at step {step_saved} of 120" in ended.text
    runs.assert_same_end(workdir, undisturbed(4, 2, *LONG))


@pytest.mark.slow
def test_sigterm_during_evaluation_saves_at_once(undisturbed, corpus, tmp_path):
    """The evaluation is left, and comes again in the continuation."""
    workdir = tmp_path / "run"
    command = runs.launch(1, 2, runs.pretrain(corpus, workdir, *LONG))
    for after in (12, 24):
        watched = runs.Watched(command)
        assert watched.wait_for(f"train step {after}/"), watched.text
        os.kill(watched.pid(0), signal.SIGTERM)
        assert watched.end() == 75, watched.text
    runs.succeed(command)
    runs.assert_same_end(workdir, undisturbed(1, 2, *LONG))


# ---- damaged checkpoints


def make_state(number):
    """Return the shapes and values of a small state after a number of steps."""
    shapes = saved.state_shapes(masked_lm.MaskedLm(TINY), data=2, fsdp=4)
    state = state_of(shapes, seed=number)
    return shapes, dataclasses.replace(state, step=state.step + number)


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    """Return a folder with checkpoints 1 and 2, and the states in them."""
    folder = tmp_path_factory.mktemp("two") / "checkpoints"
    shapes, first = make_state(1)
    _, second = make_state(2)
    with open_checkpoints(folder) as checkpoints:
        checkpoints.save(1, first, metadata())
        checkpoints.save(2, second, metadata())
    return folder, shapes, first, second


def open_checkpoints(folder):
    """Return a context with the checkpoints in a folder, which closes them."""
    return contextlib.closing(checkpoint.Checkpoints(folder, keep=3))


def largest_file(folder):
    """Return the largest file with parameters of a checkpoint."""
    return max(folder.glob("params/**/d/*"), key=lambda p: p.stat().st_size)


def truncate(folder):
    path = largest_file(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(folder):
    """Flip a bit in the middle of the largest array."""
    path = largest_file(folder)
    path.write_bytes(flipped(path.read_bytes(), path.stat().st_size // 2))


def remove(folder, name):
    for path in folder.glob(name):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def cut(folder, name):
    for path in folder.rglob(name):
        path.write_bytes(path.read_bytes()[:20])


DAMAGES = {
    "truncate": truncate,
    "flip a bit": flip_a_bit,
    "empty the folder": functools.partial(remove, name="*"),
    "remove params": functools.partial(remove, name="params"),
    "remove train": functools.partial(remove, name="train"),
    "cut _CHECKPOINT_METADATA": functools.partial(cut, name="_CHECKPOINT_METADATA"),
    "cut manifest.ocdbt": functools.partial(cut, name="manifest.ocdbt"),
}


def equal(got, expected):
    return jax.tree.all(jax.tree.map(np.array_equal, got, expected))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(
    damage, two_checkpoints, tmp_path, capsys
):
    original, shapes, first, second = two_checkpoints
    folder = tmp_path / "checkpoints"
    shutil.copytree(original, folder)
    good = {p: p.read_bytes() for p in (folder / "1").rglob("*") if p.is_file()}
    DAMAGES[damage](folder / "2")
    # Fine-tuning reads the parameters of the newest checkpoint, or refuses it.
    if damage == "remove train":
        loaded = restore.load_params(restore.find(tmp_path), shapes.params)
        assert equal(restore.merge({}, loaded), second.params)
    else:
        with pytest.raises(UserError) as refused:
            source = restore.find(tmp_path)
            restore.read_metadata(source)
            restore.load_params(source, shapes.params)
        message = str(refused.value)
        assert str(folder / "2") in message and "\n" not in message
    # The run falls back to the checkpoint before.
    with open_checkpoints(folder) as checkpoints:
        assert checkpoints.newest() == (1 if damage == "empty the folder" else 2)
        capsys.readouterr()
        state = checkpoints.restore(shapes)
        assert equal(state, first)
        said = capsys.readouterr().err.splitlines()
        assert said[0].startswith(f"checkpoint {folder / '2'} cannot be used")
        assert said[1].startswith("checkpoint 2 is set aside as damaged-2")
        # The next save of that step goes through, and the good one is as it was.
        again_second = dataclasses.replace(state, step=state.step + 1)
        checkpoints.save(2, again_second, metadata())
    assert all(p.read_bytes() == content for p, content in good.items())
    with open_checkpoints(folder) as checkpoints:
        assert equal(checkpoints.restore(shapes), again_second)
    assert not capsys.readouterr().err


@pytest.mark.slow
def test_a_flipped_bit_is_noticed_or_harmless(two_checkpoints, tmp_path):
    """In any byte of any file, for the run and for whoever reads the parameters."""
    original, shapes, first, second = two_checkpoints
    rng = random.Random(0)
    noticed_by_run = noticed_in_params = 0
    for _ in range(12):
        folder = tmp_path / "checkpoints"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(original, folder)
        path = rng.choice([p for p in (folder / "2").rglob("*") if p.is_file()])
        content = path.read_bytes()
        path.write_bytes(flipped(content, rng.randrange(len(content))))
        try:
            loaded = restore.load_params(restore.find(folder / "2"), shapes.params)
        except UserError:
            noticed_in_params += 1
        else:
            assert equal(restore.merge({}, loaded), second.params), path
        with open_checkpoints(folder) as checkpoints:
            state = checkpoints.restore(shapes)
        is_noticed = equal(state, first)
        assert is_noticed or equal(state, second), path
        noticed_by_run += is_noticed
    assert noticed_by_run and noticed_in_params


# ---- checkpoints of two processes, one of which meets something


def checkpoints_of_two(folder, action):
    script = runs.ROOT / "tests" / "pod_checkpoints.py"
    command = [sys.executable, str(script), str(folder), action]
    return runs.succeed(runs.launch(2, 1, command))


@pytest.mark.slow
def test_a_disk_that_is_full_for_one_of_two_processes(tmp_path):
    """Both end with the disk's reason, soon, and the checkpoint before is whole."""
    done = checkpoints_of_two(tmp_path, "full")
    reported = [line for line in done.lines if "FAILED" in line]
    assert len(reported) == 2, done.text
    for line in reported:
        assert "FAILED UserError cannot write checkpoint 2" in line
        assert "File too large; the newest complete checkpoint is of step 1;" in line
        assert line.rstrip().endswith("True")
    assert "RESTORED 1" in checkpoints_of_two(tmp_path, "restore").text


@pytest.mark.slow
def test_damage_that_one_of_two_processes_meets(tmp_path):
    """The message names the damage, not the other process's timeout."""
    checkpoints_of_two(tmp_path, "save")
    for file in (tmp_path / "2" / "params" / "ocdbt.process_1" / "d").iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    done = checkpoints_of_two(tmp_path, "restore")
    assert done.text.count("RESTORED 1") == 2
    (said,) = [line for line in done.lines if "/2 cannot be used" in line]
    assert "imeout" not in said and "barrier" not in said
    assert (tmp_path / "damaged-2").is_dir()


def test_an_outage_is_no_damage(two_checkpoints, tmp_path):
    """A store that is slow or away for a while: nothing is set aside."""
    original, shapes, _, second = two_checkpoints
    folder = tmp_path / "checkpoints"
    shutil.copytree(original, folder)
    failed = ValueError("load failed")
    failed.__cause__ = TimeoutError("Timeout at barrier")
    slow = {"load_checkpointables": mock.Mock(side_effect=failed)}
    with open_checkpoints(folder) as checkpoints:
        with (
            mock.patch.multiple(checkpoints._checkpointer, **slow),
            pytest.raises(Unavailable, match="/2 cannot be read now: Tim"),
        ):
            checkpoints.restore(shapes)
        assert equal(checkpoints.restore(shapes), second)
    with (
        mock.patch.multiple(restore.ocp, **slow),
        pytest.raises(Unavailable, match="2 cannot be read now: TimeoutError"),
    ):
        restore.load_params(restore.find(folder / "2"), shapes.params)


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), UserError, "Permission d"),
        (OSError(errno.EMFILE, "Too many open files"), Unavailable, "now: .*Too many"),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Error allocating device b"),
            jax.errors.JaxRuntimeError,
            "^RESOURCE_EXHAUSTED",
        ),
    ],
)
def test_a_checkpoint_that_this_process_cannot_read_is_not_damaged(
    error, expected, message, two_checkpoints
):
    folder, shapes, _, _ = two_checkpoints
    fail = {"load_checkpointables": mock.Mock(side_effect=error)}
    with (
        open_checkpoints(folder) as checkpoints,
        mock.patch.multiple(checkpoints._checkpointer, **fail),
        pytest.raises(expected, match=message),
    ):
        checkpoints.restore(shapes)
    assert {"1", "2"} <= {path.name for path in folder.iterdir()}


def test_a_checkpoint_that_is_deleted_while_it_is_read(
    two_checkpoints, tmp_path, monkeypatch
):
    shapes = two_checkpoints[1]
    folder = shutil.copytree(two_checkpoints[0], tmp_path / "checkpoints")

    def delete(checkpoint, _):
        shutil.rmtree(checkpoint)
        raise ValueError("no file")

    monkeypatch.setattr(restore.ocp, "load_checkpointables", delete)
    with pytest.raises(
        UserError, match="2 cannot be used: .*; its run may have deleted"
    ):
        restore.load_params(restore.find(folder / "2"), shapes.params)


def test_a_store_that_refuses_a_checkpoint(tmp_path):
    """The message names the newest checkpoint, as that of a full disk does."""
    _, state = make_state(1)
    error = ValueError("PERMISSION_DENIED: Error writing\n'2'")  # as TensorStore
    refuse = {"save_checkpointables_async": mock.Mock(side_effect=error)}
    message = "2 to .*: PERM.*'2'; the newest .* of step 1"
    with open_checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, metadata())
        checkpoints.wait()
        with (
            mock.patch.multiple(checkpoints._checkpointer, **refuse),
            pytest.raises(UserError, match=message),
        ):
            checkpoints.save(2, state, metadata())


def test_a_checkpoint_of_another_model_is_named_by_a_parameter(two_checkpoints, capsys):
    """If none can be used, all stay."""
    folder, shapes, _, _ = two_checkpoints
    wider = jax.tree.map(lambda leaf: leaf.update(shape=(*leaf.shape, 2)), shapes)
    with (
        open_checkpoints(folder) as checkpoints,
        pytest.raises(UserError, match="none of the checkpoints .* left as they are"),
    ):
        checkpoints.restore(wider)
    assert {"1", "2"} <= {path.name for path in folder.iterdir()}
    assert capsys.readouterr().err.splitlines()[0] == (
        f"checkpoint {folder / '2'} cannot be used: encoder/embeddings/layer_norm/bias "
        "has shape (32,); expected (32, 2)"
    )


def test_a_large_checkpoint_may_take_longer_to_save(tmp_path, monkeypatch):
    """Orbax's clock is six minutes ahead, as if each save took that long."""
    clock = types.SimpleNamespace(time=lambda: time.time() + 360)
    monkeypatch.setattr(compatibility, "time", clock)
    _, state = make_state(1)
    for size, name in ((0, "small"), (10**11, "large")):
        checkpoints = checkpoint.Checkpoints(tmp_path / name, 1, size=size)
        checkpoints.save(1, state, metadata())
        if size:
            checkpoints.wait()
        else:
            with pytest.raises(TimeoutError):
                checkpoints.wait()
        with contextlib.suppress(TimeoutError):  # raised again for the small one
            checkpoints.close()


# ---- disks


@pytest.mark.slow
def test_a_disk_that_is_full_while_saving(undisturbed, corpus, tmp_path):
    """The checkpoint before is whole, and the same command goes on when there is room.

    A limit on the size of files stands in for the disk: the system refuses the write in
    the same place.
    """
    workdir = tmp_path / "run"
    command = runs.pretrain(corpus, workdir)
    watched = runs.Watched(command)
    while runs.newest_step(workdir) < 7:
        assert watched.process.poll() is None, watched.text
        time.sleep(0.001)
    # Enough for reports, not for arrays.
    limit = 20_000
    resource.prlimit(watched.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    assert watched.end() == 2, watched.text
    assert "error: cannot write checkpoint" in watched.text
    assert "Traceback" not in watched.text, watched.text
    kept = runs.newest_step(workdir)
    assert f"the newest complete checkpoint is of step {kept}" in watched.text
    ended = commands.succeed("pretrain", *command[3:])
    assert f"continuing at step {kept} of 40" in ended.stderr
    runs.assert_same_end(workdir, undisturbed(1, 1))


# ---- numbers that are not finite


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run(corpus, tmp_path):
    workdir = tmp_path / "run"
    flags = [
        *runs.pretrain(corpus, workdir)[3:],
        "--config.optimizer.learning_rate=1e30",
        "--config.optimizer.schedule=linear",
        "--config.loop.checkpoint_every=1",
    ]
    stopped = commands.call("pretrain", *flags)
    (file,) = workdir.glob("not_finite_step_*_process_0.json")
    got = json.loads(file.read_text())
    bad_step, kept = got["step"], runs.newest_step(workdir)
    assert kept < bad_step and len(got["rows"]) == 16
    for part in (f"step {bad_step}: loss", "gradient norm", got["rows"][0]):
        commands.assert_refused(stopped, part)
    message = f"the newest complete checkpoint is of step {kept}"
    commands.assert_refused(stopped, message)
    assert all(np.isfinite(values).all() for values in runs.params(workdir).values())
    # The same command comes to the same end, and loses nothing.
    again = commands.call("pretrain", *flags)
    commands.assert_refused(again, f"step {bad_step}: loss")
    assert runs.newest_step(workdir) == kept
    # Steps are skipped up to the allowed number.
    skipped = commands.call("pretrain", *flags, "--config.loop.max_skipped_steps=2")
    commands.assert_refused(skipped, "loop.max_skipped_steps=2 is exceeded")
    assert skipped.stderr.count("of 2 allowed)") == 2


# ---- hanging


@pytest.mark.slow
def test_a_process_that_hangs_ends_all_with_stacks(corpus, tmp_path):
    """One of two is stopped; the other waits for it, says where, and exits.

    SIGUSR1 also shows where a run is, and the run goes on.
    """
    workdir = tmp_path / "run"
    command = runs.pretrain(corpus, workdir, *LONG, "--config.loop.hang_seconds=60")
    watched = runs.Watched(runs.launch(2, 1, command))
    assert watched.wait_for("train step 9/"), watched.text
    os.kill(watched.pid(0), signal.SIGUSR1)
    assert watched.wait_for("most recent call first"), watched.text
    assert watched.wait_for("train step 18/"), watched.text
    os.kill(watched.pid(1), signal.SIGSTOP)
    assert watched.end() == 1, watched.text
    assert "Timeout (0:01:00)!" in watched.text
    assert "loop.py" in watched.text.split("Timeout")[1]
    runs.succeed(runs.launch(2, 1, command))
