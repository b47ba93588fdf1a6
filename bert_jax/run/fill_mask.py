r"""Fill blanks in sentences with a pretrained model.

python -m bert_jax.run.fill_mask --init_from=PRETRAIN_WORKDIR \
      --text='The [MASK] of the list is returned.'
"""

from absl import flags

from bert_jax import prediction
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
    texts = flags.FLAGS.text
    if not texts:
        raise UserError("--text is missing; give a sentence with [MASK] in it")
    filled = prediction.load(source).fill(texts, flags.FLAGS.top)
    print(prediction.describe(texts, filled))
    return 0


if __name__ == "__main__":
    command_line.main(main, define_flags)
