"""Flags, errors and exit statuses of all entry points."""

import contextlib
import difflib
import errno
import inspect
import os
import re
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import ConfigDict, config_flags
from ml_collections.config_flags import config_path

from bert_jax import config as config_lib
from bert_jax import io_errors, terminal
from bert_jax.errors import EXIT_CONTINUE, Interrupted, Unavailable, UserError
from bert_jax.run import huge_pages

T = TypeVar("T")

# Command for each kind of recipe, or of its task if it fine-tunes.
_COMMANDS = {
    "pretraining": "run.pretrain",
    "demo": "run.demo",
    **config_lib.FINETUNE_COMMANDS,
}

EXIT_CRASH = 1
EXIT_USER_ERROR = 2
_HELP = {"--help", "-help", "--helpfull", "--helpshort", "--helpxml"}


def main(run: Callable[..., int | None], define_flags: Callable[[], None]) -> None:
    """Define and parse flags, call `run`, and exit with its status.

    If `run` has a parameter, it gets the list of positional arguments. If it has none,
    positional arguments are an error.

    Flags are defined here and not at import, so that tests can call entry points.
    """

    def call_run(arguments):
        if not flags.FLAGS["verbosity"].present:
            # Libraries log every detail at absl's default level, INFO.
            absl_logging.set_verbosity(absl_logging.WARNING)
        if inspect.signature(run).parameters:
            return run(arguments[1:])
        if len(arguments) > 1:
            raise UserError(
                f"unexpected argument {arguments[1]!r}; flags are given as "
                "--name=value, and globs in quotes"
            )
        return run()

    with reported_errors():
        with _reported_flag_errors():
            define_flags()  # a recipe that is the default is read here
        # `--help` lists the flags that are registered for the program itself.
        for module, defined in flags.FLAGS.flags_by_module_dict().items():
            for flag in defined if module.startswith("bert_jax.") else ():
                flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
        try:
            app.run(call_run, flags_parser=_parse_flags)
        except SystemExit:
            if _HELP.intersection(sys.argv):
                sys.exit(0)  # absl exits with 1
            raise


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Context of a program. It reports errors, and exits with their status.

    Exit status: 2 after an error that a restart would repeat, with one line: a
    `UserError`, an invalid flag, a device with too little memory, a store that refuses
    access, a full disk. 75 if the run was interrupted; 1 after an outage, a crash, or a
    closed output pipe.
    """
    # SIGTERM, sent before a machine is preempted, stops a program like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    streams = sys.stdout, sys.stderr
    for stream in streams:
        # Escape characters that the terminal's encoding lacks.
        stream.reconfigure(errors="backslashreplace")
    try:
        try:
            with _exit_statuses():
                yield
        finally:
            for stream in streams:
                stream.flush()  # at exit, a failure would print a traceback
    except BrokenPipeError as error:
        closed = [stream for stream in streams if _is_closed_pipe(stream)]
        if not closed:  # a socket, say
            _crash(error)
        _discard(closed)
        _exit(EXIT_CRASH, error)
    except OSError as error:
        if not _is_full_disk(error):
            _crash(error)
        _discard([sys.stdout])
        with contextlib.suppress(OSError):  # stderr may be on the same disk
            place = f" {error.filename}" if error.filename else ""
            _report(f"error: cannot write{place}: {error.strerror}")
        _discard([sys.stderr])
        _exit(EXIT_USER_ERROR, error)


@contextlib.contextmanager
def _exit_statuses() -> Iterator[None]:
    try:
        yield
    except (UserError, flags.CantOpenFlagFileError) as error:
        _report(f"error: {str(error).removeprefix('ERROR:: ')}")
        _exit(EXIT_USER_ERROR, error)
    except Unavailable as error:
        _report(f"error: {error}")
        _exit(EXIT_CRASH, error)
    except Interrupted as stop:
        _report(f"{stop}; the same command continues")
        sys.exit(EXIT_CONTINUE)
    except KeyboardInterrupt as stop:
        _report("stopped")
        _exit(EXIT_CONTINUE, stop)
    except Exception as error:
        if isinstance(error, BrokenPipeError) or _is_full_disk(error):
            raise
        if not (line := _explain(error)):
            _crash(error)
        _report(f"error: {line}")
        _exit(EXIT_USER_ERROR, error)


def _explain(error: Exception) -> str:
    """Return a line for an error of a library that the user can correct, or ""."""
    if reason := io_errors.refusal(error):
        return f"access is refused; check your credentials: {reason}"
    line = str(error).partition("\n")[0].rstrip(".")
    is_jax = type(error).__name__ == "JaxRuntimeError"  # JAX is slow to import
    if is_jax and line.startswith("RESOURCE_EXHAUSTED"):
        return (
            f"{line}; use more micro_batches, a smaller batch_size or length, or more "
            "devices"
        )
    if _is_missing_platform(error):
        platforms = os.environ.get("JAX_PLATFORMS")
        return (
            f"JAX_PLATFORMS={platforms} is not installed here; unset it, or install "
            "the extra for that platform (README.md)"
        )
    return ""


def _is_missing_platform(error: Exception) -> bool:
    """Return whether JAX was asked for a platform that it does not know."""
    if not os.environ.get("JAX_PLATFORMS"):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    in_jax = frames[-1].filename.endswith("xla_bridge.py")
    unknown = "not in the list of known backends" in str(error)
    return in_jax and (unknown or isinstance(error, AssertionError))


def _crash(error: BaseException) -> None:
    if "jax" not in sys.modules:
        raise error
    traceback.print_exc()
    _exit(EXIT_CRASH, error)


def _is_closed_pipe(stream: TextIO) -> bool:
    """Return whether a stream is a pipe whose reader is gone, as after `| head`."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _is_full_disk(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _discard(streams: Iterable[TextIO]) -> None:
    """Discard what the streams still hold, and what follows."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())


def _report(line: str) -> None:
    print(terminal.printable(line), file=sys.stderr)


def _exit(status: int, error: BaseException) -> None:
    if "jax" in sys.modules:  # not every program has it, and it takes a second
        from bert_jax.training import processes

        processes.exit_process(status, error)
    sys.exit(status)


@contextlib.contextmanager
def _reported_flag_errors() -> Iterator[None]:
    """Turn errors in flags into user errors.

    An error in the recipe itself keeps its traceback.
    """
    try:
        yield
    except BrokenPipeError:  # --help prints while it is parsed
        raise
    except Exception as error:
        # config_flags raises whatever it meets while it loads a recipe or looks up a
        # field, and absl may have wrapped it.
        cause = error
        while cause is not None:
            frames = traceback.extract_tb(cause.__traceback__)
            in_recipe = any(frame.name == "get_config" for frame in frames)
            if in_recipe or isinstance(cause, UserError):
                raise cause from None
            cause = cause.__context__
        raise UserError(_describe_flag_error(error)) from error


@_reported_flag_errors()
def _parse_flags(arguments: list[str]) -> list[str]:
    return flags.FLAGS(arguments)


# Parts of messages of absl and ml_collections, and what they expect.
_EXPECTED = {
    "invalid literal for int()": "an integer",
    "could not convert string to float": "a number",
    "Non-boolean argument": "True or False",
    "as a ConfigDict": "a group, whose fields are set by --config.GROUP.FIELD=VALUE",
}


def _describe_flag_error(error: Exception) -> str:
    message = " ".join(str(error).split())
    if isinstance(error, flags.UnrecognizedFlagError):
        return f"unknown flag --{error.flagname}{_hint_for_flag(error.flagname)}"
    if "already defined as" in message:  # only --config has `allow_overwrite=False`
        return "--config is given more than once; give one recipe"
    if isinstance(error, flags.Error) and "Traceback" not in message:
        flag, _, reason = message.partition(": ")
        known = [wanted for part, wanted in _EXPECTED.items() if part in reason]
        return f"{flag}: expected {known[0]}" if known else message
    # An unreadable recipe raises an OSError, even while a field is set.
    is_about_field = not isinstance(error, OSError)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in frames:
        if is_about_field and frame.f_code.co_filename == config_path.__file__:
            path = frame.f_locals.get("config_path") or frame.f_locals.get("override")
            if isinstance(error, ValueError):
                return (
                    f"--config.{path}: invalid path; expected one such as "
                    "optimizer.learning_rate or phases[0].steps"
                )
            if isinstance(error, TypeError):
                return f"--config.{path}: a list needs an index, as in phases[0].steps"
            if isinstance(error, IndexError):
                return f"--config.{path}: index out of range; the first entry is [0]"
            hint = ""
            if similar := re.search(r"Did you mean \W*(\w+)", message):
                hint = f"; did you mean {similar[1]}?"
            elif isinstance(group := frames[-1].f_locals.get("self"), ConfigDict):
                hint = f"; known here: {', '.join(sorted(group))}"
            return f"--config.{path}: unknown config field{hint}"
    given = ["", *re.findall(r"--config[= ]\S+", " ".join(sys.argv))][-1]
    # ml_collections puts its own words, or a traceback, before the reason.
    reason = str(error).strip().splitlines()[-1]
    if number := re.search(r"\[Errno \d+\] ([^:]+)", reason):
        reason = number[1]
    return f"cannot read the recipe {given}: {reason}"


def _hint_for_flag(unknown: str) -> str:
    if unknown == "h":
        return "; did you mean --help?"
    # absl would also suggest its own flags, such as --log_dir for --workdir.
    known = [x.name for x in flags.FLAGS.get_key_flags_for_module(sys.argv[0])]
    if similar := difflib.get_close_matches(unknown, known, n=1):
        return f"; did you mean --{similar[0]}?"
    if "config" in flags.FLAGS:
        is_field = "." in unknown or unknown in (flags.FLAGS["config"].value or ())
        field = unknown if is_field else "GROUP.FIELD=VALUE"
        return f"; fields of the recipe are set by --config.{field}"
    return "; known here: " + ", ".join(f"--{name}" for name in sorted(known))


def define_config(default: str | None, example: str) -> None:
    """Define `--config=FILE.py[:ARG]` and `--config.FIELD=VALUE`."""
    config_flags.DEFINE_config_file(
        "config",
        default,
        f"Recipe, such as {example}. Any field of it can be set: --config.FIELD=VALUE.",
        lock_config=True,
        allow_overwrite=False,
    )


def define_training(recipe: str | None, example: str) -> None:
    """Define the flags of a program that trains: recipe, workdir, huge pages."""
    define_config(recipe, example)
    flags.DEFINE_string("workdir", "", "Folder of the run.")
    flags.DEFINE_boolean(
        "huge_pages",
        True,
        f"On Linux CPUs, restart with {huge_pages.VARIABLE}={huge_pages.VALUE}, which "
        "makes training faster, unless the variable is set.",
    )


def define_checkpoint(run: str) -> None:
    """Define `--init_from`, a checkpoint of a kind of run."""
    hint = "one checkpoint in it, or a folder of another project"
    flags.DEFINE_string("init_from", "", f"Workdir of a {run}, {hint}.")


def define_texts() -> None:
    """Define the flags of a file of texts, or of columns with texts in a file."""
    flags.DEFINE_string(
        "input",
        "",
        "File of texts, plain, .gz, .bz2, .xz or .zst, local or gs://; - reads stdin.",
    )
    flags.DEFINE_string("text_a", "", "Column with the texts, if the input is TSV.")
    flags.DEFINE_string("text_b", "", "Column with the second texts, if there is one.")


def define_processes() -> None:
    """Define the flags that identify this process among the run's processes."""
    hint = "Not needed on TPU and Slurm, and for a single process."
    flags.DEFINE_string("coordinator_address", "", f"HOST:PORT of process 0. {hint}")
    flags.DEFINE_integer("num_processes", 0, f"Processes of the run. {hint}")
    flags.DEFINE_integer("process_id", -1, f"Index of this one. {hint}")


def start_training() -> str:
    """Return the workdir, after a restart with huge pages, before slow imports."""
    folder = required_flag("workdir")
    if flags.FLAGS.huge_pages:
        huge_pages.restart()
    terminal.say("importing JAX")
    return folder


def start_processes() -> None:
    """Connect to the other processes of the run, if there are any."""
    from bert_jax.training import processes

    values = flags.FLAGS
    processes.start(values.coordinator_address, values.num_processes, values.process_id)


def read_config(cls: type[T], kind: str = "") -> T:
    """Return the config: the recipe with the overrides of the command line.

    `kind` is the kind of the task, if the program fine-tunes.

    Raises:
      UserError: The recipe is missing, or is not a valid config of this kind.
    """
    flag = flags.FLAGS["config"]
    if flag.value is None or not flag.config_filename:
        raise UserError("--config is missing; give a recipe, --config=configs/NAME.py")
    for name in overrides():
        if name.split(".")[-1] == "kind":
            raise UserError(
                f"--config.{name} cannot be set: other fields depend on it; give a "
                "recipe with another kind"
            )
    with _reported_flag_errors():
        recipe = flag.value.copy_and_resolve_references()
    kind, given = kind or cls.kind, recipe.get("kind")
    if given == "finetuning":
        given = recipe.task.kind
    if given != kind and given in _COMMANDS:
        raise UserError(
            f"{flag.config_filename} is a config for {given!r}, not {kind!r}; use "
            f"{_COMMANDS[given]}"
        )
    return config_lib.from_configdict(cls, recipe)


def overrides() -> list[str]:
    """Return the paths of the config fields that were set by a flag."""
    return list(config_flags.get_override_values(flags.FLAGS["config"]))


def required_flag(name: str) -> str:
    """Return the value of a flag that must be given."""
    flag = flags.FLAGS[name]
    if not flag.value:
        raise UserError(f"--{name} is missing. {flag.help}")
    return flag.value
