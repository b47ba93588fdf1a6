"""Helpers that start entrypoints as processes, or call them in this one."""

import contextlib
import faulthandler
import importlib
import io
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import warnings
from unittest import mock

import pytest
from absl.testing import flagsaver

from bert_jax.run import command_line

ROOT = pathlib.Path(__file__).parents[1]
# A machine without locales, and a terminal that shows nothing but ASCII.
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0",
         "PYTHONIOENCODING": "ascii"}  # fmt: skip
# A program that becomes another one, with a limit on the size of files.
_LIMITED = """
import os, resource, sys
_, limit, *command = sys.argv
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
os.execv(command[0], command)
"""


def shared_data(name):
    """Return a path in the folder of real data; skip the test if it is not there."""
    path = ROOT.parent / "shared/data" / name
    if not path.exists():
        pytest.skip(f"needs shared/data/{name}")
    return path


def environment():
    """Return the environment of a process with one device."""
    return {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}


def command(name, *flags):
    """Return the command that starts an entrypoint, as a list for subprocess."""
    return [sys.executable, "-m", f"bert_jax.run.{name}", *map(str, flags)]


def run(name, *flags, largest_file=None):
    """Run an entrypoint to its end, in a process of its own.

    The system refuses to make a file of more bytes than `largest_file`, as a full disk
    does.
    """
    limited = [sys.executable, "-c", _LIMITED, str(largest_file)]
    return subprocess.run(
        [*(limited if largest_file is not None else []), *command(name, *flags)],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
    )


def call(name, *flags, encoding="utf-8"):
    """Run an entrypoint in this process, which has imported the libraries already.

    `encoding` is that of its output, unless the entrypoint chooses another one. Do not
    test --help like this: it shows the documentation of the program that was started.
    """
    entrypoint = importlib.import_module(f"bert_jax.run.{name}")
    return _call(
        lambda: command_line.main(entrypoint.main, entrypoint.define_flags),
        f"bert_jax/run/{name}.py",
        *flags,
        encoding=encoding,
    )


def call_function(run, *arguments):
    """Run a function in this process, as an entrypoint without flags of its own."""
    return _call(lambda: command_line.main(run, lambda: None), "program", *arguments)


def call_benchmark(name, *flags):
    """Run a program of benchmarks/ in this process."""
    path = str(ROOT / f"benchmarks/{name}.py")
    return _call(lambda: runpy.run_path(path, run_name="__main__"), path, *flags)


def _call(program, *arguments, encoding="utf-8"):
    arguments = [*map(str, arguments)]
    # Streams that can be reconfigured, as those of a process.
    output, errors = (
        io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2)
    )
    with (
        _process_state_restored(),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        sys.argv = arguments
        try:
            program()
            status = 0
        except SystemExit as end:
            status = end.code or 0
    written = (stream.buffer.getvalue().decode() for stream in (output, errors))
    return subprocess.CompletedProcess(arguments, status, *written)


def succeed(name, *flags):
    """Run an entrypoint in this process, and check that it succeeds."""
    done = call(name, *flags)
    assert done.returncode == 0, done.stderr
    return done


@contextlib.contextmanager
def _process_state_restored():
    """Put back what an entrypoint changes in its process."""
    arguments = sys.argv
    handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            # New flags go, and those of libraries get their values back.
            flagsaver.flagsaver(),
            warnings.catch_warnings(),
            # They write to files, which the streams here are not.
            mock.patch.object(faulthandler, "enable"),
            mock.patch.object(faulthandler, "register"),
        ):
            # ml_collections reads recipes with it.
            load_module = r"the load_module\(\) method is deprecated"
            warnings.filterwarnings("ignore", load_module, DeprecationWarning)
            yield
    finally:
        sys.argv = arguments
        for number, handler in handlers.items():
            signal.signal(number, handler)


def assert_refused(done, message):
    """Check that a program ended with status 2 and a message of one line."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("error: ")]
    assert message in line
