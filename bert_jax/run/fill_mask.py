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
    following = _decoded(flags.FLAGS.next)
    asked = [("", _decoded(text)) for text in texts]
    if not asked and not flags.FLAGS.file:
        wanted = "a sentence" if following else "a sentence with [MASK] in it"
        raise UserError(f"there is no text; give {wanted}, in quotes, or --file=FILE")
    for where, text in asked:
        _check(where, text, following)
    terminal.say("importing JAX")
    from bert_jax import prediction
    from bert_jax.prediction import filling
    from bert_jax.prediction import input_files as texts_lib

    model = prediction.load(source)
    lines = texts_lib.read_lines(flags.FLAGS.file) if flags.FLAGS.file else ()
    texts = itertools.chain(asked, lines)
    size = 1 if following else _WINDOW
    while window := list(itertools.islice(texts, size)):
        for where, text in window:
            _check(where, text, following)
        try:
            if following:
                ((_, text),) = window
                probability = model.next_probability(text, following)
                print(f"{probability:6.1%}  {terminal.printable(text)}")
                continue
            filled = model.fill([text for _, text in window], flags.FLAGS.top)
        except prediction.TextError as error:
            where, _ = window[error.index]
            raise UserError(f"{where}: {error}" if where else str(error)) from error
        for (_, text), blanks in zip(window, filled, strict=True):
            print(filling.table(text, blanks))
    return 0


def _check(where: str, text: str, following: str) -> None:
    """Check that a text has blanks, or has none if --next is given."""
    # The model, and so its own mask token, is not known yet.
    blanks = (tokenizer_lib.MASK,) if following else tokenizer_lib.BLANKS
    if any(blank in text for blank in blanks) == bool(following):
        problem = (
            f"--next needs texts without {tokenizer_lib.MASK}, got {text!r}"
            if following
            else f"there is no {tokenizer_lib.MASK} in {text!r}"
        )
        raise UserError(f"{where}: {problem}" if where else problem)


def _decoded(text: str) -> str:
    """Decode an argument as UTF-8, whatever the locale."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{text} is not UTF-8") from error


if __name__ == "__main__":
    command_line.main(main, define_flags)
