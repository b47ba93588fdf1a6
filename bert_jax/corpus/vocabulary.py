"""Learn a vocabulary from the text of a source."""

import random

from bert_jax import terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import sources
from bert_jax.corpus.problems import Problems
from bert_jax.errors import UserError


def learn(
    source: sources.Source,
    kind: str,
    vocab_size: int,
    *,
    lower_case: bool,
    strip_accents: bool,
    sample_bytes: int,
) -> tokenizer_lib.Tokenizer:
    """Learn a vocabulary from a sample of a source, with a progress bar.

    Args:
      source: What to read.
      kind: "wordpiece" or "sentencepiece".
      vocab_size: Number of tokens.
      lower_case: See `Tokenizer`.
      strip_accents: See `Tokenizer`.
      sample_bytes: Amount of text to learn from, taken from splits (files, or parts of
        large ones that are not compressed) in random order.

    Raises:
      UserError: There is no input, or too little.
    """
    texts, size = [], 0
    problems = Problems()
    splits = sources.plan(source)
    random.Random(0).shuffle(splits)
    bar = terminal.progress_bar(desc="reading text", unit="B", unit_scale=True)
    for split in splits:
        for document in sources.read(split, source, problems):
            if size >= sample_bytes:
                break
            # Lines, because SentencePiece leaves out what is longer than a few of them.
            texts += [line for line in document.text.split("\n") if line.strip()]
            size += len(document.text)
            bar.update(len(document.text))
    bar.close()
    terminal.warn(problems.count, problems.lines)
    if not texts:
        raise UserError(f"there is no text in {source.pattern or source.format}")
    trainers = {
        "wordpiece": tokenizer_lib.train_wordpiece,
        "sentencepiece": tokenizer_lib.train_sentencepiece,
    }
    return trainers[kind](
        texts, vocab_size, lower_case=lower_case, strip_accents=strip_accents
    )
