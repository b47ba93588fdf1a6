"""What all entrypoints share: flags, and what becomes of a user's mistake."""

import inspect
import os
import pathlib
import re
import select
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import TextIO

import ml_collections
from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from bert_jax import terminal
from bert_jax.errors import EXIT_CONTINUE, Interrupted, Unavailable, UserError
from bert_jax.run import huge_pages

EXIT_CRASH = 1
EXIT_USER_ERROR = 2


def main(run: Callable[..., int | None], define_flags: Callable[[], None]) -> None:
    """Define and parse flags, call `run`, and exit with its status.

    A `run` with a parameter gets the list of the arguments that are no flags; without
    one, such arguments are mistakes.

    A `UserError`, or a flag that does not parse, prints one line and exits with 2. A
    stop that was asked for exits with 75. An outage that may pass exits with 1, and so
    does, without a word, a program whose output nobody reads any more.

    Flags are defined here and not at import, so that tests can call entrypoints.
    """
    for name in ("stdout", "stderr"):
        if not getattr(sys, name):  # closed, as by 2>&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    streams = sys.stdout, sys.stderr
    for stream in streams:
        # Escapes for what the terminal's encoding lacks.
        stream.reconfigure(errors="backslashreplace")
    try:
        try:
            _run(run, define_flags)
        finally:
            for stream in streams:
                stream.flush()  # not at the exit, which would print a traceback
    except BrokenPipeError as error:
        closed = [stream for stream in streams if _nobody_reads(stream)]
        if not closed:
            _crash(error)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in closed:
            os.dup2(nowhere, stream.fileno())
        _leave(EXIT_CRASH, error)


def _run(run: Callable[..., int | None], define_flags: Callable[[], None]) -> None:
    def guarded(arguments):
        if not flags.FLAGS["verbosity"].present:
            # At the default, INFO, libraries log each thing that they do.
            absl_logging.set_verbosity(absl_logging.WARNING)
        if inspect.signature(run).parameters:
            return run(arguments[1:])
        if len(arguments) > 1:
            raise UserError(
                f"unexpected argument {arguments[1]!r}; flags are given as --name=value"
            )
        return run()

    try:
        define_flags()
        app.run(guarded, flags_parser=_parse_flags)
    except (UserError, flags.CantOpenFlagFileError) as error:
        _report(f"error: {error}")
        _leave(EXIT_USER_ERROR, error)
    except Unavailable as error:
        _report(f"error: {error}")
        _leave(EXIT_CRASH, error)
    except Interrupted as stop:
        _report(f"{stop}; the same command continues")
        sys.exit(EXIT_CONTINUE)
    except KeyboardInterrupt as stop:
        _report("stopped")
        _leave(EXIT_CONTINUE, stop)
    except BrokenPipeError:
        raise
    except Exception as error:
        _crash(error)


def _crash(error: BaseException) -> None:
    if "jax" not in sys.modules:
        raise error
    traceback.print_exc()
    _leave(EXIT_CRASH, error)


def _report(line: str) -> None:
    print(terminal.printable(line), file=sys.stderr)


def _nobody_reads(stream: TextIO) -> bool:
    """Whether a stream is a pipe whose other end was closed."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


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
        # absl makes flag errors of what a recipe raises, too.
        if own := _error_of(recipe, error):
            raise own from None
        raise UserError(_one_line(error)) from error
    # config_flags looks a field up while it parses, and what is wrong with its name
    # comes as whatever the lookup raises.
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        overrides = [a for a in arguments if a.startswith("--config.")]
        if not overrides or _error_of(recipe, error):
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
        source = pathlib.Path(path).read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"there is no recipe {path}") from error
    except OSError as error:
        raise UserError(f"cannot read the recipe {path}: {error.strerror}") from error
    no_recipe = f"{path} is no recipe: a .py file with a function get_config"
    if not path.endswith(".py"):
        raise UserError(no_recipe)
    try:
        with warnings.catch_warnings(action="ignore"):  # they come when it is imported
            compile(source, path, "exec")
    except SyntaxError as error:
        where = f"{path}, line {error.lineno}" if error.lineno else path
        raise UserError(f"{where}: {error.msg}") from error
    if b"get_config" not in source:
        raise UserError(no_recipe)


def _error_of(recipe: str | None, error: BaseException | None) -> BaseException | None:
    """What the recipe itself raised, behind what became of it; None if it did not."""
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        if any(frame.filename == recipe for frame in frames):
            return error
        error = error.__context__
    return None


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


def define_huge_pages() -> None:
    """Define `--[no]huge_pages`."""
    flags.DEFINE_boolean(
        "huge_pages",
        True,
        "On a Linux processor, start again with huge pages for memory, "
        f"{huge_pages.VARIABLE}={huge_pages.VALUE}, unless the variable is set.",
    )


def workdir() -> str:
    """The value of `--workdir`.

    Raises:
      UserError: It was not given.
    """
    return required("workdir", "give a folder, --workdir=DIR")


def use_huge_pages() -> None:
    """Start this program again with huge pages, if they are wanted and of use."""
    if flags.FLAGS.huge_pages:
        huge_pages.restart()


def start_processes() -> None:
    """Find the other processes of the run, if there are any.

    Raises:
      UserError: The flags are incomplete.
      RuntimeError: The others did not come in time.
    """
    from bert_jax.training import processes

    values = flags.FLAGS
    processes.start(values.coordinator_address, values.num_processes, values.process_id)


def config() -> ml_collections.ConfigDict:
    """The recipe that was given, with its overrides.

    Raises:
      UserError: There is none.
    """
    flag = flags.FLAGS["config"]
    if not flag.present and not flag.default:
        raise UserError("--config is missing; give a recipe, --config=configs/NAME.py")
    return flags.FLAGS.config.copy_and_resolve_references()


def overrides() -> list[str]:
    """Return the paths of the fields of the recipe that were set by a flag."""
    return list(config_flags.get_override_values(flags.FLAGS["config"]))


def required(name: str, hint: str) -> str:
    """The value of a flag that must be given.

    Raises:
      UserError: It was not.
    """
    if not flags.FLAGS[name].value:
        raise UserError(f"--{name} is missing; {hint}")
    return flags.FLAGS[name].value
