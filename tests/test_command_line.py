"""What all entrypoints do with bad recipes, odd names, closed pipes, slow imports."""

import os
import re
import subprocess
import sys

import pytest
from runs import ROOT

from bert_jax import terminal

ENTRYPOINTS = {
    path.stem
    for path in (ROOT / "bert_jax/run").glob("*.py")
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
}
# A machine without locales, and a terminal that shows nothing but ASCII.
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0",
         "PYTHONIOENCODING": "ascii"}  # fmt: skip


def run(*arguments, variables=None, **options):
    """Run Python in the root of the repository; with bytes as its output."""
    command = [sys.executable, *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    environment = os.environ | (variables or {})
    return subprocess.run(command, cwd=ROOT, env=environment, **options)


def entrypoint(name, *flags, **options):
    return run("-m", f"bert_jax.run.{name}", *flags, **options)


def script(lines, *arguments, **options):
    """Run lines that define `run`, as an entrypoint without flags."""
    main = "\nfrom bert_jax.run import command_line\ncommand_line.main(run, lambda: 0)"
    return run("-c", lines + main, *arguments, **options)


def error_of(done):
    """The one line of a mistake."""
    assert done.returncode == 2, done.stderr
    assert b"Traceback" not in done.stderr
    [line] = [x for x in done.stderr.splitlines() if x.startswith(b"error: ")]
    assert line == done.stderr.splitlines()[-1]
    return line.decode("ascii")


# ---- arguments that are no flags


def test_arguments_are_for_programs_that_take_them():
    given = "a b", "--verbosity=0", "c", "--", "-d"
    done = script("def run(texts): print(texts)", *given)
    assert (done.returncode, done.stdout) == (0, b"['a b', 'c', '-d']\n")
    line = error_of(script("def run(): print('not reached')", *given))
    assert line.startswith("error: unexpected argument 'a b'; flags are given as")


# ---- recipes


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ndef get_config(arg=''):\n    return (\n", "'(' was never closed"),
        ("x = 1\n", "has no attribute 'get_config'"),
        (
            "from bert_jax.errors import UserError\n"
            "def get_config(arg=''):\n    raise UserError('unknown variant')\n",
            "error: unknown variant",
        ),
    ],
)
def test_an_invalid_recipe_is_reported_in_one_line(source, message, tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text(source)
    line = error_of(entrypoint("pretrain", f"--config={path}", "--workdir=x"))
    assert message in line


@pytest.mark.parametrize(
    ("body", "raised"),
    [
        ("return 1 / 'a'", "TypeError: unsupported operand"),
        ("import nonesuch", "ModuleNotFoundError: No module named 'nonesuch'"),
    ],
)
def test_errors_of_a_recipe_keep_their_traceback(body, raised, tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text(f"def get_config(arg=''):\n    {body}\n")
    done = entrypoint("pretrain", f"--config={path}", "--workdir=x")
    text = done.stderr.decode()
    assert done.returncode == 1 and "error: " not in text
    assert f'File "{path}", line 2, in get_config' in text
    assert text.splitlines()[-1].startswith(raised)


# ---- names and terminals that are not UTF-8

NAME = b"\xff\xe4\n"  # in UTF-8 nothing, and a line break
BASE = "--config=configs/bert_base.py"


@pytest.mark.parametrize("variables", [{}, ASCII], ids=["utf-8", "ascii"])
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("fill_mask", ["--init_from=x", NAME]),
        ("pretrain", [b"--config=" + NAME]),
        ("pretrain", [BASE, b"--config.optimizer.name=" + NAME]),
        ("train_tokenizer", [b"--input=" + NAME, "--output=/tmp/nonesuch"]),
    ],
)  # fmt: skip
def test_arguments_that_are_not_utf_8(name, flags, variables):
    line = error_of(entrypoint(name, *flags, variables=variables))
    assert r"\xff" in line or r"\udcff" in line


def test_results_on_a_terminal_that_is_not_utf_8():
    lines = r"run = lambda: print('\xe4 \udcff')"
    done = script(lines, variables=ASCII)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == rb"\xe4 \udcff" + b"\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ä \N{SNOWMAN}", "ä \N{SNOWMAN}"),
        (os.fsdecode("ä".encode()), "ä"),
        ("\udcc3\udca4", "ä"),  # UTF-8 that was read in another locale
        ("\udcff\n\x1b", r"\xff\n\x1b"),
        ("\udcc2\udc85", r"\x85"),  # a control character, once it is read
        ("\ud83d.", r"\ud83d."),  # half a pair, as from JSON
    ],
)
def test_printable(text, shown):
    assert terminal.printable(text) == shown


# ---- output that nobody reads


@pytest.fixture
def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def test_help_that_nobody_reads(closed_pipe):
    done = entrypoint("pretrain", "--help", stdout=closed_pipe)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("length", [1, 1_000_000])
def test_results_that_nobody_reads(length, closed_pipe):
    """Whether they fill the buffer or are written at the end."""
    done = script(f"run = lambda: print('x' * {length})", stdout=closed_pipe)
    assert (done.returncode, done.stderr) == (1, b"")


def test_an_error_that_nobody_reads(closed_pipe):
    done = entrypoint("pretrain", "--config=nowhere.py", stderr=closed_pipe)
    assert (done.returncode, done.stdout) == (1, b"")


def test_other_pipes_that_break_are_errors():
    lines = "def run(): raise BrokenPipeError('a socket')"
    for first in ("", "import jax\n"):
        done = script(first + lines)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == b"BrokenPipeError: a socket"


def test_streams_that_are_closed():
    command = f"{sys.executable} -m bert_jax.run.pretrain --help"
    for closed in (">&-", "2>&-"):
        shell = ["bash", "-c", f"{command} {closed}"]
        done = subprocess.run(shell, cwd=ROOT, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        assert (b"Pretrain BERT" in done.stdout) == (closed == "2>&-")


# ---- imports that take long

HEAVY = {"apache_beam", "flax", "jax", "jaxlib", "optax", "orbax", "tensorflow"}


def with_imports(name, *flags):
    """Return stdout, and the lines of stderr with the top packages imported so far."""
    done = run("-X", "importtime", "-m", f"bert_jax.run.{name}", *flags)
    return done.stdout.decode(), [
        line.rpartition("|")[2].strip().split(".")[0] if "|" in line else line
        for line in done.stderr.decode().splitlines()
    ]


@pytest.mark.parametrize("name", sorted(ENTRYPOINTS))
def test_help_is_there_at_once_and_explains_the_flags(name):
    text, lines = with_imports(name, "--help")
    assert "absl" in lines and HEAVY.isdisjoint(lines)
    usage, _, explained = text.partition("\nflags:\n")
    explained = re.findall(r"^  --(?:\[no\])?(\w+):", explained, re.MULTILINE)
    if name != "build_corpus":  # its usage names options of Beam, too
        assert explained and set(re.findall(r"--(\w+)", usage)) <= set(explained)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("pretrain", [BASE, "--workdir=x", "--config.encoder.num_heads=5"]),
        ("plan", [BASE]),
        ("fill_mask", ["--init_from=x"]),
    ],
)
def test_wrong_flags_are_reported_at_once(name, flags):
    _, lines = with_imports(name, *flags)
    assert lines[-1].startswith("error: ") and HEAVY.isdisjoint(lines)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("pretrain", [BASE, "--workdir=x"]),
        ("fill_mask", ["--init_from=/nowhere", "[MASK]"]),
    ],
)
def test_a_line_comes_before_the_slow_imports(name, flags):
    _, lines = with_imports(name, *flags)
    first = min(lines.index(package) for package in HEAVY if package in lines)
    assert "importing JAX" in lines[:first]
    assert lines[-1].startswith("error: ")
