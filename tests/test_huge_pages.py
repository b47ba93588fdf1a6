"""Programs that train on a CPU restart themselves once, with huge pages."""

import glob
import os
import sys
from unittest import mock

import pytest
from commands import ROOT, assert_refused, call

from bert_jax.errors import UserError
from bert_jax.run import huge_pages


@pytest.mark.parametrize(
    ("changed", "starts"),
    [
        ({}, 1),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, 0),
        ({"JAX_PLATFORMS": "tpu"}, 0),
    ],
    ids=str,
)
def test_a_program_restarts_unless_the_variable_is_set(changed, starts, monkeypatch):
    started = []
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "execve", lambda *process: started.append(process))
    monkeypatch.delenv("GLIBC_TUNABLES")
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    huge_pages.restart()
    assert len(started) == starts
    for path, command, environment in started:
        assert path == sys.executable
        assert command == [sys.executable, *sys.orig_argv[1:]]
        assert environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"


@pytest.mark.parametrize("device", [None, "/dev/accel0", "/dev/vfio/3"])
def test_accelerators_prevent_the_restart(device, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    found = [device] if device else []
    monkeypatch.setattr(glob, "glob", lambda p: [d for d in found if d[:7] == p[:7]])
    assert huge_pages._trains_on_cpu() == (device is None)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("demo", ""),
        ("pretrain", "bert_base.py"),
        ("finetune_classifier", "classifier.py"),
    ],
)
def test_programs_that_train_restart_first(name, recipe, monkeypatch, tmp_path):
    flags = [f"--workdir={tmp_path / 'run'}"]
    flags += [f"--config={ROOT}/configs/{recipe}"] if recipe else []
    restart = mock.Mock(side_effect=UserError("restarted"))
    monkeypatch.setattr(huge_pages, "restart", restart)
    assert_refused(call(name, *flags), "restarted")
    assert not (tmp_path / "run").exists()
    if name == "pretrain":
        assert_refused(call(name, *flags, "--nohuge_pages"), "no corpus given")
