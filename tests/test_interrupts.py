"""Requests to stop before the first step, when there is nothing to save."""

import signal
import sys

import pytest
import runs

# Stands for a compilation: a call that takes an hour, without Python's lock.
STUCK = (
    "import hashlib; stuck = lambda *_: hashlib.pbkdf2_hmac('md5', b'', b'', 2**31 - 1)"
)


def start(script):
    return runs.Watched([sys.executable, "-c", script])


def ask_when_ready(watched):
    """Send SIGTERM after the line "ready"; return the status and later lines."""
    assert watched.wait_for("ready"), watched.text
    watched.process.send_signal(signal.SIGTERM)
    return watched.end(), watched.lines[1:]


def test_a_request_during_a_long_call_ends_the_process():
    watched = start(
        f"{STUCK}\n"
        "from bert_jax.training import interrupts\n"
        "with interrupts.StopRequests():\n"
        "    print('ready', flush=True)\n"
        "    stuck()\n"
    )
    lines = ["stopped; the same command continues\n"]
    assert ask_when_ready(watched) == (75, lines)


def test_a_request_while_others_are_awaited_ends_the_process():
    watched = start(
        "from absl import flags\n"
        "from bert_jax.run import command_line\n"
        "command_line.define_process_flags()\n"
        "flags.FLAGS(['', '--coordinator_address=localhost:45671', '--num_processes=2',"
        " '--process_id=1'])\n"
        "print('ready', flush=True)\n"
        "command_line.start_processes()\n"
    )
    assert watched.wait_for("connecting to the other processes"), watched.text
    assert ask_when_ready(watched)[0] == 75
    assert watched.lines[-1] == "stopped; the same command continues\n"


def test_a_request_before_the_run_ends_the_process():
    """While libraries are imported and files are read."""
    watched = start(
        "import time\n"
        "from bert_jax.run import command_line\n"
        "def run():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
        "command_line.main(run, lambda: None)\n"
    )
    assert ask_when_ready(watched) == (75, ["stopped\n"])


ASKED = """
import contextlib, os, signal, sys, time
from bert_jax.errors import Interrupted
from bert_jax.training import interrupts
{first}
with contextlib.suppress(Interrupted), interrupts.StopRequests() as requests:
    {second}
    for number in {numbers}:
        os.kill(os.getpid(), number)
        while not requests.is_set():  # two at once would be one
            time.sleep(0.01)
    for _ in range({wait}):
        time.sleep(0.01)
    print(requests.is_set(), flush=True)
    raise Interrupted("saved")
print(signal.getsignal(signal.SIGTERM).name, flush=True)
"""


@pytest.mark.parametrize(
    ("first", "second", "after"),
    [
        ("", "requests.save_on_request()", "SIG_DFL"),
        ("sys.ps1 = '>>> '", "pass", "SIG_DFL"),
        (
            "signal.signal(signal.SIGTERM, signal.default_int_handler)",
            "requests.save_on_request()",
            "SIG_IGN",
        ),
    ],
    ids=["from the first step on", "in a notebook", "in a program"],
)
def test_requests_that_the_loop_answers(first, second, after):
    numbers = [int(signal.SIGTERM)] * 3 + [int(signal.SIGINT)]
    watched = start(ASKED.format(first=first, second=second, numbers=numbers, wait=0))
    assert watched.end() == 0, watched.text
    words = "stopping: will save after the steps in flight\n"
    assert sorted(watched.lines) == [f"{after}\n", "True\n", words]


def test_a_second_interrupt_from_the_keyboard_is_meant():
    numbers = [int(signal.SIGINT)] * 2
    second = "requests.save_on_request()"
    watched = start(ASKED.format(first="", second=second, numbers=numbers, wait=10_000))
    assert watched.end() == -signal.SIGINT
    assert watched.lines[-1] == "KeyboardInterrupt\n"


def wrapped(flags, number):
    """Return the command of a run that never compiles phase `number`, from 0."""
    lines = (
        f"{STUCK}\n"
        "from bert_jax.training import programs\n"
        "lower = programs.lower_train_step\n"
        "def lower_train_step(run, phase, *arguments):\n"
        f"    is_stuck = phase is run.phases[{number}]\n"
        "    return stuck() if is_stuck else lower(run, phase, *arguments)\n"
        "programs.lower_train_step = lower_train_step\n"
    )
    return runs.pretrain_after(lines, flags)


@pytest.mark.parametrize(
    "lines",
    [
        "os.kill(os.getpid(), signal.SIGTERM); requests.exit_on_request()",
        "requests.exit_on_request(); os.kill(os.getpid(), signal.SIGTERM)",
    ],
)
def test_a_request_between_two_phases_ends_the_process(lines):
    second = f"requests.save_on_request(); {lines}"
    watched = start(ASKED.format(first="", second=second, numbers=[], wait=10_000))
    assert watched.end() == 75
    assert watched.lines[-1] == "stopped; the same command continues\n"


@pytest.mark.runs
def test_a_request_during_the_last_save_is_heeded(corpus, tmp_path):
    flags = runs.flags_of(corpus, tmp_path / "run")
    lines = (
        "import os, signal\n"
        "from bert_jax.training import checkpoint\n"
        "close = checkpoint.Checkpoints.close\n"
        "def close_late(self):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    close(self)\n"
        "checkpoint.Checkpoints.close = close_late\n"
    )
    watched = runs.Watched(runs.pretrain_after(lines, flags))
    assert watched.end() == 75, watched.text
    assert runs.newest_step(tmp_path / "run") == 40


@pytest.mark.slow
def test_a_request_while_a_later_phase_is_compiled(corpus, tmp_path):
    """The steps of the phase before are saved."""
    recipe = f"{runs.ROOT}/configs/bert_miniature.py:tiny,smoke"
    flags = runs.flags_of(corpus, tmp_path / "run", recipe=recipe)
    watched = runs.Watched(wrapped(flags, 1))
    assert watched.wait_for("phase 2/2, length 64: compiling"), watched.text
    watched.process.send_signal(signal.SIGTERM)
    assert watched.end() == 75, watched.text
    assert runs.newest_step(tmp_path / "run") == 3


@pytest.mark.slow
@pytest.mark.pods
def test_all_processes_that_are_asked_stop_at_once(corpus, tmp_path):
    command = wrapped(runs.flags_of(corpus, tmp_path / "run"), 0)
    watched = runs.Watched(runs.launch(2, 1, command))
    assert watched.wait_for("[0] pretraining: compiling"), watched.text
    watched.process.send_signal(signal.SIGTERM)
    assert watched.end() == 75, watched.text
    for index in range(2):
        assert f"[{index}] stopped; the same command continues\n" in watched.lines
