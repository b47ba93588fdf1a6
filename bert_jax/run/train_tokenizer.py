r"""Learn a vocabulary from text.

  python -m bert_jax.run.train_tokenizer --input='books/*.txt.gz' \
      --kind=wordpiece --vocab_size=30522 --output=DIR

Without --input, the text is the documentation of installed Python packages. If the text
gives fewer tokens than --vocab_size, the vocabulary is smaller, with a warning.

Kinds: wordpiece (BERT), sentencepiece (ALBERT, XLNet), byte_bpe (GPT-2, RoBERTa).
"""

import signal

from absl import flags

from bert_jax import storage, terminal
from bert_jax.corpus import tokenizer_training
from bert_jax.errors import UserError
from bert_jax.run import command_line, source_flags


def define_flags() -> None:
    source_flags.define_flags()
    flags.DEFINE_enum(
        "kind", "wordpiece", tokenizer_training.TRAINERS, "Kind of tokenizer."
    )
    flags.DEFINE_integer(
        "vocab_size",
        30_522,
        "Largest number of tokens, special tokens included.",
        lower_bound=10,
        upper_bound=tokenizer_training.MAX_VOCAB_SIZE,
    )
    flags.DEFINE_integer(
        "sample_megabytes", 200, "Amount of text to learn from.", lower_bound=1
    )
    flags.DEFINE_string("output", "", "Folder to write; new or empty.")


def main() -> None:
    values = flags.FLAGS
    output = command_line.required_flag("output")
    storage.check_new_folder(output)
    source = source_flags.source()
    lower_case, strip_accents = _normalisation(values.kind)
    # The trainers do not return to Python while they learn. Nothing has to be saved.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    tokenizer = tokenizer_training.learn(
        source,
        values.kind,
        values.vocab_size,
        lower_case=lower_case,
        strip_accents=strip_accents,
        sample_bytes=values.sample_megabytes * 1_000_000,
    )
    tokenizer.save(output)
    terminal.say(
        f"{output}: {tokenizer.model_type} with {tokenizer.vocab_size} tokens, "
        f"fingerprint {tokenizer.fingerprint}"
    )


def _normalisation(kind: str) -> tuple[bool, bool]:
    """Return whether to convert text to lower case, and whether to strip accents."""
    lower_case, strip = flags.FLAGS.lower_case, flags.FLAGS.strip_accents
    if kind == "byte_bpe":
        for name in ("lower_case", "strip_accents"):
            if flags.FLAGS[name].value:
                raise UserError(
                    f"--{name} does not apply to {kind}, which keeps text as it is"
                )
        return False, False
    lower_case = lower_case is not False
    return lower_case, lower_case if strip is None else strip


if __name__ == "__main__":
    command_line.main(main, define_flags)
