r"""Add the words of a new text to the vocabulary of a checkpoint.

  python -m bert_jax.run.extend_vocabulary --init_from=WORKDIR --input='medical/*.txt' \
      --words=1000 --output=EXTENDED

Then build a corpus with the tokenizer in EXTENDED/tokenizer, and continue pretraining
from EXTENDED with the recipe configs/continued.py.

Words replace [unused] tokens first, then extend the vocabulary. Their embeddings are
initialised with the mean over their former pieces. The checkpoint is a workdir, a
checkpoint in it, or a published folder (docs/interop.md).
"""

from absl import flags

from bert_jax import terminal
from bert_jax.run import command_line, source_flags


def define_flags() -> None:
    source_flags.define_input_flags()
    flags.DEFINE_string("init_from", "", "Checkpoint whose vocabulary to extend.")
    flags.DEFINE_integer(
        "words", 1000, "Largest number of words to add.", lower_bound=1
    )
    flags.DEFINE_integer(
        "min_count", 10, "Smallest number of occurrences of a word.", lower_bound=1
    )
    flags.DEFINE_integer(
        "sample_megabytes", 200, "Amount of text to read.", lower_bound=1
    )
    flags.DEFINE_string("output", "", "Folder to write; new or empty.")


def main() -> None:
    values = flags.FLAGS
    checkpoint = command_line.required_flag("init_from")
    output = command_line.required_flag("output")
    source = source_flags.source()
    terminal.say("importing JAX")
    from bert_jax import vocabulary_extension

    extended = vocabulary_extension.extend(
        checkpoint,
        source,
        output,
        words=values.words,
        min_count=values.min_count,
        sample_bytes=values.sample_megabytes * 1_000_000,
    )
    for new in extended.words:
        print(f"{new.word}\t{new.count}")
    terminal.say(
        f"{output}: {extended.vocab_size:,} tokens, with {len(extended.words):,} new "
        f"words, of which {extended.replaced:,} replace unused tokens; the text has "
        f"{extended.share_saved:.1%} fewer tokens"
    )


if __name__ == "__main__":
    command_line.main(main, define_flags)
