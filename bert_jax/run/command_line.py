"""What all entrypoints share: flags, and what becomes of a user's mistake."""

import pathlib
import re
import sys
import traceback
from collections.abc import Callable

import ml_collections
from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from bert_jax.errors import Interrupted, Unavailable, UserError

# sysexits.h: a mistake in what was given; a stop that is meant to be continued.
EXIT_CRASH = 1
EXIT_USER_ERROR = 2
EXIT_CONTINUE = 75


def main(run: Callable[[], int | None], define_flags: Callable[[], None]) -> None:
    """Define and parse flags, call `run`, and exit with its status.

    A `UserError`, or a flag that does not parse, prints one line and exits with 2. A
    stop that was asked for exits with 75, what may be well again later with 1.
    Flags are defined here and not at import, so that entrypoints can import each other.
    """

    def guarded(arguments):
        if not flags.FLAGS["verbosity"].present:
            # Libraries tell of each of their doings at the default, INFO.
            absl_logging.set_verbosity(absl_logging.WARNING)
        if len(arguments) > 1:
            raise UserError(
                f"unexpected argument {arguments[1]!r}; flags are given as --name=value"
            )
        return run()

    define_flags()
    try:
        app.run(guarded, flags_parser=_parse_flags)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        _leave(EXIT_USER_ERROR, error)
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        _leave(EXIT_CRASH, error)
    except Interrupted as stop:
        print(f"{stop}; the same command continues", file=sys.stderr)
        sys.exit(EXIT_CONTINUE)
    except KeyboardInterrupt as stop:
        print("stopped", file=sys.stderr)
        _leave(EXIT_CONTINUE, stop)
    except Exception as error:
        if "jax" not in sys.modules:
            raise
        traceback.print_exc()
        _leave(EXIT_CRASH, error)


def _leave(status: int, error: BaseException) -> None:
    if "jax" in sys.modules:  # not every program has it, and it takes a second
        from bert_jax.training import processes

        processes.leave(status, error)
    sys.exit(status)


def _parse_flags(arguments: list[str]) -> list[str]:
    recipe = _recipe(arguments)
    if recipe:
        _check_recipe(recipe)
    try:
        return flags.FLAGS(arguments)
    except flags.Error as error:
        raise UserError(_one_line(error)) from error
    # config_flags looks a field up while it parses, and what is wrong with its name
    # comes as whatever the lookup raises.
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        overrides = [a for a in arguments if a.startswith("--config.")]
        frames = traceback.extract_tb(error.__traceback__)
        if not overrides or any(frame.filename == recipe for frame in frames):
            raise
        raise UserError(_wrong_override(overrides, error)) from error


def _recipe(arguments: list[str]) -> str | None:
    """The file behind `--config=FILE:ARG` or `--config FILE:ARG`, the last one."""
    given = None
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.removeprefix("-").partition("=")
        if name == "-config":
            given = (value if equals else following).split(":")[0]
    return given


def _check_recipe(path: str) -> None:
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"there is no recipe {path}") from error
    if not path.endswith(".py") or "get_config" not in text:
        raise UserError(f"{path} is no recipe: a .py file with a function get_config")


def _wrong_override(overrides: list[str], error: Exception) -> str:
    message = _one_line(error)
    named = re.search(r"'(\w+)'", message)
    for override in overrides:
        name = override.split("=")[0].removeprefix("--config.")
        parts = re.split(r"[.\[\]]", name)
        if isinstance(error, IndexError) and "[" in name:
            return f"{override}: there are not so many"
        if named and named.group(1) in parts:
            return f"unknown config field in {override} ({message})"
    return f"cannot apply {' '.join(overrides)}: {message}"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).replace("\\n", " ").split())
    return text.replace('"', "").replace("\\'", "'").replace("''", "'")


def define_config(default: str | None, example: str) -> None:
    """Define `--config=FILE.py[:ARG]` and `--config.FIELD=VALUE`."""
    config_flags.DEFINE_config_file(
        "config",
        default,
        f"Recipe, such as {example}. Any field of it can be set: --config.FIELD=VALUE.",
        lock_config=True,
    )


def define_workdir() -> None:
    """Define `--workdir=DIR`."""
    flags.DEFINE_string("workdir", "", "Folder of the run.")


def define_processes() -> None:
    """Define what says which process of a run this is."""
    hint = "Not needed on TPU and Slurm, and for a single process."
    flags.DEFINE_string("coordinator_address", "", f"HOST:PORT of process 0. {hint}")
    flags.DEFINE_integer("num_processes", 0, f"Processes of the run. {hint}")
    flags.DEFINE_integer("process_id", -1, f"Index of this one. {hint}")


def start_processes() -> None:
    """Find the other processes of the run, if there are any.

    Raises:
      UserError: the flags are incomplete.
      RuntimeError: the others did not come in time.
    """
    from bert_jax.training import processes

    values = flags.FLAGS
    processes.start(values.coordinator_address, values.num_processes, values.process_id)


def config() -> ml_collections.ConfigDict:
    """The recipe that was given, with its overrides.

    Raises:
      UserError: there is none.
    """
    flag = flags.FLAGS["config"]
    if not flag.present and not flag.default:
        raise UserError("--config is missing; give a recipe, --config=configs/NAME.py")
    return flags.FLAGS.config.copy_and_resolve_references()


def required(name: str, hint: str) -> str:
    """The value of a flag that must be given.

    Raises:
      UserError: it was not.
    """
    if not flags.FLAGS[name].value:
        raise UserError(f"--{name} is missing; {hint}")
    return flags.FLAGS[name].value
