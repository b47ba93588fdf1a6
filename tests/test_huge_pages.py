"""Programs that train on a CPU restart themselves once, with huge pages."""

import glob
import json
import os
import subprocess
import sys

import pytest
from commands import ROOT, call

from bert_jax.errors import UserError
from bert_jax.run import huge_pages

PROGRAM = """
import json, os, sys
from bert_jax.run import command_line
def run():
    print("begins", os.getpid())
    command_line.use_huge_pages()
    print(json.dumps([os.environ.get("GLIBC_TUNABLES"), sys.argv[1:]]))
command_line.main(run, command_line.define_huge_pages)
"""
ON = "glibc.malloc.hugetlb=1"
OFF = "glibc.malloc.hugetlb=0"


@pytest.mark.parametrize(
    ("given", "changed", "starts", "value"),
    [
        (["--huge_pages"], {}, 2, ON),
        (["--nohuge_pages"], {}, 1, None),
        ([], {"GLIBC_TUNABLES": OFF}, 1, OFF),
        ([], {"JAX_PLATFORMS": "tpu"}, 1, None),
    ],
    ids=str,
)
def test_a_program_restarts_once(given, changed, starts, value):
    environment = {n: v for n, v in os.environ.items() if n != "GLIBC_TUNABLES"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *given],
        env=environment | {"JAX_PLATFORMS": "cpu"} | changed,
        stdout=subprocess.PIPE,
        text=True,
    )
    *begins, ends = process.communicate()[0].splitlines()
    assert process.returncode == 0
    assert begins == [f"begins {process.pid}"] * starts
    assert json.loads(ends) == [value, given]


def test_accelerators_prevent_the_restart(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    for device in (None, "/dev/accel0", "/dev/vfio/3", "/dev/nvidia0"):
        found = [device] if device else []
        monkeypatch.setattr(
            glob, "glob", lambda p, f=found: [d for d in f if d[:7] == p[:7]]
        )
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

    def restart():
        raise UserError("restarted")

    monkeypatch.setattr(huge_pages, "restart", restart)
    done = call(name, *flags)
    assert (done.returncode, done.stderr) == (2, "error: restarted\n")
    assert not (tmp_path / "run").exists()
