"""Messages about invalid flags and config fields."""

import contextlib
import difflib
import itertools
import re
import sys
import traceback
from collections.abc import Iterator

from absl import flags
from ml_collections import ConfigDict
from ml_collections.config_flags import config_path

from bert_jax import config as config_lib
from bert_jax.errors import UserError

NO_RECIPE = "--config is missing; give a recipe, --config=configs/NAME.py"
# Command for each kind of recipe, or of its task if it fine-tunes.
COMMANDS = {
    "pretraining": "run.pretrain",
    "demo": "run.demo",
    **config_lib.FINETUNE_COMMANDS,
}


@contextlib.contextmanager
def reported_flag_errors() -> Iterator[None]:
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


# Parts of error messages of absl and ml_collections, and the kind of value expected.
_EXPECTED = {
    "invalid literal for int()": "an integer",
    "could not convert string to float": "a number",
    "Non-boolean argument": "True or False",
    "as a ConfigDict": "a group, whose fields are set by --config.GROUP.FIELD=VALUE",
}


def _describe_flag_error(error: Exception) -> str:
    message = " ".join(str(error).split())
    if isinstance(error, flags.UnrecognizedFlagError):
        is_field = error.flagname.startswith("config.")
        if is_field and "config" in flags.FLAGS:  # without a recipe, it has no fields
            return NO_RECIPE
        return f"unknown flag --{error.flagname}{_hint_for_flag(error.flagname)}"
    if "already defined as" in message:  # a flag with `allow_overwrite=False`
        name = re.search(r"--\w+", message)[0]
        return f"{name} is given more than once; give it once"
    if "before a value for --config" in message:
        return "--config=RECIPE comes before its fields, --config.FIELD=VALUE"
    if isinstance(error, flags.Error) and "Traceback" not in message:
        flag, _, reason = message.partition(": ")
        known = [wanted for part, wanted in _EXPECTED.items() if part in reason]
        return f"{flag}: expected {known[0]}" if known else message
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    # An unreadable recipe raises an OSError, even while a field is set.
    may_be_field = not isinstance(error, OSError)
    for frame in frames:
        if may_be_field and frame.f_code.co_filename == config_path.__file__:
            path = frame.f_locals.get("config_path") or frame.f_locals.get("override")
            group = frames[-1].f_locals.get("self")
            return f"--config.{path}: {_describe_field_error(error, group)}"
    given = [""]
    for word, following in itertools.pairwise([*sys.argv, ""]):
        if re.fullmatch(r"--?config(=.*)?", word):
            given.append(f" {word}" if "=" in word else f" {word} {following}")
    # ml_collections puts its own words, or a traceback, before the reason.
    reason = str(error).strip().splitlines()[-1]
    if number := re.search(r"\[Errno \d+\] ([^:]+)", reason):
        reason = number[1]
    return f"cannot read the recipe{given[-1]}: {reason}"


def _describe_field_error(error: Exception, group: object) -> str:
    """Describe the error of a lookup that ended in `group`, a ConfigDict or not."""
    if isinstance(error, ValueError):
        return (
            "invalid path; expected one such as optimizer.learning_rate or "
            "phases[0].steps"
        )
    if isinstance(error, TypeError):
        return "a list needs an index, as in phases[0].steps"
    if isinstance(error, IndexError):
        return "index out of range; the first entry is [0]"
    if similar := re.search(r"Did you mean \W*(\w+)", str(error)):
        return f"unknown config field; did you mean {similar[1]}?"
    if isinstance(group, ConfigDict):
        known = ", ".join(sorted(group))
        command = COMMANDS.get(kind_of(group))
        recipe = f" of a recipe for {command}" if command else ""
        return f"unknown config field{recipe}; known here: {known}"
    return "unknown config field"


def kind_of(recipe: ConfigDict) -> str | None:
    """Return the kind of a recipe, or of its task if it fine-tunes."""
    kind = recipe.get("kind")
    return recipe.task.kind if kind == "finetuning" else kind


def _hint_for_flag(unknown: str) -> str:
    if unknown == "h":
        return "; did you mean --help?"
    # absl would also suggest its own flags, such as --log_dir for --workdir.
    known = [x.name for x in flags.FLAGS.get_key_flags_for_module(sys.argv[0])]
    name, *field = unknown.split(".", 1)
    if similar := difflib.get_close_matches(name, known, n=1):
        return f"; did you mean --{'.'.join([*similar, *field])}?"
    if "config" in flags.FLAGS:
        is_field = "." in unknown or unknown in (flags.FLAGS["config"].value or ())
        field = unknown if is_field else "GROUP.FIELD=VALUE"
        return f"; fields of the recipe are set by --config.{field}"
    return "; known here: " + ", ".join(f"--{name}" for name in sorted(known))
