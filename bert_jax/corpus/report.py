"""Progress, warnings and summary of a build, on the terminal."""

import os
from typing import Any

from bert_jax import terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, shards, sources, splits

# Fraction of unknown tokens that causes a warning; far above that of a good vocabulary.
_MANY_UNKNOWN = 0.03


def build_with_progress(
    source: sources.Source,
    settings: build.Settings,
    tokenizer: tokenizer_lib.Tokenizer,
    output: str | os.PathLike,
    **options: Any,
) -> shards.Corpus:
    """Call `build.build`, and show a progress bar, or lines if there is no terminal."""
    hinted: set[str] = set()

    def on_split(done: int, total: int, result: splits.SplitResult) -> None:
        terminal.warn(result.problems.count, result.problems.lines)
        for kind, hint in _hints(result, tokenizer).items():
            if kind not in hinted:  # warn once, at the first split that has it
                hinted.add(kind)
                terminal.warn(1, [hint])
        bar.total = total
        bar.update(done - bar.n)
        if bar.disable and (done == total or done % max(1, total // 20) == 0):
            terminal.say(f"building corpus: {done} of {total} splits")

    with terminal.progress_bar(desc="building corpus", unit="split") as bar:
        return build.build(
            source, settings, tokenizer, output, on_split=on_split, **options
        )


def _hints(
    result: splits.SplitResult, tokenizer: tokenizer_lib.Tokenizer
) -> dict[str, str]:
    """Return warnings about possible mistakes, by kind."""
    hints = {hint: hint for hint in result.problems.hints}
    share = result.train.unknown_tokens / max(1, result.train.tokens)
    if share > _MANY_UNKNOWN:
        hints["unknown"] = (
            f"{share:.1%} of the tokens of {result.train.file} are "
            f"{tokenizer.special_tokens.unk}: the vocabulary does not cover this text; "
            "train one on it with run.train_tokenizer"
        )
    return hints


def describe(corpus: shards.Corpus) -> str:
    """Return a summary of a corpus, in one or two lines."""
    train, held_out = (
        ", ".join(
            terminal.count(corpus.count(split, what), what.removesuffix("s"))
            for what in shards.COUNTS[:3]
        )
        for split in shards.SPLITS
    )
    share = corpus.count(shards.TRAIN, "unknown_tokens") / corpus.count(
        shards.TRAIN, "tokens"
    )
    special = corpus.tokenizer.special_tokens
    unknown = "" if special.unk == special.mask else f" ({share:.2%} {special.unk})"
    text = f"{corpus.folder}: {train}{unknown}; held out: {held_out}"
    if corpus.count(shards.HELD_OUT, "documents") < 2:
        text += (
            "\nwarning: fewer than two documents are held out, too few for an "
            "evaluation; increase --held_out"
        )
    return text
