"""Flags of the entrypoints that read text."""

import tempfile

from absl import flags

from bert_jax import storage, terminal
from bert_jax.corpus import document_files, file_kinds, sources
from bert_jax.errors import UserError


def define_input_flags() -> None:
    """Define the flags of the input."""
    flags.DEFINE_string("input", "", "Glob of files, local or gs://; in quotes.")
    flags.DEFINE_string(
        "format",
        "",
        "text, jsonl, wikiextractor, parquet, tfds:NAME or python_docs. Default: "
        "detected from the first file; without --input, python_docs.",
    )
    flags.DEFINE_string(
        "text_field", "text", "Field with the text, for jsonl, parquet and tfds."
    )


def define_flags() -> None:
    """Define the flags of the input and of the normalisation."""
    define_input_flags()
    flags.DEFINE_bool(
        "lower_case",
        None,
        "Convert text to lower case. Default: yes, but not for byte-level BPE, which "
        "keeps text as it is.",
    )
    flags.DEFINE_bool("strip_accents", None, "Strip accents. Default: as --lower_case.")


def source(split_bytes: int = sources.Source.split_bytes) -> sources.Source:
    """Return the source that --input, --format and --text_field describe.

    Report what is read. Without --format, detect the format of the files.
    """
    pattern = flags.FLAGS.input
    kind = flags.FLAGS.format or ("" if pattern else "python_docs")
    if pattern and (kind == "python_docs" or kind.startswith("tfds:")):
        raise UserError(f"--format={kind} reads no files; omit --input")
    if not pattern and kind in document_files.FORMATS:
        raise UserError(f"--format={kind} needs files; give --input='GLOB'")
    shown = terminal.printable(pattern or kind)
    if kind == "python_docs":
        shown = "the documentation of installed Python packages"
    terminal.say(f"reading {shown}")
    if not kind:
        kind = file_kinds.detect_format(pattern)
        if kind != "text":
            terminal.say(f"the first file looks like --format={kind}")
    return sources.Source(pattern, kind, flags.FLAGS.text_field, split_bytes)


def normalisation(kind: str) -> tuple[bool, bool]:
    """Return whether to convert text to lower case, and whether to strip accents."""
    lower_case, strip = flags.FLAGS.lower_case, flags.FLAGS.strip_accents
    if kind == "byte_bpe":
        for name in ("lower_case", "strip_accents"):
            if flags.FLAGS[name].value:
                raise UserError(
                    f"--{name} does not apply to {kind}, which keeps text as it is"
                )
        return False, False
    lower_case = lower_case is not False
    return lower_case, lower_case if strip is None else strip


def check_new_folder(path: str) -> None:
    """Check that a tokenizer can be written to a folder, before it is learned.

    For an object store, check only that it answers.

    Raises:
      UserError: The path is a file, or the folder is not empty or cannot be written.
    """
    folder = storage.path(path)
    storage.check_reachable(folder)
    with storage.writing(folder):
        if folder.is_dir() and any(folder.glob("*")):
            raise UserError(f"{folder} is not empty; give a new folder")
        if storage.is_remote(folder):
            return
        existing = next(p for p in [folder, *folder.parents] if p.exists())
        if not existing.is_dir():
            raise UserError(f"cannot write to {folder}: {existing} is a file")
        tempfile.TemporaryFile(dir=existing).close()
