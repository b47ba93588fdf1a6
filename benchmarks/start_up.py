r"""Seconds from the command to the first step of a pretraining run, by part.

    python benchmarks/start_up.py --corpus=DIR

BERT-Base on this host: a start in a new folder with an empty compilation cache, and a
restart from the checkpoint of the first step with the cache that it left. Both are the
command that users give, stopped by SIGTERM after its first step; the functions of each
part are wrapped with timers. Unknown arguments are passed on to the program.
"""

import argparse
import builtins
import contextlib
import functools
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import time

BEGUN = "START_UP_BEGUN"  # when the command was given, in seconds since 1970
REPORT = "START_UP_REPORT"  # file for what a start took
ROOT = pathlib.Path(__file__).parents[1]
BATCH = 8
# Where each part is, as module, object and name.
PARTS = {
    "corpus": [
        ("bert_jax.corpus.shards", "", "open_corpus"),
        ("bert_jax.pretraining", "", "open_data"),
    ],
    "parameters": [("bert_jax.training.sharding", "", "initialise")],
    "restore": [("bert_jax.training.checkpoint", "Checkpoints", "restore")],
    "compile": [("bert_jax.training.loop", "Loop", "_compile")],
    "first step": [("bert_jax.training.loop", "Loop", "_observe")],
}


class Account:
    """Seconds and calls of each part; nested time counts for the inner part."""

    def __init__(self, begun):
        self.seconds = {"program": 0.0}
        self.calls = {}
        self._since = begun
        self._stack = ["program"]

    def settle(self):
        now = time.time()
        part = self._stack[-1]
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now

    @contextlib.contextmanager
    def counting(self, part):
        self.settle()
        self._stack.append(part)
        self.calls[part] = self.calls.get(part, 0) + 1
        try:
            yield
        finally:
            self.settle()
            self._stack.pop()

    @property
    def part(self):
        return self._stack[-1]

    def wrap(self, owner, name, part):
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args, **kwargs):
            with self.counting(part):
                return function(*args, **kwargs)

        setattr(owner, name, timed)


def measure():
    """Run the program up to its first step."""
    account = Account(float(os.environ[BEGUN]))
    original = builtins.__import__
    watched = False

    def watch():
        nonlocal watched
        if watched or "bert_jax.pretraining" not in sys.modules:
            return
        watched = True
        for part, functions in PARTS.items():
            for module, owner, name in functions:
                owner = (
                    getattr(sys.modules[module], owner)
                    if owner
                    else (sys.modules[module])
                )
                account.wrap(owner, name, part)
        loop = sys.modules["bert_jax.training.loop"].Loop
        log = loop._log

        def report(self, step, *args):
            log(self, step, *args)
            loop._log = log
            account.settle()
            found = {"seconds": account.seconds, "calls": account.calls}
            pathlib.Path(os.environ[REPORT]).write_text(json.dumps(found))
            os.kill(os.getpid(), signal.SIGTERM)

        loop._log = report

    def timed_import(*args, **kwargs):
        if account.part == "imports":
            return original(*args, **kwargs)
        with account.counting("imports"):
            module = original(*args, **kwargs)
        watch()
        return module

    builtins.__import__ = timed_import
    runpy.run_module("bert_jax.run.pretrain", run_name="__main__", alter_sys=True)


def start(folder, corpus, more):
    """Run one start, and return the times of its parts."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    flags = [
        f"--config={ROOT / 'configs/bert_base.py'}",
        f"--config.data.corpus={corpus}",
        f"--config.phases[0].batch_size={BATCH}",
        "--config.loop.log_every=1",
        f"--config.loop.compilation_cache={folder / 'compiled'}",
        f"--workdir={folder / 'run'}",
        *more,
    ]
    begun = time.time()
    done = subprocess.run(
        [sys.executable, __file__, *flags],
        env={**os.environ, BEGUN: str(begun), REPORT: str(report)},
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    if done.returncode != 75:
        raise SystemExit(done.stderr)
    return json.loads(report.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True, help="from run.build_corpus")
    values, more = parser.parse_known_args()
    corpus = os.path.abspath(values.corpus)
    with tempfile.TemporaryDirectory() as folder:
        first, again = (start(pathlib.Path(folder), corpus, more) for _ in range(2))
    print("| seconds | first start | restart |\n|---|---:|---:|")
    for part in ("program", "imports", *PARTS):
        cells = [f"{s['seconds'].get(part, 0.0):.1f}" for s in (first, again)]
        print(f"| {part} | {' | '.join(cells)} |")
    totals = (f"{sum(s['seconds'].values()):.1f}" for s in (first, again))
    print(f"| all | {' | '.join(totals)} |")


if __name__ == "__main__":
    if BEGUN in os.environ:
        measure()
    else:
        main()
