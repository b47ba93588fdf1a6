r"""Add the words of a new text to the vocabulary of a checkpoint.

  python -m bert_jax.run.extend_vocabulary --init_from=WORKDIR --input='medical/*.txt' \
      --words=1000 --output=EXTENDED

Then run.build_corpus builds a corpus with the tokenizer in EXTENDED/tokenizer, and
run.pretrain goes on from EXTENDED with it; configs/continued.py is a recipe for that.

Words take the places of [unused] tokens first, then new rows. Their embeddings begin as
the mean of those of the pieces that stood for them. The checkpoint is a workdir, a
checkpoint in it, or a folder of another project (docs/interop.md).
"""

from absl import flags

from bert_jax import terminal
from bert_jax.run import command_line, text_input


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    text_input.define_input_flags()
    flags.adopt_module_key_flags(text_input)
    flags.DEFINE_string("init_from", "", "Checkpoint whose vocabulary to extend.")
    flags.DEFINE_integer("words", 1000, "Most words to add.", lower_bound=1)
    flags.DEFINE_integer(
        "min_count", 10, "How often the text has a word, at least.", lower_bound=1
    )
    flags.DEFINE_integer(
        "sample_megabytes", 200, "Amount of text to look at.", lower_bound=1
    )
    flags.DEFINE_string("output", "", "Folder to write; new or empty.")


def main() -> int:
    """The entrypoint."""
    values = flags.FLAGS
    checkpoint = command_line.required(
        "init_from", "give a checkpoint, --init_from=DIR"
    )
    output = command_line.required("output", "give a new folder, --output=DIR")
    source = text_input.source()
    terminal.say("importing JAX")
    from bert_jax import extension

    terminal.say(f"reading {text_input.description()}")
    extended = extension.extend(
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
        f"{output}: {extended.vocab_size:,} tokens, {len(extended.words):,} of them "
        f"new, {extended.replaced:,} in places that were unused; the text has "
        f"{extended.share_saved:.1%} fewer tokens"
    )
    return 0


if __name__ == "__main__":
    command_line.main(main, define_flags)
