r"""Fill blanks in sentences with a pretrained model, or predict next sentences.

  python -m bert_jax.run.fill_mask --init_from=PRETRAIN_WORKDIR \
      'The woman went to the store and bought a [MASK] of shoes.'

With --next, print the probability that this text follows each of the given texts:

  python -m bert_jax.run.fill_mask --init_from=PRETRAIN_WORKDIR \
      'The man went to the store.' --next='He bought a gallon of milk.'

Models with RoBERTa's vocabulary accept `<mask>` too. A text may have several blanks.
--file has one text per line (plain, .gz, .bz2, .xz, .zst).
"""

import itertools

from absl import flags

from bert_jax import terminal
from bert_jax.errors import UserError
from bert_jax.run import command_line

_WINDOW = 256  # texts that are read ahead


def define_flags() -> None:
    command_line.define_checkpoint_flags("pretraining run")
    flags.DEFINE_string("file", "", "File with a text in each line; - reads stdin.")
    flags.DEFINE_string(
        "next", "", "Print the probability that this text follows each text."
    )
    flags.DEFINE_integer("top", 5, "Guesses for each blank.", lower_bound=1)


def main(texts: list[str]) -> None:
    """Print guesses or probabilities for the texts given as arguments or in a file."""
    source = command_line.required_flag("init_from")
    following, file = flags.FLAGS.next, flags.FLAGS.file
    if not texts and not file:
        wanted = "a sentence" if following else "a sentence with [MASK] in it"
        raise UserError(f"there is no text; give {wanted}, in quotes, or --file=FILE")
    terminal.say("importing JAX")
    from bert_jax import prediction
    from bert_jax.prediction import filling, text_files

    model = prediction.load(source)
    lines = text_files.read_lines(file) if file else ()
    size = 1 if following else _WINDOW
    remaining = itertools.chain((("", text) for text in texts), lines)
    while window := list(itertools.islice(remaining, size)):
        places, read = zip(*window, strict=True)
        try:
            if following:
                probability = model.next_probability(read[0], following)
                print(f"{probability:6.1%}  {terminal.printable(read[0])}")
                continue
            filled = model.fill(read, flags.FLAGS.top)
        except prediction.TextError as error:
            # With --next, the window has one text, and its successor has the index 1.
            where = [*places, "--next"][error.index]
            # Without quotes, each word of a sentence is an argument.
            is_word = len(window) > 1 and " " not in read[error.index]
            hint = "; give each text in quotes" * is_word
            line = f"{where}: {error}" if where else f"{error}{hint}"
            raise UserError(line) from error
        for text, blanks in zip(read, filled, strict=True):
            print(filling.table(text, blanks))


if __name__ == "__main__":
    command_line.main(main, define_flags)
