r"""Learn a vocabulary from text.

  python -m bert_jax.run.train_tokenizer --input='books/*.txt.gz' \
      --kind=wordpiece --vocab_size=30522 --output=DIR

Without --input the text is the documentation of the Python packages at hand.
"""

import random

from absl import flags

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import sources
from bert_jax.errors import UserError
from bert_jax.run import command_line, text_input
from bert_jax.training import reporting


def train(
    source: sources.Source,
    kind: str,
    vocab_size: int,
    *,
    lower_case: bool,
    strip_accents: bool,
    sample_bytes: int,
) -> tokenizer_lib.Tokenizer:
    """Learn a vocabulary from a sample of a source.

    Args:
      source: what to read.
      kind: "wordpiece" or "sentencepiece".
      vocab_size: number of tokens.
      lower_case: see `Tokenizer`.
      strip_accents: see `Tokenizer`.
      sample_bytes: of text to learn from, taken from splits (files, or parts of large
        ones that are not compressed) in random order.

    Raises:
      UserError: there is no input, or too little.
    """
    texts, size = [], 0
    problems = sources.Problems()
    splits = sources.plan(source)
    random.Random(0).shuffle(splits)
    bar = reporting.progress_bar(desc="reading text", unit="B", unit_scale=True)
    for split in splits:
        for document in sources.read(split, source, problems):
            if size >= sample_bytes:
                break
            # Lines, because SentencePiece leaves out what is longer than a few of them.
            texts += [line for line in document.text.split("\n") if line.strip()]
            size += len(document.text)
            bar.update(len(document.text))
    bar.close()
    text_input.tell(problems.count, problems.lines)
    if not texts:
        raise UserError(f"there is no text in {source.pattern or source.format}")
    trainers = {
        "wordpiece": tokenizer_lib.train_wordpiece,
        "sentencepiece": tokenizer_lib.train_sentencepiece,
    }
    return trainers[kind](
        texts, vocab_size, lower_case=lower_case, strip_accents=strip_accents
    )


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    text_input.define_flags()
    flags.adopt_module_key_flags(text_input)
    flags.DEFINE_enum("kind", "wordpiece", tokenizer_lib.KINDS, "Kind of tokenizer.")
    flags.DEFINE_integer(
        "vocab_size",
        30_522,
        "Number of tokens, special tokens included.",
        lower_bound=10,
    )
    flags.DEFINE_integer(
        "sample_megabytes", 200, "Learn from about this much text.", lower_bound=1
    )
    flags.DEFINE_string("output", "", "Folder to write; new or empty.")


def main() -> int:
    """The entrypoint."""
    values = flags.FLAGS
    output = command_line.required("output", "give a folder, --output=DIR")
    text_input.check_new_folder(output)
    lower_case, strip_accents = text_input.normalisation()
    tokenizer = train(
        text_input.source(),
        values.kind,
        values.vocab_size,
        lower_case=lower_case,
        strip_accents=strip_accents,
        sample_bytes=values.sample_megabytes * 1_000_000,
    )
    tokenizer.save(output)
    reporting.say(
        f"{output}: {tokenizer.kind} with {tokenizer.vocab_size} tokens, "
        f"fingerprint {tokenizer.fingerprint}"
    )
    return 0


if __name__ == "__main__":
    command_line.main(main, define_flags)
