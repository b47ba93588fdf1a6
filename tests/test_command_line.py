"""Entry points with bad recipes, odd names, closed pipes and slow imports."""

import importlib
import os
import pty
import re
import shlex
import subprocess
import sys
import termios
from unittest import mock

import commands
import jax
import published
import pytest
from absl import app, flags
from absl.testing import flagsaver
from commands import ASCII, ROOT

from bert_jax import storage, terminal
from bert_jax.interop import checkpoints, output_folder
from bert_jax.training import restore

ENTRYPOINTS = {
    path.stem
    for path in (ROOT / "bert_jax/run").glob("*.py")
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
}


def run(*arguments, variables=None, **options):
    """Run Python in the root of the repository; its output must be ASCII."""
    command = [sys.executable, *arguments]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    environment = os.environ | (variables or {})
    return subprocess.run(
        command, cwd=ROOT, env=environment, encoding="ascii", **options
    )


def entrypoint(name, *flags, **options):
    return run("-m", f"bert_jax.run.{name}", *flags, **options)


MAIN = "\nfrom bert_jax.run import command_line\ncommand_line.main(run, lambda: 0)"


def script(lines, *arguments, **options):
    """Run lines that define `run`, as an entrypoint without flags."""
    return run("-c", lines + MAIN, *arguments, **options)


# ---- arguments that are no flags


def test_arguments_are_for_programs_that_take_them():
    given = "a b", "--verbosity=0", "c", "--", "-d"
    done = commands.call_function(lambda texts: print(texts), *given)
    assert (done.returncode, done.stdout) == (0, "['a b', 'c', '-d']\n")
    refused = commands.call_function(lambda: print("not reached"), *given)
    commands.assert_refused(refused, "unexpected argument 'a b'; flags are given as")


def test_an_unknown_flag_lists_those_of_the_program():
    done = commands.call("fill_mask", "--workdir=run", "text")
    commands.assert_refused(done, "error: unknown flag --workdir; known here: --")
    known = done.stderr.partition("known here: ")[2]
    assert "--init_from" in known and "--log_dir" not in known  # absl's own


# ---- stores that refuse access


HttpError = type("HttpError", (Exception,), {"code": 401})


def call_raising(error, cause):
    def run():
        raise error from cause

    return commands.call_function(run)


@pytest.mark.parametrize(
    ("error", "end"),
    [
        # gcsfs/retry.py, validate_response: statuses 403 and 401
        (OSError("Forbidden: b/c/o/d\nno access"), "no access"),
        (HttpError("Anonymous, 401"), ": Anonymous, 401"),
        # TensorStore, and tsl/platform/cloud/curl_http_request.cc of TensorFlow
        (ValueError("PERMISSION_DENIED: Error reading c/d"), "c/d"),
        (RuntimeError("HTTP response code 403 with body\n\t when reading c/d"), "c/d"),
    ],
)
def test_a_refusal_by_a_store_is_one_line(error, end):
    done = call_raising(ValueError("failed"), error)
    commands.assert_refused(done, "access is refused; check your credentials: ")
    assert done.stderr.endswith(f"{end}\n")


def test_an_outage_after_a_refusal_is_started_again():
    """Credentials that have expired are refused, and then renewed."""
    done = call_raising(ConnectionError("reset"), OSError("Forbidden: b/o"))
    assert done.returncode == 1 and "check your credentials" not in done.stderr


# ---- recipes and config fields

BASE = "--config=configs/bert_base.py"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Return a function that calls `run.pretrain` with the source of a recipe."""

    def call_with(source, variant=""):
        path = tmp_path / "recipe.py"
        path.write_text(source)
        # Recipes are imported under one name.
        monkeypatch.delitem(sys.modules, "config_config", raising=False)
        return commands.call("pretrain", f"--config={path}{variant}", "--workdir=x")

    return call_with


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ndef get_config(arg=''):\n    return (\n", "'(' was never closed"),
        ("x = 1\n", "has no attribute 'get_config'"),
        ("import nonesuch\n", "No module named 'nonesuch'"),
        ("def get_config():\n    return {}\n", "'dict' object has no attribute"),
        (
            "from bert_jax.errors import UserError\n"
            "def get_config(arg=''):\n    raise UserError('unknown variant')\n",
            "error: unknown variant",
        ),
    ],
)
def test_an_invalid_recipe_is_reported_in_one_line(source, message, recipe):
    commands.assert_refused(recipe(source), message)


def test_a_variant_needs_a_parameter(recipe):
    got = recipe("def get_config():\n    pass\n", ":mini")
    commands.assert_refused(got, "takes 0 positional arguments but 1 was given")


def test_a_recipe_of_another_command_names_it():
    for command, recipe, wanted in (
        ("pretrain", "configs/glue.py:mrpc", "run.finetune_classifier"),
        ("plan", "configs/squad.py:v1", "run.finetune_squad"),
        ("finetune_tagger", "bert_jax/demo/recipe.py", "run.demo"),
        ("finetune_choice", "configs/bert_base.py", "run.pretrain"),
        ("finetune_classifier", "configs/tagger.py", "run.finetune_tagger"),
    ):
        done = commands.call(command, f"--config={ROOT / recipe}")
        commands.assert_refused(done, f"give another recipe, or use {wanted}")


def test_errors_of_a_recipe_keep_their_traceback(recipe):
    got = recipe("def get_config(arg=''):\n    import nonesuch\n")
    assert got.returncode == 1 and "error: " not in got.stderr
    assert 'recipe.py", line 2, in get_config' in got.stderr
    raised = got.stderr.splitlines()[-1]
    assert raised == "ModuleNotFoundError: No module named 'nonesuch'"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--config is missing; give a recipe"),
        (["--config.seed=3"], "--config is missing; give a recipe"),
        ([BASE, "--config.task.length=3"], "field of a recipe for run.pretrain; known"),
        (["--config=none.py"], "the recipe --config=none.py: No such file or direct"),
        (["-config", "no file.py"], "the recipe -config no file.py: No such file or"),
        ([BASE, "--flagfile=none"], "error: Unable to open flagfile"),
        ([BASE, "--config.nosuch.thing=1"], "--config.nosuch.thing: unknown config"),
        ([BASE, "--config.phases[0].stepz=3"], "stepz: unknown config field; did you"),
        ([BASE, "--config.loop.report=3"], "unknown config field; known here: "),
        ([BASE, "--config.seed.x=3"], "--config.seed.x: unknown config field"),
        ([BASE, "--config.phases[9].steps=3"], "phases[9].steps: index out of range"),
        ([BASE, "--config.phases.steps=3"], "a list needs an index, as in phases[0]"),
        ([BASE, "--config.phases.0.steps=3"], "phases.0.steps: invalid path; expected"),
        ([BASE, "--config.objective.kind=causal_lm"], "objective.kind cannot be set"),
        ([BASE, "--config.seed=abc"], "flag --config.seed=abc: expected an integer"),
        ([BASE, "--config.encoder=3"], "--config.encoder=3: expected a group, whose"),
        ([BASE, "--huge_pages=maybe"], "--huge_pages=maybe: expected True or False"),
        ([BASE, "--data.corpus=x"], "recipe are set by --config.data.corpus"),
        ([BASE, "--seed=1"], "recipe are set by --config.seed"),
        ([BASE, "--batch=1"], "recipe are set by --config.GROUP.FIELD=VALUE"),
        ([BASE, BASE], "error: --config is given more than once; give it once"),
        (["--config.seed=1", BASE], "--config=RECIPE comes before its fields, --con"),
        ([BASE, "--workdri=x"], "unknown flag --workdri; did you mean --workdir?"),
        (
            [BASE, "--confg.seed=1"],
            "unknown flag --confg.seed; did you mean --config.seed",
        ),
        ([BASE, "-h"], "unknown flag --h; did you mean --help?"),
    ],
)
def test_mistaken_flags_are_reported_in_one_line(flags, message):
    commands.assert_refused(commands.call("pretrain", *flags), message)


# ---- names and terminals that are not UTF-8

NAME = b"\xff\xe4\n"  # in UTF-8 nothing, and a line break


def test_arguments_that_are_not_utf_8():
    flag = b"--config.optimizer.name=" + NAME
    done = entrypoint("pretrain", BASE, flag, variables=ASCII)
    commands.assert_refused(done, "error: ")
    line = done.stderr.splitlines()[-1]
    assert r"\xff" in line or r"\udcff" in line


def test_results_on_a_terminal_that_is_not_utf_8():
    lines = r"run = lambda: print('\xe4 \udcff')"
    done = script(lines, variables=ASCII)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == r"\xe4 \udcff" + "\n"


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


def test_output_that_nobody_reads():
    """Help, results in a buffer that is written at the end, and an error."""
    reader, closed = os.pipe()
    os.close(reader)
    for done in (
        entrypoint("pretrain", "--help", stdout=closed),
        script("run = lambda: print('x')", stdout=closed),
        entrypoint("pretrain", "--config=nowhere.py", stderr=closed),
    ):
        assert done.returncode == 1 and not done.stdout and not done.stderr
    os.close(closed)


def test_output_that_the_shell_closed():
    lines = "import sys\nrun = lambda: print('x', file=sys.stderr)"
    command = shlex.join([sys.executable, "-c", lines + MAIN])
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = subprocess.run(f"{command} {closed}", shell=True, capture_output=True)
        assert done.returncode == 0
        assert done.stderr == b"x\n" * ("2>" not in closed)


@pytest.mark.parametrize(("lines", "is_shown"), [(24, True), (0, False)])
def test_a_bar_needs_a_terminal_with_a_size(lines, is_shown, monkeypatch):
    """tqdm shows nothing on a terminal of 0 lines, and reports would go to the bar."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (lines, 80))
    with open(follower, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with terminal.progress_bar(total=2) as bar:
            assert bar.disable != is_shown
    os.close(leader)


@pytest.mark.parametrize("text", ["x", "x" * 100_000])
def test_results_that_no_disk_has_room_for(text):
    """A short result is in a buffer that is written at the end."""
    with open("/dev/full", "w") as full:
        done = script(f"run = lambda: print({text!r})", stdout=full)
        silent = script(f"run = lambda: print({text!r})", stdout=full, stderr=full)
    line = "error: cannot write: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, line)
    assert silent.returncode == 2


def test_other_pipes_that_break_are_errors():
    done = script("import jax\ndef run(): raise BrokenPipeError('a socket')")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "BrokenPipeError: a socket"


# ---- imports that take long

HEAVY = {"apache_beam", "flax", "jax", "jaxlib", "optax", "orbax", "tensorflow"}


@pytest.mark.parametrize("platform", ["banana", "cuda"])
def test_a_platform_that_is_not_installed(platform):
    """JAX raises different errors for unknown platforms and for missing plugins."""
    lines = "import jax\nrun = lambda: jax.devices()"
    done = script(lines, variables={"JAX_PLATFORMS": platform})
    if platform == "cuda" and done.returncode == 0:
        pytest.skip("there is a GPU")
    commands.assert_refused(done, f"JAX_PLATFORMS={platform} is not installed")


def with_imports(name, *flags):
    """Return the lines of stderr, with the top packages imported so far."""
    done = run("-X", "importtime", "-m", f"bert_jax.run.{name}", *flags)
    return [
        line.rpartition("|")[2].strip().split(".")[0] if "|" in line else line
        for line in done.stderr.splitlines()
    ]


def test_a_device_without_enough_memory():
    done = commands.call_function(lambda: jax.numpy.zeros(2**46).block_until_ready())
    message = "Out of memory allocating 281474976710656 bytes; use a"
    commands.assert_refused(done, message)  # a launcher would start a crash again
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: a; No space left on device")
    done = commands.call_function(mock.Mock(side_effect=full))
    commands.assert_refused(done, f"error: cannot write: {full}")
    crash = script("def run(): raise RuntimeError('RESOURCE_EXHAUSTED: a quota')")
    assert crash.returncode == 1 and "Traceback" in crash.stderr


def test_help_is_there_at_once():
    modules = [f"bert_jax.run.{name}" for name in sorted(ENTRYPOINTS)]
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = run("-c", code, check=True)
    assert HEAVY.isdisjoint(done.stdout.split())
    if "help" not in flags.FLAGS:
        # absl defines it in the first program only, and `call` has removed it since.
        app._define_help_flags_called = False
        app.define_help_flags()
    for name in ENTRYPOINTS:
        commands.succeed(name, "--help")


@pytest.mark.filterwarnings("ignore:the load_module")  # ml_collections reads recipes
@pytest.mark.parametrize("name", sorted(ENTRYPOINTS - {"build_corpus"}))
def test_help_explains_the_flags_of_the_usage(name):
    module = importlib.import_module(f"bert_jax.run.{name}")
    with flagsaver.flagsaver():
        module.define_flags()
        defined = {flag for flag in flags.FLAGS if flags.FLAGS[flag].help}
    named = re.findall(r"--(\w+)", module.__doc__)
    assert {"config" if "config." in n else n for n in named} <= defined


def test_wrong_flags_are_reported_before_the_slow_imports():
    flags = [BASE, "--workdir=x"]
    lines = with_imports("pretrain", *flags, "--config.encoder.num_heads=5")
    assert lines[-1].startswith("error: ") and HEAVY.isdisjoint(lines)
    lines = with_imports("pretrain", *flags)
    first = min(lines.index(package) for package in HEAVY if package in lines)
    assert "importing JAX" in lines[:first]


def test_the_users_folder_in_the_value_of_a_flag(monkeypatch, tmp_path):
    """Shells leave the tilde of --flag=~/run as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").symlink_to(published.folder("masked_lm"))
    (tmp_path / "a.txt").write_text("")
    assert storage.path("~/a") == tmp_path / "a"
    assert os.fspath(restore.absolute("~/a")) == str(tmp_path / "a")
    assert os.fspath(checkpoints.find("~/model")) == str(tmp_path / "model")
    assert output_folder.check("~/new") == tmp_path / "new"
    assert [f.name for f in storage.list_files("~/*.txt")] == [str(tmp_path / "a.txt")]
    assert os.fspath(storage.path("memory://~/a")) == "memory://~/a"
