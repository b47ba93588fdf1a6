"""Flags of all entry points, and the function that runs an entry point."""

import faulthandler
import inspect
import signal
import sys
from collections.abc import Callable
from typing import TypeVar

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from bert_jax import config as config_lib
from bert_jax import terminal
from bert_jax.errors import UserError
from bert_jax.run import flag_errors, huge_pages
from bert_jax.run.exit_status import reported_errors
from bert_jax.run.flag_errors import reported_flag_errors

T = TypeVar("T")

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
        with reported_flag_errors():
            define_flags()  # a recipe that is the default is read here
        # `--help` lists the flags that are registered for the program itself.
        for module, defined in flags.FLAGS.flags_by_module_dict().items():
            if module.startswith("bert_jax."):
                for flag in defined:
                    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
        try:
            app.run(call_run, flags_parser=_parse_flags)
        except SystemExit:
            if _HELP.intersection(sys.argv):
                sys.exit(0)  # absl exits with 1
            raise


@reported_flag_errors()
def _parse_flags(arguments: list[str]) -> list[str]:
    return flags.FLAGS(arguments)


def define_config_flag(default: str | None, example: str) -> None:
    """Define `--config=FILE.py[:ARG]` and `--config.FIELD=VALUE`."""
    config_flags.DEFINE_config_file(
        "config",
        default,
        f"Recipe, such as {example}. Any field of it can be set: --config.FIELD=VALUE.",
        lock_config=True,
        allow_overwrite=False,
    )


def define_training_flags(recipe: str | None, example: str) -> None:
    """Define the flags of a program that trains: recipe, workdir, huge pages."""
    define_config_flag(recipe, example)
    flags.DEFINE_string("workdir", "", "Folder of the run.")
    flags.DEFINE_boolean(
        "huge_pages",
        True,
        f"On Linux CPUs, restart with {huge_pages.VARIABLE}={huge_pages.VALUE}, which "
        "makes training faster, unless the variable is set.",
    )


def define_checkpoint_flags(run: str) -> None:
    """Define `--init_from`, a checkpoint of a kind of run."""
    hint = "a checkpoint in it, or the folder of a published model"
    flags.DEFINE_string("init_from", "", f"Workdir of a {run}, {hint}.")


def define_text_flags() -> None:
    """Define the flags of a file of texts, or of columns with texts in a file."""
    flags.DEFINE_string(
        "input",
        "",
        "File of texts, plain, .gz, .bz2, .xz or .zst, local or gs://; - reads stdin.",
        allow_overwrite=False,
    )
    flags.DEFINE_string("text_a", "", "Column with the texts, if the input is TSV.")
    flags.DEFINE_string("text_b", "", "Column with the second texts, if there is one.")


def define_process_flags() -> None:
    """Define the flags that identify this process among the run's processes."""
    hint = "Not needed on TPU, under Slurm, or for a single process."
    flags.DEFINE_string("coordinator_address", "", f"HOST:PORT of process 0. {hint}")
    flags.DEFINE_integer("num_processes", 0, f"Number of processes. {hint}")
    flags.DEFINE_integer("process_id", -1, f"Index of this process, from 0. {hint}")


def start_training() -> str:
    """Set up a process that trains, before its slow imports. Return the workdir.

    With --huge_pages, the process restarts with huge pages.
    """
    folder = required_flag("workdir")
    if flags.FLAGS.huge_pages:
        huge_pages.restart()
    # `kill -USR1` prints all stacks of a hanging process, which continues.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    terminal.say("importing JAX")
    return folder


def start_processes() -> None:
    """Connect to the other processes of the run, if there are any."""
    from bert_jax.training import interrupts, processes

    values = flags.FLAGS
    with interrupts.StopRequests():
        processes.start(
            values.coordinator_address, values.num_processes, values.process_id
        )


def read_config(cls: type[T], kind: str = "") -> T:
    """Return the config: the recipe with the overrides of the command line.

    `kind` is the kind of the task, if the program fine-tunes.

    Raises:
      UserError: The recipe is missing, or is not a valid config of this kind.
    """
    flag = flags.FLAGS["config"]
    if flag.value is None or not flag.config_filename:
        raise UserError(flag_errors.NO_RECIPE)
    for name in overrides():
        if name.split(".")[-1] == "kind":
            raise UserError(
                f"--config.{name} cannot be set: other fields depend on it; give a "
                "recipe with another kind"
            )
    with reported_flag_errors():
        recipe = flag.value.copy_and_resolve_references()
    kind, given = kind or cls.kind, flag_errors.kind_of(recipe)
    if given != kind and given in flag_errors.COMMANDS:
        raise UserError(
            f"{flag.config_filename} is a config for {given!r}, not {kind!r}; give "
            f"another recipe, or use {flag_errors.COMMANDS[given]}"
        )
    return config_lib.from_dict(cls, recipe)


def overrides() -> list[str]:
    """Return the paths of the config fields that were set by a flag."""
    return list(config_flags.get_override_values(flags.FLAGS["config"]))


def required_flag(name: str) -> str:
    """Return the value of a flag that must be given."""
    flag = flags.FLAGS[name]
    if not flag.value:
        raise UserError(f"--{name} is missing. {flag.help}")
    return flag.value
