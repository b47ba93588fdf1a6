r"""Fill blanks in sentences with a pretrained model.

python -m bert_jax.run.fill_mask --init_from=PRETRAIN_WORKDIR \
      --text='The [MASK] of the list is returned.'
"""

import os

from absl import flags

from bert_jax import terminal
from bert_jax.errors import UserError
from bert_jax.run import command_line


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    flags.DEFINE_string(
        "init_from", "", "Workdir of a pretraining run, or one checkpoint in it."
    )
    flags.DEFINE_multi_string("text", [], "A sentence with [MASK] in it; repeatable.")
    flags.DEFINE_integer("top", 5, "Guesses for each blank.", lower_bound=1)


def main() -> int:
    """The entrypoint."""
    source = command_line.required("init_from", "give a workdir, --init_from=DIR")
    texts = [_decoded(text) for text in flags.FLAGS.text]
    if not texts:
        raise UserError("--text is missing; give a sentence with [MASK] in it")
    terminal.say("importing JAX")
    from bert_jax import prediction

    filled = prediction.load(source).fill(texts, flags.FLAGS.top)
    print(prediction.describe(texts, filled))
    return 0


def _decoded(text: str) -> str:
    """An argument as text, in a locale that is not UTF-8, too."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"--text={text} is not UTF-8") from error


if __name__ == "__main__":
    command_line.main(main, define_flags)
