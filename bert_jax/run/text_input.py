"""Flags that say which text to read, and how: shared by two entrypoints."""

import tempfile

from absl import flags

from bert_jax import storage, terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import files, sources
from bert_jax.errors import UserError


def define_flags() -> None:
    """Define the flags."""
    flags.DEFINE_string("input", "", "Glob of files, here or gs://; quote it.")
    flags.DEFINE_string(
        "format",
        "",
        "text, jsonl, wikiextractor, tfds:NAME or python_docs. Default: text with "
        "--input, python_docs without.",
    )
    flags.DEFINE_string(
        "text_field", "text", "Field that holds the text, for jsonl and tfds."
    )
    flags.DEFINE_bool("lower_case", True, "Drop case.")
    flags.DEFINE_bool("strip_accents", None, "Drop accents. Default: as --lower_case.")


def source(split_bytes: int = sources.Source.split_bytes) -> sources.Source:
    """What --input, --format and --text_field say.

    Raises:
      UserError: they contradict each other.
    """
    pattern = flags.FLAGS.input
    kind = flags.FLAGS.format or ("text" if pattern else "python_docs")
    if pattern and (kind == "python_docs" or kind.startswith("tfds:")):
        raise UserError(f"--format={kind} reads no files; leave --input out")
    if not pattern and kind in files.FORMATS:
        raise UserError(f"--format={kind} needs files; give --input='GLOB'")
    return sources.Source(pattern, kind, flags.FLAGS.text_field, split_bytes)


def description() -> str:
    """What is read, for a line to show before it is looked for, which may take long."""
    source = flags.FLAGS.input or flags.FLAGS.format
    if source in ("", "python_docs"):
        return "the documentation of installed Python packages"
    return terminal.printable(source)


def normalisation() -> tuple[bool, bool]:
    """Whether to drop case, and whether to drop accents."""
    lower_case, strip = flags.FLAGS.lower_case, flags.FLAGS.strip_accents
    return lower_case, lower_case if strip is None else strip


def check_new_folder(path: str) -> None:
    """Check, before the work, that a tokenizer can be written to a folder.

    Of an object store, only that it answers: who may read may not be able to write.

    Raises:
      UserError: The folder is not empty or cannot be written, or a file has its name.
    """
    folder = storage.path(path)
    storage.check(folder)
    with storage.writing(folder):
        if folder.is_dir() and not tokenizer_lib.is_unfinished(folder):
            raise UserError(f"{folder} is not empty; give a new folder")
        if storage.is_remote(folder):
            return
        existing = next(p for p in [folder, *folder.parents] if p.exists())
        if not existing.is_dir():
            raise UserError(f"cannot write to {folder}: {existing} is a file")
        tempfile.TemporaryFile(dir=existing).close()
