"""Programs that train on a processor start themselves again, once, with huge pages."""

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
needs_an_offer = pytest.mark.skipif(
    not huge_pages._are_offered(), reason="glibc or the kernel has none to ask for"
)


@needs_an_offer
@pytest.mark.parametrize(
    ("given", "changed", "starts", "value"),
    [
        ([], {}, 2, ON),
        (["--huge_pages"], {}, 2, ON),
        (["--nohuge_pages"], {}, 1, None),
        ([], {"GLIBC_TUNABLES": OFF}, 1, OFF),
        ([], {"JAX_PLATFORMS": "tpu"}, 1, None),
    ],
    ids=str,
)
def test_a_program_is_started_again(given, changed, starts, value):
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


@pytest.mark.parametrize(
    ("environment", "devices", "wanted"),
    [
        ({}, [], True),
        ({}, ["/dev/accel0"], False),
        ({}, ["/dev/vfio/3"], False),
        ({}, ["/dev/nvidia0"], False),
        ({"JAX_PLATFORMS": ""}, [], True),
        ({"JAX_PLATFORMS": "cpu"}, ["/dev/nvidia0"], True),
        ({"JAX_PLATFORMS": "cuda,cpu"}, [], False),
        ({"GLIBC_TUNABLES": ""}, [], False),
    ],
    ids=str,
)
def test_only_where_a_processor_trains(environment, devices, wanted, monkeypatch):
    monkeypatch.setattr(glob, "glob", lambda p: [d for d in devices if d[:7] == p[:7]])
    assert huge_pages.are_wanted(environment) == wanted


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("demo", ""),
        ("pretrain", "bert_base.py"),
        ("finetune_classifier", "classifier.py"),
        ("finetune_squad", "squad.py:v1"),
        ("finetune_tagger", "tagger.py"),
        ("finetune_choice", "choice.py"),
    ],
)
def test_all_programs_that_train_do_it_first(name, recipe, monkeypatch, tmp_path):
    flags = [f"--workdir={tmp_path / 'run'}"]
    flags += [f"--config={ROOT}/configs/{recipe}"] if recipe else []

    def restart():
        raise UserError("started again")

    monkeypatch.setattr(huge_pages, "restart", restart)
    done = call(name, *flags)
    assert (done.returncode, done.stderr) == (2, "error: started again\n")
    assert not (tmp_path / "run").exists()
