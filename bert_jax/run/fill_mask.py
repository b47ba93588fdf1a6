r"""Fill blanks in sentences with a pretrained model, or predict next sentences.

  python -m bert_jax.run.fill_mask --init_from=PRETRAIN_WORKDIR \
      'The woman went to the store and bought a [MASK] of shoes.'

With --next, print the probability that this text follows each of the given texts:

  python -m bert_jax.run.fill_mask --init_from=PRETRAIN_WORKDIR \
      'The man went to the store.' --next='He bought a gallon of milk.'

Models with RoBERTa's vocabulary accept `<mask>` too. A text may have several blanks. A
file (plain, .gz or .zst) has one text per line.
"""

import itertools
import os

from absl import flags

from bert_jax import terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.run import command_line

_WINDOW = 256  # texts that are read ahead


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    flags.DEFINE_string(
        "init_from", "", "Workdir of a pretraining run, or one checkpoint in it."
    )
    flags.DEFINE_string("file", "", "File with a text in each line; - reads stdin.")
    flags.DEFINE_string("next", "", "Text whose probability to follow the given texts "
                        "is printed; they must have no blanks.")  # fmt: skip
    flags.DEFINE_integer("top", 5, "Guesses for each blank.", lower_bound=1)


def main(texts: list[str]) -> int:
    """Print guesses or probabilities for the texts given as arguments or in a file."""
    source = command_line.required("init_from", "give a workdir, --init_from=DIR")
    following, file = _decoded(flags.FLAGS.next), flags.FLAGS.file
    given = [_checked("", _decoded(text), following) for text in texts]
    if not given and not file:
        wanted = "a sentence" if following else "a sentence with [MASK] in it"
        raise UserError(f"there is no text; give {wanted}, in quotes, or --file=FILE")
    terminal.say("importing JAX")
    from bert_jax import prediction
    from bert_jax.prediction import filling, input_files

    model = prediction.load(source)
    lines = input_files.read_lines(file) if file else ()
    lines = (_checked(where, text, following) for where, text in lines)
    size = 1 if following else _WINDOW
    remaining = itertools.chain(given, lines)
    while window := list(itertools.islice(remaining, size)):
        texts = [text for _, text in window]
        try:
            if following:
                probability = model.next_probability(texts[0], following)
                print(f"{probability:6.1%}  {terminal.printable(texts[0])}")
                continue
            filled = model.fill(texts, flags.FLAGS.top)
        except prediction.TextError as error:
            raise UserError(f"{window[error.index][0]}{error}") from error
        for text, blanks in zip(texts, filled, strict=True):
            print(filling.table(text, blanks))
    return 0


def _checked(where: str, text: str, following: str) -> tuple[str, str]:
    """Check that a text has blanks, or none with --next. Return its place and itself.

    The place becomes a prefix for messages.
    """
    where = f"{where}: " if where else ""
    # The model, and so its own mask token, is not known yet.
    if following and tokenizer_lib.MASK in text:
        raise UserError(
            f"{where}--next needs texts without {tokenizer_lib.MASK}, got {text!r}"
        )
    if not following and not any(blank in text for blank in tokenizer_lib.BLANKS):
        raise UserError(f"{where}{tokenizer_lib.describe_missing_blank(text)}")
    return where, text


def _decoded(text: str) -> str:
    """Decode an argument as UTF-8, whatever the locale."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{text} is not UTF-8") from error


if __name__ == "__main__":
    command_line.main(main, define_flags)
