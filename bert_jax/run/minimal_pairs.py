r"""Measure how often a pretrained model prefers the acceptable one of two sentences.

  python -m bert_jax.run.minimal_pairs --init_from=WORKDIR --file=blimp.jsonl \
      --output=FOLDER

Each line of the file is a JSON object with `sentence_good` and `sentence_bad`, as in
BLiMP. The table has the accuracy by phenomenon (--group_by) and its standard error.
FOLDER gets the scores of all sentences, the table as JSON, and a picture.
"""

from absl import flags

from bert_jax import storage, terminal
from bert_jax.errors import UserError
from bert_jax.run import command_line


def define_flags() -> None:
    command_line.define_checkpoint_flags("pretraining run")
    flags.DEFINE_string(
        "file", "", "File of JSON lines, plain, .gz, .bz2, .xz or .zst."
    )
    flags.DEFINE_string("output", "", "Folder to write; by default, only print.")
    flags.DEFINE_string(
        "group_by",
        "linguistics_term",
        "Field of the file by which the table groups the pairs.",
    )
    flags.DEFINE_integer(
        "every", 1, "Use every N-th pair, for a quick look.", lower_bound=1
    )
    flags.DEFINE_bool(
        "within_word",
        False,
        "Mask the later pieces of a word together with each piece.",
    )
    flags.DEFINE_bool(
        "generator", False, "Use ELECTRA's generator in place of its discriminator."
    )


def main() -> None:
    source = command_line.required_flag("init_from")
    name = command_line.required_flag("file")
    output = flags.FLAGS.output
    if storage.is_remote(output):
        raise UserError(f"--output={output} must be a local folder")
    if output:  # an error after scoring would lose the scores
        folder = storage.path(output)
        with storage.writing(folder):
            storage.make_folder(folder)
    terminal.say("importing JAX")
    from bert_jax import prediction
    from bert_jax.prediction import minimal_pair_files as files

    read = list(files.read(name))[:: flags.FLAGS.every]
    pairs = [pair for _, pair in read]
    group_by = flags.FLAGS["group_by"]
    if group_by.present and not any(group_by.value in pair for pair in pairs):
        raise UserError(
            f"--group_by={group_by.value}: no pair has this field; the first one has "
            f"{', '.join(pairs[0])}"
        )
    model = prediction.load(source)
    scores = model.score_pairs(
        [(pair[files.GOOD], pair[files.BAD]) for pair in pairs],
        within_word=flags.FLAGS.within_word,
        generator=flags.FLAGS.generator,
    )
    try:
        with terminal.progress_bar(
            iterable=scores, unit="pair", total=len(pairs)
        ) as bar:
            scores = list(bar)
    except prediction.TextError as error:
        raise UserError(f"{read[error.index][0]}: {error}") from error
    measured = files.accuracies(pairs, scores, flags.FLAGS.group_by)
    print(files.table(measured))
    if output:
        with storage.writing(folder):
            files.write(folder, pairs, scores, measured, f"Minimal pairs, {source}")
        terminal.say(f"scores and picture in {folder}")


if __name__ == "__main__":
    command_line.main(main, define_flags)
