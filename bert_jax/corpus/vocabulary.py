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
    """Learn a vocabulary from a sample of a source, and show the progress.

    Args:
      source: Source of the text.
      kind: "wordpiece" or "sentencepiece".
      vocab_size: Number of tokens. If the text gives fewer, the vocabulary is smaller,
        and a warning says so.
      lower_case: See `Tokenizer`.
      strip_accents: See `Tokenizer`.
      sample_bytes: Amount of text to learn from. It comes from splits in random order;
        a split consists of files, or of a part of a large uncompressed file.

    Raises:
      UserError: The input does not exist or holds no text, or `vocab_size` is too small
        or too large.
      Unavailable: A store does not answer now.
    """
    texts = _sample(source, sample_bytes)
    if not texts:
        raise UserError(f"there is no text in {source.pattern or source.format}")
    train = {
        "wordpiece": tokenizer_lib.train_wordpiece,
        "sentencepiece": tokenizer_lib.train_sentencepiece,
    }[kind]
    megabytes = sum(map(len, texts)) / 1e6
    terminal.say(f"learning {vocab_size:,} tokens from {megabytes:,.1f} MB of text")
    tokenizer = train(
        texts, vocab_size, lower_case=lower_case, strip_accents=strip_accents
    )
    if tokenizer.vocab_size < vocab_size:
        terminal.say(
            f"warning: the text gives only {tokenizer.vocab_size:,} tokens, fewer than "
            f"vocab_size={vocab_size}; the vocabulary has that many, and more text "
            "gives more"
        )
    return tokenizer


def _sample(source: sources.Source, sample_bytes: int) -> list[str]:
    """Lines from splits in random order, up to an amount of text."""
    lines: list[str] = []
    size = 0
    problems = Problems()
    planned = sources.plan(source)
    random.Random(0).shuffle(planned)
    with terminal.progress_bar(desc="reading text", unit="B", unit_scale=True) as bar:
        for split in planned:
            for document in sources.read(split, source, problems):
                # Lines, because SentencePiece samples its texts if there are many.
                lines += [x for x in document.text.split("\n") if x.strip()]
                size += len(document.text)
                bar.update(len(document.text))
                if size >= sample_bytes:
                    break
            if size >= sample_bytes:
                break
    terminal.warn(problems.count, problems.lines)
    terminal.warn(len(problems.hints), problems.hints)
    return lines
