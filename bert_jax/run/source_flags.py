"""Flags of the entry points that read text."""

from absl import flags

from bert_jax import terminal
from bert_jax.corpus import document_files, file_kinds, sources
from bert_jax.errors import UserError


def define_input_flags() -> None:
    """Define the flags of the input."""
    hint = "Glob of files, local or gs://; in quotes."
    flags.DEFINE_string("input", "", hint, allow_overwrite=False)
    flags.DEFINE_string(
        "format",
        "",
        "text, jsonl, wikiextractor, parquet, tfds:NAME or python_docs. Default: "
        "detected from the first bytes; without --input, python_docs.",
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
        "keeps text as it is, nor for a vocab.txt with capital letters (build_corpus).",
    )
    flags.DEFINE_bool(
        "strip_accents",
        None,
        "Strip accents. Default: as --lower_case; not for a vocab.txt with accents.",
    )


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
        files = sources.matching_files(pattern)
        kind = file_kinds.detect_format(file.name for file in files)
        if kind != "text":
            terminal.say(f"the input looks like --format={kind}")
    return sources.Source(pattern, kind, flags.FLAGS.text_field, split_bytes)
