"""Runs as processes, and comparisons of their workdirs."""

import json
import subprocess
import sys
import threading

import jax
import numpy as np
from commands import ROOT, command, environment

from bert_jax.training import restore

RECIPE = ROOT / "tests" / "pod_recipe.py"
# Fields of reports that differ between equal runs.
TIMINGS = {
    "sequences_per_sec",
    "tokens_per_sec",
    "data_wait_fraction",
    "mfu",
    "goodput",
    "host_seconds_mean",
    "host_seconds_max",
    "slowest_process",
}


def launch(processes, devices, program):
    """Return the command that runs `program` with processes and devices, as a list."""
    return [
        sys.executable,
        str(ROOT / "launch" / "local.py"),
        f"--processes={processes}",
        f"--devices={devices}",
        "--",
        *program,
    ]


def flags_of(corpus, workdir, *flags, recipe=RECIPE):
    """Return flags of pretraining, as a list."""
    return [
        f"--config={recipe}",
        f"--config.data.corpus={corpus.folder}",
        f"--workdir={workdir}",
        *flags,
    ]


def pretrain(corpus, workdir, *flags, recipe=RECIPE):
    return command("pretrain", *flags_of(corpus, workdir, *flags, recipe=recipe))


def pretrain_after(lines, flags):
    """Return the command that pretrains after some lines of Python."""
    program = (
        f"{lines}\n"
        "from bert_jax.run import command_line, pretrain\n"
        "command_line.main(pretrain.main, pretrain.define_flags)\n"
    )
    return [sys.executable, "-c", program, *flags]


class Watched:
    """Running command, whose output is read line by line."""

    def __init__(self, command, **options):
        self.process = subprocess.Popen(
            command,
            env=environment(),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )
        self.lines = []
        self._new_line = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._new_line:
                self.lines.append(line)
                self._new_line.notify_all()
        with self._new_line:
            self._new_line.notify_all()

    @property
    def text(self):
        return "".join(self.lines)

    def wait_for(self, text, seconds=900):
        """Wait for a line that contains `text`; False if the command ends before."""

        def got():
            return any(text in line for line in self.lines)

        with self._new_line:
            self._new_line.wait_for(
                lambda: got() or not self._reader.is_alive(), seconds
            )
            return got()

    def pid(self, index):
        """Return the id of a process, from the line about its newest start."""
        marker = f"process {index} has pid "
        (line,) = [ln for ln in self.lines if marker in ln][-1:]
        return int(line.split(marker)[1])

    def end(self):
        """Wait for the end; the exit status."""
        status = self.process.wait(900)
        self._reader.join()
        self.process.stdout.close()
        return status


def run(command):
    """Run a command to its end."""
    watched = Watched(command)
    watched.end()
    return watched


def succeed(command):
    """Run a command to its end, and check that it succeeds."""
    done = run(command)
    assert done.process.returncode == 0, done.text
    return done


def metrics(workdir):
    """Return the records of metrics.jsonl without fields that differ in equal runs."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    # A run that was killed may leave half a line.
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [
        {
            k: v
            for k, v in r.items()
            if k not in TIMINGS and not k.startswith("time_fraction_")
        }
        for r in records
    ]


def newest_step(workdir):
    """Return the step of the newest complete checkpoint; 0 if there is none."""
    complete = [p for p in (workdir / "checkpoints").glob("*") if p.name.isdecimal()]
    return max((int(p.name) for p in complete), default=0)


def params(workdir):
    """Return the parameters of the newest checkpoint, by path."""
    newest = restore.find(workdir)
    metadata = restore.ocp.checkpointables_metadata(str(newest)).metadata["params"]
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(
        lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=one), metadata
    )
    return restore.load_params(newest, shapes).params


def assert_smoke_run(workdir):
    """Check checkpoints, reports and loss of the first phase of a shrunk recipe."""
    assert {p.name for p in (workdir / "checkpoints").iterdir()} == {"2", "3"}
    records = metrics(workdir)
    splits = ["train", "train", "eval", "train", "eval"]
    expected = [*zip(splits, (1, 2, 2, 3, 3), strict=True)]
    assert [(r["split"], r["step"]) for r in records] == expected
    (loss,) = (value for key, value in records[-1].items() if key.endswith("lm_loss"))
    assert 5.3 < loss < 8.3


def assert_same_end(workdir, reference):
    """Check that two runs end with the same bits and the same reports."""
    assert restore.find(workdir).name == restore.find(reference).name
    got, expected = params(workdir), params(reference)
    assert got.keys() == expected.keys()
    for path in got:
        assert np.array_equal(got[path], expected[path]), path
    assert metrics(workdir) == metrics(reference)


def assert_same_curve(workdir, reference):
    """Check that two runs have the same reports at the same steps, up to rounding."""
    got, expected = metrics(workdir), metrics(reference)
    steps = [(r["step"], r["split"]) for r in expected]
    assert [(r["step"], r["split"]) for r in got] == steps
    for name in ("loss", "mlm_loss", "nsp_loss"):
        np.testing.assert_allclose(
            [r[name] for r in got], [r[name] for r in expected], rtol=1e-5
        )
