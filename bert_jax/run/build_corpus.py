r"""Turn text into a corpus to pretrain on.

  python -m bert_jax.run.build_corpus --input='books/*.txt.gz' --format=text \
      --tokenizer=DIR --output=DIR --held_out=0.01

Without --input, the text is the documentation of installed Python packages. The same
command continues an interrupted build. Bad input is reported by file and line, and left
out. docs/data.md describes the formats of --format.

Apache Beam builds the same corpus on a cluster, byte for byte:

  python -m bert_jax.run.build_corpus --input='gs://BUCKET/books/*.txt.gz' \
      --tokenizer=DIR --output=gs://BUCKET/corpus --runner=beam --beam_options='
      --runner=DataflowRunner --project=PROJECT --region=REGION
      --temp_location=gs://BUCKET/tmp --sdk_container_image=IMAGE'

All workers need access to input and output, and need bert_jax installed, by an image or
by --setup_file (docs/data.md). The tokenizer is sent to them.
"""

import os
import signal

from absl import flags

from bert_jax import storage, terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build
from bert_jax.errors import Interrupted, UserError
from bert_jax.interop import tokenizer_files
from bert_jax.run import command_line, source_flags
from bert_jax.tokenizer import special_tokens


def load_tokenizer(path: str) -> tokenizer_lib.Tokenizer:
    """Load the tokenizer in a folder, or a `vocab.txt`."""
    with storage.reading(path):
        is_folder = storage.path(path).is_dir()
    if is_folder:
        for name in ("lower_case", "strip_accents"):
            if flags.FLAGS[name].present:
                raise UserError(
                    f"--{name} applies to a vocab.txt only; the folder {path} sets it"
                )
        return tokenizer_files.read(storage.path(path), _special_tokens())
    if os.path.basename(path) == tokenizer_lib.PIPELINE_FILE:
        raise UserError(f"--tokenizer={path}: give the folder of this file")
    if flags.FLAGS.special_tokens:
        raise UserError(
            "--special_tokens applies to the folder of a tokenizer only; a vocab.txt "
            "has BERT's special tokens"
        )
    values = flags.FLAGS
    return tokenizer_files.read_wordpiece(path, values.lower_case, values.strip_accents)


def _special_tokens() -> dict[str, str]:
    """Return the tokens in --special_tokens, by field of `tokenizer_config.json`."""
    named = {}
    for item in flags.FLAGS.special_tokens:
        role, _, token = item.partition("=")
        if role not in special_tokens.ROLES or not token:
            raise UserError(
                f"--special_tokens: expected ROLE=TOKEN with the role "
                f"{', '.join(special_tokens.ROLES)}, got {item!r}"
            )
        named[f"{role}_token"] = token
    return named


def beam_runner(options: str) -> build.Runner:
    """Return a runner that builds the splits with Apache Beam."""
    terminal.say("importing Apache Beam")
    try:
        from bert_jax.corpus import beam_runner
    except ModuleNotFoundError as error:
        if error.name != "apache_beam":
            raise
        raise UserError(
            "--runner=beam needs apache-beam; pip install -e '.[beam]'"
        ) from error
    return beam_runner.make(options)


def define_flags() -> None:
    source_flags.define_flags()
    flags.DEFINE_string(
        "tokenizer",
        "",
        "Folder from run.train_tokenizer or of a published model; or a vocab.txt, with "
        "--lower_case and --strip_accents.",
    )
    flags.DEFINE_list(
        "special_tokens",
        [],
        "Special tokens, in place of the tokenizer's, such as "
        "'cls=<s>,sep=</s>,pad=<pad>,mask=<mask>'.",
    )
    flags.DEFINE_string("output", "", "Folder to write: new, or of the same build.")
    flags.DEFINE_float(
        "held_out", 0.01, "Fraction of documents for evaluation.", 0.0, 0.9
    )
    flags.DEFINE_string("language", "en", "ISO 639-1 code, for the sentence splitter.")
    flags.DEFINE_integer(
        "shard_megabytes",
        8,
        "Approximate amount of text in a shard; more where 4,096 would not suffice.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "workers", 0, "Local processes; 0: one per core.", lower_bound=0
    )
    flags.DEFINE_enum(
        "runner",
        "local",
        ["local", "beam"],
        "Where splits are built: in processes of this machine, or by Apache Beam.",
    )
    flags.DEFINE_string(
        "beam_options",
        "",
        "Options of Beam, in quotes, such as '--runner=DataflowRunner "
        "--project=...'. By default, Beam runs on this machine.",
    )


def main() -> None:
    values = flags.FLAGS
    path = command_line.required_flag("tokenizer")
    output = command_line.required_flag("output")
    runner = None
    if values.runner == "beam":
        runner = beam_runner(values.beam_options)
    elif values.beam_options:
        raise UserError("--beam_options needs --runner=beam")
    source = source_flags.source(values.shard_megabytes * 1_000_000)
    settings = build.Settings(values.held_out, values.language)
    try:
        corpus = build.build(
            source,
            settings,
            load_tokenizer(path),
            output,
            workers=values.workers,
            runner=runner,
        )
    except KeyboardInterrupt as stop:
        if not runner:  # all workers have ended: only the exit is left
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Interrupted("stopped") from stop
    terminal.say(build.describe(corpus))


if __name__ == "__main__":
    command_line.main(main, define_flags)
