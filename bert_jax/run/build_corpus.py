r"""Turn text into a corpus to pretrain on.

  python -m bert_jax.run.build_corpus --input='books/*.txt.gz' --format=text \
      --tokenizer=DIR --output=DIR --held_out=0.01

Without --input the text is the documentation of the Python packages at hand. The same
command again continues a build that was cut off. Bad input is told by file and line and
left out. Formats are described in bert_jax/corpus/sources.py.

With Apache Beam, on a cluster; the corpus is the same to the last byte:

  python -m bert_jax.run.build_corpus --input='gs://BUCKET/books/*.txt.gz' \
      --tokenizer=DIR --output=gs://BUCKET/corpus --runner=beam --beam_options='
      --runner=DataflowRunner --project=PROJECT --region=REGION
      --temp_location=gs://BUCKET/tmp --sdk_container_image=IMAGE'

Input and output must be places that all workers reach, and bert_jax must be on them,
in an image or by --setup_file (docs/data.md). Only the tokenizer travels along.
"""

import signal

from absl import flags

from bert_jax import storage, terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, report
from bert_jax.errors import Interrupted, UserError
from bert_jax.run import command_line, text_input


def load_tokenizer(path: str) -> tokenizer_lib.Tokenizer:
    """The tokenizer in a folder, or one made from a `vocab.txt`.

    Raises:
      UserError: there is none.
    """
    if storage.path(path).is_dir():
        for name in ("lower_case", "strip_accents"):
            if flags.FLAGS[name].present:
                raise UserError(
                    f"--{name} is for a vocab.txt; {path} says itself how it was made"
                )
        return tokenizer_lib.Tokenizer.load(path)
    lower_case, strip_accents = text_input.normalisation()
    return tokenizer_lib.from_vocab_file(path, lower_case, strip_accents)


def beam_runner(options: str) -> build.Runner:
    """What has the splits built with Apache Beam.

    Raises:
      UserError: Beam is not installed, or knows no such options.
    """
    try:
        from bert_jax.corpus import beam
    except ModuleNotFoundError as error:
        if error.name != "apache_beam":
            raise
        raise UserError(
            "--runner=beam needs apache-beam; pip install -e '.[beam]'"
        ) from error
    return beam.runner(options)


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    text_input.define_flags()
    flags.adopt_module_key_flags(text_input)
    flags.DEFINE_string(
        "tokenizer",
        "",
        "Folder from run.train_tokenizer, or a vocab.txt, for which --lower_case and "
        "--strip_accents count.",
    )
    flags.DEFINE_string("output", "", "Folder to write; new or the same build.")
    flags.DEFINE_float(
        "held_out", 0.01, "Fraction of documents for evaluation.", 0.0, 0.9
    )
    flags.DEFINE_string(
        "language", "en", "For the sentence splitter; a code of ISO 639-1."
    )
    flags.DEFINE_integer("shard_megabytes", 8, "Text to a shard, about.", lower_bound=1)
    flags.DEFINE_integer(
        "workers", 0, "Local processes; 0: one on each core.", lower_bound=0
    )
    flags.DEFINE_enum(
        "runner",
        "local",
        ["local", "beam"],
        "What builds the splits: processes of this machine, or Apache Beam.",
    )
    flags.DEFINE_string(
        "beam_options",
        "",
        "Beam's own options, in quotes, such as '--runner=DataflowRunner "
        "--project=...'. Default: Beam's, which runs on this machine.",
    )


def main() -> int:
    """The entrypoint."""
    values = flags.FLAGS
    path = command_line.required(
        "tokenizer", "give a folder from run.train_tokenizer or a vocab.txt"
    )
    output = command_line.required("output", "give a folder, --output=DIR")
    runner = None
    if values.runner == "beam":
        if values["workers"].present:
            raise UserError(
                "--workers is for local processes; how many Beam has is among "
                "--beam_options"
            )
        runner = beam_runner(values.beam_options)
    elif values.beam_options:
        raise UserError("--beam_options is for --runner=beam")
    terminal.say(f"reading {text_input.description()}")
    # SIGTERM is what a machine sends that is taken away: stop as at Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        corpus = report.build_with_progress(
            text_input.source(values.shard_megabytes * 1_000_000),
            build.Settings(values.held_out, values.language),
            load_tokenizer(path),
            output,
            values.workers,
            runner,
        )
    except KeyboardInterrupt as stop:
        if not runner:  # nothing is left to wait for
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise Interrupted("stopped") from stop
    terminal.say(report.describe(corpus))
    return 0


if __name__ == "__main__":
    command_line.main(main, define_flags)
